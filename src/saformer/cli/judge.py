"""Commands on a trained run: evaluate, calibrate, sweep, finetune, serve and export."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import tyro
from rich.console import Console

from saformer.agents.registry import find_kind, from_plain
from saformer.api.listener import Listener
from saformer.api.loaded import Context
from saformer.api.run_data import has_environment
from saformer.cli.command import Command, peek, show
from saformer.cli.progress import listening
from saformer.envs.tasks import is_store, locator
from saformer.evaluation.settings import CalibrateSettings, EvaluateSettings, SweepSettings
from saformer.live.play.settings import RecordSettings
from saformer.live.serve.settings import ServeSettings
from saformer.report.table import calibration_table, sweep_table, verdict_table
from saformer.runs.pretrained import folder_of
from saformer.runs.run import Run, latest_run
from saformer.trained import Trained, load
from saformer.training.finetune.config import FinetuneConfig
from saformer.training.loop.fit import InterruptedTrainingError

ROLLOUTS_ALONE = ("rate", "shield", "both", "reference")


@dataclass(frozen=True, kw_only=True)
class RunCommand(Command):
    """What a command on a trained run needs: which one, how its policy acts, and where."""

    usual_rule: ClassVar[str | None] = None
    """None: the agent's own"""
    path: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="RUN")]]
    """The run's folder, as `saformer train` printed it; or a store, for the latest run under runs/
    trained on it; or an export; or pretrained:NAME for a policy that comes with the package
    (`saformer doctor` lists them). It stands before all flags."""
    acting: Any = None
    """How the policy acts; by default as the run was trained for."""
    usual: tyro.conf.Suppress[tyro.conf.Fixed[Any]] = None
    """the run, and how it acts unless flags say otherwise"""
    context: Context = field(default_factory=Context)
    """Where."""

    @classmethod
    def defaults(cls, arguments: Sequence[str]) -> Self | None:
        """Options are those of the run's agent, and of the rule that --rule names."""
        first = arguments[0] if arguments and not arguments[0].startswith("-") else None
        run = Run(folder_of(run_path(first))) if first else None
        if run is not None and run.spec_path.exists():
            kind, plain = find_kind(run.spec.agent), run.spec.agent_config
        else:
            kind, plain = find_kind("saformer"), {}
        config = from_plain(kind.config_type, plain, strict=False)
        usual_rule = cls.usual_rule if cls.usual_rule in kind.rules else None
        options = kind.options_of(config, peek(arguments, "rule")["rule"] or usual_rule)
        return cls(path=tyro.MISSING, acting=options, usual=(first, options))

    @property
    def changes(self) -> dict[str, Any]:
        """The options that flags changed."""
        first, usual = self.usual
        if first != self.path:
            raise ValueError(f"name the run before all flags: saformer VERB {self.path} --FLAG ...")
        named = {each.name: getattr(self.acting, each.name) for each in fields(usual)}
        return {name: value for name, value in named.items() if value != getattr(usual, name)}

    def load(self, listener: Listener) -> Trained:
        return load(run_path(self.path), listener=listener, **vars(self.context))


def run_path(path: str) -> str | Path:
    """The run's folder; for a store, that of the latest run that was trained on it."""
    return latest_run(locator(path)) if is_store(path) else path


