"""A trained agent and what can be done with it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from saformer.agents.agent import Agent
from saformer.agents.registry import find_kind, restore_agent
from saformer.api import judge
from saformer.api.calibrate import CalibrateSettings, Calibrations, calibrate_policy
from saformer.api.export import export_run
from saformer.api.finetune import FineTuned, Finetuning
from saformer.api.judge import EvaluateSettings, Judged, JudgeSettings, Sweep, SweepSettings
from saformer.api.listener import Listener
from saformer.api.run_data import has_environment, totals_of
from saformer.core.policy import Policy
from saformer.data.limits import Limit, Totals
from saformer.data.store import EnvironmentSpec
from saformer.engine.device import pick_device
from saformer.evaluation.calibration import Calibration
from saformer.evaluation.offline import OfflineEvaluation
from saformer.runs.export import copy_description, read_model
from saformer.runs.pretrained import PREFIX, is_pretrained
from saformer.runs.run import FORMAT, Run, find_run
from saformer.training.finetune.config import FinetuneConfig

if TYPE_CHECKING:  # rollouts need Gymnasium; training does not
    from saformer.evaluation.evaluate import Evaluation


@dataclass(frozen=True)
class Context:
    """Where a trained agent computes, has its data and writes its results."""

    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    data: str | None = None
    """Where the run's store is now, if it was moved."""
    out: Path | None = None
    """Where to write evaluations, sweeps and calibrations; by default the run's folder, for
    pretrained:NAME runs/pretrained-NAME."""
    workers: int | Literal["auto"] = "auto"
    """Processes that step the environments; auto: one per core where that pays. 0: none beside
    this one. Results are the same."""


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


