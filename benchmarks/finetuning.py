"""The paper's Table 3 and Figure 4: limits below all data, before and after fine-tuning, in one
JSON.

    python -m benchmarks.finetuning --task halfcheetah-medium-replay --preset paper --updates 40000
    --out finetuning/hc

Every trajectory that cost less than the 10th percentile is removed; a policy is trained on the rest
(or given with --run) and judged under nine limits: five at the paper's ratios below that
percentile, four in the data. Then it is fine-tuned and judged again, by the paper's rule or, with
--rule feasible, as users would run it; in any case the policies before and after are judged
by our own too. The same call goes on where an earlier one was stopped.

To train on the cut data elsewhere, among other runs:

    python -m benchmarks.finetuning --task halfcheetah-medium-replay --only-data --out cut
    (prints the store's path) saformer train cut/halfcheetah-medium-replay-above-p10 hopper-medium
    --preset paper python -m benchmarks.finetuning --run runs/halfcheetah-... --out finetuning/hc
"""

from __future__ import annotations

import json
import time
import warnings
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import tyro
from scripts.figures.finetuning import figure, table

import saformer
from saformer import Listener
from saformer.data.relabel import RelabelledStore
from saformer.data.statistics import without_nan
from saformer.envs.tasks import find_task, load_data
from saformer.experiments.datasets import make_upper
from saformer.runs.run import Run
from saformer.training.finetune.config import FinetuneConfig
from saformer.training.loop.presets import PRESETS

RATIOS = (0.942, 0.955, 0.967, 0.980, 0.993)
"""The paper's limits below its 10th percentile, as shares of it: 3700 to 3900 of 3928."""
IN_SAMPLE = ("p10", "p20", "p30", "p50")
EARNED = 0.8
"""Of the median return of the tenth of the data just above the 10th percentile: standing still does
not count."""
LOSS = 0.05
"""Share of their return that limits within the data may lose."""
JUDGING_SEED = 7
"""Other initial states than fine-tuning judges by."""


@dataclass(frozen=True)
class Settings:
    """What to do."""

    task: str = "halfcheetah-medium-replay"
    """Whose data to cut; a run that is given has its own."""
    out: Path = Path("finetuning")
    only_data: bool = False
    """Make the store without the cheapest tenth, print its path, and stop."""
    run: Path | None = None
    """A run trained on such a store already; otherwise one is trained."""
    data: Path | None = None
    """Where that run's store is now, if it was moved."""
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
    rule: Literal["paper", "feasible"] = "paper"
    """By which limits are to hold; what is found by our own is shown in any case."""
    tuning: FinetuneConfig = field(default_factory=lambda: FinetuneConfig(lanes=20, updates=600))
    """On a GPU 20 lanes take hardly longer than 10, and half as many rounds need half as many
    evaluations."""

    def acting(self, rule: str | None = None) -> dict[str, Any]:
        """The rule, and the options that were named."""
        named = {name: getattr(self, name) for name in ("candidates", "temperature", "past_return")}
        options = {name: value for name, value in named.items() if value is not None}
        return {"rule": rule or self.rule, "options": options}


@dataclass(frozen=True)
class Question:
    """What is asked of the policy."""

    limits: dict[str, float]
    """by name, the tightest first"""
    below: tuple[str, ...]
    """those that lie below the data"""
    percentiles: dict[str, float]
    """of the data before it was cut"""
    reference: float
    """median return of stored trajectories between the 10th and the 20th percentile"""

    @classmethod
    def of(cls, data: RelabelledStore) -> Question:
        """From data without its cheapest tenth, which knows the percentiles of the whole."""
        before = data.store.provenance.get("thresholds before")
        costs, returns = data.episode_cost[:, 0], data.episode_return
        if before is None or costs.min() < before["p10"]:
            raise ValueError(
                f"{data.store.path} is not a store without its cheapest tenth, made by "
                "--only-data: train on one"
            )
        numbers = (
            [f"{before['p10'] * ratio:.6g}" for ratio in RATIOS],
            [f"{before[p]:.6g}" for p in IN_SAMPLE],
        )
        return cls(
            limits={name: float(name) for names in numbers for name in names},
            below=tuple(numbers[0]),
            percentiles={name: before[name] for name in IN_SAMPLE},
            reference=float(np.median(returns[costs <= before["p20"]])),
        )

    @property
    def least_return(self) -> float:
        """What must be earned under the limits below the data."""
        return EARNED * self.reference if self.reference > 0 else self.reference


