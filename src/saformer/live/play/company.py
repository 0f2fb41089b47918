"""Runs that can be played, opened once each, and what a page says of them."""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np

from saformer.api.judge import shielded
from saformer.data.canonical import frontier_of
from saformer.data.limits import Limit, parse_limit
from saformer.envs.lanes import Maker
from saformer.envs.tasks import is_store, locator
from saformer.live.play.outlook import Fan
from saformer.live.play.player import Player
from saformer.live.play.settings import Acting
from saformer.runs.run import Run, latest_run
from saformer.trained import Trained, load

PERCENTILES = (10, 20, 30, 40, 50, 60, 70, 80, 90)
CURVE_POINTS = 60
HIDDEN = ("seed", "may_end")  # options that the page sets elsewhere, or that the data decides


class Company:
    """The runs by the names that the page knows them by; no other path is ever opened."""

    def __init__(self, runs: Sequence[str], *, device: str = "auto") -> None:
        self.names = tuple(dict.fromkeys(runs))
        self._device, self._open = device, dict[str, Trained]()
        self._read = dict[str, int]()  # when the weights that are open were written

    @classmethod
    def of(cls, name: str, trained: Trained) -> "Company":
        """Of one run that is open already."""
        company = cls([name])
        company._open[name] = trained
        return company

    def trained(self, name: str) -> Trained:
        """Opened on first use."""
        if name not in self.names:
            raise ValueError(f"there is no run {name!r} here; there are {', '.join(self.names)}")
        if name not in self._open or self._is_older(name):
            path = latest_run(locator(name)) if is_store(name) else name
            trained = load(path, device=self._device)
            trained.check_environment(trained.totals.environment)
            self._open[name], self._read[name] = trained, _written(trained.run)
        return self._open[name]

    def _is_older(self, name: str) -> bool:
        """Whether a run that still learns has saved weights since it was read."""
        return name in self._read and self._read[name] != _written(self._open[name].run)

    def limit(self, run: str, text: str) -> Limit:
        return parse_limit(text, self.trained(run).totals)

    def player(
        self, acting: Acting, limits: Sequence[Limit], seed: int, *, render: bool = False
    ) -> Player:
        """One policy that acts so, with a lane for each limit; `render`: it gives pictures too."""
        trained = self.trained(acting.run)
        changes = {**acting.options, "seed": seed}
        terms: Any = {"shielded": acting.shield, "may_end": acting.may_end}
        options = trained.options(acting.rule, changes, **terms)
        policy, totals = trained.agent.policy(options), trained.totals_for(acting.may_end)
        spec = totals.environment
        if render:
            spec = replace(spec, arguments={**spec.arguments, "render_mode": "rgb_array"})
        maker = Maker(spec, tuple(totals.criteria))
        if acting.shield:
            return Player(shielded(policy, totals, acting.floor), maker, limits)
        return Player(policy, maker, limits, fan_of(trained, options))

    def about(self, acting: Acting) -> dict[str, Any]:
        """What a page shows beside a lane: the data's limits and returns, and the ways to act."""
        trained = self.trained(acting.run)
        totals, spec = trained.totals_for(acting.may_end), trained.run.spec
        options = trained.options(acting.rule, acting.options, shielded=acting.shield)
        rule = trained.kind.rule_of(options)
        config = trained.agent.config
        return {
            "run": acting.run,
            "task": spec.task_name,
            "agent": spec.agent,
            "only_limit": spec.limit,
            "rule": rule,
            "rules": {
                name: described(trained.kind.options_of(config, name))
                for name in trained.kind.rules
            },
            "options": {each["name"]: each["value"] for each in described(options)},
            "shield": acting.shield,
            "criteria": [criterion.name for criterion in totals.criteria],
            "horizon": totals.environment.horizon,
            "may_end": totals.environment.may_end,
            "constraints": [
                constraint_marks(spec.task, totals, index) for index in range(len(totals.criteria))
            ],
            "worst": float(totals.episode_return.min()),
            "best": float(totals.episode_return.max()),
        }


def _written(run: Run) -> int:
    """When its newest weights were."""
    path = run.weights_path if run.is_export else run.checkpoint_path
    return path.stat().st_mtime_ns if path.exists() else 0


def fan_of(trained: Trained, options: Any) -> Fan | None:
    """Where the rule asks an outlook."""
    outlook = getattr(trained.agent, "outlook", None)
    if outlook is None or trained.kind.rule_of(options) != "feasible":
        return None
    return Fan(outlook, trained.agent.model.normalizer, may_end=options.may_end)


def constraint_marks(task: str, totals: Any, index: int) -> dict[str, Any]:
    """The marks of one slider: percentiles of the data's costs, and what the best five recorded
    episodes within them earned; and that frontier as a curve."""
    costs = totals.episode_cost[:, index]
    loosest = totals.episode_cost.max(0)

    def earned(cost: float) -> float | None:
        values = [float(each) for each in loosest]
        values[index] = cost
        best = frontier_of(task, totals, Limit("", tuple(values))).best
        return None if np.isnan(best) else float(best)

    marks = [(f"p{p}", float(np.percentile(costs, p))) for p in PERCENTILES]
    evenly = np.linspace(costs.min(), costs.max(), CURVE_POINTS).tolist()
    curve = sorted({*evenly, *(cost for _, cost in marks)})
    return {
        "name": totals.criteria[index].name,
        "least": float(costs.min()),
        "most": float(costs.max()),
        "marks": [{"name": name, "cost": cost, "earned": earned(cost)} for name, cost in marks],
        "frontier": [[cost, earned(cost)] for cost in curve],
    }


def described(options: Any) -> list[dict[str, Any]]:
    """The options of a rule as fields of a form."""
    hints = get_type_hints(type(options))
    return [
        {
            "name": each.name,
            "value": getattr(options, each.name),
            "choices": list(get_args(hint)) if get_origin(hint) is Literal else None,
            "whole": hint is int,
        }
        for each in fields(options)
        if each.name not in HIDDEN
        and ((hint := hints[each.name]) in (int, float) or get_origin(hint) is Literal)
    ]
