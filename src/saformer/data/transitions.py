"""Single steps drawn from a relabelled store, gathered where the networks live."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from saformer.core.batch import Dimensions
from saformer.data.relabel import RelabelledStore
from saformer.data.sampling import WindowSampler, concatenate_samplers, offsets_in_pack


@dataclass(frozen=True)
class TransitionBatch:
    """B single steps and where each led. Of an episode's two ends, only one ends its values."""

    state: Tensor  # [B, S]
    action: Tensor  # [B, A]
    reward: Tensor  # [B, 1]
    cost: Tensor  # [B, C] of this step, undiscounted
    next_state: Tensor  # [B, S]
    terminated: Tensor  # [B] bool
    truncated: Tensor  # [B] bool
    timestep: Tensor  # [B] int64, counted from the start of the episode
    initial_state: Tensor
    """[B, S] how other episodes began, each with equal chance: a limit per episode holds there"""


class TransitionSampler:
    """Draws single steps, windows of two, and first states of episodes, each with equal chance."""

    def __init__(self, data: RelabelledStore, *, device: torch.device | str = "cpu") -> None:
        store = data.store
        self._pairs = WindowSampler(data, window=2, device=device)
        self.num_steps, self.num_trajectories = store.num_steps, len(store)
        self.device = self._pairs.device
        self._reward = torch.from_numpy(np.array(store.gather("reward"))).to(device)[:, None]
        self._cost = torch.from_numpy(data.cost).to(device)
        self._final_state, self._terminated, self._truncated = (
            torch.from_numpy(np.array(store.episodes[name])).to(device)
            for name in ("final_state", "terminated", "truncated")
        )

    def sample(self, batch_size: int, generator: torch.Generator) -> TransitionBatch:
        """A batch of transitions, with replacement."""
        return self.transitions(*self.drawn(batch_size, generator))

    def drawn(self, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """The steps [B] of a batch, and the trajectories [B] whose first states go with them."""
        steps, count = self._pairs.starts(batch_size, generator), self.num_trajectories
        begun = torch.randint(count, (batch_size,), generator=generator, device=steps.device)
        return steps, begun

    def transitions(self, steps: Tensor, begun: Tensor) -> TransitionBatch:
        """These steps [B] of all trajectories laid end to end; first states of trajectories [B]."""
        pairs, table = self._pairs.windows(steps), self._pairs.table
        trajectory, is_last = table.trajectory_of(steps), ~pairs.valid[:, 1]
        final_state = self._final_state[trajectory]
        return TransitionBatch(
            state=pairs.state[:, 0],
            action=pairs.action[:, 0],
            reward=self._reward[steps],
            cost=self._cost[steps],
            next_state=torch.where(is_last[:, None], final_state, pairs.state[:, 1]),
            terminated=is_last & self._terminated[trajectory],
            truncated=is_last & self._truncated[trajectory],
            timestep=pairs.timestep[:, 0],
            initial_state=table.state[(table.start + table.shift)[begun]],
        )


class PackedTransitions:
    """The steps of M models in one batch, as a PackedSampler packs windows; all of one size."""

    def __init__(self, samplers: Sequence[TransitionSampler], dimensions: Dimensions) -> None:
        self._samplers = tuple(samplers)
        parts = list(dict.fromkeys(samplers))
        steps = [part.num_steps for part in parts]
        trajectories, device = [part.num_trajectories for part in parts], parts[0].device
        self._first_step = offsets_in_pack(steps, samplers, parts).to(device)
        self._first_trajectory = offsets_in_pack(trajectories, samplers, parts).to(device)
        self._table = _concatenated(parts, dimensions) if device.type != "cpu" else None

    def sample(self, batch_size: int, generators: Sequence[torch.Generator]) -> TransitionBatch:
        """A batch of `batch_size` steps per model."""
        return self.gathered(*self.drawn(batch_size, generators))

    def drawn(
        self, batch_size: int, generators: Sequence[torch.Generator]
    ) -> tuple[Tensor, Tensor]:
        """[M, B] each: as every model draws them alone, counted over its own data."""
        pairs = zip(self._samplers, generators, strict=True)
        drawn = [sampler.drawn(batch_size, generator) for sampler, generator in pairs]
        steps, begun = zip(*drawn, strict=True)
        return torch.stack(steps), torch.stack(begun)

    def gathered(self, steps: Tensor, begun: Tensor) -> TransitionBatch:
        """These steps and first states, [M, B] each."""
        if self._table is not None:
            firsts = (steps + self._first_step).flatten()
            return self._table.transitions(firsts, (begun + self._first_trajectory).flatten())
        each = zip(self._samplers, steps, begun, strict=True)
        parts = [vars(sampler.transitions(*indices)) for sampler, *indices in each]
        columns = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        return TransitionBatch(**columns)


def _concatenated(parts: Sequence[TransitionSampler], dimensions: Dimensions) -> TransitionSampler:
    """One sampler over all steps of all parts, on a GPU."""
    whole = copy.copy(parts[0])
    whole._pairs = concatenate_samplers([part._pairs for part in parts], dimensions)
    for name in ("_reward", "_cost", "_final_state", "_terminated", "_truncated"):
        setattr(whole, name, torch.cat([getattr(part, name) for part in parts]))
    whole.num_steps = sum(part.num_steps for part in parts)
    whole.num_trajectories = sum(part.num_trajectories for part in parts)
    return whole
