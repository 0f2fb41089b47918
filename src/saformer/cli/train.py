"""`saformer train` and `saformer demo`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import tyro
from rich.console import Console
from rich.text import Text

from saformer.agents.registry import find_kind
from saformer.api.train import PresetName, train_together
from saformer.cli.command import Command, peek, show, terminal
from saformer.cli.progress import listening
from saformer.engine.torchrun import is_first
from saformer.experiments.demo import demo, demo_run
from saformer.report.table import verdict_table
from saformer.runs.run import Run
from saformer.trained import train
from saformer.training.loop.config import DataSettings, FitConfig
from saformer.training.loop.presets import PRESETS, Preset, changed_preset, settings_of

TASKS = "TASK [TASK ...]"


@dataclass(frozen=True, kw_only=True)
class TrainCommand(Command):
    """Learn a policy from a task's data: by default SaFormer's, one for all limits.

    The data of the named tasks is made on this machine on first use. The run is kept under runs/
    (see --out) with its metrics and checkpoints; Ctrl-C saves it, and the same command with
    --resume goes on exactly where it stopped. With several tasks or seeds, every pair is a run of
    its own; a GPU trains those of one architecture as one program. Processes that torchrun starts
    (`torchrun ... -m saformer train ...`) share each batch, with a GPU each. The flags under
    "config options" are the agent's own: `saformer train --agent cdt --help` shows those of cdt.
    """

    tasks: tyro.conf.Positional[Annotated[tuple[str, ...], tyro.conf.arg(metavar=TASKS)]]
    """One or more of: {hopper,walker2d,halfcheetah}-{effort,medium,medium-replay,medium-expert},
    plant-{room,battery,tank}, allowance (a toy of 20 steps with a known optimum: spend where prices
    are high), a trajectory store's path, d4rl:NAME or minari:NAME."""
    config: Any = None
    """What is learnt."""
    agent: tuple[str, ...] = ("saformer",)
    """The method: `saformer agents` lists them. Several are trained one after the other, those that
    need --limit for that limit, and an agent's own flag is for those that have it; `saformer
    compare` holds them against each other."""
    limit: str | None = None
    """Of an agent that is trained for one limit (see `saformer agents`): a percentile of the data's
    episode costs (p20) or a cost (4300); commas separate constraints."""
    preset: PresetName = "small"
    """Defaults of the flags below. small: minutes on two CPU cores. full: the paper's size (Table
    6), wants a GPU. paper: SaFormer exactly as published, its losses and its rule too."""
    seed: tuple[int, ...] = (0,)
    """Decides initial weights, windows and dropout; several give several runs."""
    data: DataSettings = field(default_factory=DataSettings)
    """What it is learnt from."""
    out: Path | None = None
    """Where to write the run; by default a folder under runs/ named after its settings. Of several
    runs: the folder of their folders, by default runs/."""
    resume: bool = False
    """Go on with an interrupted run of the same settings; several runs go on anyway."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    tensorboard: bool = False
    """Write metrics for TensorBoard too, into the run's folder (needs saformer[track])."""
    fit: FitConfig = field(default_factory=FitConfig)
    """How it is learnt."""

    @classmethod
    def defaults(cls, arguments: Sequence[str]) -> Self:
        """Those of the agent and the preset."""
        named = peek(arguments, "preset")["preset"]
        agents = peek(arguments, "agent", nargs="*")["agent"] or ["saformer"]
        presets = [PRESETS[named if named in PRESETS else "small"](each) for each in agents]
        configs = {name: preset.agent for name, preset in zip(agents, presets, strict=True)}
        config = presets[0].agent if len(presets) == 1 else _any_of(configs)
        return cls(tasks=tyro.MISSING, config=config, fit=presets[0].fit)

    def run(self, console: Console) -> int:
        if not self.tasks or not self.seed:
            example = "saformer train hopper-medium-replay --seed 0"
            raise ValueError(f"name at least one task and one seed: {example}")
        is_one, runs = len(self.agent) == len(self.tasks) == len(self.seed) == 1, list[Run]()
        with listening(console, tensorboard=self.tensorboard) as listener:
            for how in [self._settings(agent, listener.say) for agent in self.agent]:
                if is_one:
                    task, how["seed"] = self.tasks[0], self.seed[0]
                    how |= {"out": self.out, "resume": self.resume}
                    runs.append(train(task, listener=listener, **how).run)
                else:
                    how |= {"out": self.out or "runs", "seeds": self.seed}
                    runs += train_together(self.tasks, listener=listener, **how)
        for run in runs:
            if run.is_done and is_first():
                console.print(Text(f"next: saformer evaluate {run.path}"), soft_wrap=True)
        return 0 if all(run.is_done for run in runs) else 1

    def _settings(self, agent: str, say: Callable[[str], None]) -> dict[str, Any]:
        """Of `train`, for one of the agents; of several, each is given what it has."""
        has_limit, preset = True, Preset(self.config, self.fit)
        if len(self.agent) > 1:
            has_limit, preset = find_kind(agent).has_one_limit, PRESETS[self.preset](agent)
            given = {name: value for name, value in vars(self.config).items() if value is not None}
            lacks = [name for name in given if name not in settings_of(preset.agent)]
            for name in lacks:
                given.pop(name)
                say(f"note: {agent} has no --{name.replace('_', '-')}, and is trained without")
            preset = changed_preset(Preset(preset.agent, self.fit), given)
        named = {"limit": self.limit if has_limit else None, "device": self.device}
        return {"agent": agent, "preset": preset, **named, **vars(self.data)}


def _any_of(configs: Mapping[str, Any]) -> Any:
    """Flags of several agents, each for those that have it; None: as their preset has it."""
    owners = dict[str, list[str]]()
    types = dict[str, Any]()
    for agent, config in configs.items():
        for name, kind in settings_of(config).items():
            owners.setdefault(name, []).append(agent)
            types.setdefault(name, kind)
    flags = [
        (name, Annotated[types[name] | None, tyro.conf.arg(help=f"Of {', '.join(of)}.")], None)
        for name, of in owners.items()
    ]
    return make_dataclass("AgentSettings", flags, frozen=True)()


@dataclass(frozen=True, kw_only=True)
class DemoCommand(Command):
    """Make data, train a small model, judge it under five limits, and report.

    plant: a heated room, a minute or two on two cores, without MuJoCo. robot: a cheetah that runs,
    trots or stands, ten minutes. Nothing is downloaded. Interrupted, it goes on where it stopped.
    """

    kind: tyro.conf.Positional[Literal["plant", "robot"]] = "plant"
    """A heated room, or a robot (needs saformer[mujoco])."""
    out: Path = Path("demo")
    """Where the run and report.html go."""
    scale: Literal["full", "smoke"] = "full"
    """smoke: the same steps with next to no data and training, to see that everything works."""
    seed: int = 0
    """Decides the weights, the windows and the evaluation."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""

    def run(self, console: Console) -> int:
        with listening(console) as listener:
            page = demo(**vars(self), listener=listener)
        run = demo_run(self.kind, self.out, self.scale, self.seed)
        show(run.read_json("evaluation.json"), verdict_table)
        play = f"Play with it: saformer play {run.path}"
        terminal().print(f"Open {page.resolve()} in a browser. {play}", soft_wrap=True)
        return 0
