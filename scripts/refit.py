"""Fit the last stage of training again, for exports whose rule has changed since.

python -m scripts.refit src/saformer/assets/pretrained/* tests/learning/weights/*

Actor and critic stay as they are, to the bit. The data is made by the task's name, or taken from
the cache.
"""

import argparse
import shutil
from pathlib import Path
from typing import Any

import saformer
from saformer.api.listener import Listener
from saformer.api.run_data import training_data
from saformer.envs.tasks import find_task, load_data
from saformer.runs.export import narrowed, read_facts, read_groups, write_export
from saformer.runs.run import Run

WRITTEN = ("format", "sha256", "sha256_of_all_else")
"""Facts of an export that are written anew with its files."""


def refit(path: Path) -> None:
    """Rewrite one export in place."""
    run, trained = Run(path), saformer.load(path, device="cpu")
    spec, facts, totals = run.spec, read_facts(run), read_groups(run, "totals")
    store = load_data(find_task(spec.task), steps=spec.data_steps, seed=spec.data_seed)
    model = trained.agent.model
    trained.agent.finish(training_data(run, store, Listener()), _print_progress)
    parameters = {name for name, _ in model.named_parameters()}
    groups = {"model": narrowed(model.state_dict(), parameters, facts["dtype"]), "totals": totals}
    rest: dict[str, Any] = {name: fact for name, fact in facts.items() if name not in WRITTEN}
    beside = path.with_name(f"{path.name}-refitted")
    write_export(beside, run, groups, rest)
    shutil.rmtree(path)
    beside.rename(path)


def _print_progress(update: int, updates: int) -> None:
    if update % 500 == 0 or update == updates:
        print(f"outlook: {update} of {updates}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("exports", nargs="+", type=Path)
    for path in parser.parse_args().exports:
        print(path, flush=True)
        refit(path)


if __name__ == "__main__":
    main()
