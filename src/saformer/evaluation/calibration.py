"""Learn, then test: how much of a limit to keep back so that no more than a stated share of
episodes passes it.

Margins are tried in a fixed sequence, from the most conservative to the most daring, each on fresh
episodes. The first that cannot be shown to keep the rate ends the sequence; the last that could is
kept. Because the sequence is fixed and ends there, a margin that does not keep the rate is kept
with a probability of at most 1 - confidence, however many were tried. Each limit is calibrated by
itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from saformer.data.limits import Limit
from saformer.evaluation.confidence import violation_bound
from saformer.evaluation.verdict import Verdict

MARGINS = (0.3, 0.2, 0.15, 0.12, 0.1, 0.08, 0.06, 0.04, 0.02, 0.01, 0.0)
"""From conservative to daring."""
FIRST_SEED = 1_500_000_000
"""Calibration starts from seeds that neither data nor evaluation uses."""
SEEDS_OF_A_MARGIN, SEEDS_OF_A_SEQUENCE = 1_000_000, 100_000_000


@dataclass(frozen=True)
class Tested:
    """One margin on fresh episodes."""

    margin: float
    """share of the limit that the policy was not told of"""
    first_seed: int
    num_episodes: int
    num_violations: int
    bound: float
    """what the violation rate lies below, with the calibration's confidence"""
    mean_return: float
    frontier_share: float
    mean_cost: tuple[float, ...]

    @property
    def rate(self) -> float:
        """The observed share of episodes that passed the limit."""
        return self.num_violations / self.num_episodes


@dataclass(frozen=True)
class CalibratedLimit:
    """A limit, what was tried under it, and what came of it."""

    limit: Limit
    tested: tuple[Tested, ...]
    """in the order of the sequence; all but the last passed, and the last too if `margin` is its
    own"""
    margin: float | None
    """the smallest that passed; None if not even the first did"""

    @property
    def kept(self) -> Tested | None:
        """What was found with that margin."""
        return next((one for one in self.tested if one.margin == self.margin), None)


@dataclass(frozen=True)
class Calibration:
    """Margins by limit, for one run, one way to act and one rate."""

    rate: float
    confidence: float
    episodes: int
    seed: int
    run: str
    """digest of the run that was calibrated, and of what it had learnt by then"""
    options: Mapping[str, Any]
    """how it acted; its proposals' seeds are those of the episodes"""
    limits: tuple[CalibratedLimit, ...]

    def plain(self) -> dict[str, Any]:
        """As JSON keeps it."""
        return asdict(self)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Calibration:
        """As it was kept."""
        limits = tuple(
            CalibratedLimit(
                Limit(one["limit"]["name"], tuple(one["limit"]["values"])),
                tuple(
                    Tested(**{**test, "mean_cost": tuple(test["mean_cost"])})
                    for test in one["tested"]
                ),
                one["margin"],
            )
            for one in plain["limits"]
        )
        return cls(**{**plain, "limits": limits})

    def margin_for(self, limit: Limit) -> float:
        """What was calibrated for this limit; between two, the larger margin of both. Beyond them
        nothing is known."""
        known = [
            (np.array(one.limit.values), one.margin)
            for one in self.limits
            if one.margin is not None
        ]
        asked = np.array(limit.values)
        exact = [
            margin for values, margin in known if np.allclose(values, asked, rtol=1e-9, atol=0)
        ]
        below = [(values, margin) for values, margin in known if (values <= asked).all()]
        above = [(values, margin) for values, margin in known if (values >= asked).all()]
        if exact:
            return exact[0]
        if not below or not above:
            named = ", ".join(_named(one) for one in self.limits)
            raise ValueError(
                f"{limit.name} = {_numbers(limit.values)} is not calibrated for a violation rate "
                f"of {self.rate:g}, nor "
                f"does it lie between two limits that are ({named}): calibrate it (saformer "
                "calibrate RUN --limits "
                f"{limit.name} --rate {self.rate:g})"
            )
        nearest = (
            max(below, key=lambda one: float(one[0].sum()))[1],
            min(above, key=lambda one: float(one[0].sum()))[1],
        )
        return max(nearest)


Trial = Callable[[Sequence[Limit], float, int], Sequence[Verdict]]
"""(limits, margin, first seed) -> how fresh episodes did under each limit."""


def calibrate(
    trial: Trial,
    limits: Sequence[Limit],
    *,
    rate: float,
    confidence: float,
    seed: int = 0,
    margins: Sequence[float] = MARGINS,
) -> tuple[CalibratedLimit, ...]:
    """Try margins in their order under every limit that has not failed yet."""
    tested: list[list[Tested]] = [[] for _ in limits]
    going_on = list(range(len(limits)))
    for number, margin in enumerate(margins):
        if not going_on:
            break
        first = first_seed(seed, number)
        verdicts = trial([limits[place] for place in going_on], margin, first)
        for place, found in zip(going_on, verdicts, strict=True):
            tested[place].append(_test(found, margin, first, confidence))
        going_on = [place for place in going_on if tested[place][-1].bound <= rate]
    results = zip(limits, tested, strict=True)
    return tuple(CalibratedLimit(limit, tuple(one), _smallest(one, rate)) for limit, one in results)


def first_seed(seed: int, number: int) -> int:
    """Where the episodes of a sequence's margin begin; sequences of other seeds have others."""
    return FIRST_SEED + SEEDS_OF_A_SEQUENCE * seed + SEEDS_OF_A_MARGIN * number


def fewest_episodes(rate: float, confidence: float) -> int:
    """Below so many, not even episodes without any violation could show this rate."""
    return int(np.ceil(np.log(1 - confidence) / np.log(1 - rate) - 1e-12))


def _test(found: Verdict, margin: float, first: int, confidence: float) -> Tested:
    return Tested(
        margin=margin,
        first_seed=first,
        num_episodes=found.num_episodes,
        num_violations=found.num_violations,
        bound=violation_bound(found.num_violations, found.num_episodes, confidence=confidence),
        mean_return=found.mean_return,
        frontier_share=found.frontier_share,
        mean_cost=found.mean_cost,
    )


def _smallest(tested: Sequence[Tested], rate: float) -> float | None:
    passed = [one.margin for one in tested if one.bound <= rate]
    return passed[-1] if passed else None


def _named(one: CalibratedLimit) -> str:
    name = f"{one.limit.name} = {_numbers(one.limit.values)}"
    return name if one.margin is not None else f"{name}, where no margin passed"


def _numbers(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.4g}" for value in values)
