"""Attack the package and print a table.

python -m scripts.attack                              every campaign
python -m scripts.attack shield --tries 2000 --seed 0
"""

from __future__ import annotations

import argparse

import torch

from scripts.attack import (
    disks,
    environments,
    frames,
    kills,
    misuses,
    mutations,
    numbers,
    serving,
    shield,
    together,
)
from scripts.attack.campaign import run

_FILES = (misuses, environments, mutations, kills, disks, together)
_MODULES = (shield, numbers, *_FILES, serving, frames)
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
    problems = []
    for name in options.names or CAMPAIGNS:
        tries = options.tries or CAMPAIGNS[name].tries
        failures = run(CAMPAIGNS[name], tries, options.seed)
        print(f"| {name} | {tries * CAMPAIGNS[name].per_try} | {len(failures)} |", flush=True)
        repeat = f"python -m scripts.attack {name} --tries 1 --seed"
        problems += [f"{repeat} {failure.seed}: {failure.problem}" for failure in failures]
    print("\n".join(["", *problems]))
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
