"""Windows drawn from a relabelled store, gathered where the networks live."""

from __future__ import annotations

import copy
import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from saformer.core.batch import Dimensions, WindowBatch
from saformer.data.relabel import RelabelledStore, once_for_each

BLOCK_ROWS = 200_000


def dimensions_of(data: RelabelledStore) -> Dimensions:
    """The sizes that this data imposes on the networks."""
    return Dimensions(
        state=data.store.steps["state"].shape[1],
        action=data.store.steps["action"].shape[1],
        constraints=data.cost.shape[1],
        horizon=max(data.store.environment.horizon, int(data.store.lengths.max())),
    )


@once_for_each
def statistics_of(data: RelabelledStore) -> dict[str, tuple[Tensor, Tensor]]:
    """Centre and scale of every kind of token, for the normaliser."""
    store = data.store

    def states() -> Iterator[Tensor]:
        return (_shared(store.gather("state", first, stop)) for first, stop in store.blocks())

    low, high = (
        torch.tensor(bound)
        for bound in (store.environment.action_low, store.environment.action_high)
    )
    return {
        "limit": mean_and_deviation(_blocks_of(data.episode_cost)),
        "cost_to_go": mean_and_deviation(_blocks_of(data.cost_to_go)),
        "return_to_go": mean_and_deviation(_blocks_of(data.return_to_go[:, None])),
        "state": mean_and_deviation(states),
        "action": centre_and_half_range(low, high),
    }


def mean_and_deviation(blocks: Callable[[], Iterable[Tensor]]) -> tuple[Tensor, Tensor]:
    """Centre and scale that standardise values given as blocks [n, d], which are read twice; a
    constant column keeps scale 1."""
    counts, sums, largest = zip(
        *((len(b), b.double().sum(0), b.double().abs().amax(0)) for b in blocks()), strict=True
    )
    centre = torch.stack(sums).sum(0) / sum(counts)
    squares = torch.stack([((block.double() - centre) ** 2).sum(0) for block in blocks()]).sum(0)
    deviation = (squares / sum(counts)).sqrt()
    constant = deviation <= 1e-6 * torch.stack(largest).amax(0).clamp(min=1e-30)
    return centre.float(), torch.where(constant, 1.0, deviation).float()


