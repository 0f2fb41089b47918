"""`saformer train`."""

from __future__ import annotations

import shlex
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar

import tyro
from rich.console import Console
from rich.text import Text

from saformer.agents.registry import KINDS, find_kind
from saformer.api import Listener, train, train_together
from saformer.cli.dressing import dressed, without_flags
from saformer.cli.progress import listening
from saformer.engine.torchrun import is_first
from saformer.runs.run import Run
from saformer.training.loop.config import FitConfig
from saformer.training.loop.fit import InterruptedTrainingError
from saformer.training.loop.presets import PRESETS, Preset

Config = TypeVar("Config")


@dataclass(frozen=True)
class TrainCommand(Generic[Config]):
    """Learn a policy from a task's data: by default SaFormer's, one for all limits.

    The data of the named tasks is made on this machine on first use. The run is kept under runs/
    (see --out) with its metrics and checkpoints; Ctrl-C saves it, and the same command with
    --resume goes on exactly where it stopped. With several tasks or seeds, every pair is a run of
    its own; a GPU trains those of one architecture as one program. Processes that torchrun starts
    (`torchrun ... -m saformer train ...`) share each batch, with a GPU each. The flags under
    "config options" are the agent's own: `saformer train --agent cdt --help` shows those of cdt.
    """

    tasks: tyro.conf.Positional[
        Annotated[tuple[str, ...], tyro.conf.arg(metavar="TASK [TASK ...]")]
    ]
    """One or more of: allowance,
    {hopper,walker2d,halfcheetah}-{medium,medium-replay,medium-expert}, a trajectory store's path,
    d4rl:NAME or minari:NAME."""
    config: Config
    """What is learnt."""
    agent: str = "saformer"
    """The method: `saformer agents` lists them."""
    limit: str | None = None
    """The limit that the agent is trained for, where it is trained for one (`saformer agents` says
    which): a percentile of the training data's episode costs (p20) or a cost (4300); commas
    separate constraints."""
    preset: Literal["small", "paper"] = "small"
    """small: minutes on two CPU cores. paper: the paper's sizes, 100,000 updates, wants a GPU. The
    defaults below are the preset's."""
    criteria: tuple[str, ...] = ()
    """Criteria, one per constraint: torque, energy, a column's name, an expression such as
    "abs(action).sum()", module:function; by default those of the data."""
    held_out: float | None = None
    """Share of trajectories to keep for an offline evaluation; by default 0.1 where there is no
    simulator, else 0."""
    seed: tuple[int, ...] = (0,)
    """Decides initial weights, windows and dropout; several give several runs."""
    data_steps: int | None = None
    """Environment steps of data to make; by default 300,000 for replay tasks and 1,000,000 for the
    others."""
    data_seed: int = 0
    """Decides the data."""
    out: Path | None = None
    """Where to keep the run; by default a folder under runs/ named after its settings. Of several
    runs: the folder of their folders, by default runs/."""
    resume: bool = False
    """Go on with an interrupted run of the same settings. Several runs go on anyway: those that
    finished are not redone."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    tensorboard: bool = False
    """Write metrics for TensorBoard too, into the run's folder (needs saformer[track])."""
    fit: FitConfig = field(default_factory=FitConfig)
    """How it is learnt."""


def parse(arguments: Sequence[str]) -> TrainCommand:
    """Parse flags; whatever is not said comes from the preset."""
    agent = _said(arguments, "--agent", KINDS) or "saformer"
    preset = PRESETS[_said(arguments, "--preset", PRESETS) or "small"](agent)
    config = without_flags(find_kind(agent).config, "limit")
    default = TrainCommand(tyro.MISSING, dressed(preset.agent, config), agent, fit=preset.fit)
    command = Annotated[
        TrainCommand[config], tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff
    ]  # type: ignore[valid-type]
    return tyro.cli(command, args=list(arguments), default=default, prog="saformer train")


def main(arguments: Sequence[str], console: Console) -> int:
    """Train, and say how to go on if interrupted."""
    command = parse(arguments)
    if not command.tasks or not command.seed:
        raise ValueError(
            "name at least one task and one seed: saformer train hopper-medium-replay --seed 0"
        )
    try:
        with listening(console, tensorboard=command.tensorboard) as listener:
            runs = _train(command, listener)
    except InterruptedTrainingError as error:
        if not is_first():
            return 130
        again = shlex.join(
            ["saformer", "train", *(a for a in arguments if a != "--resume"), "--resume"]
        )
        console.print(Text(f"{error}. Go on with:\n  {again}", style="yellow"), soft_wrap=True)
        return 130
    for run in runs:
        if run.is_done and is_first():
            console.print(Text(f"next: saformer evaluate {run.path}"), soft_wrap=True)
    return 0 if all(run.is_done for run in runs) else 1


def _train(command: TrainCommand, listener: Listener) -> list[Run]:
    settings: dict[str, Any] = {
        "limit": command.limit,
        "preset": Preset(dressed(command.config, find_kind(command.agent).config), command.fit),
        "criteria": command.criteria,
        "held_out": command.held_out,
        "data_steps": command.data_steps,
        "data_seed": command.data_seed,
        "device": command.device,
        "listener": listener,
    }
    if len(command.tasks) == len(command.seed) == 1:
        return [
            train(
                command.tasks[0],
                seed=command.seed[0],
                out=command.out,
                resume=command.resume,
                **settings,
            )
        ]
    return train_together(command.tasks, seeds=command.seed, out=command.out or "runs", **settings)


def _said(arguments: Sequence[str], flag: str, known: Container[str]) -> str | None:
    """What a flag was given that must be known before the others are read, because it decides their
    defaults."""
    for place, argument in enumerate(arguments):
        name = argument.partition("=")[2] if argument.startswith(f"{flag}=") else None
        if argument == flag and place + 1 < len(arguments):
            name = arguments[place + 1]
        if name in known:
            return name
    return None
