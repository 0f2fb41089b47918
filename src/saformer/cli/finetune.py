"""`saformer finetune`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar

import tyro
from rich.console import Console
from rich.text import Text

from saformer.api import Listener, evaluate, finetune
from saformer.api.finetuning import FineTuned
from saformer.cli.dressing import dressed, without_flags
from saformer.cli.evaluate import changes, usual_options
from saformer.cli.progress import listening
from saformer.report.rollouts import write_report
from saformer.report.table import verdict_table
from saformer.training.finetune.config import FinetuneConfig
from saformer.training.loop.fit import InterruptedTrainingError

Options = TypeVar("Options")
JUDGED_EPISODES = 20


@dataclass(frozen=True)
class FinetuneCommand(Generic[Options]):
    """Let a trained SaFormer explore its environment until it keeps limits that its data never
    showed.

    It asks for less than each limit, keeps every episode with what it really cost, and goes on
    learning from old and new data. One line says what each episode cost. The new run is kept beside
    the old one, which is not touched; Ctrl-C saves it, and the same command with --resume goes on.
    At the end every limit is judged and a report written.
    """

    run: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="RUN")]]
    """The run's folder, as `saformer train` printed it."""
    limit: tuple[str, ...]
    """Limits to keep: costs (3700), or percentiles of the data's (p10); commas separate
    constraints."""
    acting: Options
    """How the policy acts; by default as the run was trained for."""
    ceiling: str | None = None
    """Cost at which an episode of exploration is ended: a cost, or a percentile of the data's. By
    default none is."""
    data: str | None = None
    """Where the run's store is now, if it was moved."""
    out: Path | None = None
    """Where to keep the new run; by default a folder under runs/ named after the old one."""
    seed: int = 0
    """Decides initial states, proposals and windows."""
    resume: bool = False
    """Go on with an interrupted run of the same settings."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    workers: int | Literal["auto"] = "auto"
    """Processes that step the environments; auto: one per core where that pays. 0: none beside this
    one."""
    tensorboard: bool = False
    """Write metrics for TensorBoard too, into the run's folder (needs saformer[track])."""
    config: FinetuneConfig = field(default_factory=FinetuneConfig)
    """How to explore and learn."""


def parse(arguments: Sequence[str]) -> FinetuneCommand:
    """Parse flags."""
    usual = _usual(arguments)
    options, config = without_flags(type(usual), "seed"), without_flags(FinetuneConfig, "ceiling")
    command = Annotated[
        FinetuneCommand[options], tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff
    ]  # type: ignore[valid-type]
    default = FinetuneCommand(
        tyro.MISSING,
        tyro.MISSING,
        dressed(usual, options),
        config=dressed(FinetuneConfig(), config),
    )
    return tyro.cli(command, args=list(arguments), default=default, prog="saformer finetune")


def main(arguments: Sequence[str], console: Console) -> int:
    """Fine-tune, judge and report, and say how to go on if interrupted."""
    command = parse(arguments)
    acting = changes(command.acting, _usual(arguments))
    try:
        with listening(console, tensorboard=command.tensorboard) as listener:
            tuned = _finetune(command, acting, listener)
    except InterruptedTrainingError as error:
        again = shlex.join(
            ["saformer", "finetune", *(a for a in arguments if a != "--resume"), "--resume"]
        )
        console.print(Text(f"{error}. Go on with:\n  {again}", style="yellow"), soft_wrap=True)
        return 130
    with listening(console) as listener:
        found = evaluate(
            tuned.run.path,
            limits=command.limit,
            episodes=JUDGED_EPISODES,
            execution={name: acting[name] for name in acting if hasattr(ProposalOptions, name)},
            seed=command.seed,
            device=command.device,
            workers=command.workers,
            listener=listener,
        )
    Console().print(verdict_table(found.plain()))
    page = write_report(tuned.run, tuned.run.path / "report.html")
    console.print(f"report written to {page}", soft_wrap=True)
    return 0


def _usual(arguments: Sequence[str]) -> Any:
    """The paper's rule, with the options that all rules have as the run would have them."""
    from saformer.training.finetune import exploration_options  # needs Gymnasium

    usual = usual_options(arguments)
    return exploration_options(usual) if isinstance(usual, ProposalOptions) else usual


def _finetune(command: FinetuneCommand, acting: dict[str, Any], listener: Listener) -> FineTuned:
    return finetune(
        command.run,
        command.limit,
        ceiling=command.ceiling,
        config=dressed(command.config, FinetuneConfig),
        execution=acting,
        data=command.data,
        out=command.out,
        seed=command.seed,
        resume=command.resume,
        device=command.device,
        workers=command.workers,
        listener=listener,
    )