def centre_and_half_range(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Centre and scale that map [low, high] to [-1, 1]; an empty range keeps scale 1."""
    half_range = (high - low) / 2
    return (low + high) / 2, torch.where(half_range > 0, half_range, torch.ones_like(half_range))


@dataclass(frozen=True)
class WindowTable:
    """Trajectories laid end to end, as windows are gathered from them, all where the networks live.

    What may be written to later is written in place: recorded updates read it where it lies.
    """

    cost_to_go: Tensor
    """[steps, C]"""
    return_to_go: Tensor
    """[steps, 1]"""
    state: Tensor
    """[stored steps, S]"""
    action: Tensor
    """[stored steps, A]"""
    low: Tensor
    high: Tensor
    """[A] what actions are brought within"""
    limit: Tensor
    """[N, C] what each trajectory cost"""
    start: Tensor
    """[N] its first step, rising"""
    last: Tensor
    """[N] its last step"""
    shift: Tensor
    """[N] how much further its states and actions are stored"""

    def windows(self, starts: Tensor, offsets: Tensor) -> WindowBatch:
        """The windows that begin at these steps [B], with these steps [K] counted from there."""
        trajectory = torch.searchsorted(self.start, starts, right=True) - 1
        steps = starts[:, None] + offsets
        last = self.last[trajectory][:, None]
        within = torch.minimum(steps, last)
        stored = within + self.shift[trajectory][:, None]
        return WindowBatch(
            limit=self.limit[trajectory],
            cost_to_go=self.cost_to_go[within],
            return_to_go=self.return_to_go[within],
            state=self.state[stored],
            action=self.action[stored].clamp(self.low, self.high),
            timestep=within - self.start[trajectory][:, None],
            valid=steps <= last,
        )

    def first_states(self, trajectory: Tensor) -> Tensor:
        """[B, S] how these trajectories [B] began."""
        return self.state[(self.start + self.shift)[trajectory]]


class WindowSampler:
    """Draws windows of K steps that begin at any step with equal chance and are padded at their
    end.

    On a CPU, states and actions stay where the store has them, on disk if need be; on other devices
    they are copied.
    """

    def __init__(
        self, data: RelabelledStore, *, window: int, device: torch.device | str = "cpu"
    ) -> None:
        if window < 1:
            raise ValueError(f"a window needs at least 1 step, got {window}")
        self.num_steps, self.device = data.store.num_steps, torch.device(device)
        self.offsets = torch.arange(window, device=self.device)
        self.table = _table_of(data, self.device)
        self._share: Callable[[int], slice] = slice

    def sample(self, batch_size: int, generator: torch.Generator) -> WindowBatch:
        """A batch of windows, with replacement."""
        return self.windows(self.starts(batch_size, generator))

    def starts(self, batch_size: int, generator: torch.Generator) -> Tensor:
        """Where the windows of a batch begin."""
        drawn = torch.randint(
            self.num_steps, (batch_size,), generator=generator, device=self.device
        )
        return drawn[self._share(batch_size)]

    def sharing(self, share: Callable[[int], slice]) -> WindowSampler:
        """One that draws the same batches, and gathers of each only the share that is its own."""
        one = copy.copy(self)
        one._share = share
        return one

    def windows(self, starts: Tensor) -> WindowBatch:
        """The windows that begin at these steps [B], counted over all trajectories laid end to
        end."""
        return self.table.windows(starts, self.offsets)


def _table_of(data: RelabelledStore, device: torch.device) -> WindowTable:
    store, in_place = data.store, device.type == "cpu"
    place = store.episodes["start"] if in_place else store.starts
    state, action = (
        _shared(store.steps[name]) if in_place else _shared(store.gather(name)).to(device)
        for name in ("state", "action")
    )
    low, high = (
        torch.tensor(bound, device=device)
        for bound in (store.environment.action_low, store.environment.action_high)
    )
    if not in_place:  # once and for all
        action = action.clamp(low, high)
        low, high = torch.full_like(low, -torch.inf), torch.full_like(high, torch.inf)
    return WindowTable(
        cost_to_go=_shared(data.cost_to_go).to(device),
        return_to_go=_shared(data.return_to_go).to(device)[:, None],
        state=state,
        action=action,
        low=low,
        high=high,
        limit=torch.from_numpy(data.episode_cost.astype(np.float32)).to(device),
        start=torch.from_numpy(store.starts).to(device),
        last=torch.from_numpy(store.starts + store.lengths - 1).to(device),
        shift=torch.from_numpy(np.asarray(place) - store.starts).to(device),
    )


class PackedSampler:
    """The windows of M models in one batch, each model's behind its neighbour's, states and actions
    padded with zeros.

    Every model draws from its own data with its own generator, as it would alone. On a GPU all data
    lie in one table, so that a batch is gathered at once; models may share a sampler, and then
    share its rows. One sampler alone is left to draw by itself.
    """

    def __init__(self, samplers: Sequence[WindowSampler], dimensions: Dimensions) -> None:
        self._samplers, self._dimensions = tuple(samplers), dimensions
        self._table: WindowSampler | None = None
        if len(samplers) > 1 and samplers[0].device.type != "cpu":
            parts = list(dict.fromkeys(samplers))
            sizes = [0, *itertools.accumulate(part.num_steps for part in parts)]
            device = parts[0].device
            self._first = torch.tensor(
                [sizes[parts.index(sampler)] for sampler in samplers], device=device
            )[:, None]
            self._table = joined(parts, dimensions)

    def sample(self, batch_size: int, generators: Sequence[torch.Generator]) -> WindowBatch:
        """A batch of `batch_size` windows per model."""
        if self.draws_apart:
            return self.gathered(self.drawn(batch_size, generators))
        pairs = zip(self._samplers, generators, strict=True)
        return _side_by_side(
            [sampler.sample(batch_size, generator) for sampler, generator in pairs],
            self._dimensions,
        )

    @property
    def draws_apart(self) -> bool:
        """Whether where windows begin can be drawn before they are gathered."""
        return all(isinstance(sampler, WindowSampler) for sampler in self._samplers)

    def drawn(self, batch_size: int, generators: Sequence[torch.Generator]) -> Tensor:
        """[M, B] where the windows of a batch begin, each model's counted over its own data."""
        pairs = zip(self._samplers, generators, strict=True)
        return torch.stack([sampler.starts(batch_size, generator) for sampler, generator in pairs])

    def gathered(self, starts: Tensor) -> WindowBatch:
        """The windows that begin there."""
        if self._table is not None:
            return self._table.windows((starts + self._first).flatten())
        pairs = zip(self._samplers, starts, strict=True)
        return _side_by_side([sampler.windows(own) for sampler, own in pairs], self._dimensions)


def joined(parts: Sequence[WindowSampler], dimensions: Dimensions) -> WindowSampler:
    """One sampler over all steps of all parts, on a GPU: behind each other, in this order."""
    tables = [part.table for part in parts]
    firsts = [0, *itertools.accumulate(part.num_steps for part in parts)]
    whole = copy.copy(parts[0])
    whole.num_steps = firsts.pop()
    unbounded = torch.full((dimensions.action,), torch.inf, device=whole.device)
    whole.table = WindowTable(
        state=torch.cat([_widened(table.state, dimensions.state) for table in tables]),
        action=torch.cat([_widened(table.action, dimensions.action) for table in tables]),
        low=-unbounded,  # on a GPU, actions are within bounds already
        high=unbounded,
        start=torch.cat([table.start + first for table, first in zip(tables, firsts, strict=True)]),
        last=torch.cat([table.last + first for table, first in zip(tables, firsts, strict=True)]),
        cost_to_go=torch.cat([table.cost_to_go for table in tables]),
        return_to_go=torch.cat([table.return_to_go for table in tables]),
        limit=torch.cat([table.limit for table in tables]),
        shift=torch.cat([table.shift for table in tables]),
    )
    return whole


def _side_by_side(batches: Sequence[WindowBatch], dimensions: Dimensions) -> WindowBatch:
    if len(batches) == 1:  # as wide as it is
        return batches[0]

    def column(name: str) -> Tensor:
        parts = [getattr(batch, name) for batch in batches]
        if name in ("state", "action"):
            parts = [_widened(part, dimensions.of(name)) for part in parts]
        return torch.cat(parts)

    return WindowBatch(**{name: column(name) for name in vars(batches[0])})


def _widened(values: Tensor, width: int) -> Tensor:
    return torch.nn.functional.pad(values, (0, width - values.shape[-1]))


def _blocks_of(values: NDArray[Any]) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: _shared(values).split(BLOCK_ROWS)


def _shared(values: NDArray[Any]) -> Tensor:
    """A tensor over the same memory."""
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message="The given NumPy array is not writ"
        )  # it is only ever read
        return torch.from_numpy(np.asarray(values))
