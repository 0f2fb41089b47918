"""A trained agent that was loaded: its weights, data, limits and options."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch

from saformer.agents.agent import Agent
from saformer.agents.registry import find_kind, restore_agent
from saformer.api.listener import Listener
from saformer.api.run_data import limits_of, may_end_of, run_criteria, totals_of
from saformer.data.limits import Limit, Totals
from saformer.data.remembered import recall
from saformer.data.store import EnvironmentSpec
from saformer.engine.device import pick_device
from saformer.files import validated
from saformer.runs.export import read_model
from saformer.runs.run import FORMAT, Run

Changes = Mapping[str, Any] | None


@dataclass(frozen=True)
class Context:
    """Where a trained agent computes, has its data and writes its results."""

    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    data: str | None = None
    """Where the run's store is now, if it was moved."""
    out: Path | None = None
    """Folder of findings; by default the run's, for pretrained:NAME runs/pretrained-NAME."""
    environment: str | None = None
    """Simulator to roll out in, where the data names none, or code that you have to vouch for:
    a Gymnasium id, module:Name or ./file.py:Name (a class, a function, an id)."""
    criteria: tuple[str, ...] = ()
    """The run's criteria by the names they have here, one for each constraint: where they are code
    (module:function, ./file.py:function) and the run comes from elsewhere."""
    workers: int | Literal["auto"] = "auto"
    """Processes that step environments, for the same results; auto: one per core where that pays,
    0: none beside this one."""


@dataclass(frozen=True, repr=False)
class Loaded:
    """A run or an export, and all that its verbs need of it."""

    run: Run
    context: Context = Context()
    listener: Listener = field(default_factory=Listener)
    cost_discount: float | None = None

    def __post_init__(self) -> None:
        if self.context.criteria:
            run_criteria(self.run, self.context.criteria)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path}: {self.run.spec.name})"

    @property
    def path(self) -> Path:
        return self.run.path

    @cached_property
    def kind(self) -> type[Agent]:
        return find_kind(self.run.spec.agent)

    @cached_property
    def device(self) -> torch.device:
        return pick_device(self.context.device)

    @cached_property
    def agent(self) -> Agent:
        spec, is_old, weights = self.run.spec, self.run.format < FORMAT, read_model(self.run)
        form = (spec.agent, spec.dimensions, spec.agent_config)
        validated(self.kind.config_type, spec.agent_config, self.run.spec_path, "train again")
        try:
            agent = restore_agent(*form, weights, strict=not is_old)
        except (RuntimeError, TypeError) as error:
            reason = " ".join(str(error).split())[:200]
            raise ValueError(
                f"the weights in {self.path} do not fit its run.json in this version's {spec.agent}"
                f"{', as it was made by an older one' if is_old else ''}: train again ({reason})"
            ) from None
        rule = self.kind.rule_of(agent.options())
        if rule != self.kind.rule_of(self.kind.options_of(agent.config)):
            made = "made by an older version" if is_old or self.run.is_done else "left unfinished"
            warnings.warn(f"{self.path} was {made}: it acts by the rule {rule!r}", stacklevel=2)
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
        return self.attached(totals_of(self.run, self.listener, self.context.data, other))

    @cached_property
    def environment(self) -> str | None:
        """The one that was named now, or when the run was made on this machine."""
        return self.context.environment or recall(self.path, self.run.spec.digest.__eq__)

    def attached(self, data: Any) -> Any:
        """A store or totals of the run, with the environment that was named."""
        if self.environment is None:
            return data
        from saformer.envs.costed import attached

        sizes = self.run.spec.dimensions
        return attached(data, self.environment, sizes.state, self.listener.say)

    @cached_property
    def may_end(self) -> bool:
        """Whether episodes may end early, as the run's task or data says."""
        return may_end_of(self.run, self.context.data)

    def totals_for(self, may_end: bool | None) -> Totals:
        """The totals, by which episodes may end early, or may not; None: as they say."""
        return self.totals if may_end is None else self.totals.with_environment(may_end=may_end)

    def check_environment(self, environment: EnvironmentSpec) -> None:
        if environment.identifier is None:
            raise ValueError(
                f"the data of {self.path} has no environment to roll out in: name one with "
                "environment (--environment), or judge saformer by evaluate_offline (--offline)"
            )

    def parse_limits(self, names: Sequence[str]) -> list[Limit]:
        """To roll out under; says so where the agent was trained for another."""
        spec = self.run.spec
        self.check_environment(self.totals.environment)
        limits = limits_of(spec, self.totals, names)
        own = Limit(spec.limit, tuple(spec.agent_config["limit"])) if spec.limit else None
        others = [limit for limit in limits if own and limit.values != own.values]
        if own and others:
            self.listener.say(
                f"{spec.agent} was trained for the limit {own} and keeps to that, whatever it is "
                f"judged under: {', '.join(map(str, others))}"
            )
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

    def options(
        self,
        rule: str | None = None,
        changes: Changes = None,
        *,
        shielded: bool = False,
        may_end: bool | None = None,
    ) -> Any:
        """How the policy acts: by its usual rule or this one, with these changes."""
        usual = self.agent.options(shielded=shielded)
        options = usual if rule is None else self.kind.options_of(self.agent.config, rule)
        declared = self.kind.with_may_end(options, self.may_end if may_end is None else may_end)
        return self.kind.changed(declared, changes or {})

    def described(self, options: Any) -> dict[str, Any]:
        """Rule and options, as files hold them."""
        return {"rule": self.kind.rule_of(options), **asdict(options)}
