"""Margins that a run was calibrated for: kept beside it, found again, and refused where they say
nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from saformer.agents.agent import Agent
from saformer.api.findings import findings_of
from saformer.api.settings import options_of, plain_options
from saformer.evaluation.calibration import Calibration
from saformer.runs.export import read_facts
from saformer.runs.run import Run, find_run

FILE = "calibration.json"
LEFT_BEHIND = "left_calibrations"
"""Fact of an export: rates that its run was calibrated for, with weights that are rounded in the
export."""
UNSAID = ("seed",)
"""Options that do not change which policy it is."""


def kept_calibrations(kept: Run) -> list[Calibration]:
    """All that are kept in this folder, one for each rate."""
    if not (kept.path / FILE).exists():
        return []
    try:
        return [Calibration.from_plain(one) for one in kept.read_json(FILE)]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{kept.path / FILE} is damaged ({error!r}): calibrate again (saformer calibrate)"
        ) from None


def kept_calibration(
    path: str | Path, rate: float, *, out: str | Path | None = None
) -> Calibration:
    """What the run was calibrated for at this rate, as found in `out`, or kept with the run or
    export itself."""
    run, kept = find_run(path), findings_of(path, out)
    known = {one.rate: one for folder in (run, kept) for one in kept_calibrations(folder)}
    if rate not in known:
        calibrated = (
            f"only for {', '.join(f'{one:g}' for one in sorted(known))}" if known else "for none"
        )
        raise ValueError(
            f"{kept.path} is not calibrated for a violation rate of {rate:g}, "
            f"{calibrated}{_why_not(run, rate)}: run "
            f"saformer calibrate {path} --rate {rate:g}"
        )
    return known[rate]


def _why_not(run: Run, rate: float) -> str:
    facts = read_facts(run) if run.is_export else {}
    if rate not in facts.get(LEFT_BEHIND, ()):
        return ""
    return (
        ". The run that it was exported from is, but with weights that are rounded to "
        f"{facts.get('dtype')} here: "
        "another policy, if only by a little. Export that run again with --dtype float32, or "
        "calibrate this one"
    )


def options_as_calibrated(
    agent: Agent, run: Run, calibration: Calibration, execution: Mapping[str, Any]
) -> Any:
    """How the policy acted when it was calibrated; what is asked for beside that must not make it
    another policy."""
    if calibration.run != identity(run, agent.model.state_dict()):
        before = "its weights were rounded" if run.is_export else "it learnt on"
        raise ValueError(
            f"the calibration is of an older version, of another run, or of {run.path} before "
            f"{before}: calibrate "
            f"again (saformer calibrate {run.path} --rate {calibration.rate:g})"
        )
    options = options_of(agent, {**calibration.options, **execution})
    asked = said_options(agent, options)
    others = [
        f"{name} {asked[name]} for {value}"
        for name, value in calibration.options.items()
        if asked[name] != value
    ]
    if others:
        raise ValueError(
            f"the calibration is of a policy that acts otherwise ({', '.join(others)}): leave "
            "these options out, or "
            "calibrate again with them"
        )
    return options


def said_options(agent: Agent, options: Any) -> dict[str, Any]:
    """All options that make it this policy."""
    plain = plain_options(agent, options)
    return {name: value for name, value in plain.items() if name not in UNSAID}


def identity(run: Run, weights: Mapping[str, Tensor]) -> str:
    """Equal for the same run with the same weights, be it exported or not."""
    found = hashlib.sha256(run.spec.digest.encode())
    for name, value in sorted(weights.items()):
        found.update(name.encode() + value.cpu().numpy().tobytes())
    return found.hexdigest()[:16]
