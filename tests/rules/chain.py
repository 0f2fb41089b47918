"""Data whose least costs are known, and what the rule makes of candidates in it."""

from collections.abc import Sequence

import numpy as np
import torch

from saformer.agents.saformer import SaFormerAgent
from saformer.core.budget import Budget
from saformer.core.history import History
from saformer.core.policy import Candidates, Decision
from saformer.criteria import above, criterion, torque
from saformer.data.relabel import RelabelledStore, relabel
from saformer.data.store import EnvironmentSpec, TrajectoryStore
from saformer.data.trajectory import Trajectory
from saformer.rules.feasible import FeasibleOptions
from tests.conftest import tiny_config

HORIZON = 10
STAY, RIGHT, LEFT, FALL = 0.5, 1.0, -1.0, -0.5
SURE, GAMBLE, OFF = 0.5, -0.5, -0.8
MIDDLE, RIGHT_TRAP, LEFT_TRAP = 0.0, 1.0, -1.0
TRAPS = (above("state[0]", 0.0), above("-state[0]", 0.0))
"""What a step in the right trap costs, and in the left."""


def chain(*, constraints: int = 1, cost_discount: float = 1.0) -> RelabelledStore:
    """From the middle one may stay, or step into either of two traps for good. In them a step costs
    and earns 1, and a fall ends the episode. Most step to the right sooner or later."""
    rng = np.random.default_rng(0)
    store = TrajectoryStore.of([_walk(rng) for _ in range(300)], _environment())
    return relabel(store, TRAPS[:constraints], cost_discount=cost_discount)


def allowances() -> RelabelledStore:
    """An action costs and earns its strength; each episode has one, and every fifth has none."""
    rng = np.random.default_rng(0)
    levels = [0.0 if index % 5 == 0 else rng.uniform(0.1, 1.0) for index in range(200)]
    episodes = [_episode([MIDDLE] * HORIZON, [level] * HORIZON, level) for level in levels]
    return relabel(TrajectoryStore.of(episodes, _environment()), [torque])


def gambles() -> RelabelledStore:
    """Each step costs 1 on average: for sure or, after a gamble, 4 by a chance of a quarter."""
    rng = np.random.default_rng(0)
    episodes = []
    for _ in range(300):
        actions = rng.choice([SURE, GAMBLE], HORIZON)
        costs = np.where(actions == GAMBLE, 4.0 * (rng.random(HORIZON) < 0.25), 1.0)
        episodes.append(_episode([MIDDLE] * HORIZON, actions, 0.0, columns={"cost": costs}))
    return relabel(TrajectoryStore.of(episodes, _environment()), [criterion("cost")])


def dice() -> RelabelledStore:
    """Each step costs 4 by a chance of a quarter, whatever is done."""
    rng, episodes = np.random.default_rng(0), []
    for _ in range(300):
        actions, costs = rng.uniform(-1, 1, HORIZON), 4.0 * (rng.random(HORIZON) < 0.25)
        episodes.append(_episode([MIDDLE] * HORIZON, actions, 0.0, columns={"cost": costs}))
    return relabel(TrajectoryStore.of(episodes, _environment()), [criterion("cost")])


def trembling() -> RelabelledStore:
    """All actions are slight and answer to the state, as what balances does."""
    rng, episodes = np.random.default_rng(0), []
    for _ in range(100):
        states = rng.normal(0, 1, HORIZON)
        actions = rng.normal(-0.01 * states, 0.01)
        episodes.append(_episode(list(states), actions, 0.0))
    return relabel(TrajectoryStore.of(episodes, _environment()), [torque])


def switched(*, standby: float = 0.0, spell: int = 5) -> RelabelledStore:
    """A machine is off by any first entry of -0.8, whatever the second, and costs nothing then, or
    `standby` in every tenth step; on, it costs 1. It is switched after each `spell`."""
    rng, episodes = np.random.default_rng(0), []
    for _ in range(100):
        is_on = np.repeat(rng.random(20 // spell) < 0.5, spell) if spell > 1 else np.arange(20) % 2
        first = np.where(is_on, rng.uniform(0.2, 1.0, 20), OFF)
        actions = np.stack([first, rng.uniform(-1, 1, 20)], axis=1)
        cost = is_on + standby * (np.arange(20) % 10 == 0)
        state, nothing = np.zeros((20, 1)), np.zeros(20)
        how = {"final_state": [0.0], "terminated": False, "truncated": True}
        episodes.append(Trajectory.of(state, actions, nothing, columns={"cost": cost}, **how))
    environment = EnvironmentSpec((-1.0, -1.0), (1.0, 1.0), horizon=20)
    return relabel(TrajectoryStore.of(episodes, environment), [criterion("cost")])


def _environment() -> EnvironmentSpec:
    return EnvironmentSpec(action_low=(-1.0,), action_high=(1.0,), horizon=HORIZON)


def _walk(rng: np.random.Generator) -> Trajectory:
    states, actions, falls = [MIDDLE], [], False
    while len(actions) < HORIZON and not falls:
        is_free = states[-1] == MIDDLE
        choices, chances = (
            ((STAY, RIGHT, LEFT), (0.5, 0.4, 0.1)) if is_free else ((STAY, FALL), (0.9, 0.1))
        )
        action = rng.choice(choices, p=chances)
        falls = action == FALL
        actions.append(action)
        steps_into = {RIGHT: RIGHT_TRAP, LEFT: LEFT_TRAP}
        states.append(steps_into.get(action, states[-1]))
    return _episode(states[:-1], actions, np.abs(states[:-1]), terminated=falls)


def _episode(states, actions, reward, *, terminated=False, columns=None) -> Trajectory:
    rewards = np.broadcast_to(reward, len(actions))
    steps = (np.array(states)[:, None], np.array(actions)[:, None], rewards, [states[-1]])
    ending = {"terminated": terminated, "truncated": not terminated}
    return Trajectory.of(*steps, columns=columns, **ending)


def finished(data: RelabelledStore) -> SaFormerAgent:
    """An agent that has learnt nothing but an outlook."""
    config = tiny_config(cost_discount=data.cost_discount)
    agent = SaFormerAgent.create(data, config, seed=0)
    agent.finish(data)
    return agent


def decide(
    agent: SaFormerAgent,
    actions: Sequence[float],
    *,
    state: float,
    timestep: int,
    remaining: Sequence[float],
    log_density: Sequence[float] | None = None,
    **options: object,
) -> Decision:
    """One of these candidates, by default equally likely; the first is the expected one."""
    rule, model = agent.policy(FeasibleOptions(holdback=0.0, **options)).rule, agent.model
    budget = Budget(torch.tensor([remaining]), agent.config.cost_discount)
    budget.num_steps.fill_(timestep)
    history = History(1, 3, model.dimensions, torch.device("cpu"))
    prompt = history.prompt(torch.tensor([[state]]), budget.rows(torch.arange(1)), torch.arange(1))
    candidates = Candidates(
        torch.zeros(1, len(actions)),
        torch.tensor(actions)[None, :, None],
        torch.tensor([log_density or [0.0] * len(actions)]),
    )
    with torch.inference_mode():
        return rule.select(model, model.prefill(rule.prompt(prompt)), candidates)
