"""What each process of tests/training/test_ranks.py does; torchrun starts it: FOLDER DEVICE
SCENARIO ..."""

import json
import os
import shutil
import signal
import sys
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors.torch import save_file

from saformer.agents.registry import KINDS, create_agent
from saformer.agents.saformer import SaFormerAgent
from saformer.core.transformer import TrunkConfig
from saformer.data.relabel import relabel
from saformer.engine.device import pick_device
from saformer.engine.distributed import Ranks, joined_ranks
from saformer.envs import allowance
from saformer.rules import fitting
from saformer.runs.run import Run
from saformer.runs.spec import RunSpec
from saformer.training.loop.config import FitConfig
from saformer.training.loop.fit import InterruptedTrainingError
from saformer.training.loop.trainer import NonFiniteLossError, Observer
from tests.alone import fit
from tests.brief import BRIEF
from tests.conftest import tiny_config

CONFIG = FitConfig(
    updates=12,
    batch_size=10,
    warmup_updates=3,
    checkpoint_every=5,
    report_every=1,
    gradient_clip=0.05,
)
"""A batch of ten is five for each of two ranks; the clip is one that acts."""


def train(
    folder: Path,
    ranks: Ranks,
    *,
    device="cpu",
    double=False,
    dropout=0.0,
    observer=None,
    data=None,
    **options,
):
    """A run of the toy task: its metrics, update by update, and its weights."""
    data = data or relabel(allowance.dataset(episodes=50), allowance.criteria())
    config = tiny_config(window=6, trunk=TrunkConfig(layers=1, width=16, heads=2, dropout=dropout))
    agent = SaFormerAgent.create(
        data, config, seed=1 + 10 * ranks.rank
    )  # the first one's weights count
    agent.model.to(device, torch.float64 if double else torch.float32)
    sampler = agent.sampler(data, device)
    spec = RunSpec(
        "t",
        "saformer",
        asdict(config),
        asdict(CONFIG),
        1,
        ("torque",),
        None,
        0,
        "f",
        agent.dimensions,
    )
    with ranks.first_alone():
        run = Run(folder)
        if ranks.is_first and not run.spec_path.exists():
            Run.create(folder, spec)
    fit(agent, sampler, CONFIG, seed=1, run=run, ranks=ranks, observer=observer, **options)
    return agent


def keep(agent, folder: Path, ranks: Ranks) -> None:
    save_file(
        {k: v.contiguous() for k, v in agent.model.state_dict().items()},
        folder / f"weights-{ranks.rank}",
    )


def same(folder: Path, ranks: Ranks, device: torch.device) -> None:
    """In doubles, of which the checkpoint of update 5 is kept too, and in floats with dropout."""

    def keep_begun(update, _):
        if update == 6 and ranks.is_first:
            shutil.copy(Run(folder / "doubles").checkpoint_path, folder / "begun")

    observer = Observer(progress=keep_begun)
    keep(
        train(folder / "doubles", ranks, device=device, double=True, observer=observer),
        folder / "doubles",
        ranks,
    )
    keep(train(folder / "floats", ranks, device=device, dropout=0.2), folder / "floats", ranks)


def interrupted(folder: Path, ranks: Ranks, device: torch.device) -> None:
    """One rank hears a signal; both stop, and go on."""
    undisturbed = train(folder / "whole", ranks, dropout=0.2)

    def hear(update, _):
        if update == 7 and ranks.rank == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    said = "nothing"
    try:
        train(folder / "broken", ranks, dropout=0.2, observer=Observer(progress=hear))
    except InterruptedTrainingError as error:
        said = str(error)
    resumed = train(folder / "broken", ranks, dropout=0.2, resume=True)
    weights = resumed.model.state_dict()
    equal = all(
        torch.equal(value, weights[name]) for name, value in undisturbed.model.state_dict().items()
    )
    report("interrupted", folder, ranks, said=said, equal=equal)


def diverging(folder: Path, ranks: Ranks, device: torch.device) -> None:
    """What one rank draws is not a number."""

    def spoil(update, _):
        if update == 6 and ranks.rank == 1:
            data.cost_to_go[:] = float("nan")

    data, said = relabel(allowance.dataset(episodes=50), allowance.criteria()), "nothing"
    try:
        train(folder / "bad", ranks, data=data, observer=Observer(progress=spoil))
    except NonFiniteLossError as error:
        said = str(error)
    report(
        "diverging",
        folder,
        ranks,
        said=said,
        update=Run(folder / "bad").load(groups=()).facts["update"],
    )


def refused(folder: Path, ranks: Ranks, device: torch.device) -> None:
    """Agents that look at their batch as a whole."""
    data = relabel(allowance.dataset(episodes=50), allowance.criteria())
    agent = create_agent(data, KINDS["cpq"].config_type(limit=(5.0,)), seed=0)
    try:
        fit(agent, agent.sampler(data), CONFIG, ranks=ranks)
    except ValueError as error:
        report("refused", folder, ranks, said=str(error))


def report(scenario: str, folder: Path, ranks: Ranks, **found) -> None:
    (folder / f"{scenario}-{ranks.rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    place, processor, *names = sys.argv[1:]
    fitting.UPDATES = BRIEF
    with joined_ranks(pick_device(processor)) as (ranks, device):
        for scenario in (same, interrupted, diverging, refused):
            if scenario.__name__ in names:
                scenario(Path(place), ranks, device)
