"""Export a run: a small folder that acts and can be judged, without the data it was trained on."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from saformer import __version__
from saformer.api.calibrate import LEFT_BEHIND, file_content, read_calibrations
from saformer.api.loaded import Loaded
from saformer.api.run_data import data_of
from saformer.data.idling import nothing_of
from saformer.data.relabel import RelabelledStore
from saformer.data.remembered import remember
from saformer.data.statistics import percentiles
from saformer.evaluation.calibration import Calibration
from saformer.files import check_is_new
from saformer.runs.export import DTYPES, EXPORTS, narrowed, policy_identity, widened, write_export
from saformer.runs.run import Run


def export_run(
    loaded: Loaded, out: Path, dtype: str = "bfloat16", command: str | None = None
) -> Path:
    """Write weights, totals and facts to a new folder; says what it is calibrated for."""
    run, model, say = loaded.run, loaded.agent.model, loaded.listener.say
    if dtype not in DTYPES:
        raise ValueError(f"unknown dtype {dtype!r}; weights are kept in {' or '.join(DTYPES)}")
    if run.is_export:
        raise ValueError(f"{run.path} is an export already: copy its folder, or export its run")
    check_is_new(out, EXPORTS)
    data, weights = data_of(run, loaded.listener, data=loaded.context.data), model.state_dict()
    data = loaded.attached(data)
    rounded = narrowed(weights, {name for name, _ in model.named_parameters()}, dtype)
    of_run, of_export = policy_identity(run, weights), policy_identity(run, widened(rounded))
    known = read_calibrations(run)
    carried = [each for each in known if each.run == of_export]
    left = [each for each in known if each.run == of_run != of_export]
    outdated = [each for each in known if each.run not in {of_run, of_export}]
    names = ("episode_cost", "episode_return", "ended_early")
    totals = {name: torch.from_numpy(getattr(data, name)) for name in names}
    totals["idle"] = torch.from_numpy(nothing_of(data))
    facts = {"dtype": dtype, **_facts(run, data, command)}
    facts[LEFT_BEHIND] = [each.rate for each in left]
    files = file_content(carried) if carried else {}
    path = write_export(out, run, {"model": rounded, "totals": totals}, facts, files).path
    remember(path, run.spec.digest, [*run.spec.criteria, data.environment.identifier or ""])
    size = sum(file.stat().st_size for file in path.iterdir()) / 1e6
    judge_it = f"saformer evaluate {out}"
    say(f"exported to {out}: {size:.2f} MB, weights in {dtype}. Judge it with: {judge_it}")
    if carried:
        say(f"calibrated for violation rates of {_rates(carried)}, as the run is")
    if left:
        say(
            f"not calibrated, though the run is for violation rates of {_rates(left)}: rounded "
            f"weights are another policy. Calibrate it (saformer calibrate {out}), or export with "
            "--dtype float32"
        )
    if outdated:
        say(
            f"not calibrated for violation rates of {_rates(outdated)}: {run.path} was, before it "
            f"learnt on. Calibrate again (saformer calibrate {run.path})"
        )
    return path


def _rates(calibrations: Sequence[Calibration]) -> str:
    return ", ".join(f"{each.rate:g}" for each in calibrations)


def _facts(run: Run, data: RelabelledStore, command: str | None) -> dict[str, Any]:
    """How the run was trained and on what, for people to read; the environment, to roll out in."""
    spec = run.spec
    if run.is_done:
        ended = run.read_json("done.json")
    else:
        ended = {"updates": run.load(groups=()).facts["update"]}
    settings = {"command": command, "seed": spec.seed, "of_updates": spec.fit_config["updates"]}
    costs = zip(spec.criteria, data.episode_cost.T, strict=True)
    return {
        "saformer": __version__,
        "trained": {"commit": "unknown", **settings, **ended},
        "environment": asdict(data.environment),
        "data": {
            "fingerprint": spec.data_fingerprint,
            "trajectories": len(data.store),
            "steps": data.store.num_steps,
            "cost_percentiles": {name: percentiles(values) for name, values in costs},
        },
    }
