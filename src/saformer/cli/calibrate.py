"""`saformer calibrate`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar

import tyro
from rich.console import Console
from rich.table import Table

from saformer.api.calibrating import calibrate
from saformer.cli.dressing import dressed, without_flags
from saformer.cli.evaluate import changes, run_of, usual_options
from saformer.cli.progress import listening
from saformer.evaluation.calibration import MARGINS, CalibratedLimit, Calibration
from saformer.report.table import Cell, numbers, terminal_table

Options = TypeVar("Options")
HEADINGS = ("limit", "kept back", "passed", "bound", "cost", "return", "share", "")


@dataclass(frozen=True)
class CalibrateCommand(Generic[Options]):
    """Find the smallest margin of each limit under which at most a stated share of episodes passes
    it.

    A margin is the share of a limit that the policy is not told of. Margins are tried from the
    largest to the smallest, each on fresh episodes, until one cannot be shown to keep the rate.
    Keeps calibration.json beside the run or in --out, for `saformer evaluate RUN --rate RATE`.
    Needs the run's environment.
    """

    run: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="RUN")]]
    """The run's folder, as `saformer train` printed it; or a store, for the latest run under runs/
    trained on it; or an export; or pretrained:NAME."""
    acting: Options
    """How the policy acts; by default as `saformer evaluate` would have it."""
    rate: float = 0.05
    """Share of episodes that may pass their limit."""
    limits: tuple[str, ...] = ()
    """Percentiles of the data's episode costs (p10) or plain costs (4300); by default p10 p20 p30
    p50."""
    episodes: int = 200
    """Fresh episodes for each margin and limit."""
    confidence: float = 0.95
    """That the rate is kept, for each limit by itself."""
    margins: tuple[float, ...] = MARGINS
    """Shares of the limit to try, from the largest to the smallest."""
    data: str | None = None
    """Where the run's store is now, if it was moved."""
    out: Path | None = None
    """Where to keep what was found; by default the run's folder, for pretrained:NAME
    runs/pretrained-NAME."""
    seed: int = 0
    """Decides initial states and proposals; they are never those of an evaluation."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    workers: int | Literal["auto"] = "auto"
    """Processes that step the environments; auto: one per core where that pays. 0: none beside this
    one."""
    json: bool = False
    """Print JSON instead of the table."""


def parse(arguments: Sequence[str]) -> CalibrateCommand:
    """Parse flags."""
    usual = usual_options(arguments)
    options = without_flags(type(usual), "seed")
    command = Annotated[
        CalibrateCommand[options], tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff
    ]  # type: ignore[valid-type]
    default = CalibrateCommand(tyro.MISSING, dressed(usual, options))
    return tyro.cli(command, args=list(arguments), default=default, prog="saformer calibrate")


def main(arguments: Sequence[str], console: Console) -> int:
    """Calibrate and print; 1 if a limit has no margin that keeps the rate."""
    command = parse(arguments)
    with listening(console) as listener:
        found = calibrate(
            run_of(command.run),
            rate=command.rate,
            limits=command.limits,
            episodes=command.episodes,
            confidence=command.confidence,
            margins=command.margins,
            execution=changes(command.acting, usual_options(arguments)),
            data=command.data,
            out=command.out,
            seed=command.seed,
            device=command.device,
            workers=command.workers,
            listener=listener,
        )
    if command.json:
        print(json.dumps(found.plain(), indent=2))
    else:
        Console(highlight=False).print(calibration_table(found))
    return 0 if all(one.margin is not None for one in found.limits) else 1


def calibration_table(found: Calibration) -> Table:
    """What was kept of each limit, or how near the most conservative margin came."""
    caption = (
        f"at most {100 * found.rate:.3g}% of episodes pass, with confidence {found.confidence:g} "
        "for each limit; "
        f"{found.episodes} fresh episodes for each margin"
    )
    return terminal_table(HEADINGS, [_row(one) for one in found.limits], caption=caption)


def _row(one: CalibratedLimit) -> list[Cell]:
    shown = one.passed or one.tested[-1]
    cells: list[Any] = [
        f"{one.limit.name} = {numbers(one.limit.values)}",
        f"{100 * shown.margin:.3g}%",
        f"{shown.num_violations} of {shown.num_episodes}",
        f"{shown.bound:.1%}",
        numbers(shown.mean_cost),
        numbers([shown.mean_return]),
        f"{shown.frontier_share:.2f}",
        "" if one.passed else "not reached by the largest margin",
    ]
    return [(text, "") for text in cells]
