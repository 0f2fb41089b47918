"""The paper's Table 3 and Figure 4: limits below all data, before and after fine-tuning, in one JSON.

    python -m benchmarks.finetuning --task halfcheetah-medium-replay --preset paper --updates 40000 --out finetuning/hc
    python -m benchmarks.finetuning --task halfcheetah-medium-replay --run finetuning/hc/offline --out finetuning/hc-2

Every trajectory that cost less than the 10th percentile is removed; a policy is trained on the rest (or given with
--run) and judged under nine limits: five at the paper's ratios below that percentile, four in the data. Then it is
fine-tuned and judged again. The same call goes on where an earlier one was stopped.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import tyro

import saformer
from saformer import api
from saformer.api import Listener
from saformer.criteria import criterion
from saformer.data.relabel import RelabelledStore, relabel
from saformer.data.statistics import without_nan
from saformer.envs.tasks import find_task, load_data
from saformer.evaluation.evaluate import Evaluation
from saformer.runs.run import Run
from saformer.training.finetune_config import FinetuneConfig
from saformer.training.presets import PRESETS

RATIOS = (0.942, 0.955, 0.967, 0.980, 0.993)
"""The paper's limits below its 10th percentile, as shares of it: 3700 to 3900 of 3928."""
IN_SAMPLE = (10, 20, 30, 50)
EARNED = 0.8
"""Of the median return of the tenth of the data just above the 10th percentile: standing still does not count."""
LOSS = 0.05
"""Share of their return that limits within the data may lose."""
JUDGING_SEED = 7
"""Other initial states than fine-tuning judges by."""


@dataclass(frozen=True)
class Settings:
    """What to do."""

    task: str = "halfcheetah-medium-replay"
    out: Path = Path("finetuning")
    run: Path | None = None
    """A run trained on such data already; otherwise one is trained."""
    preset: Literal["small", "paper"] = "paper"
    updates: int = 40_000
    """Of the run that is trained here."""
    seed: int = 0
    ceiling: str = "p50"
    """Of exploration: a cost, or a percentile of the remaining data's."""
    judged_episodes: int = 20
    device: str = "auto"
    candidates: int | None = None
    temperature: float | None = None
    past_return: Literal["selected", "expected", "highest"] | None = None
    """How to act; by default as the run was trained for."""
    tuning: FinetuneConfig = field(default_factory=lambda: FinetuneConfig(updates=300))


@dataclass(frozen=True)
class Question:
    """What is asked of the policy, from the whole data."""

    limits: dict[str, float]
    """by name, the tightest first"""
    below: tuple[str, ...]
    """those that lie below the data"""
    reference: float
    """median return of stored trajectories between the 10th and the 20th percentile"""

    @classmethod
    def of(cls, data: RelabelledStore) -> Question:
        costs, returns = data.episode_cost[:, 0], data.episode_return
        p10, p20 = np.percentile(costs, [10, 20])
        below = {f"{p10 * ratio:.6g}": float(f"{p10 * ratio:.6g}") for ratio in RATIOS}
        inside = {f"{value:.6g}": float(f"{value:.6g}") for value in np.percentile(costs, IN_SAMPLE)}
        just_above = (costs >= p10) & (costs <= p20)
        return cls({**below, **inside}, tuple(below), float(np.median(returns[just_above])))

    @property
    def least_return(self) -> float:
        """What must be earned under the limits below the data."""
        return EARNED * self.reference if self.reference > 0 else self.reference


def main(settings: Settings) -> None:
    began, listener = time.perf_counter(), Listener(say=lambda message: print(message, flush=True))
    whole = relabel(load_data(find_task(settings.task), progress=listener.building), [criterion("torque")])
    question = Question.of(whole)
    offline = settings.run or train(settings, whole, listener)
    check(offline, whole)
    execution = {
        name: value
        for name in ("candidates", "temperature", "past_return")
        if (value := getattr(settings, name)) is not None
    }

    def judged(run: Path) -> Evaluation:
        return api.evaluate(
            run,
            limits=list(question.limits),
            episodes=settings.judged_episodes,
            execution=execution,
            seed=JUDGING_SEED,
            device=settings.device,
            listener=listener,
        )

    before = judged(offline)
    place = settings.out / f"tuned-seed{settings.seed}"
    tuned = api.finetune(
        offline,
        list(question.limits),
        ceiling=settings.ceiling,
        config=settings.tuning,
        execution=execution,
        out=place,
        seed=settings.seed,
        resume=Run(place).spec_path.exists(),
        device=settings.device,
        listener=listener,
    )
    after = judged(tuned.run.path)
    found = findings(question, whole, before, after, tuned.run)
    found["settings"] = without_nan(json.loads(json.dumps(asdict(settings), default=str)))
    found["versions"] = {"saformer": saformer.__version__, "torch": torch.__version__}
    found["seconds"] = round(time.perf_counter() - began, 1)
    path = tuned.run.write_json("experiment.json", without_nan(found))
    show(found)
    print(f"everything is in {path}")


