"""A trained agent and what can be done with it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saformer.agents.checked import CheckedPolicy
from saformer.api import calibrate, judge
from saformer.api.export import export_run
from saformer.api.finetune import FineTuned, Finetuning
from saformer.api.listener import Listener
from saformer.api.loaded import Context, Loaded
from saformer.api.train import PresetName, RunTrainer, SomeLimit
from saformer.data.limits import parse_limit
from saformer.evaluation.calibration import Calibration
from saformer.evaluation.offline.held_out import OfflineEvaluation
from saformer.evaluation.settings import (
    CalibrateSettings,
    EvaluateSettings,
    JudgeSettings,
    SweepSettings,
)
from saformer.runs.export import copy_description
from saformer.runs.pretrained import PREFIX, is_pretrained
from saformer.runs.run import find_run
from saformer.training.finetune.config import FinetuneConfig
from saformer.training.loop.presets import Preset, find_preset

if TYPE_CHECKING:  # rollouts need Gymnasium; training does not
    from saformer.evaluation.evaluate import Evaluation
    from saformer.evaluation.offline.estimate import Estimate
    from saformer.evaluation.sweep import Sweep


@dataclass(frozen=True, repr=False)
class Trained(Loaded):
    """A trained agent: `policy` makes it act, the other methods judge it, export it, tune it.

    Judging changes no weights, and writes only its own files: evaluation.json, trace.json,
    offline.json, estimate.json, sweep.json, calibration.json.
    """

    def policy(self, rule: str | None = None, **options: Any) -> CheckedPolicy:
        """Ready to act: `policy.reset(state, limit=...)`, `act(state)`, `observe(reward, cost)`.

        `limit` is a cost or, as in "p50", a percentile of the data's episode costs.
        `rule` and `options` change how, by the names that `saformer evaluate RUN --help` shows.
        """
        policy = self.agent.policy(self.options(rule, options))
        return CheckedPolicy(policy, self.agent.dimensions, self._limit_of)

    def _limit_of(self, name: str) -> tuple[float, ...]:
        return parse_limit(name, self.totals).values

    def judge(
        self, limits: Sequence[str] = (), *, environment: Any = None, **settings: Any
    ) -> tuple["Evaluation", dict[str, Any]]:
        """As `evaluate`, but nothing is written; also returns how the policy acted."""
        if environment is not None:
            context = replace(self.context, environment=environment)
            return replace(self, context=context).judge(limits, **settings)
        wanted, calibration = EvaluateSettings(limits=limits, **settings), None
        if wanted.rate is not None:
            calibration = calibrate.find_calibration(self, wanted.rate)
            wanted = calibrate.as_calibrated(self, calibration, wanted)
        return judge.judge_rollouts(self, wanted, self.parse_limits(wanted.limits), calibration)

    def evaluate(self, limits: Sequence[str] | None = None, **settings: Any) -> "Evaluation":
        """Roll the policy out under each limit; writes evaluation.json and trace.json, and keeps
        earlier evaluations beside this one in evaluations/.

        `limits` are by default p10, p20, p30 and p50 of the data's costs, or the one limit that
        the run was trained for. By keyword, as in `EvaluateSettings`: `episodes` (20) under each;
        `rule` and `options`, how it acts (rule="paper", options={"candidates": 64} for saformer,
        options={"target_return": 3600} for dt); `rate`, a violation rate that `calibrate` showed;
        `shield` (and `floor`, see docs/shield.md); `both`, with and without it; `reference`, the
        agent's mean action, blind to the limit; `may_end`, whether episodes may end early; `seed`.
        `environment`: roll out in this one, a class, a function that makes one, or a name as in
        `Context`. Those to compare with are in `beside` of what is returned, doing nothing in
        `nothing`.
        """
        from saformer.evaluation.trace import shown_trajectories

        evaluation, acting = self.judge(limits or (), **settings)
        trace = {**evaluation.trace, "data": shown_trajectories(self.totals)}
        how = {"options": acting, "seed": settings.get("seed", 0)}
        files = {"trace.json": trace, "evaluation.json": {**how, **evaluation.plain()}}
        self._write("evaluation", files)
        limits, shield = [each.limit.name for each in evaluation.verdicts], settings.get("shield")
        words = [*limits, acting["rule"], *(["shield"] if shield else [])]
        self.findings.keep(words, files["evaluation.json"])
        return evaluation

    def estimate(self, limits: Sequence[str] | None = None, **settings: Any) -> "Estimate":
        """What the policy would cost and earn under each limit, from its data alone; writes
        estimate.json.

        It is rolled out in a world that is learnt from the data, once (world.safetensors). Each
        limit has a word on whether to trust that. By keyword, as in `JudgeSettings`: `episodes`,
        `rule`, `options`, `may_end`, `seed`. Any agent can be judged so; see docs/offline.md.
        """
        from saformer.api.estimate import estimate_run

        wanted = JudgeSettings(limits=limits or (), **settings)
        estimate, acting = estimate_run(self, wanted)
        how = {"options": acting, "seed": wanted.seed}
        self._write("no rollout: estimate", {"estimate.json": {**how, **estimate.plain()}})
        return estimate

    def evaluate_offline(self, limits: Sequence[str] | None = None) -> OfflineEvaluation:
        """Judge critic and actor on the trajectories that training never saw, without any rollout;
        writes offline.json.

        An export does not hold those trajectories: its run's data must be there.
        """
        evaluation = judge.judge_held_out(self, limits or ())
        self._write("no rollout: offline evaluation", {"offline.json": evaluation.plain()})
        return evaluation

    def calibrate(
        self, rate: float, limits: Sequence[str] | None = None, **settings: Any
    ) -> Calibration:
        """Find the smallest margin of each limit under which at most `rate` of episodes passes it.

        A margin is the share of a limit that the policy never hears of. By keyword, as in
        `CalibrateSettings`: `margins` to try in their order, each on `episodes` (200) fresh
        episodes, until one passes; `confidence` (0.95), `rule`, `options`, `may_end`, `seed`;
        `offline`, in a world learnt from the data: a promise for that world alone. It
        writes calibration.json, for `evaluate(rate=rate)`; those of other rates stay there. It is
        written after each margin: stopped, the same call goes on from there.
        """
        wanted = CalibrateSettings(rate=rate, limits=limits or (), **settings)
        known = calibrate.read_calibrations(self.findings)
        others = [each for each in known if each.rate != rate]
        if wanted.offline and any(each.rate == rate and not each.offline for each in known):
            better = f"{self.findings.path} is calibrated for {rate:g} on the machine itself"
            raise ValueError(f"{better}, which says more: choose another folder with out (--out)")
        for calibration in calibrate.calibrate_policy(self, wanted):
            reached = [one for one in calibration.limits if one.margin is not None]
            what = f"{len(reached)} of {len(calibration.limits)} limits reached, calibration"
            self._write(what, calibrate.file_content([*others, calibration]))
        if all(criterion.reads_action_alone for criterion in self.totals.criteria):
            advice = "with --shield no episode passes a limit, and no margin is needed"
            self.listener.say(f"costs are of the action alone: {advice}")
        return calibration

    def sweep(self, values: Sequence[float] = (), **settings: Any) -> "Sweep":
        """Roll the policy out with one option at each of these values; writes sweep.json.

        By keyword, as in `SweepSettings`: `option` ("target_return"), `limits`, `episodes`,
        `rule`, `options`, `may_end`, `seed`. For target returns the values are by default five from
        within and beyond the data, and the usual one (the paper's, for its robots).
        """
        wanted = SweepSettings(values=values, **settings)
        swept = judge.sweep_option(self, wanted)
        how = {"options": swept.acting, "seed": wanted.seed, "episodes": wanted.episodes}
        self._write("sweep", {"sweep.json": {**how, **swept.plain()}})
        return swept

    def _write(self, what: str, files: Mapping[str, Any]) -> None:
        """Write {name: content}; another folder than the run's gets a copy of its description."""
        if self.findings.path.resolve() != self.path.resolve():
            copy_description(self.run, self.findings)
        paths = [self.findings.write_json(name, content) for name, content in files.items()]
        self.listener.say(f"{what} written to {paths[-1]}")

    def export(self, out: str | Path, *, format: str = "saformer", **settings: Any) -> Path:
        """Write the trained policy to a new folder, for `load` to read where the data is not.

        It holds the weights, what the run is, and what each stored trajectory earned and cost, so
        that limits such as "p10" and frontiers need no data. By keyword: `dtype`, to which matrices
        are rounded ("bfloat16", or "float32": as they are, with their calibrations; rounded weights
        must be calibrated again); `command`, by which the run was trained, for the record. Format
        "onnx": a decision by `rule` and `options` as a graph for onnxruntime. Returns the folder.
        """
        if format == "onnx":
            from saformer.onnx.export import export_graph

            return export_graph(self, Path(out), **settings)
        if format != "saformer":
            raise ValueError(f"unknown format {format!r}; there are saformer, onnx")
        return export_run(self, Path(out), **settings)

    def finetune(
        self,
        limits: Sequence[str | float],
        *,
        ceiling: str | float | None = None,
        config: FinetuneConfig | None = None,
        rule: str | None = None,
        options: Mapping[str, Any] | None = None,
        may_end: bool | None = None,
        out: str | Path | None = None,
        seed: int = 0,
        resume: bool = False,
        **changes: Any,
    ) -> FineTuned:
        """Let a SaFormer explore its environment until it keeps these limits; the result is a run
        of its own.

        `limits` are costs or percentiles of the run's data, and may lie below all of it. `ceiling`:
        the cost at which an episode is ended. `changes` are fields of `FinetuneConfig` (`episodes`,
        the allowance; `attenuation`), in place of what `config` says. It explores by the paper's
        rule, and is judged by it unless another `rule` is named. `may_end`: whether episodes may
        end early to keep a limit; the new run's data says so from then on. The original run is not
        touched; the new one has a store of its own: the original data and every episode since. The
        same call with `resume=True` continues an interrupted one.
        """
        if not self.kind.verifies:
            agent = self.run.spec.agent
            raise ValueError(f"only saformer can be fine-tuned to a limit; {self.path} is {agent}")
        named = {name: value for name, value in changes.items() if value is not None}
        settings = replace(config or FinetuneConfig(), **named)
        acting = self.options(rule or "paper", options, may_end=may_end)
        finetuning = Finetuning(self, limits, settings, acting, seed, may_end)
        if ceiling is not None:
            bound = finetuning.parse_limit(ceiling).values
            finetuning = replace(finetuning, config=replace(settings, ceiling=bound))
        return finetuning.run(out, resume=resume)


def load(
    path: str | Path,
    *,
    listener: Listener | None = None,
    cost_discount: float | None = None,
    **context: Any,
) -> Trained:
    """What a run has trained so far, or what was exported; `.policy()` makes it act.

    `path` is a run's folder, an export's, or "pretrained:NAME" for a policy that comes with the
    package. `cost_discount` judges an agent that learns nothing from costs by costs that are
    counted in another way. By keyword: `device`, `data`, `out`, `workers`; see `Context`.
    """
    where = Context(**context)
    if is_pretrained(path) and where.out is None:  # nothing is ever written into the package
        where = replace(where, out=Path("runs") / str(path).replace(PREFIX, "pretrained-"))
    trained = Trained(find_run(path), where, listener or Listener(), cost_discount)
    assert trained.agent is not None  # loaded now: a folder that cannot be read is refused here
    return trained


def train(
    task: str,
    *,
    agent: str | None = None,
    limit: SomeLimit | None = None,
    preset: PresetName | Preset = "small",
    seed: int = 0,
    out: str | Path | None = None,
    resume: bool = False,
    listener: Listener | None = None,
    device: str = "auto",
    **settings: Any,
) -> Trained:
    """Train on a task (by name, or the path of a trajectory store); the run is written to `out`.

    `agent`: one of those that `saformer agents` lists, by default saformer or what the preset is
    for. `limit`: for those that are trained for one limit: a cost, or a percentile of the training
    data's costs ("p20"). `preset`: "small" (minutes on two cores), "full" (the paper's size; wants
    a GPU), "paper" (exactly as published) or a `Preset` of one's own. `seed` decides initial
    weights, windows and dropout. `resume` continues an interrupted run exactly where its last
    checkpoint left it. By keyword: `updates` and whatever else `saformer train --agent NAME --help`
    shows, in place of what the preset says; `tensorboard=True` for its metrics too; and, as in
    `DataSettings`: `criteria`, what a step costs, one for each constraint; `environment`;
    `held_out`, the share of trajectories for an offline evaluation; `data_steps` and `data_seed` of
    a task that is made on this machine.

    Processes that torchrun started share every batch; the first alone speaks and writes.
    """
    how: dict[str, Any] = {"limits": (limit,), "device": device, "out": out, "resume": resume}
    trainer = RunTrainer.of(find_preset(preset, agent), settings, listener=listener, **how)
    (run,), failures = trainer.train([task], [seed])
    if failures:
        raise failures[run.path]
    return Trained(run, Context(device=device), trainer.voice)
