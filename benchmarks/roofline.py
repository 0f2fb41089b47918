"""The least time that a decision can take: its arithmetic and its bytes, held against what this machine reaches."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from benchmarks.measure import seconds
from saformer.core.actor import ACTOR_LAYOUT
from saformer.core.critic import CRITIC_LAYOUT
from saformer.core.transformer import TrunkConfig

FLOAT = 4
"""Bytes of a float32."""


@dataclass(frozen=True)
class Work:
    """What has to be computed and moved."""

    flops: float
    """of matrix products; everything else is small beside them"""
    moved: float
    """bytes, if each product reads its operands and writes its result once, and all else happens on the way"""

    def __add__(self, other: Work) -> Work:
        return Work(self.flops + other.flops, self.moved + other.moved)

    def times(self, count: float) -> Work:
        return Work(count * self.flops, count * self.moved)


@dataclass(frozen=True)
class Machine:
    """What a device reaches, measured: in float32, without the reduced precision of tensor cores."""

    flops_per_second: float
    bytes_per_second: float

    @classmethod
    def measure(cls, device: str) -> Machine:
        """By a large product and a large copy."""
        size, length = (1024, 2**25) if device == "cpu" else (8192, 2**29)
        square, line = torch.randn(size, size, device=device), torch.randn(length, device=device)
        product, copy = torch.empty_like(square), torch.empty_like(line)

        def multiply() -> None:
            torch.mm(square, square, out=product)
            _wait(device)

        def move() -> None:
            copy.copy_(line)
            _wait(device)

        return cls(2 * size**3 / seconds(multiply), 2 * FLOAT * length / seconds(move))

    def arithmetic_seconds(self, work: Work) -> float:
        return work.flops / self.flops_per_second

    def transfer_seconds(self, work: Work) -> float:
        return work.moved / self.bytes_per_second


def block(width: int, *, tokens: float, answering: float, seen: float) -> Work:
    """One block over `tokens` tokens, of which `answering` are asked for an output and look at `seen` others."""
    projected = Work(2 * 3 * width**2 * tokens, FLOAT * (4 * width * tokens + 3 * width**2))
    attended = Work(2 * 2 * width * seen * answering, FLOAT * 2 * (seen + width) * answering)
    answered = Work(2 * 9 * width**2 * answering, FLOAT * (12 * width * answering + 9 * width**2))
    return projected + attended + answered


def reading(config: TrunkConfig, *, lanes: int, window: int) -> Work:
    """Both networks read each lane's past once; of the last block only the last answer is needed."""
    work = Work(0, 0)
    for length in prefixes(window):
        inner = block(config.width, tokens=lanes * length, answering=lanes * length, seen=length)
        work += inner.times(config.layers - 1) + block(
            config.width, tokens=lanes * length, answering=lanes, seen=length
        )
    return work


def one_round(config: TrunkConfig, *, lanes: int, candidates: int, window: int) -> Work:
    """Two tokens per candidate through the actor, one through the critic, all of which see the past."""
    work = Work(0, 0)
    for length, own in zip(prefixes(window), (2, 1), strict=True):
        count, seen = lanes * candidates, length + own
        past = Work(0, FLOAT * 2 * config.width * length * lanes)  # keys and values
        inner = block(config.width, tokens=own * count, answering=own * count, seen=seen) + past
        last = block(config.width, tokens=own * count, answering=count, seen=seen) + past
        work += inner.times(config.layers - 1) + last
    return work


def naive(config: TrunkConfig, *, lanes: int, candidates: int, window: int) -> Work:
    """Every candidate's whole window through both networks, and one window more per lane for the expected return."""
    work = Work(0, 0)
    for kinds, windows in ((len(ACTOR_LAYOUT), candidates + 1), (len(CRITIC_LAYOUT), candidates)):
        tokens = lanes * windows * kinds * window
        work += block(config.width, tokens=tokens, answering=tokens, seen=kinds * window).times(config.layers)
    return work


def prefixes(window: int) -> tuple[int, int]:
    """Tokens that actor and critic have read when candidates are proposed."""
    past = window - 1
    actor = len(ACTOR_LAYOUT) * past + len(ACTOR_LAYOUT.before("return_to_go"))
    return actor, len(CRITIC_LAYOUT) * past + len(CRITIC_LAYOUT.before("action"))


def _wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()
