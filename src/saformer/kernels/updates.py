"""The end of an update of M models: AdamW by clipped gradients, and metrics.

Each model's gradient is clipped by itself; with the step that is two passes over memory.

`tiles` [T, 3] int64 cuts a model's parameters into pieces that lie in one tensor each: the tensor's
index, the piece's first element within the model's row, and the length of such a row. `addresses`
[tensors, 4] int64 are where gradients, weights, averages and averages of squares begin. A program
has one tile of one model.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from triton.language import constexpr

TILE = {"B": 1024, "num_warps": 4}  # B: elements of a program
BETAS = (0.9, 0.999)
EPS = 1e-8


@triton.jit
def _tile(tiles, B: constexpr):
    """The tensor's index, the elements of this program's tile, and which of them exist."""
    tile, model = tl.program_id(0), tl.program_id(1)
    first, length = tl.load(tiles + 3 * tile + 1), tl.load(tiles + 3 * tile + 2)
    within = first + tl.arange(0, B)
    return tl.load(tiles + 3 * tile), model * length + within, within < length


@triton.jit
def _pointer(addresses, tensor, column: constexpr):
    return tl.load(addresses + 4 * tensor + column).to(tl.pointer_type(tl.float32))


@triton.jit
def _one_minus_exp(x):
    """1 - e^x for x below 0, with all digits even where that is nearly 0."""
    series = -x * (1 + x / 2 * (1 + x / 3 * (1 + x / 4 * (1 + x / 5 * (1 + x / 6 * (1 + x / 7))))))
    return tl.where(x > -0.5, series, 1 - tl.exp(x))


@triton.jit
def _norms_kernel(tiles, addresses, norms, counts, B: constexpr):
    """norms [M, T] of the gradients; also copies the steps made, counts[1], to counts[0]."""
    tensor, at, there = _tile(tiles, B)
    gradient = tl.load(_pointer(addresses, tensor, 0) + at, mask=there, other=0.0)
    here = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    tl.store(norms + here, tl.sqrt(tl.sum(gradient * gradient)))
    if here == 0:
        tl.store(counts, tl.load(counts + 1))


@triton.jit
def _step_kernel(tiles, addresses, norms, rate, counts, bad, bound, decay, LOG_FIRST: constexpr,
        LOG_SECOND: constexpr, FIRST: constexpr, SECOND: constexpr, EPS: constexpr,
        B: constexpr):  # fmt: skip
    """One step of AdamW by gradients clipped to `bound`; changes nothing where `bad` is set.
    `norms` [M] are the gradients' before clipping; LOG_FIRST and LOG_SECOND are the logarithms of
    AdamW's rates of decay, FIRST and SECOND. All programs read counts[0], one writes counts[1]."""
    if tl.load(bad) == 0:
        tensor, at, there = _tile(tiles, B)
        weights, averages = _pointer(addresses, tensor, 1) + at, _pointer(addresses, tensor, 2) + at
        squares = _pointer(addresses, tensor, 3) + at
        gradient = tl.load(_pointer(addresses, tensor, 0) + at, mask=there, other=0.0)
        gradient *= tl.minimum(bound / (tl.load(norms + tl.program_id(1)) + 1e-6), 1.0)
        average = FIRST * tl.load(averages, mask=there, other=0.0) + (1 - FIRST) * gradient
        square = SECOND * tl.load(squares, mask=there, other=0.0)
        square += (1 - SECOND) * gradient * gradient
        times, speed = tl.load(counts) + 1, tl.load(rate)
        size = speed / _one_minus_exp(times * LOG_FIRST)
        deviation = tl.sqrt(square / _one_minus_exp(times * LOG_SECOND))
        weight = tl.load(weights, mask=there, other=0.0) * (1 - speed * decay)
        weight -= size * average / (deviation + EPS)
        tl.store(weights, weight, mask=there)
        tl.store(averages, average, mask=there)
        tl.store(squares, square, mask=there)
        if tl.program_id(0) + tl.program_id(1) == 0:
            tl.store(counts + 1, times)


