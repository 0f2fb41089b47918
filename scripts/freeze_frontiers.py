"""Freeze the frontiers of the canonical builds: what the data itself shows to be possible within
every limit.

Builds each dataset, or takes it from the cache, writes src/saformer/assets/frontiers.json, and
prints its table. What is frozen already changes with --overwrite only.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from saformer.data.canonical import ASSET, CanonicalBuild, parse_builds
from saformer.data.relabel import relabelled
from saformer.envs.tasks import EFFORT_TASKS, MIXTURE_TASKS, PLANT_TASKS, find_task, load_data

TASKS = (*MIXTURE_TASKS, *EFFORT_TASKS, *PLANT_TASKS)
FROZEN = Path(__file__).parents[1].joinpath("src", "saformer", *ASSET)


def main(arguments: Sequence[str] | None = None) -> int:
    """Build, freeze, print."""
    options = _parse(arguments)
    frozen = parse_builds(options.out.read_text()) if options.out.exists() else {}
    refused = []
    for name in options.tasks:
        print(f"{name} ...", file=sys.stderr)
        store = load_data(find_task(name), steps=options.steps, seed=0)
        build, before = CanonicalBuild.of(relabelled(store, (), 1.0)), frozen.get(name)
        if before is None or before.plain() == build.plain() or options.overwrite:
            frozen[name] = build
        else:
            refused.append(
                f"{name} is frozen as {before.fingerprint} and was built as {build.fingerprint}: "
                "every score against it would move; pass --overwrite if that is meant"
            )
    options.out.write_text(_json(frozen))
    print(table(frozen))
    for reason in refused:
        print(reason, file=sys.stderr)
    return 1 if refused else 0


def table(builds: dict[str, CanonicalBuild]) -> str:
    """The builds in Markdown."""
    costs = "cost min / 10% / 20% / 30% / 50% / max | corr(return, cost)"
    head = f"| dataset | episodes | return min / mean / max | {costs} |"
    return "\n".join(
        [head, "|---|---|---|---|---|", *(_row(name, build) for name, build in builds.items())]
    )


def _row(name: str, build: CanonicalBuild) -> str:
    returns = _numbers([build.return_min, build.return_mean, build.return_max])
    costs = _numbers(build.thresholds.values())
    return f"| {name} | {build.num_trajectories} | {returns} | {costs} | {build.correlation:.2f} |"


def _numbers(values: Iterable[float]) -> str:
    """In whole units, or to three digits where there are fewer."""
    return " / ".join(f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}" for value in values)


def _json(builds: dict[str, CanonicalBuild]) -> str:
    """One line for each build, so that a change shows which one moved."""
    lines = (
        f"{json.dumps(name)}: {json.dumps(build.plain(), allow_nan=False)}"
        for name, build in builds.items()
    )
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--tasks",
        nargs="+",
        default=TASKS,
        help="which tasks; by default the paper's nine, effort and plants",
    )
    parser.add_argument("--steps", type=int, help="build fewer steps, to try it out; needs --out")
    parser.add_argument(
        "--out", type=Path, default=FROZEN, help="where to write; by default into the package"
    )
    parser.add_argument("--overwrite", action="store_true", help="change what is frozen")
    options = parser.parse_args(arguments)
    if options.steps is not None and options.out == FROZEN:
        parser.error("--steps makes builds that are not canonical: name another file with --out")
    return options


if __name__ == "__main__":
    sys.exit(main())