def train(settings: Settings, whole: RelabelledStore, listener: Listener) -> Path:
    """A run on the data without its cheapest tenth."""
    store, run = settings.out / f"{settings.task}-above-p10", settings.out / "offline"
    costs = whole.episode_cost[:, 0]
    if not store.exists():
        whole.store.filter(costs >= np.percentile(costs, 10)).save(store)
    preset = PRESETS[settings.preset]()
    preset = replace(preset, fit=replace(preset.fit, updates=settings.updates, evaluate_every=0))
    begun = Run(run).spec_path.exists()
    return api.train(
        str(store), preset=preset, seed=settings.seed, out=run, resume=begun, device=settings.device, listener=listener
    ).path


def check(run: Path, whole: RelabelledStore) -> None:
    cheapest = api.data_of(Run(run)).episode_cost[:, 0].min()
    p10 = np.percentile(whole.episode_cost[:, 0], 10)
    if cheapest < p10:
        raise ValueError(f"{run} has seen a trajectory that cost {cheapest:.6g}, below the 10th percentile {p10:.6g}")


def findings(
    question: Question, whole: RelabelledStore, before: Evaluation, after: Evaluation, run: Run
) -> dict[str, Any]:
    rows = []
    for old, new in zip(before.verdicts, after.verdicts, strict=True):
        is_below = old.limit.name in question.below
        least = question.least_return if is_below else old.mean_return - LOSS * abs(old.mean_return)
        is_p10 = not is_below and old.limit.name == list(question.limits)[len(question.below)]
        rows.append(
            {
                "limit": old.limit.values[0],
                "in_sample": not is_below,
                "before": old.plain(),
                "after": new.plain(),
                "least_return": None if is_p10 else least,  # the 10th percentile itself has none
                "met": new.met,
                "earned": is_p10 or new.mean_return >= least,
            }
        )
    explored = list(run.read_rows("episodes.jsonl"))
    return {
        "task": run.spec.task_name,
        "percentiles": {f"p{p}": float(np.percentile(whole.episode_cost[:, 0], p)) for p in IN_SAMPLE},
        "reference_return": question.reference,
        "limits": rows,
        "limits_met_before": before.limits_met,
        "limits_met": after.limits_met,
        "all_met": all(row["met"] for row in rows),
        "all_earned": all(row["earned"] for row in rows),
        "new_trajectories": len(explored),
        "broke_ceiling": sum(row["broke_ceiling"] for row in explored) / max(1, len(explored)),
        "done": run.read_json("done.json"),
        "finetuning": run.spec.finetuning,
        "explored": explored,
        "evaluations": [row for row in run.metrics() if "evaluation" in row],
        "episodes_before": [row.plain() for row in before.rows],
        "episodes_after": [row.plain() for row in after.rows],
        "data": {"cost": whole.episode_cost[:, 0].tolist(), "return": whole.episode_return.tolist()},
    }


def show(found: dict[str, Any]) -> None:
    print(f"\n{'limit':>9} {'':10} {'cost before':>12} {'after':>9} {'met':>4} ", end="")
    print(f"{'return before':>14} {'after':>9} {'least':>9}")
    for row in found["limits"]:
        old, new = row["before"], row["after"]
        least = "-" if row["least_return"] is None else f"{row['least_return']:.5g}"
        print(
            f"{row['limit']:9.6g} {'in sample' if row['in_sample'] else 'below':10} {old['mean_cost'][0]:12.5g} "
            f"{new['mean_cost'][0]:9.5g} {'yes' if row['met'] else 'NO':>4} {old['mean_return']:14.5g} "
            f"{new['mean_return']:9.5g} {least:>9}{'' if row['earned'] else '  TOO LITTLE'}"
        )
    print(
        f"{found['limits_met']} of {len(found['limits'])} limits met ({found['limits_met_before']} before), "
        f"{found['new_trajectories']} new trajectories, {found['broke_ceiling']:.0%} of them broke the ceiling"
    )


if __name__ == "__main__":
    main(tyro.cli(Settings, description=__doc__))
