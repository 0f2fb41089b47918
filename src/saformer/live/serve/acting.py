"""How the served policy acts: as `evaluate` judges it, with a shield or a calibrated rate too."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from saformer.agents.sequence import SequencePolicy
from saformer.api.calibrate import as_calibrated, find_calibration
from saformer.api.judge import shielded
from saformer.core.policy import Policy
from saformer.data.limits import Limit, parse_limit
from saformer.evaluation.calibration import Calibration
from saformer.evaluation.settings import EvaluateSettings
from saformer.live.serve.messages import Terms
from saformer.live.serve.settings import ServeSettings
from saformer.runs.export import policy_identity
from saformer.trained import Trained


def acting_policy(
    trained: Trained, settings: ServeSettings, changes: Mapping[str, Any]
) -> tuple[Policy, Terms, dict[str, Any]]:
    """The policy, what it needs to be told, and how it acts, in words. `changes` are of options."""
    how: dict[str, Any] = {name: getattr(settings, name) for name in ("rate", "shield", "floor")}
    wanted, told = EvaluateSettings(rule=settings.rule, options=changes, **how), None
    described = {name: value for name, value in how.items() if value}
    if wanted.rate is not None:
        calibration = find_calibration(trained, wanted.rate)
        wanted, told = as_calibrated(trained, calibration, wanted), told_by(calibration)
        described["margins"] = {str(c.limit): c.margin for c in calibration.limits}
    terms: Any = {"shielded": wanted.shield, "may_end": wanted.may_end}
    options = trained.options(wanted.rule, wanted.options, **terms)
    policy = trained.agent.policy(options)
    needs = Terms(
        trained.agent.dimensions,
        lambda name: parse_limit(name, trained.totals).values,
        needs_reward=isinstance(policy, SequencePolicy),
        told=told or list,
        may_move=told is None,
    )
    if wanted.shield:
        policy = shielded(policy, trained.totals, wanted.floor)
    return policy, needs, {**trained.described(options), **described}


def told_by(calibration: Calibration) -> Callable[[Sequence[float]], Sequence[float]]:
    """What is left of a limit without the margin that keeps the rate; a ValueError where no margin
    was shown to."""

    def told(values: Sequence[float]) -> Sequence[float]:
        limit = Limit(",".join(f"{value:g}" for value in values), tuple(values))
        margin = calibration.margin_for(limit)
        return [(1 - margin) * value for value in values]

    return told


def acting_identity(trained: Trained, acting: Mapping[str, Any]) -> str:
    """Equal where sessions can go on: the same weights that act in the same way."""
    how = hashlib.sha256(json.dumps(acting, sort_keys=True).encode()).hexdigest()[:16]
    return f"{policy_identity(trained.run, trained.agent.model.state_dict())} {how}"