class FusedAdamW:
    """Clipping and `torch.optim.AdamW` after it, with the same `state` and `param_groups`.
    A recorded update has its gradients at addresses that are known only once the recording is
    over: then `settle` hands them to the GPU. Where `found_inf` is set, a step changes nothing."""

    def __init__(self, parameters: Sequence[nn.Parameter], *, num_models: int, learning_rate: float,
                 weight_decay: float, gradient_clip: float) -> None:  # fmt: skip
        device, self._clip = parameters[0].device, float(gradient_clip)
        rate = torch.tensor(learning_rate, device=device)
        self.param_groups: list[dict[str, Any]] = [{"lr": rate, "weight_decay": weight_decay}]
        self._counts = torch.zeros(2, device=device)  # of steps: before the next, and made
        zeros = partial(torch.zeros_like, requires_grad=False)
        self.state: dict[nn.Parameter, dict[str, Tensor]] = {
            p: {"step": self._counts[1], "exp_avg": zeros(p), "exp_avg_sq": zeros(p)}
            for p in parameters}  # fmt: skip
        self.found_inf, self._norms = torch.zeros((), device=device), torch.zeros(0, device=device)
        sizes = [parameter.numel() // num_models for parameter in parameters]
        tiles = [(k, first, n) for k, n in enumerate(sizes) for first in range(0, n, TILE["B"])]
        self._tiles, self._grid = torch.tensor(tiles, device=device), (len(tiles), num_models)
        self._addresses = torch.zeros(len(parameters), 4, dtype=torch.int64, device=device)
        self._gradients: tuple[Tensor, ...] = ()

    def take(self, gradients: Sequence[Tensor]) -> Tensor:
        """Hold a gradient for each parameter for the next step; their norms [M] before clipping."""
        self._gradients = tuple(gradient.contiguous() for gradient in gradients)
        if not (self._addresses.is_cuda and torch.cuda.is_current_stream_capturing()):
            self.settle()
        parts = self._norms.new_empty(self._grid[::-1])  # [M, T]
        _norms_kernel[self._grid](self._tiles, self._addresses, parts, self._counts, **TILE)
        self._norms = torch.linalg.vector_norm(parts, dim=1)
        return self._norms

    def settle(self) -> None:
        """Hand the addresses of all tensors to the kernels."""
        pairs = zip(self._gradients, self.state.items(), strict=True)
        rows = [(g, p, state["exp_avg"], state["exp_avg_sq"]) for g, (p, state) in pairs]
        self._addresses.copy_(torch.tensor([[part.data_ptr() for part in row] for row in rows]))

    @torch.no_grad()
    def step(self) -> None:
        group = self.param_groups[0]
        _step_kernel[self._grid](self._tiles, self._addresses, self._norms, group["lr"],
            self._counts, self.found_inf, self._clip, group["weight_decay"], *map(math.log, BETAS),
            *BETAS, EPS, **TILE)  # fmt: skip


@triton.jit
def _metrics_kernel(values, sums, latest, num_good, bad, size, B: constexpr):
    at = tl.arange(0, B)
    there = at < size
    was_bad, value = tl.load(bad), tl.load(values + at, mask=there, other=0.0)
    is_infinite = tl.where(tl.abs(value) < float("inf"), 0.0, 1.0)  # NaN is below nothing
    is_bad = tl.maximum(was_bad, tl.max(is_infinite))
    total = tl.load(sums + at, mask=there, other=0.0)
    before = tl.load(latest + at, mask=there, other=0.0)
    tl.store(sums + at, total + tl.where(is_bad > 0, 0.0, value), mask=there)
    tl.store(latest + at, tl.where(was_bad > 0, before, value), mask=there)
    tl.store(num_good, tl.load(num_good) + 1 - is_bad)
    tl.store(bad, is_bad)


def add_metrics(values: Tensor, sums: Tensor, latest: Tensor, num_good: Tensor,
                bad: Tensor) -> None:  # fmt: skip
    """Add values [metrics, M] to the sums and count a good update, until one is not finite.
    `latest` keeps the values of the first update that is not finite, or of the latest."""
    size = values.numel()
    _metrics_kernel[(1,)](values, sums, latest, num_good, bad, size, B=triton.next_power_of_2(size))
