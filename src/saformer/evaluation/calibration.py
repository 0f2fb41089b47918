"""Learn, then test: which margin of a limit keeps the share of episodes that pass it below a rate.

Margins are tried from the smallest to the largest, each on fresh episodes, until one is shown to
keep the rate. A larger margin need not be safer: each is tested by itself, at an equal part of 1 -
confidence (Bonferroni). So a margin that does not keep the rate results with a probability of at
most 1 - confidence, whichever keep it, for each limit by itself.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from saformer.data.limits import Limit
from saformer.data.shown import Shown
from saformer.data.statistics import without_nan
from saformer.evaluation.confidence import violation_bound
from saformer.evaluation.verdict import Verdict

MARGINS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.3)
FIRST_SEED = 1_500_000_000  # calibration starts from seeds that neither data nor evaluation uses
SEEDS_OF_A_MARGIN, SEEDS_OF_A_SEQUENCE = 1_000_000, 100_000_000
FIGURES: tuple[str, ...] = ("num_episodes", "num_violations", "mean_return", "frontier_share")
FIGURES += ("mean_cost", "ended_early")


@dataclass(frozen=True)
class MarginTest:
    """One margin on fresh episodes."""

    margin: float  # share of the limit that is withheld from the policy
    first_seed: int
    num_episodes: int
    num_violations: int
    bound: float  # upper bound of the violation rate, at this margin's part of 1 - confidence
    mean_return: float
    frontier_share: float | None  # None where it is not known
    mean_cost: tuple[float, ...]
    ended_early: float = 0.0  # share of episodes


@dataclass(frozen=True)
class CalibratedLimit:
    """A limit, the tests under it, and the margin that results."""

    limit: Limit
    tested: tuple[MarginTest, ...]  # in sequence; all failed but perhaps the last
    margin: float | None  # the smallest that passed; None if none did

    def __post_init__(self) -> None:
        margins = [self.margin or 0.0, *(test.margin for test in self.tested)]
        if not all(0 <= margin < 1 for margin in margins):
            raise ValueError(f"margins are shares of at least 0 and below 1, got {margins}")
        if any(len(test.mean_cost) != len(self.limit.values) for test in self.tested):
            raise ValueError(f"a test has another number of costs than {self.limit}")


@dataclass(frozen=True, repr=False)
class Calibration(Shown):
    """Margins by limit, for one run, one way to act and one rate."""

    rate: float
    confidence: float
    episodes: int
    seed: int
    run: str  # digest of the run that was calibrated, and of what it had learnt by then
    options: Mapping[str, Any]  # how it acted; its proposals' seeds are those of the episodes
    limits: tuple[CalibratedLimit, ...] = ()
    margins: tuple[float, ...] = ()  # to try, in their order
    may_end: bool = True  # else episodes that ended early count as violations
    offline: bool = False  # shown in a world learnt from the data, not on the machine

    def __post_init__(self) -> None:
        if not (0 < self.rate < 1 and 0 < self.confidence < 1) or "rule" not in self.options:
            raise ValueError(f"a rate of {self.rate} with confidence {self.confidence}, or no rule")

    @property
    def is_whole(self) -> bool:
        """Whether every limit has its margin, or none of them passed."""
        done = (c.margin is not None or len(c.tested) == len(self.margins) for c in self.limits)
        return all(done)

    def plain(self) -> dict[str, Any]:
        return dict(without_nan(asdict(self)))

    def margin_for(self, limit: Limit) -> float:
        """This limit's own margin, or the larger of its two neighbours'; beyond them, an error."""
        values = np.array(limit.values)
        known = [(np.array(c.limit.values), c.margin) for c in self.limits if c.margin is not None]
        for other, margin in known:
            if np.allclose(other, values, rtol=1e-9, atol=0):
                return margin
        below = [(other, margin) for other, margin in known if (other <= values).all()]
        above = [(other, margin) for other, margin in known if (other >= values).all()]
        if not below or not above:
            failed = ", where no margin passed"
            outcomes = [f"{c.limit}{failed if c.margin is None else ''}" for c in self.limits]
            raise ValueError(
                f"{limit} is not calibrated for a violation rate of {self.rate:g}, nor does it lie "
                f"between two limits that are ({', '.join(outcomes)}): calibrate it (saformer "
                f"calibrate RUN --limits {limit.name} --rate {self.rate:g})"
            )
        nearest_below = max(below, key=lambda pair: float(pair[0].sum()))
        nearest_above = min(above, key=lambda pair: float(pair[0].sum()))
        return max(nearest_below[1], nearest_above[1])


def calibrate_margins(
    trial: Callable[[Sequence[Limit], float, int], Sequence[Verdict]],
    limits: Sequence[Limit],
    *,
    rate: float,
    confidence: float,
    margins: Sequence[float] = MARGINS,
    seed: int = 0,
    begun: Sequence[CalibratedLimit] = (),
) -> Iterator[tuple[CalibratedLimit, ...]]:
    """What is known after each margin under every limit that none has passed yet; what was `begun`
    with the same margins goes on. `trial` takes limits, a margin and a first seed, and rolls fresh
    episodes out."""
    found = list(begun or (CalibratedLimit(limit, (), None) for limit in limits))
    each = confidence_of_each(confidence, margins)
    for index in range(max(len(one.tested) for one in found), len(margins)):
        positions = [i for i, one in enumerate(found) if one.margin is None]
        if not positions:
            break
        margin, first = margins[index], margin_seed(seed, index)
        verdicts = trial([limits[i] for i in positions], margin, first)
        for i, verdict in zip(positions, verdicts, strict=True):
            figures = {name: getattr(verdict, name) for name in FIGURES}
            counts = verdict.num_violations, verdict.num_episodes
            bound = violation_bound(*counts, confidence=each)
            tested = (*found[i].tested, MarginTest(margin, first, bound=bound, **figures))
            found[i] = CalibratedLimit(limits[i], tested, margin if bound <= rate else None)
        yield tuple(found)


def confidence_of_each(confidence: float, margins: Sequence[float]) -> float:
    """Of each test, so that all of them together have this confidence."""
    return 1 - (1 - confidence) / len(margins)


def margin_seed(seed: int, index: int) -> int:
    """The first seed of a margin's episodes; sequences of other seeds have others."""
    return FIRST_SEED + SEEDS_OF_A_SEQUENCE * seed + SEEDS_OF_A_MARGIN * index


