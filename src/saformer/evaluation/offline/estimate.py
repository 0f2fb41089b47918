"""What a policy would cost and earn under limits, estimated from logs alone.

The policy is rolled out in a world learnt from the logs. The machine may differ from that world as
much as worlds learnt from different trajectories differ from each other, and by more where the
policy leaves the logs: `trust` says which it is, by thresholds chosen on tasks with simulators.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from saformer.core.policy import Policy
from saformer.data.limits import FrontierCurve, Limit
from saformer.data.shown import Shown, frame_of
from saformer.data.statistics import without_nan
from saformer.envs.episodes import Episode
from saformer.evaluation.evaluate import Evaluation, Terms, evaluate_policy
from saformer.evaluation.offline.dynamics import MEMBERS
from saformer.evaluation.offline.reader import Doubles, Indices
from saformer.evaluation.offline.support import Nearest
from saformer.evaluation.offline.world import World
from saformer.evaluation.verdict import EpisodeRow, Verdict

Trust = Literal["supported", "extrapolates", "do not trust"]
Interval = tuple[float, float]
MOST_DOUBT = 0.9
"""Up to this share of far steps plus twice the spread, an estimate is supported; up to twice as
much, it extrapolates. Far steps alone do not show an error, nor does agreement alone exclude it:
far from the logs, worlds may agree on what is wrong."""
WIDTH, LEAST_WIDTH = 1.64, 0.1
"""Half of a nominal 90% interval, in deviations, and its least share of the estimate."""
LEAST_COST = 0.05
"""Spreads and errors are shares of the mean cost, or of this share of the data's if that is more:
where next to nothing is paid, twice as much is next to nothing too."""
NUM_ALIKE = 5


@dataclass(frozen=True)
class LimitEstimate:
    """What episodes under one limit would cost and earn."""

    verdict: Verdict  # of the episodes in the learnt world
    cost_interval: tuple[Interval, ...]  # nominal 90%, of the mean cost, for each constraint
    return_interval: Interval
    far: float  # share of steps that lie further from logged ones than those usually do
    spread: float  # how much worlds of different trajectories differ in cost, as `cost_scale` says
    trust: Trust
    alike: tuple[int, ...]  # the logged trajectories that most steps are nearest to


@dataclass(frozen=True, repr=False)
class Estimate(Shown):
    """A policy judged from logs alone, under each limit."""

    criteria: tuple[str, ...]
    num_trajectories: int
    num_steps: int
    episodes: int  # in the learnt world, under each limit
    limits: tuple[LimitEstimate, ...]
    frontier: dict[str, Any]  # what the logs show to be possible, to draw
    steps: dict[str, Any]  # logged and visited ones, to draw
    alike: dict[str, Any]  # logged trajectories that are named: their costs and returns

    @property
    def safe_share(self) -> float:
        """Mean of what limits that are met earn, as a share of what the logs show to be possible;
        limits under which that is not supported count as missed."""
        usable = [each.verdict.safe_share * (each.trust == "supported") for each in self.limits]
        return float(np.nanmean(usable)) if not np.isnan(usable).all() else float("nan")

    def to_frame(self) -> Any:
        """A row for each limit, as a pandas (or else polars) frame."""
        return frame_of([{**each.verdict.plain(), **_plain(each)} for each in self.limits])

    def plain(self) -> dict[str, Any]:
        """For JSON: what is not a number is null."""
        limits = [{**_plain(each), "verdict": each.verdict.plain()} for each in self.limits]
        return dict(without_nan({**vars(self), "limits": limits, "safe_share": self.safe_share}))


def _plain(estimate: LimitEstimate) -> dict[str, Any]:
    return {name: value for name, value in asdict(estimate).items() if name != "verdict"}


def estimate_policy(
    policy: Policy,
    world: World,
    limits: Sequence[Limit],
    *,
    episodes: int = 20,
    seed: int = 0,
    terms: Terms | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Estimate:
    """Roll the policy out in the world under each limit, and say how far it leaves the logs."""
    data, played = world.data, list[Episode]()

    def roll_out(*lanes: Any, **how: Any) -> list[Episode]:
        played.extend(world.roll_out(*lanes, **how))
        return played

    how: Any = {"episodes": episodes, "seed": seed, "terms": terms, "progress": progress}
    evaluation: Evaluation = evaluate_policy(policy, data, limits, roll_out=roll_out, **how)
    logged, found, visited = world.logged, list[LimitEstimate](), dict[str, Nearest]()
    for index, verdict in enumerate(evaluation.verdicts):
        own = slice(index * episodes, (index + 1) * episodes)
        nearest = logged.of_episodes([each.trajectory for each in played[own]])
        found.append(_limit_estimate(verdict, evaluation.rows[own], nearest, world))
        visited[verdict.limit.name] = nearest
    named = sorted({index for each in found for index in each.alike})
    return Estimate(
        criteria=tuple(criterion.name for criterion in data.criteria),
        num_trajectories=len(data.store),
        num_steps=data.store.num_steps,
        episodes=episodes,
        limits=tuple(found),
        frontier=asdict(FrontierCurve.of(data)),
        steps=logged.drawn(visited),
        alike={
            str(i): {"cost": data.episode_cost[i].tolist(), "return": float(data.episode_return[i])}
            for i in named
        },
    )


def _limit_estimate(
    verdict: Verdict, rows: Sequence[EpisodeRow], nearest: Nearest, world: World
) -> LimitEstimate:
    member = np.array([row.seed % MEMBERS for row in rows])
    costs = np.array([row.cost for row in rows])
    far = float((nearest.distance > world.logged.far).mean())
    usual = world.data.episode_cost.mean(0)
    pairs = list(zip(costs.T, usual.tolist(), strict=True))
    spread = max(_between(cost, member) / cost_scale(cost.mean(), mean) for cost, mean in pairs)
    returns = np.array([row.episode_return for row in rows])
    votes = np.bincount(nearest.trajectory)
    alike = np.argsort(-votes, kind="stable")[: min(NUM_ALIKE, int((votes > 0).sum()))]
    return LimitEstimate(
        verdict=verdict,
        cost_interval=tuple(
            _interval(cost, member, cost_scale(cost.mean(), mean)) for cost, mean in pairs
        ),
        return_interval=_interval(returns, member, abs(returns.mean())),
        far=far,
        spread=spread,
        trust=trust_of(far, spread),
        alike=tuple(alike.tolist()),
    )


def trust_of(far: float, spread: float) -> Trust:
    """In words; see `MOST_DOUBT`."""
    doubt = (far + 2 * spread) / MOST_DOUBT
    return "supported" if doubt <= 1 else "extrapolates" if doubt <= 2 else "do not trust"


def cost_scale(cost: float, data_mean: float) -> float:
    """What a difference in mean cost is a share of; see `LEAST_COST`."""
    return max(cost, LEAST_COST * data_mean, 1e-9)


def _between(values: Doubles, member: Indices) -> float:
    """The deviation of the members' means."""
    means = [values[member == each].mean() for each in np.unique(member)]
    return float(np.std(means, ddof=1)) if len(means) > 1 else 0.0


def _interval(values: Doubles, member: Indices, scale: float) -> Interval:
    """Of the mean: the machine may be as far from the members' mean as they are from each other,
    and few episodes may be lucky; never less than a share of `scale`."""
    sampling = values.std(ddof=1) ** 2 / len(values) if len(values) > 1 else 0.0
    mean = float(values.mean())
    reach = WIDTH * float(np.sqrt(_between(values, member) ** 2 + sampling))
    reach = max(reach, LEAST_WIDTH * scale)
    return mean - reach, mean + reach
