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
from saformer.data.relabel import RelabelledStore, cached_on_data

BLOCK_ROWS = 200_000


def dimensions_of(data: RelabelledStore) -> Dimensions:
    """The sizes that this data imposes on the networks."""
    return Dimensions(
        state=data.store.steps["state"].shape[1],
        action=data.store.steps["action"].shape[1],
        constraints=data.cost.shape[1],
        horizon=max(data.store.environment.horizon, int(data.store.lengths.max())),
    )


@cached_on_data
def statistics_of(data: RelabelledStore) -> dict[str, tuple[Tensor, Tensor]]:
    """Centre and scale of every kind of token, for the normaliser."""
    store = data.store

    def states() -> Iterator[Tensor]:
        return (_as_tensor(store.gather("state", first, stop)) for first, stop in store.blocks())

    low, high = _bounds(data)
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
    parts = ((len(b), b.double().sum(0), b.double().abs().amax(0)) for b in blocks())
    counts, sums, largest = zip(*parts, strict=True)
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
    """Trajectories laid end to end, where the networks live. Later writes are in place: recorded
    updates read the tensors where they lie."""

    cost_to_go: Tensor  # [steps, C]
    return_to_go: Tensor  # [steps, 1]
    state: Tensor  # [stored steps, S]
    action: Tensor  # [stored steps, A]
    low: Tensor
    high: Tensor  # [A] bounds that actions are clamped to
    limit: Tensor  # [N, C] what each trajectory cost
    start: Tensor  # [N] its first step, rising
    last: Tensor  # [N] its last step
    shift: Tensor  # [N] how much further its states and actions are stored

    def trajectory_of(self, steps: Tensor) -> Tensor:
        return torch.searchsorted(self.start, steps, right=True) - 1

    def windows(self, starts: Tensor, offsets: Tensor) -> WindowBatch:
        """The windows of the steps at `offsets` [K] from each of `starts` [B]."""
        trajectory = self.trajectory_of(starts)
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


class WindowSampler:
    """Draws windows of K steps: any first step with equal chance, padded at the episode's end.

    On a CPU, states and actions stay where the store has them, on disk if need be.
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
        options: Any = {"generator": generator, "device": self.device}
        return torch.randint(self.num_steps, (batch_size,), **options)[self._share(batch_size)]

    def sharing(self, share: Callable[[int], slice]) -> WindowSampler:
        """A sampler that draws the same batches, and gathers of each only its own share."""
        sampler = copy.copy(self)
        sampler._share = share
        return sampler

    def windows(self, starts: Tensor) -> WindowBatch:
        """The windows that begin at these steps [B] of all trajectories laid end to end."""
        return self.table.windows(starts, self.offsets)


def _table_of(data: RelabelledStore, device: torch.device) -> WindowTable:
    store = data.store
    low, high = (bound.to(device) for bound in _bounds(data))
    if device.type == "cpu":
        state, action = _as_tensor(store.steps["state"]), _as_tensor(store.steps["action"])
        shift = np.asarray(store.episodes["start"]) - store.starts
    else:  # copied, and clamped once and for all
        state = _as_tensor(store.gather("state")).to(device)
        action = _as_tensor(store.gather("action")).to(device).clamp(low, high)
        low, high = torch.full_like(low, -torch.inf), torch.full_like(high, torch.inf)
        shift = np.zeros_like(store.starts)
    return WindowTable(
        cost_to_go=_as_tensor(data.cost_to_go).to(device),
        return_to_go=_as_tensor(data.return_to_go).to(device)[:, None],
        state=state,
        action=action,
        low=low,
        high=high,
        limit=torch.from_numpy(data.episode_cost.astype(np.float32)).to(device),
        start=torch.from_numpy(store.starts).to(device),
        last=torch.from_numpy(store.starts + store.lengths - 1).to(device),
        shift=torch.from_numpy(shift).to(device),
    )


class PackedSampler:
    """The windows of M models in one batch, one model after another, states and actions padded.

    Every model draws from its own data with its own generator, as it would alone. On a GPU all data
    lie in one table, so that a batch is gathered at once; models may share a sampler and its rows.
    """

    def __init__(self, samplers: Sequence[WindowSampler], dimensions: Dimensions) -> None:
        self._samplers, self._dimensions = tuple(samplers), dimensions
        self._table: WindowSampler | None = None
        if len(samplers) > 1 and samplers[0].device.type != "cpu":
            parts = list(dict.fromkeys(samplers))
            firsts = offsets_in_pack([part.num_steps for part in parts], samplers, parts)
            self._first = firsts.to(parts[0].device)
            self._table = concatenate_samplers(parts, dimensions)

    def sample(self, batch_size: int, generators: Sequence[torch.Generator]) -> WindowBatch:
        """A batch of `batch_size` windows per model."""
        if self.draws_apart:
            return self.gathered(self.drawn(batch_size, generators))
        pairs = zip(self._samplers, generators, strict=True)
        return self._stacked([sampler.sample(batch_size, own) for sampler, own in pairs])

    @property
    def draws_apart(self) -> bool:
        """Whether the starts of windows can be drawn before the windows are gathered."""
        return all(isinstance(sampler, WindowSampler) for sampler in self._samplers)

    def drawn(self, batch_size: int, generators: Sequence[torch.Generator]) -> Tensor:
        """[M, B] where the windows of a batch begin, each model's counted over its own data."""
        pairs = zip(self._samplers, generators, strict=True)
        return torch.stack([sampler.starts(batch_size, own) for sampler, own in pairs])

    def gathered(self, starts: Tensor) -> WindowBatch:
        """The windows that begin at these steps [M, B]."""
        if self._table is not None:
            return self._table.windows((starts + self._first).flatten())
        pairs = zip(self._samplers, starts, strict=True)
        return self._stacked([sampler.windows(own) for sampler, own in pairs])

    def _stacked(self, batches: Sequence[WindowBatch]) -> WindowBatch:
        if len(batches) == 1:  # as wide as it is
            return batches[0]

        def column(name: str) -> Tensor:
            parts = [getattr(batch, name) for batch in batches]
            if name in ("state", "action"):
                parts = [_widened(part, self._dimensions.of(name)) for part in parts]
            return torch.cat(parts)

        return WindowBatch(**{name: column(name) for name in vars(batches[0])})


