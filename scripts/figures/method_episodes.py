"""What `scripts.figures.method` draws: episodes of one run under one limit, in several ways, and
their budgets."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy, deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import saformer
from saformer.agents.saformer import SaFormerAgent
from saformer.core.batch import WindowBatch
from saformer.core.history import Prompt
from saformer.core.policy import Decision
from saformer.core.rules import ProposalOptions
from saformer.data.limits import Totals, parse_limit
from saformer.envs.lanes import Maker
from saformer.envs.rollout import Episode, Hooks, rollout
from saformer.evaluation.evaluate import FIRST_SEED
from saformer.rules.reserve import EMPHASIS, Reserve, ReserveOptions, num_narrow

PAPER, NARROW, RESERVE = "the paper's rule", "by reserve, usual proposals alone", "by reserve"
TOLD_THE_LIMIT = "by reserve, told the limit"
WAYS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    PAPER: ("paper", {}),
    NARROW: ("reserve", {"spread": 1.0}),
    RESERVE: ("reserve", {}),
}


@dataclass(frozen=True)
class Proposals:
    """What there was to choose from in one step."""

    step: int
    forecast: NDArray[np.float64]
    """[N] what the episode costs from here on after each, by the critic"""
    step_cost: NDArray[np.float64]
    """[N] what each costs itself, as the reserve has learnt it"""
    chosen: int

    @property
    def had_wide(self) -> bool:
        """Whether all were to be had: of all of them, the chosen one has the smallest price."""
        return self.chosen == int((self.forecast + EMPHASIS * self.step_cost).argmin())


@dataclass(frozen=True)
class Account:
    """One episode and its budget."""

    left: NDArray[np.float64]
    """[T + 1] of the limit, before each step and at the end"""
    forecast: NDArray[np.float64]
    """[T] for the mean proposal"""
    held: NDArray[np.bool_]
    """[T] by the paper's rule: no proposal was accepted; by reserve: the limit was at stake"""
    told: NDArray[np.float64]
    """[T] the limit that the actor read"""
    earned: NDArray[np.float64]
    """[T + 1] before each step and at the end"""
    num_wide: int
    """held steps that executed a proposal of the second half, which by reserve is spread widely"""
    proposals: Proposals | None
    """of a held step: where episodes can end, the first of those, else the middle one of the
    others; or None"""

    @property
    def cost(self) -> float:
        """Of the whole episode."""
        return float(self.left[0] - self.left[-1])

    @property
    def is_within(self) -> bool:
        """Whether the limit was kept."""
        return bool(self.left[-1] >= 0)

    @property
    def idles(self) -> NDArray[np.bool_]:
        """[T] whether the actor was told the cheapest limit, to see the episode out."""
        return self.told < self.left[0]


