"""`saformer`: what the user types."""

import difflib
import gc
import shlex
import sys
import warnings
from collections.abc import Mapping, Sequence
from importlib import import_module

from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from saformer import __version__
from saformer.cli.command import Command, parse_command, terminal
from saformer.engine import torchrun
from saformer.engine.installed import how_to_get
from saformer.engine.interrupts import interrupts_heard
from saformer.runs.pretrained import PREFIX, pretrained_names

COMMANDS = {
    "demo": ("train:DemoCommand", "data, training, evaluation and a report in a few minutes"),
    "data": ("data", "build, import, collect, inspect and export trajectories"),
    "agents": ("doctor:AgentsCommand", "the methods that can be trained, with one line each"),
    "train": ("train:TrainCommand", "learn a policy from a task's data, by default for all limits"),
    "evaluate": ("judge:EvaluateCommand", "roll a trained policy out under several limits"),
    "play": ("play:PlayCommand", "watch a policy act, and move its budget while it does"),
    "compare": ("compare:CompareCommand", "hold evaluated runs against each other"),
    "select": ("select:SelectCommand", "choose among runs, rules and margins by logs alone"),
    "calibrate": ("judge:CalibrateCommand", "withhold enough of limits to keep a violation rate"),
    "export": ("judge:ExportCommand", "write what a run has learnt to a small folder, to deploy"),
    "finetune": ("judge:FinetuneCommand", "explore to keep limits that the data never showed"),
    "serve": ("judge:ServeCommand", "answer many clients, each within its own budget"),
    "sweep": ("judge:SweepCommand", "try an option of a trained policy at several values"),
    "experiment": ("experiment:ExperimentCommand", "make a table or figure of the paper again"),
    "doctor": ("doctor:DoctorCommand", "what is installed, what is missing and how to get it"),
}
DATA_COMMANDS = {
    "build": ("data:BuildCommand", "make a task's data on this machine, without a download"),
    "import": ("data:ImportCommand", "turn logs, HDF5, NPZ or Minari data into a store"),
    "collect": ("collect:CollectCommand", "roll a policy of your own out in your simulator"),
    "inspect": ("data:InspectCommand", "which limits can this data support?"),
    "check": ("doctor:DoctorCommand", "is a store what was stored? Reads all of it"),
    "export": ("data:ExportDataCommand", "write data as a Minari dataset"),
    "list": ("data:ListCommand", "what can be built, and what is there already"),
}
CAN_RESUME = ("train", "finetune")
"""Commands that --resume continues; others go on when they are given again."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; errors that a user can mend are said in one line, without a traceback."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    console = terminal(stderr=True)
    is_data = words[:1] == ["data"]
    prog, commands = ("saformer data", DATA_COMMANDS) if is_data else ("saformer", COMMANDS)
    verb = next(iter(words[is_data:]), "--help")
    if verb in {"-h", "--help"}:
        _show_help(prog, commands)
        return 0
    if verb in {"-v", "--version"}:
        print(f"saformer {__version__}")
        return 0
    if verb not in commands:
        nearest = difflib.get_close_matches(verb, commands, n=1)
        known = f"did you mean {nearest[0]}?" if nearest else f"there are {', '.join(commands)}"
        return _complain(console, f"{prog}: unknown command {verb!r}; {known}")
    if words[0] != "train" and torchrun.size() > 1:
        message = f"saformer: torchrun is for `train` alone, not for {verb}: leave it out"
        return _complain(console, message)
    warnings.showwarning = lambda text, *_: console.print(Text(f"warning: {text}", style="yellow"))
    try:
        with interrupts_heard():
            if is_alone := arguments is None:  # in a process of its own, what is imported stays:
                gc.disable()  # to look through it for garbage takes a fifth of the time
            command = command_of(words)
            if is_alone:
                gc.freeze()
                gc.enable()
            return command.run(console)
    except (ValueError, OSError, RuntimeError, ModuleNotFoundError, KeyboardInterrupt) as error:
        return _explain(error, ["saformer", *words], console)


def command_of(arguments: Sequence[str]) -> Command:
    """The command, imported only now: `doctor` works where others would miss a package."""
    prog, commands = "saformer", COMMANDS
    if arguments[0] == "data":
        arguments, prog, commands = arguments[1:], "saformer data", DATA_COMMANDS
    module, _, name = commands[arguments[0]][0].partition(":")
    cls = getattr(import_module(f"saformer.cli.{module}"), name)
    return parse_command(cls, arguments[1:], f"{prog} {arguments[0]}")


def _complain(console: Console, message: str) -> int:
    console.print(Text(message, style="red"))
    return 2


def _explain(error: BaseException, words: Sequence[str], console: Console) -> int:
    """Say what went wrong, or how to go on with what was interrupted."""
    if isinstance(error, BrokenPipeError) and {"-h", "--help"} & {*words}:
        console.on_broken_pipe()  # who read it, as `head` does, has seen enough
    command = " ".join(words[: 3 if words[1] == "data" else 2])
    message, code = str(error), 1
    if isinstance(error, RuntimeError) and _is_resumable(error):
        resume = ["--resume"] if words[1] in CAN_RESUME else []
        again = shlex.join([*(word for word in words if word != "--resume"), *resume])
        if torchrun.is_first():
            line = f"{error}. Go on with:\n  {again}"
            console.print(Text(line, style="yellow"), soft_wrap=True)
        return 130
    if isinstance(error, KeyboardInterrupt):
        message, code = "interrupted", 130
    elif isinstance(error, ModuleNotFoundError) and error.name:
        message = how_to_get(error.name)
    console.print(Text(f"{command}: {message}", style="red"), soft_wrap=True)
    return code


def _is_resumable(error: BaseException) -> bool:
    from saformer.training.loop import fit  # late: it takes seconds, which --help need not

    return isinstance(error, fit.InterruptedTrainingError)


def _show_help(prog: str, commands: Mapping[str, tuple[str, str]]) -> None:
    console, is_data = terminal(), commands is DATA_COMMANDS
    if is_data:
        console.print("saformer data: make, import, inspect and export trajectories.\n")
    else:
        console.print(f"saformer {__version__}: one policy for any cost budget, from logs.\n")
    for verb, (_, summary) in commands.items():
        console.print(Text(f"  {prog} {verb:<11}{summary}"), soft_wrap=True)
    if not is_data:
        ready = [f"\nsaformer evaluate {PREFIX}{name}" for name in pretrained_names()[:1]]
        example = (
            "saformer demo plant\n"
            "saformer train plant-room --updates 1000 --out runs/room\n"
            "saformer evaluate runs/room --limits p10 7.5 p90\n"
            "saformer train hopper-medium-replay --agent bc_safe --limit p20"
        ) + "".join(ready)
        console.print(Panel(example, title="for example", title_align="left", expand=False))
    console.print(f"`{prog} COMMAND --help` explains each.")