class Stopwatch:
    """Where the time goes: what is reported last took the time since the report before it."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._latest = time.perf_counter()

    def took(self, what: str) -> None:
        now = time.perf_counter()
        self.seconds[what] = round(self.seconds.get(what, 0.0) + now - self._latest, 2)
        self._latest = now

    def listener(self) -> Listener:
        """Hears of episodes, updates and evaluations of fine-tuning."""

        def say(message: str) -> None:
            print(message, flush=True)
            if message.startswith("episode "):
                self.took("exploring")

        def row(run: Path, row: dict[str, Any]) -> None:
            self.took("evaluating" if "evaluation" in row else "updates")

        return Listener(say=say, row=row)


def main(settings: Settings) -> None:
    watch = Stopwatch()
    plain = Listener(say=lambda message: print(message, flush=True))
    if settings.only_data:
        print(cut_data(settings, plain).resolve())
        return
    offline = settings.run or train(settings, plain)
    data = saformer.data_of(Run(offline), data=settings.data)
    question = Question.of(data)
    watch.took("data and training")
    before = judged_before(offline, question, settings, plain)
    watch.took("judging before")
    is_ours = settings.rule == "feasible"
    ours = [before if is_ours else judged(offline, question, settings, plain, "feasible")]
    watch.took("judging by our own")
    place = settings.out / f"tuned-seed{settings.seed}"
    tuned = saformer.finetune(
        offline,
        list(question.limits),
        ceiling=settings.ceiling,
        config=settings.tuning,
        **settings.acting(),
        data=settings.data,
        out=place,
        seed=settings.seed,
        resume=Run(place).spec_path.exists(),
        device=settings.device,
        listener=watch.listener(),
    )
    watch.took("setting up and saving")
    after = judged(tuned.run.path, question, settings, plain)
    watch.took("judging after")
    ours.append(after if is_ours else judged(tuned.run.path, question, settings, plain, "feasible"))
    watch.took("judging by our own")
    found = findings(question, data, before, after, tuned.run)
    found["by_ours"] = compared(question, *ours)
    found["settings"] = json.loads(json.dumps(asdict(settings), default=str))
    found["versions"] = {"saformer": saformer.__version__, "torch": torch.__version__}
    found["seconds"] = watch.seconds
    settings.out.mkdir(parents=True, exist_ok=True)
    (settings.out / "finetuning.json").write_text(json.dumps(without_nan(found)))
    (settings.out / "figure-4.svg").write_text(figure(found))
    print(
        f"\n{table(found)}\n\neverything is in {settings.out / 'finetuning.json'}, Figure 4 "
        "beside it"
    )


def cut_data(settings: Settings, listener: Listener) -> Path:
    """The store without the trajectories that cost less than the 10th percentile."""
    path = settings.out / f"{settings.task}-above-p10"
    make_upper(load_data(find_task(settings.task), progress=listener.building), path)
    return path


def train(settings: Settings, listener: Listener) -> Path:
    """A run on the data without its cheapest tenth."""
    preset = PRESETS[settings.preset]()
    preset = replace(preset, fit=replace(preset.fit, updates=settings.updates, evaluate_every=0))
    run = settings.out / "offline"
    return saformer.train(
        str(cut_data(settings, listener)),
        preset=preset,
        seed=settings.seed,
        out=run,
        resume=Run(run).spec_path.exists(),
        device=settings.device,
        listener=listener,
    ).path


def judged(
    run: Path,
    question: Question,
    settings: Settings,
    listener: Listener,
    rule: str | None = None,
) -> dict[str, Any]:
    """Under all limits, by other episodes than fine-tuning is steered by."""
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message="limit .* lies outside the data"
        )  # which is what this is about
        data = settings.data if run == settings.run else None
        trained = saformer.load(run, data=data, device=settings.device, listener=listener)
        evaluation, _ = trained.judge(
            list(question.limits),
            episodes=settings.judged_episodes,
            seed=JUDGING_SEED,
            **settings.acting(rule),
        )
    return evaluation.plain()


def judged_before(
    run: Path, question: Question, settings: Settings, listener: Listener
) -> dict[str, Any]:
    """What an earlier call found, if it asked the same of the same run; else what is found now."""
    path = settings.out / "before.json"
    how = {
        "run": Run(run).spec.digest,
        "episodes": settings.judged_episodes,
        "execution": settings.acting(),
    }
    if path.exists() and (found := json.loads(path.read_text()))["how"] == how:
        return dict(found["found"])
    before = without_nan(judged(run, question, settings, listener))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"how": how, "found": before}))
    return dict(before)


def compared(
    question: Question, before: dict[str, Any], after: dict[str, Any]
) -> list[dict[str, Any]]:
    """For each limit what was found before and after, and whether that is what is asked for."""
    rows = []
    for old, new in zip(before["verdicts"], after["verdicts"], strict=True):
        name, is_p10 = (
            old["limit"]["name"],
            old["limit"]["name"] == list(question.limits)[len(question.below)],
        )
        is_below, earned = name in question.below, old["mean_return"]
        least = question.least_return if is_below else earned - LOSS * abs(earned)
        rows.append(
            {
                "limit": question.limits[name],
                "in_sample": not is_below,
                "before": old,
                "after": new,
                "least_return": None if is_p10 else least,  # the 10th percentile itself has none
                "met": new["met"],
                "earned": is_p10 or new["mean_return"] >= least,
            }
        )
    return rows


def findings(
    question: Question,
    data: RelabelledStore,
    before: dict[str, Any],
    after: dict[str, Any],
    run: Run,
) -> dict[str, Any]:
    rows, explored = compared(question, before, after), list(run.read_rows("episodes.jsonl"))
    return {
        "task": run.spec.task_name,
        "percentiles": question.percentiles,
        "reference_return": question.reference,
        "limits": rows,
        "limits_met_before": before["limits_met"],
        "limits_met": after["limits_met"],
        "all_met": all(row["met"] for row in rows),
        "all_earned": all(row["earned"] for row in rows),
        "new_trajectories": len(explored),
        "broke_ceiling": sum(row["broke_ceiling"] for row in explored) / max(1, len(explored)),
        "done": run.read_json("done.json"),
        "finetuning": run.spec.finetuning,
        "explored": explored,
        "evaluations": [row for row in run.metrics() if "evaluation" in row],
        "episodes_before": before["episodes"],
        "episodes_after": after["episodes"],
        "data": {"cost": data.episode_cost[:, 0].tolist(), "return": data.episode_return.tolist()},
    }


if __name__ == "__main__":
    main(tyro.cli(Settings, description=__doc__))