@dataclass(frozen=True, kw_only=True)
class EvaluateCommand(RunCommand):
    """Roll a trained policy out under several limits, all in one batch, and judge each.

    Prints a table, writes evaluation.json (every episode, too) and a report to the run's folder or
    to --out, and keeps earlier ones in evaluations/. Where the data has no simulator, the policy is
    rolled out in a world learnt from the data, and its model held against trajectories that
    training held out (--offline; docs/offline.md). The flags under
    "acting options" are the agent's own, or those of the rule: `saformer evaluate RUN --rule paper
    --help` shows them.
    """

    settings: EvaluateSettings = field(default_factory=EvaluateSettings)
    """What is judged."""
    offline: bool = False
    """No simulator: estimate from the data what the policy would cost and earn."""
    json: bool = False
    """Print JSON instead of the table."""
    report: Path | None = None
    """Where to write the report; by default report.html beside evaluation.json."""
    watching: RecordSettings = field(default_factory=RecordSettings)
    """What can be watched afterwards."""

    def run(self, console: Console) -> int:
        from saformer.report.rollouts import write_report  # it draws, as other commands need not

        with listening(console) as listener:
            trained = self.load(listener)
            is_there = trained.environment or has_environment(trained.run, self.context.data)
            if self.offline or not is_there:
                evaluation, table, write = self._offline(trained)
            else:
                changes = {**self.changes, "seed": self.settings.seed}
                settings = replace(self.settings, options=changes)
                judged = trained.evaluate(**vars(settings))
                evaluation, table, write = judged.plain(), verdict_table, write_report
        show(evaluation, table, as_json=self.json)
        page = write(trained.findings, self.report or trained.findings.path / "report.html")
        if write is write_report:
            from saformer.live.play.recording import record_beside  # rolls out, as offline need not

            trained.findings.keep_page(page)
            with listening(console) as listener:
                if record_beside(trained, self.watching, judged, settings, listener):
                    write(trained.findings, page)  # again, with links
        console.print(f"report written to {page}", soft_wrap=True)
        return 0

    def _offline(self, trained: Trained) -> tuple[Any, Callable[..., Any], Callable[..., Path]]:
        from saformer.report.offline import judged_tables, write_offline_report

        flags = [f"--{name}" for name in ROLLOUTS_ALONE if getattr(self.settings, name)]
        if flags:
            raise ValueError(
                f"{', '.join(flags)} needs rollouts, but {trained.path} is judged offline: leave "
                "it out, or give a run whose data has an environment"
            )
        names = ("episodes", "rule", "seed", "may_end")
        how = {name: getattr(self.settings, name) for name in names}
        estimate = trained.estimate(self.settings.limits, options=self.changes, **how)
        judged = {"estimate": estimate.plain()}
        if trained.kind.verifies and trained.run.spec.held_out:
            judged["held_out"] = trained.evaluate_offline(self.settings.limits).plain()
        return judged, judged_tables, write_offline_report


@dataclass(frozen=True, kw_only=True)
class CalibrateCommand(RunCommand):
    """Find the smallest margin of each limit that keeps a stated violation rate.

    A margin is the share of a limit that the policy never hears of. Margins are tried from the
    smallest to the largest, each on fresh episodes, until one is shown to keep the rate. Writes
    calibration.json to the run's folder or to --out, for `saformer evaluate RUN --rate RATE`, after
    each margin: Ctrl-C keeps what was found, and the same command goes on. Needs the run's
    environment or, with --offline, its data alone.
    """

    settings: CalibrateSettings = field(default_factory=CalibrateSettings)
    """What is shown."""
    json: bool = False
    """Print JSON instead of the table."""

    def run(self, console: Console) -> int:
        with listening(console) as listener:
            settings = {**vars(self.settings), "options": self.changes}
            try:
                calibration = self.load(listener).calibrate(**settings)
            except KeyboardInterrupt:
                raise InterruptedTrainingError("stopped; margins tried so far are kept") from None
        show(calibration.plain(), calibration_table, as_json=self.json)
        return 0 if all(each.margin is not None for each in calibration.limits) else 1


@dataclass(frozen=True, kw_only=True)
class SweepCommand(RunCommand):
    """Roll a trained policy out with one option at several values, and say which earned most.

    By default the option is the target return of dt and cdt, tried from well within to beyond the
    data. Writes sweep.json to the run's folder or to --out.
    """

    settings: SweepSettings = field(default_factory=SweepSettings)
    """What is tried."""
    json: bool = False
    """Print JSON instead of the table."""

    def run(self, console: Console) -> int:
        with listening(console) as listener:
            settings = {**vars(self.settings), "options": self.changes}
            swept = self.load(listener).sweep(**settings)
        show(swept.plain(), sweep_table, as_json=self.json)
        return 0


