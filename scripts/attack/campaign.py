"""What a campaign is, and how it is run."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Campaign:
    """Tries that must all end well. A try draws everything from its seed."""

    name: str
    tries: int
    """how many, unless the command says otherwise"""
    attempt: Callable[[int], str | None]
    """seed -> what went wrong, or None"""
    per_try: int = 1
    """what the table counts: so many in every try"""
    kind: Callable[[int], str] | None = None
    """seed -> what the table counts apart"""


@dataclass(frozen=True)
class Failure:
    """A try that went wrong: `python -m scripts.attack CAMPAIGN --tries 1 --seed SEED`."""

    seed: int
    problem: str


def run(
    campaign: Campaign,
    tries: int,
    first_seed: int,
    show: Callable[[Failure], object] = id,
    progress: Callable[[int], object] = id,
) -> list[Failure]:
    """The failures of so many tries, each shown at once; whatever an attempt raises is one."""
    failures = []
    for seed in range(first_seed, first_seed + tries):
        try:
            problem = campaign.attempt(seed)
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{last.filename.rsplit('/', 1)[-1]}:{last.lineno}"
            problem = f"{type(error).__name__} at {where}: {error}"
        if problem is not None:
            failures.append(Failure(seed, problem))
            show(failures[-1])
        progress(seed + 1 - first_seed)
    return failures
