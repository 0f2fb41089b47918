"""Windows of data that grows while it is learnt from."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from saformer.core.batch import WindowBatch
from saformer.data.relabel import RelabelledStore
from saformer.data.sampling import WindowSampler, WindowTable, dimensions_of

BEHIND_ALL = torch.iinfo(torch.int64).max
"""Start of a trajectory that has not been appended yet: behind every window."""
PROMISED = 4
"""Of so many new windows, one shows the limit that its trajectory was under, not its own cost."""


@dataclass(frozen=True)
class Room:
    """How much may be appended."""

    trajectories: int
    steps: int


class GrowingSampler:
    """Windows of old data and, as a stated share of every batch, of trajectories appended since.

    New trajectories are few: drawn like the others, they would drown. Their tensors are allocated
    at once and filled in place, and their count is known on the device, so that an update which a
    GPU has recorded stays valid. Half of the new windows are of favoured trajectories: all, unless
    some are named. Where a trajectory cost less than was promised, some of its windows show it
    under that promise: the limit and what is left of it are higher by what was not spent.
    """

    def __init__(
        self,
        data: RelabelledStore,
        *,
        window: int,
        room: Room,
        share: float,
        device: torch.device | str = "cpu",
    ) -> None:
        if not 0 <= share <= 1:
            raise ValueError(f"the share of new windows must lie in [0, 1], got {share}")
        self._old = WindowSampler(data, window=window, device=device)
        self._share, self._room, self.device = share, room, self._old.device
        self.num_trajectories, self._num_new_steps = 0, 0
        # the count of new steps, for recorded updates
        self._counted = torch.zeros((), dtype=torch.float64, device=self.device)
        self._new = _empty(data, room, self.device)
        self._unspent = torch.zeros_like(self._new.limit)
        self._favoured = torch.zeros(room.trajectories, dtype=torch.int64, device=self.device)

    @property
    def num_steps(self) -> int:
        """Of old and new trajectories together."""
        return self._old.num_steps + self._num_new_steps

    def append(self, data: RelabelledStore, *, unspent: ArrayLike = 0.0) -> None:
        """Draw from these trajectories too; `unspent` [C] is what was promised less their cost."""
        store, table, room, device = data.store, self._new, self._room, self.device
        trajectories = slice(self.num_trajectories, self.num_trajectories + len(store))
        steps = slice(self._num_new_steps, self._num_new_steps + store.num_steps)
        if trajectories.stop > room.trajectories or steps.stop > room.steps:
            raise ValueError(
                f"there was room for {room.trajectories} new trajectories and {room.steps} steps, "
                f"{trajectories.stop} and {steps.stop} are needed"
            )
        fresh = WindowSampler(data, window=1).table  # on the CPU, from where it is copied
        shift = torch.from_numpy(np.repeat(fresh.shift.numpy(), store.lengths))
        stored = shift + torch.arange(store.num_steps)
        table.state[steps] = fresh.state[stored].to(device)
        table.action[steps] = fresh.action[stored].clamp(fresh.low, fresh.high).to(device)
        table.cost_to_go[steps] = fresh.cost_to_go.to(device)
        table.return_to_go[steps] = fresh.return_to_go.to(device)
        table.limit[trajectories] = fresh.limit.to(device)
        table.start[trajectories] = (fresh.start + steps.start).to(device)
        table.last[trajectories] = (fresh.last + steps.start).to(device)
        self._unspent[trajectories] = torch.as_tensor(unspent, dtype=torch.float32, device=device)
        self.num_trajectories, self._num_new_steps = trajectories.stop, steps.stop
        self._counted.fill_(self._num_new_steps)
        self.favour(range(self.num_trajectories))

    def favour(self, indices: Sequence[int]) -> None:
        """Draw half of the new windows from these trajectories, counted as they were appended."""
        repeated = torch.arange(len(self._favoured)) % len(indices)
        self._favoured.copy_(torch.tensor(list(indices))[repeated])

    def sample(self, batch_size: int, generator: torch.Generator) -> WindowBatch:
        """A batch of windows, with replacement: the old ones first."""
        num_new = round(self._share * batch_size)
        old = self._old.sample(batch_size, generator)
        if not num_new:
            return old
        new = self._new_windows(self._new_starts(num_new, generator))
        is_new = torch.arange(batch_size, device=self.device) >= batch_size - num_new
        is_new = is_new & (self._counted > 0)

        def mixed(ours: Tensor, theirs: Tensor) -> Tensor:
            padded = torch.cat([ours[: batch_size - num_new], theirs])
            return torch.where(is_new.reshape(-1, *(1,) * (ours.ndim - 1)), padded, ours)

        parts = vars(old).items()
        return WindowBatch(**{name: mixed(part, getattr(new, name)) for name, part in parts})

    def _new_windows(self, starts: Tensor) -> WindowBatch:
        windows = self._new.windows(starts, self._old.offsets)
        is_promised = torch.arange(1, len(starts) + 1, device=self.device) % PROMISED == 0
        unspent = self._unspent[self._new.trajectory_of(starts)]
        unspent = torch.where(is_promised[:, None], unspent, 0.0)
        limit, cost_to_go = windows.limit + unspent, windows.cost_to_go + unspent[:, None]
        return replace(windows, limit=limit, cost_to_go=cost_to_go)

    def _new_starts(self, count: int, generator: torch.Generator) -> Tensor:
        """The first half anywhere, the others anywhere in favoured trajectories."""
        options: Any = {"dtype": torch.float64, "device": self.device}
        drawn, which = torch.rand(2, count, generator=generator, **options)
        chosen = self._favoured[(which * len(self._favoured)).long()]
        first = self._new.start[chosen]
        length = self._new.last[chosen] - first + 1
        favoured, anywhere = first + (drawn * length).long(), (drawn * self._counted).long()
        is_anywhere = torch.arange(count, device=self.device) < (count + 1) // 2
        return torch.where(is_anywhere, anywhere, favoured)


def _empty(data: RelabelledStore, room: Room, device: torch.device) -> WindowTable:
    sizes, bound = dimensions_of(data), torch.tensor(torch.inf, device=device)

    def rows(width: int) -> Tensor:
        return torch.zeros(room.steps, width, device=device)

    zeros = torch.zeros(room.trajectories, dtype=torch.int64, device=device)
    start = torch.full_like(zeros, BEHIND_ALL)
    start[:1] = 0  # a window that is drawn while there is nothing begins here
    return WindowTable(
        cost_to_go=rows(sizes.constraints),
        return_to_go=rows(1),
        state=rows(sizes.state),
        action=rows(sizes.action),
        low=-bound,  # actions are clamped as they are appended
        high=bound,
        limit=torch.zeros(room.trajectories, sizes.constraints, device=device),
        start=start,
        last=zeros.clone(),
        shift=zeros,
    )