@dataclass(frozen=True)
class Scene:
    """Episodes of one run under one limit."""

    task: str
    limit: float
    limit_name: str
    margin: float
    """what verification by reserve keeps back, in units of cost"""
    stop_cost: float
    needed: NDArray[np.float64]
    """[H + 1] what it costs to see an episode out, from each step on"""
    accounts: Mapping[str, list[Account]]
    """by way; all ways begin in the same states"""

    @property
    def can_stop(self) -> bool:
        """Whether episodes of the data ended before their time."""
        return bool(np.isfinite(self.stop_cost))

    @property
    def kept(self) -> NDArray[np.float64]:
        """[H + 1] no limit is at stake before no more than this remains."""
        return self.needed + self.margin

    @property
    def tells(self) -> bool:
        """Whether the actor is ever told another limit than its own."""
        return any((account.told != self.limit).any() for account in self.accounts[RESERVE])

    @property
    def shown(self) -> int:
        """The episode whose cost by the paper's rule is the median; of two, the cheaper."""
        costs = [account.cost for account in self.accounts[PAPER]]
        return int(np.argsort(costs, kind="stable")[(len(costs) - 1) // 2])


@dataclass(frozen=True)
class Watch:
    """Keeps every decision of a rollout, lane by lane: forecasts [N], actions [N, A] and which was
    chosen."""

    kept: dict[int, list[tuple[Tensor, Tensor, int]]] = field(default_factory=dict)

    def __call__(self, lanes: Tensor, decision: Decision) -> None:
        """See a decision go by."""
        assert decision.verification is not None
        assert decision.candidates is not None
        assert decision.chosen is not None
        for row, lane in enumerate(lanes.tolist()):
            made = (
                decision.verification.cost[row, :, 0],
                decision.candidates.action[row],
                int(decision.chosen[row]),
            )
            self.kept.setdefault(lane, []).append(made)


def watch(path: str, *, limit: str, episodes: int, device: str = "auto") -> Scene:
    """Roll a run out in every way that makes a difference to it."""
    trained = saformer.load(path, device=device)
    run, agent = trained.run, trained.agent
    if not isinstance(agent, SaFormerAgent) or agent.dimensions.constraints != 1:
        given = f"{agent.name} with {agent.dimensions.constraints} constraints"
        raise ValueError(
            f"{path} is {given}; these figures are of one constraint: give a run of saformer "
            "that has one"
        )
    options = trained.options(*WAYS[RESERVE])
    if agent.reserve is None:
        raise ValueError(f"{path} has no reserve: train it to its end")
    data, stop_cost = trained.totals, float(agent.reserve.get_buffer("stop_cost")[0])
    parsed = parse_limit(limit, data)
    ways = [way for way in WAYS if way != NARROW or np.isfinite(stop_cost)]  # else few are wide
    scene = Scene(
        task=run.spec.task_name,
        limit=parsed.values[0],
        limit_name=parsed.name,
        margin=options.holdback * parsed.values[0],
        stop_cost=stop_cost,
        needed=_needed(agent.reserve),
        accounts={
            way: roll_out(
                agent, trained.options(*WAYS[way]), data, parsed.values[0], episodes=episodes
            )
            for way in ways
        },
    )
    if not scene.tells:
        return scene
    accounts = roll_out(_told_the_limit(agent), options, data, scene.limit, episodes=episodes)
    return replace(scene, accounts={**scene.accounts, TOLD_THE_LIMIT: accounts})


def _needed(reserve: Reserve) -> NDArray[np.float64]:
    """[H + 1] from each step on, and at the horizon."""
    steps = torch.arange(reserve.horizon + 1, device=reserve.get_buffer("stop_cost").device)
    return reserve.needed(steps)[:, 0].double().cpu().numpy()


def _told_the_limit(agent: SaFormerAgent) -> SaFormerAgent:
    """The same agent, with a reserve to which no other limit is worth telling."""
    same = copy(agent)
    same.model = deepcopy(agent.model)
    assert same.reserve is not None
    same.reserve.get_buffer("gain").zero_()
    return same


def roll_out(
    agent: SaFormerAgent, options: ProposalOptions, data: Totals, limit: float, *, episodes: int
) -> list[Account]:
    """So many episodes in one way, from the initial states that `saformer evaluate --seed 0` begins
    with."""
    seen, maker = Watch(), Maker(data.environment, tuple(data.criteria))
    seeds, limits = (
        [FIRST_SEED + number for number in range(episodes)],
        [np.array([limit])] * episodes,
    )
    horizon = data.environment.horizon
    played = rollout(
        agent.policy(options), maker, limits, seeds, horizon=horizon, hooks=Hooks(watch=seen)
    )
    return [
        _account(agent, episode, seen.kept[lane], options) for lane, episode in enumerate(played)
    ]


def _account(
    agent: SaFormerAgent,
    episode: Episode,
    made: list[tuple[Tensor, Tensor, int]],
    options: ProposalOptions,
) -> Account:
    assert agent.reserve is not None
    can_stop = bool(agent.reserve.get_buffer("stop_cost").isfinite())
    discount = agent.config.cost_discount ** np.arange(len(episode.cost))
    left = episode.limit[0] - np.cumsum([0.0, *(discount * episode.cost[:, 0])])
    chosen, held = np.array([number for _, _, number in made]), np.flatnonzero(episode.fell_back)
    wide = held[chosen[held] >= num_narrow(len(made[0][0]))]
    usual = np.setdiff1d(held, wide)
    telling = wide[:1] if len(wide) and can_stop else usual[len(usual) // 2 :][:1]
    return Account(
        left=left,
        forecast=np.array([float(forecast[0]) for forecast, _, _ in made]),
        held=episode.fell_back,
        told=_told(agent.reserve, left, options),
        earned=np.cumsum([0.0, *episode.trajectory.reward], dtype=np.float64),
        num_wide=len(wide),
        proposals=_proposals(agent, episode, made, int(telling[0])) if len(telling) else None,
    )


def _told(
    reserve: Reserve, left: NDArray[np.float64], options: ProposalOptions
) -> NDArray[np.float64]:
    """[T] which limit was read, by what was left [T + 1]: the reserve is asked again, without past
    or state."""
    if not isinstance(options, ReserveOptions):
        return np.full(len(left) - 1, left[0])
    remaining = torch.from_numpy(left[:-1, None]).to(reserve.get_buffer("levels"))  # [T, 1]
    limit, nothing = (
        remaining[:1].expand_as(remaining),
        remaining[:, None, :][:, :0],
    )  # [T, 1], [T, 0, 1]
    unseen = dict.fromkeys(("cost_to_go", "return_to_go", "state", "action"), nothing)
    past = WindowBatch(
        limit=limit, timestep=nothing[..., 0].long(), valid=nothing[..., 0].bool(), **unseen
    )
    prompt = Prompt(past, remaining, remaining, torch.arange(len(limit), device=limit.device))
    more = reserve.prompt(prompt, remaining - options.holdback * limit).past.limit - limit
    return left[0] + more[:, 0].double().cpu().numpy()


def _proposals(
    agent: SaFormerAgent, episode: Episode, made: list[tuple[Tensor, Tensor, int]], step: int
) -> Proposals:
    assert agent.reserve is not None
    normalize = agent.model.normalizer.normalize
    forecast, action, chosen = made[step]
    state = (
        torch.from_numpy(episode.trajectory.state[step]).to(action).expand(len(action), -1)
    )  # [N, S]
    cost = agent.reserve.step_cost(normalize("state", state), normalize("action", action))[:, 0]
    return Proposals(step, forecast.double().cpu().numpy(), cost.double().cpu().numpy(), chosen)