def offsets_in_pack(sizes: Sequence[int], samplers: Sequence[Any], parts: Sequence[Any]) -> Tensor:
    """[M, 1] where each sampler's rows begin if parts of these sizes lie behind each other."""
    firsts = [0, *itertools.accumulate(sizes)]
    return torch.tensor([firsts[parts.index(sampler)] for sampler in samplers])[:, None]


def concatenate_samplers(parts: Sequence[WindowSampler], dimensions: Dimensions) -> WindowSampler:
    """One sampler over all steps of all parts, on a GPU: behind each other, in this order."""
    firsts = [0, *itertools.accumulate(part.num_steps for part in parts)]
    whole = copy.copy(parts[0])
    whole.num_steps = firsts.pop()
    unbounded = torch.full((dimensions.action,), torch.inf, device=whole.device)
    tables = [part.table for part in parts]
    pairs = list(zip(tables, firsts, strict=True))
    unchanged = ("cost_to_go", "return_to_go", "limit", "shift")
    whole.table = WindowTable(
        state=torch.cat([_widened(table.state, dimensions.state) for table in tables]),
        action=torch.cat([_widened(table.action, dimensions.action) for table in tables]),
        low=-unbounded,  # on a GPU, actions are within bounds already
        high=unbounded,
        start=torch.cat([table.start + first for table, first in pairs]),
        last=torch.cat([table.last + first for table, first in pairs]),
        **{name: torch.cat([getattr(table, name) for table in tables]) for name in unchanged},
    )
    return whole


def _widened(values: Tensor, width: int) -> Tensor:
    return torch.nn.functional.pad(values, (0, width - values.shape[-1]))


def _bounds(data: RelabelledStore) -> tuple[Tensor, Tensor]:
    environment = data.store.environment
    return torch.tensor(environment.action_low), torch.tensor(environment.action_high)


def _blocks_of(values: NDArray[Any]) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: _as_tensor(values).split(BLOCK_ROWS)


def _as_tensor(values: NDArray[Any]) -> Tensor:
    """A tensor over the same memory, which is only ever read."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writ")
        return torch.from_numpy(np.asarray(values))
