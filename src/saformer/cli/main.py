"""`saformer`: what the user types."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module

from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from saformer import __version__
from saformer.engine import torchrun
from saformer.runs.pretrained import PREFIX, pretrained_names

VERBS = {
    "demo": "data, training, evaluation and a report in a few minutes",
    "data": "build, import, inspect and export trajectories",
    "agents": "the methods that can be trained, with one line each",
    "train": "learn a policy from a task's data: by default one for all limits",
    "evaluate": "roll a trained policy out under several limits",
    "calibrate": "find what to keep back of limits so that they are passed at a stated rate at most",
    "export": "write what a run has learnt to a small folder, to be deployed",
    "finetune": "explore until a trained policy keeps limits that its data never showed",
    "sweep": "try an option of a trained policy at several values: which return to ask for",
    "experiment": "make a table or figure of the paper again, beside the published numbers",
    "doctor": "what is installed, what is missing and how to get it",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; errors that a user can mend are said in one line, without a traceback."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    console = Console(stderr=True, highlight=False)
    if not arguments or arguments[0] in {"-h", "--help"}:
        _show_help(Console(highlight=False))
        return 0
    if arguments[0] in {"-v", "--version"}:
        print(f"saformer {__version__}")
        return 0
    verb, rest = arguments[0], arguments[1:]
    if verb not in VERBS:
        console.print(
            Text(f"saformer: unknown command {verb!r}; there are {', '.join(VERBS)}", style="red")
        )
        return 2
    if verb != "train" and torchrun.size() > 1:
        console.print(
            Text(
                f"saformer: torchrun is for `train` alone, not for {verb}: leave it out",
                style="red",
            )
        )
        return 2
    warnings.showwarning = lambda message, *_: console.print(
        Text(f"warning: {message}", style="yellow")
    )
    try:
        # imported when asked for, so that `doctor` works where other verbs would miss a package
        code: int = import_module(f"saformer.cli.{verb}").main(rest, console)
        return code
    except (ValueError, OSError, RuntimeError, ModuleNotFoundError, KeyboardInterrupt) as error:
        console.print(Text(f"saformer {verb}: {_explain(error)}", style="red"), soft_wrap=True)
        return 130 if isinstance(error, KeyboardInterrupt) else 1


def _explain(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError):
        return (
            f"{error.name} is not installed; `saformer doctor` says what needs it and how to get it"
        )
    return "interrupted" if isinstance(error, KeyboardInterrupt) else str(error)


def _show_help(console: Console) -> None:
    console.print(
        f"saformer {__version__}: one policy for any cost budget, learnt from logged behaviour.\n"
    )
    for verb, summary in VERBS.items():
        console.print(Text(f"  saformer {verb:<11}{summary}"))
    ready = [f"saformer evaluate {PREFIX}{name}\n" for name in pretrained_names()[:1]]
    example = (
        f"{''.join(ready)}"
        "saformer train hopper-medium-replay --preset small\n"
        "saformer evaluate runs/... --limits p10 300 p90\n"
        "saformer train hopper-medium-replay --agent bc_safe --limit p20"
    )
    console.print(Panel(example, title="for example", title_align="left", expand=False))
    console.print("`saformer COMMAND --help` explains each.")


if __name__ == "__main__":
    sys.exit(main())
