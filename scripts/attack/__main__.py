"""Attack the package and print a table.

python -m scripts.attack                              every campaign
python -m scripts.attack shield --tries 2000 --seed 0
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from functools import partial

import torch

from scripts.attack import (
    disks,
    environments,
    frames,
    kills,
    misuses,
    mutations,
    nodes,
    numbers,
    serving,
    shield,
    together,
)
from scripts.attack.campaign import Campaign, Failure, run

_FILES = (misuses, environments, mutations, kills, disks, together)
_MODULES = (shield, numbers, *_FILES, serving, frames, nodes)  # last: no fork of Ray's threads
CAMPAIGNS = {module.CAMPAIGN.name: module.CAMPAIGN for module in _MODULES}


def main(arguments: list[str] | None = None) -> int:
    """1 if anything failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="CAMPAIGN", help=", ".join(CAMPAIGNS))
    parser.add_argument("--tries", type=int, help="by default each campaign's own number")
    parser.add_argument("--seed", type=int, default=0, help="of the first try")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    unknown = set(options.names) - set(CAMPAIGNS)
    if unknown:
        parser.error(
            f"unknown campaign {', '.join(sorted(unknown))}; known: {', '.join(CAMPAIGNS)}"
        )
    print("| campaign | tries | failures |\n|---|---|---|")
    num_failures = 0
    for name in options.names or CAMPAIGNS:
        tries = options.tries or CAMPAIGNS[name].tries
        repeat = f"python -m scripts.attack {name} --tries 1 --seed"
        shown = partial(_show, repeat), partial(_show_progress, name, tries)
        failures = run(CAMPAIGNS[name], tries, options.seed, *shown)
        print(f"| {name} | {tries * CAMPAIGNS[name].per_try} | {len(failures)} |", flush=True)
        num_failures += len(failures)
        _show_kinds(CAMPAIGNS[name], range(options.seed, options.seed + tries), failures)
    return 1 if num_failures else 0


def _show_kinds(campaign: Campaign, seeds: range, failures: list[Failure]) -> None:
    if campaign.kind:
        tries = Counter(map(campaign.kind, seeds))
        failed = Counter(campaign.kind(failure.seed) for failure in failures)
        for kind in sorted(tries):
            print(
                f"| {campaign.name}, {kind} | {tries[kind] * campaign.per_try} | {failed[kind]} |"
            )


def _show(repeat: str, failure: Failure) -> None:
    print(f"{repeat} {failure.seed}: {failure.problem}", file=sys.stderr, flush=True)


def _show_progress(name: str, tries: int, done: int) -> None:
    """Twenty times: what was tried is known of a campaign that is stopped, too."""
    if done % max(1, tries // 20) == 0:
        print(f"{name}: {done} of {tries}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