@dataclass(frozen=True, kw_only=True)
class FinetuneCommand(RunCommand):
    """Let a trained SaFormer explore until it keeps limits that its data never showed.

    It prompts for less than each limit, adds every episode with its true cost to the data, and goes
    on learning from old and new data. One line says what each episode cost. The new run stands
    beside the old one, which is not touched; Ctrl-C saves it, and the same command with --resume
    goes on. At the end every limit is judged and a report written.
    """

    usual_rule: ClassVar[str | None] = "paper"
    limit: tuple[str, ...] = ()
    """Limits to keep: costs (3700) or the data's percentiles (p10); commas separate constraints."""
    rule: str | None = "paper"
    """How the policy is judged: paper (Algorithm 1), or feasible as `saformer evaluate` judges."""
    may_end: bool | None = None
    """Whether episodes may end early to keep a limit; by default as the run's data says."""
    ceiling: str | None = None
    """Ends an episode of exploration: a cost, or a percentile of the data's; by default none."""
    out: Path | None = None
    """Where to write the new run; by default a folder under runs/ named after the old one."""
    seed: int = 0
    """Decides initial states, proposals and windows."""
    resume: bool = False
    """Go on with an interrupted run of the same settings."""
    tensorboard: bool = False
    """Write metrics for TensorBoard too, into the run's folder (needs saformer[track])."""
    config: FinetuneConfig = field(default_factory=FinetuneConfig)
    """How to explore and learn."""

    def run(self, console: Console) -> int:
        from saformer.report.rollouts import write_report

        acting: dict[str, Any] = {"rule": self.rule, "options": self.changes, "seed": self.seed}
        acting["may_end"] = self.may_end
        how = {name: getattr(self, name) for name in ("ceiling", "config", "out", "resume")}
        with listening(console, tensorboard=self.tensorboard) as listener:
            tuned = self.load(listener).finetune(self.limit, **how, **acting)
        with listening(console) as listener:
            device, workers = self.context.device, self.context.workers
            trained = load(tuned.run.path, listener=listener, device=device, workers=workers)
            evaluation = trained.evaluate(self.limit, **acting)
        show(evaluation.plain(), verdict_table)
        page = write_report(tuned.run, tuned.run.path / "report.html")
        console.print(f"report written to {page}", soft_wrap=True)
        return 0


@dataclass(frozen=True, kw_only=True)
class ServeCommand(RunCommand):
    """Answer many clients from one process: a websocket with openpi's frames, HTTP with JSON.

    Each session has its own budget, which can be moved. Accounts are on disk before an answer
    leaves: after a restart with the same --accounts all go on. `saformer.client` is a client, /docs
    on the server says what it hears. See docs/serve.md.
    """

    settings: ServeSettings = field(default_factory=ServeSettings)
    """Where, for whom and how much."""

    def run(self, console: Console) -> int:
        from saformer.live.serve.server import serve

        with listening(console) as listener:
            trained = self.load(listener)
        serve(trained, self.settings, self.changes)
        return 0


@dataclass(frozen=True, kw_only=True)
class ExportCommand(RunCommand):
    """Write what a run has learnt to a small folder, to act and be judged where its data is not.

    `saformer.load(OUT)`, `saformer evaluate OUT` and `saformer sweep OUT` read it. It holds the
    weights, what the run is, and what each stored trajectory earned and cost, so that limits such
    as p10 need no data; it holds no states, no actions, and nothing to train on with. In float32 it
    is calibrated as the run is; rounded, it must be calibrated again (`saformer calibrate OUT`).
    """

    out: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="OUT")]] = tyro.MISSING
    """A new folder."""
    format: Literal["saformer", "onnx"] = "saformer"
    """saformer: weights, to be loaded. onnx: a decision by the acting options below, as a graph
    of float32 that onnxruntime runs from any language (extra onnx)."""
    rule: str | None = None
    """Of --format onnx; by default as the run was trained for."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """Precision of matrices. bfloat16: half the size, three digits; float32: as trained."""
    command: str | None = None
    """The command that trained the run, for the record."""

    def run(self, console: Console) -> int:
        acting: dict[str, Any] = {"rule": self.rule, "options": self.changes}
        if self.format != "onnx" and any(acting.values()):
            raise ValueError("how it acts is for `saformer evaluate OUT` to say, or --format onnx")
        how = acting if self.format == "onnx" else {"dtype": self.dtype, "command": self.command}
        with listening(console) as listener:
            self.load(listener).export(self.out, format=self.format, **how)
        return 0