@dataclass(frozen=True)
class Trained:
    """A trained agent: `policy` makes it act, the other methods judge it, export it, tune it.

    Judging changes no weights, and writes only its own files: evaluation.json, trace.json,
    offline.json, sweep.json, calibration.json.
    """

    run: Run
    """its folder, a run's or an export's"""
    context: Context = Context()
    listener: Listener = field(default_factory=Listener)
    cost_discount: float | None = None

    @property
    def path(self) -> Path:
        return self.run.path

    @property
    def kind(self) -> type[Agent]:
        return find_kind(self.run.spec.agent)

    @cached_property
    def device(self) -> torch.device:
        return pick_device(self.context.device)

    @cached_property
    def agent(self) -> Agent:
        run, spec, is_old = self.run, self.run.spec, self.run.format < FORMAT
        weights = read_model(run)
        try:
            agent = restore_agent(
                spec.agent, spec.dimensions, spec.agent_config, weights, strict=not is_old
            )
        except (RuntimeError, TypeError) as error:
            raise ValueError(
                f"the weights in {run.path} do not fit this version's {spec.agent}"
                f"{', as it was made by an older one' if is_old else ''}: train again ({error})"
            ) from None
        rule = self.kind.rule_of(agent.options())
        if rule != next(iter(self.kind.rules)):
            made = "was made by an older version" if is_old else "has not been trained to its end"
            warnings.warn(f"{run.path} {made}: it acts by the rule {rule!r}", stacklevel=2)
        agent.model.to(self.device)
        return agent

    @cached_property
    def totals(self) -> Totals:
        """What the data earned and cost: an export holds that, for a run the data is opened."""
        own, other = self.run.spec.agent_config["cost_discount"], self.cost_discount
        if other not in {None, own} and not self.kind.ignores_costs:
            raise ValueError(
                f"{self.path} was trained on costs discounted by {own:g} and can be judged by no "
                f"others; train again with cost_discount {other:g}"
            )
        return totals_of(self.run, self.listener, self.context.data, other)

    @property
    def has_environment(self) -> bool:
        return has_environment(self.run, self.context.data)

    def check_environment(self, environment: EnvironmentSpec) -> None:
        if environment.identifier is None:
            raise ValueError(
                f"the data of {self.path} has no environment to roll out in: saformer can be "
                "judged by evaluate_offline (--offline)"
            )

    @property
    def limits(self) -> list[Limit]:
        """Those that it is judged under by default."""
        return judge.limits_of(self.run.spec, self.totals)

    def parse_limits(self, names: Sequence[str]) -> list[Limit]:
        """The limits of these names, to roll out under; says so where it was trained for
        another."""
        self.check_environment(self.totals.environment)
        limits = judge.limits_of(self.run.spec, self.totals, names)
        judge.remark_on_limits(self.run.spec, limits, self.listener)
        return limits

    @cached_property
    def findings(self) -> Run:
        """The folder of evaluations, sweeps and calibrations."""
        folder = Run(self.context.out or self.path)
        if folder.spec_path.exists() and folder.spec.digest != self.run.spec.digest:
            raise ValueError(
                f"{folder.path} holds another run, {folder.spec.name}, whose findings would be "
                f"mistaken for those of {self.path}: choose another folder with out (--out)"
            )
        return folder

    def _write(self, what: str, files: Mapping[str, Any]) -> None:
        """Write {name: content}; another folder than the run's gets a copy of its description."""
        if self.findings.path.resolve() != self.path.resolve():
            copy_description(self.run, self.findings)
        paths = [self.findings.write_json(name, content) for name, content in files.items()]
        self.listener.say(f"{what} written to {paths[-1]}")

    def options(
        self,
        rule: str | None = None,
        changes: Mapping[str, Any] | None = None,
        *,
        shielded: bool = False,
    ) -> Any:
        """How the policy acts: by its usual rule or this one, with these changes."""
        usual = self.agent.options(shielded=shielded)
        options = usual if rule is None else self.kind.options_of(self.agent.config, rule)
        return self.kind.changed(options, changes or {})

    def acting(self, settings: JudgeSettings, *, shielded: bool = False) -> dict[str, Any]:
        """Rule and options by these settings, as files hold them."""
        options = self.options(settings.rule, settings.options, shielded=shielded)
        return {"rule": self.kind.rule_of(options), **asdict(options)}

    def policy(self, rule: str | None = None, **options: Any) -> Policy:
        """Ready to act: `policy.reset(state, limit=...)`, `act(state)`, `observe(reward, cost)`.

        `rule` and `options` change how, by the names that `saformer evaluate RUN --help` shows.
        """
        return self.agent.policy(self.options(rule, options))

    def judge(self, limits: Sequence[str] = (), **settings: Any) -> Judged:
        """As `evaluate`, but nothing is written."""
        wanted, calibration = EvaluateSettings(limits=limits, **settings), None
        if wanted.rate is not None:
            calibrations = Calibrations(self)
            calibration = calibrations.of_rate(wanted.rate)
            wanted = calibrations.applied(calibration, wanted)
        parsed = self.parse_limits(wanted.limits)
        return judge.judge_rollouts(self, wanted, parsed, calibration)

    def evaluate(self, limits: Sequence[str] | None = None, **settings: Any) -> Evaluation:
        """Roll the policy out under each limit; writes evaluation.json and trace.json.

        `limits` are by default p10, p20, p30 and p50 of the data's costs, or the one limit that
        the run was trained for. By keyword, as in `EvaluateSettings`: `episodes` (20) under each;
        `rule` and `options`, how it acts (rule="paper", options={"candidates": 64} for saformer,
        options={"target_return": 3600} for dt); `rate`, a violation rate that `calibrate` showed;
        `shield`, for costs of the action alone; `both`, with and without it; `reference`, the
        agent's mean action, blind to the limit; `seed`. Those to compare with are in `beside` of
        what is returned.
        """
        judged = self.judge(limits or (), **settings)
        evaluation = judged.evaluation
        trace = {**evaluation.trace, "data": judge.shown_trajectories(judged.data)}
        how = {"options": judged.acting, "seed": settings.get("seed", 0)}
        files = {"trace.json": trace, "evaluation.json": {**how, **evaluation.plain()}}
        self._write("evaluation", files)
        return evaluation

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
        episodes, until one fails; `confidence` (0.95), `rule`, `options`, `seed`. Writes
        calibration.json, for `evaluate(rate=rate)`; calibrations of other rates stay there.
        """
        wanted = CalibrateSettings(rate=rate, limits=limits or (), **settings)
        calibration = calibrate_policy(self, wanted)
        self._write("calibration", Calibrations(self).with_another(calibration))
        if all(criterion.reads_action_alone for criterion in self.totals.criteria):
            self.listener.say(
                "costs are of the action alone: with --shield no episode passes a limit, and no "
                "margin is needed"
            )
        return calibration

    def sweep(self, values: Sequence[float] = (), **settings: Any) -> Sweep:
        """Roll the policy out with one option at each of these values; writes sweep.json.

        By keyword, as in `SweepSettings`: `option` ("target_return"), `limits`, `episodes`,
        `rule`, `options`, `seed`. For target returns the values are by default five from within
        and beyond the data, and the usual one (the paper's, for its robots).
        """
        wanted = SweepSettings(values=values, **settings)
        swept = judge.sweep_option(self, wanted)
        how = {"options": swept.acting, "seed": wanted.seed, "episodes": wanted.episodes}
        self._write("sweep", {"sweep.json": {**how, **swept.plain()}})
        return swept

    def export(
        self,
        out: str | Path,
        *,
        dtype: Literal["bfloat16", "float32"] = "bfloat16",
        command: str | None = None,
    ) -> Path:
        """Write the trained policy to a new folder, for `load` to read where the data is not.

        It holds the weights, what the run is, and what each stored trajectory earned and cost, so
        that limits such as "p10" and frontiers need no data. Matrices are rounded to `dtype`.
        Calibrations go with it in float32; rounded weights must be calibrated again. `command`: by
        which the run was trained, for the record. Returns the folder.
        """
        return export_run(self, Path(out), dtype, command)

    def finetune(
        self,
        limits: Sequence[str | float],
        *,
        ceiling: str | float | None = None,
        config: FinetuneConfig | None = None,
        rule: str | None = None,
        options: Mapping[str, Any] | None = None,
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
        rule, and is judged by it unless another `rule` is named. The original run is not touched;
        the new one has a store of its own: the original data and every episode since. The same
        call with `resume=True` continues an interrupted one.
        """
        if not self.kind.verifies:
            agent = self.run.spec.agent
            raise ValueError(f"only saformer can be fine-tuned to a limit; {self.path} is {agent}")
        named = {name: value for name, value in changes.items() if value is not None}
        settings = replace(config or FinetuneConfig(), **named)
        acting = self.options(rule or "paper", options)
        finetuning = Finetuning(self, limits, settings, acting, seed)
        if ceiling is not None:
            bound = finetuning.parse_limit(ceiling).values
            finetuning = replace(finetuning, config=replace(settings, ceiling=bound))
        return finetuning.run(out, resume=resume)