def check_terms(rate: float, confidence: float, episodes: int, margins: Sequence[float]) -> None:
    """Refuse what could show nothing."""
    if not (0 < rate < 1 and 0 < confidence < 1):
        shares = f"{rate} and {confidence}"
        raise ValueError(f"rate and confidence are shares between 0 and 1, got {shares}")
    check_margins(margins)
    fewest = fewest_episodes(rate, confidence_of_each(confidence, margins))
    if episodes < fewest:
        raise ValueError(
            f"{episodes} episodes cannot show a violation rate of {rate:g} with confidence "
            f"{confidence:g} for any of {len(margins)} margins, even if none passes its limit: "
            f"give at least {fewest} (--episodes), better {2 * fewest}, or fewer --margins"
        )


def check_margins(margins: Sequence[float]) -> None:
    are_shares = all(0 <= margin < 1 for margin in margins)
    if not margins or not are_shares or len(set(margins)) < len(margins):
        shares = "shares of a limit, at least 0 and below 1, each once"
        raise ValueError(f"margins are {shares}: got {margins}")


def fewest_episodes(rate: float, confidence: float) -> int:
    """Below so many, not even episodes without any violation could show this rate."""
    return int(np.ceil(np.log(1 - confidence) / np.log(1 - rate) - 1e-12))
