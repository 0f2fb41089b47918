"""What learning under limits takes for granted of its data, and plain words for where it fails.

The paper (section 3) assumes that return and cost are at least weakly correlated, and that costs
are spread.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from saformer.data.relabel import Doubles
from saformer.data.statistics import is_constant

WEAK_CORRELATION = 0.3
SMALL_SPREAD = 0.1  # (p90 - p10) / median of the episode cost
CRITIC_ERROR = 0.05
"""usual error of the critic's forecast, as a share of the range of episode costs"""
CLOSE_LIMITS = 0.01  # relative difference below which two limits are one
FEW_WITHIN = 20
FEW_TRAJECTORIES = 50
MANY_LEFT_OUT = 0.1
LENGTH_CORRELATION = 0.95


@dataclass(frozen=True)
class DataWarning:
    """One thing that the data cannot support, with the numbers, and what to do about it."""

    kind: str  # for programs: "weak_correlation"
    text: str  # for people


def check_size(num_trajectories: int, num_left_out: int) -> Iterator[DataWarning]:
    """Enough trajectories, and most of them finished."""
    if num_trajectories < FEW_TRAJECTORIES:
        yield DataWarning(
            "few_trajectories",
            f"Only {num_trajectories} trajectories: percentiles and frontier rest on single "
            f"episodes. Record more, {FEW_TRAJECTORIES} at the least.",
        )
    recorded = num_trajectories + num_left_out
    if num_left_out > MANY_LEFT_OUT * recorded:
        yield DataWarning(
            "many_left_out",
            f"{num_left_out} of {recorded} trajectories ({num_left_out / recorded:.0%}) are "
            "unfinished and left out, as what they would have cost is unknown. Record episodes to "
            "their end; where a time limit ended them, mark them as truncated.",
        )


def check_return(returns: Doubles) -> Iterator[DataWarning]:
    """Trajectories that earn differently."""
    if is_constant(returns):
        yield DataWarning(
            "constant_return",
            f"Every trajectory earns {rounded(float(returns.mean()))}: no limit can be seen to "
            "cost any return. Check the rewards.",
        )


def check_correlation(criterion: str, correlation: float) -> Iterator[DataWarning]:
    """The paper's first assumption. Other checks warn of NaN: a return or cost never changes."""
    if correlation <= -WEAK_CORRELATION:
        yield DataWarning(
            "negative_correlation",
            f"Return falls as cost ({criterion}) rises (correlation {correlation:.2f}): spending "
            "less earns more, so a limit costs nothing. Ask for the tightest limit you need, and "
            "check the signs of cost and reward.",
        )
    elif abs(correlation) < WEAK_CORRELATION:
        yield DataWarning(
            "weak_correlation",
            f"Return and cost ({criterion}) are hardly correlated ({correlation:.2f}, at least "
            f"{WEAK_CORRELATION} is wanted): the limit cannot steer the return. Choose a cost that "
            "is spent to earn reward, or add trajectories that trade one for the other.",
        )


def check_spread(criterion: str, percentiles: Mapping[str, float]) -> Iterator[DataWarning]:
    """The paper's second assumption: costs that differ."""
    low, p10, median, p90, high = (percentiles[f"p{percent}"] for percent in (0, 10, 50, 90, 100))
    if high == 0:
        yield DataWarning(
            "all_costs_zero",
            f"Every trajectory costs 0 ({criterion}): there is nothing to limit, and learning "
            "would be imitation. Check the criterion and what it reads.",
        )
    elif p90 - p10 <= SMALL_SPREAD * median:
        share = f" ({(p90 - p10) / median:.1%} of the median)" if median > 0 else ""
        error = f"{rounded(CRITIC_ERROR * (high - low))} apart, the critic's usual error"
        yield DataWarning(
            "small_spread",
            f"Costs ({criterion}) are nearly alike: p10 to p90 is {rounded(p10)} to "
            f"{rounded(p90)}{share}. Limits less than {error} ({CRITIC_ERROR:.0%} of the range), "
            "cannot be told apart. Add cheaper or dearer trajectories, or space limits further.",
        )


def check_close_limits(
    criterion: str, limits: Sequence[tuple[str, float]]
) -> Iterator[DataWarning]:
    """Limits, as (name, value), that differ enough to be worth telling apart."""
    named = [(f"{name} = {rounded(value)}", value) for name, value in limits]
    chains = [_listed(name for name, _ in chain) for chain in close_limits(named)]
    if chains:
        yield DataWarning(
            "close_limits",
            f"Limits within {CLOSE_LIMITS:.0%} of the next ({criterion}): {'; '.join(chains)}. A "
            "policy can hardly tell them apart: evaluate under fewer limits, further apart.",
        )


def close_limits(limits: Sequence[tuple[str, float]]) -> list[list[tuple[str, float]]]:
    """Chains of two or more limits, rising, each within 1% of the next."""
    chains: list[list[tuple[str, float]]] = []
    for name, value in sorted(limits, key=lambda limit: limit[1]):
        if chains and value <= (1 + CLOSE_LIMITS) * chains[-1][-1][1]:
            chains[-1].append((name, value))
        else:
            chains.append([(name, value)])
    return [chain for chain in chains if len(chain) > 1]


def check_length(
    criterion: str, correlation: float, lengths: NDArray[np.int64]
) -> Iterator[DataWarning]:
    """Cheap trajectories that are cheap for another reason than being short."""
    if correlation > LENGTH_CORRELATION:
        shortest, longest = lengths.min(), lengths.max()
        yield DataWarning(
            "cost_follows_length",
            f"Cost ({criterion}) follows the length of the episode (correlation {correlation:.2f}, "
            f"{shortest} to {longest} steps): cheap trajectories are cheap because they are short, "
            "and a policy may keep a limit by ending early. Judge its lengths, too.",
        )


def check_within(limits: Sequence[tuple[str, int]]) -> Iterator[DataWarning]:
    """Enough examples, as (limit, trajectories within it), of what to do under each limit."""
    few = [f"{name} ({num_within})" for name, num_within in limits if num_within < FEW_WITHIN]
    if few:
        yield DataWarning(
            "few_within",
            f"Fewer than {FEW_WITHIN} trajectories lie within {_listed(few)}: frontier and policy "
            "rest on hardly any examples. Ask for looser limits, or record more cheap episodes.",
        )


def rounded(value: float) -> str:
    """Short, for people."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _listed(parts: Iterable[str]) -> str:
    *first, last = parts
    return f"{', '.join(first)} and {last}" if first else last
