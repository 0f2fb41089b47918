"""A world learnt from logs: episodes that a policy would have there, as far as the logs tell."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from saformer.core.policy import Policy
from saformer.criteria import Step
from saformer.criteria.step import PARTS
from saformer.data.relabel import RelabelledStore
from saformer.envs.block import lane_dtype
from saformer.envs.episodes import Episode, Hooks, drive
from saformer.evaluation.offline.dynamics import MEMBERS, Dynamics
from saformer.evaluation.offline.support import LoggedSteps


class World:
    """Episodes begin as logged ones did; each follows one member of the dynamics throughout."""

    def __init__(self, dynamics: Dynamics, data: RelabelledStore) -> None:
        self.dynamics, self.data = dynamics, data
        states = np.asarray(data.store.gather("state"))
        self._first_states = states[data.store.starts]
        self.logged_range = states.min(0), states.max(0)

    @cached_property
    def logged(self) -> LoggedSteps:
        """What it was learnt from, to say how far a policy leaves it."""
        return LoggedSteps(self.data)

    def roll_out(
        self,
        policy: Policy,
        limits: Sequence[NDArray[np.float64]],
        seeds: Sequence[int],
        *,
        horizon: int,
        hooks: Hooks | None = None,
        **_: Any,
    ) -> list[Episode]:
        """One episode per (limit, seed), all at once. The seed decides the first state, the member
        and the noise."""
        lanes = _Lanes(self, seeds)
        return drive(policy, lanes, limits, seeds, horizon=horizon, hooks=hooks)

    def first_state(self, rng: np.random.Generator) -> NDArray[Any]:
        return np.asarray(self._first_states[rng.integers(len(self._first_states))])


class _Lanes:
    """Lanes of a world. What a step costs is told by the criteria where they read parts of a step,
    and by the dynamics where they read what was logged beside."""

    def __init__(self, world: World, seeds: Sequence[int]) -> None:
        self._dynamics, self._criteria = world.dynamics, world.data.criteria
        self._logged_range = world.logged_range
        self._rngs = [np.random.default_rng(seed) for seed in seeds]
        self._luck = [np.random.default_rng((seed, 1)) for seed in seeds]
        self._member = torch.tensor([seed % MEMBERS for seed in seeds])
        self._time = 0
        columns = world.data.store.steps
        widths = columns["state"].shape[1], columns["action"].shape[1], len(self._criteria)
        self.lanes = np.zeros(len(seeds), lane_dtype(*widths))
        self.lanes["state"] = [world.first_state(rng) for rng in self._rngs]

    def start_step(self) -> None:
        alive = np.flatnonzero(self.lanes["active"])
        state, action = self.lanes["state"][alive], self.lanes["action"][alive]
        before, done = torch.from_numpy(state), torch.from_numpy(action)
        timestep = torch.full((len(alive),), self._time)
        own = self._member[alive], torch.arange(len(alive))
        drawn = [self._rngs[index] for index in alive]
        noise = np.stack([rng.standard_normal(state.shape[1], dtype=np.float32) for rng in drawn])
        change = self._dynamics.move(before, done, timestep).at(torch.from_numpy(noise))[own]
        after = self._dynamics.within(before + change)
        luck = torch.tensor([self._luck[index].random() for index in alive])
        outcome = self._dynamics.outcome(before, done, timestep, after, luck)
        reward, cost = outcome.reward[own].numpy(), outcome.cost[own].double().numpy()
        next_state = after.numpy()
        # beyond what was logged, a criterion may say nothing, or a cost below 0
        costed = [each.clip(*self._logged_range) for each in (state, next_state)]
        step = Step(action, costed[0], costed[1], reward)
        for index, criterion in enumerate(self._criteria):
            if criterion.reads <= set(PARTS):
                cost[:, index] = criterion(step)
        chance = np.array([rng.random() for rng in drawn])
        self.lanes["state"][alive], self.lanes["reward"][alive] = next_state, reward
        self.lanes["cost"][alive] = cost
        self.lanes["terminated"][alive] = chance < outcome.ends[own].numpy()
        self._time += 1

    def finish_step(self) -> None:
        """It is taken already."""
