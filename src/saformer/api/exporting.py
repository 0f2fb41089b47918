"""Export a run: a small folder that acts and can be judged, without the data it was trained on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from saformer import __version__
from saformer.api.calibrated import FILE, LEFT_BEHIND, identity, kept_calibrations
from saformer.api.listener import Listener
from saformer.api.run_data import data_of
from saformer.api.runs import load
from saformer.data.relabel import RelabelledStore
from saformer.data.totals import percentiles
from saformer.evaluation.calibration import Calibration
from saformer.runs.export import DTYPES, narrowed, widened, write_export
from saformer.runs.run import Run, find_run


def export(
    path: str | Path,
    out: str | Path,
    *,
    dtype: Literal["bfloat16", "float32"] = "bfloat16",
    command: str | None = None,
    data: str | Path | None = None,
    listener: Listener | None = None,
) -> Path:
    """Write what a run has learnt to a new folder, for `load`, `evaluate`, `calibrate` and `sweep`
    to read.

    It holds the weights, what the run is, and what each stored trajectory earned and cost, so that
    limits such as "p10" and frontiers need no data. Matrices are rounded to `dtype`; they are
    widened to float32 when they are loaded. What the run was calibrated for goes with it in
    float32; rounded weights must be calibrated again. `command` is what the run was trained by, to
    be kept with it. `data` says where the run's store is now. Returns the folder.
    """
    listener, run, out = listener or Listener(), find_run(path), Path(out)
    if dtype not in DTYPES:
        raise ValueError(f"unknown dtype {dtype!r}; weights are kept in {' or '.join(DTYPES)}")
    if run.is_export:
        raise ValueError(
            f"{path} is an export already: copy its folder, or export the run that it was made from"
        )
    if out.exists():
        raise FileExistsError(
            f"{out} exists; exports are never overwritten: choose another name or remove it"
        )
    agent, found = load(path, device="cpu"), data_of(run, listener, data=data)
    model = agent.model
    weights = narrowed(model.state_dict(), {name for name, _ in model.named_parameters()}, dtype)
    calibrations = _Calibrations.of(run, model.state_dict(), widened(weights))
    content = {
        "model": weights,
        "totals": {
            "episode_cost": torch.from_numpy(found.episode_cost),
            "episode_return": torch.from_numpy(found.episode_return),
        },
    }
    rates_left = [one.rate for one in calibrations.rounded]
    facts = {"dtype": dtype, **_facts(run, found, command), LEFT_BEHIND: rates_left}
    findings = {FILE: [one.plain() for one in calibrations.carried]} if calibrations.carried else {}
    made = write_export(out, run, content, facts, findings)
    size = sum(file.stat().st_size for file in made.path.iterdir())
    listener.say(
        f"exported to {out}: {size / 1e6:.2f} MB, weights in {dtype}. Judge it with: saformer "
        f"evaluate {out}"
    )
    for remark in calibrations.remarks(run.path, out):
        listener.say(remark)
    return made.path


@dataclass(frozen=True)
class _Calibrations:
    """What a run was calibrated for, by whether that holds for its export."""

    carried: Sequence[Calibration]
    rounded: Sequence[Calibration]
    """of the run's weights, but the export's are rounded"""
    outdated: Sequence[Calibration]
    """of other weights than the run has now"""

    @classmethod
    def of(
        cls, run: Run, trained: Mapping[str, Tensor], exported: Mapping[str, Tensor]
    ) -> _Calibrations:
        of_run, of_export, kept = (
            identity(run, trained),
            identity(run, exported),
            kept_calibrations(run),
        )
        return cls(
            carried=[one for one in kept if one.run == of_export],
            rounded=[one for one in kept if one.run == of_run != of_export],
            outdated=[one for one in kept if one.run not in {of_run, of_export}],
        )

    def remarks(self, run: Path, out: Path) -> Iterator[str]:
        """For the person who exports."""
        if self.carried:
            yield f"calibrated for violation rates of {_rates(self.carried)}, as the run is"
        if self.rounded:
            yield (
                "not calibrated, though the run is for violation rates of "
                f"{_rates(self.rounded)}: rounded weights are "
                f"another policy. Calibrate it (saformer calibrate {out}), or export with "
                "--dtype float32"
            )
        if self.outdated:
            yield (
                f"not calibrated for violation rates of {_rates(self.outdated)}: {run} was, "
                "before it learnt on. "
                f"Calibrate again (saformer calibrate {run})"
            )


def _rates(calibrations: Sequence[Calibration]) -> str:
    return ", ".join(f"{one.rate:g}" for one in calibrations)


def _facts(run: Run, data: RelabelledStore, command: str | None) -> dict[str, Any]:
    """How the run was trained and what its data was, for people to read; the environment, to roll
    out in."""
    spec = run.spec
    known = (
        run.read_json("done.json")
        if run.is_done
        else {"updates": run.load(groups=()).facts["update"]}
    )
    asked = {"command": command, "seed": spec.seed, "of_updates": spec.fit_config["updates"]}
    return {
        "saformer": __version__,
        "trained": {"commit": "unknown", **asked, **known},
        "environment": asdict(data.environment),
        "data": {
            "fingerprint": spec.data_fingerprint,
            "trajectories": len(data.store),
            "steps": data.store.num_steps,
            "cost_percentiles": {
                name: percentiles(costs)
                for name, costs in zip(spec.criteria, data.episode_cost.T, strict=True)
            },
        },
    }
