"""Carry jobs out; finished parts are read again and not redone."""

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch

from saformer import Listener
from saformer.evaluation.offline.dynamics import VERSION
from saformer.experiments.calls import (
    episodes_of,
    estimate_run,
    finetune_run,
    interruptible,
    judge_run,
    train_runs,
)
from saformer.experiments.datasets import limits_in_costs
from saformer.experiments.estimates import estimate_row
from saformer.experiments.plan import KEY, Gathered, Judging, Row, RunJob, Training, failure_of
from saformer.runs.provenance import commit
from saformer.runs.run import Run

SHARES = ("frontier_share", "safe_share", "within", "resampled", "fell_back", "shielded")
ENDINGS = ("may_end", "data_ended_early")
"""Of a whole evaluation; those of older versions say nothing of them."""


def carry_out(job: RunJob, listener: Listener | None = None) -> Gathered:
    """Train and judge, unless that was done before, and gather the rows of all of it. A run or a
    judgement that fails is noted, and the others go on; Ctrl-C is not a failure."""
    gathered, listener = Gathered(), listener or Listener()
    if job.threads is not None:
        torch.set_num_threads(job.threads)
    for training, run in train_runs(job, listener):
        if not run.is_done:
            gathered.failed.append(failure_of(training, run.failure or "training did not finish"))
            continue
        if training in job.curves:
            gathered.add(Gathered({"curves": list(_curve(training, run))}))
        for judging in (each for each in job.judgings if each.training == training):
            try:
                with interruptible():
                    rows = _verdicts(judging, run, job, listener)
                gathered.add(Gathered({"verdicts": rows}))
            except (ValueError, OSError, RuntimeError) as error:
                gathered.failed.append(failure_of(training, str(error), judging))
    return gathered


def _verdicts(judging: Judging, run: Run, job: RunJob, listener: Listener) -> list[Row]:
    """A row for each limit."""
    limits = limits_in_costs(judging.limits, job.setting.task(judging.training.dataset))
    if judging.finetuned:
        run = finetune_run(run, limits, judging.training, job, listener)
    evaluation = _evaluation(replace(judging, limits=limits), run, job, listener)
    done, rows = run.read_json("done.json"), list[Row]()
    about = {
        **_about(judging.training),
        "cost_discount": judging.cost_discount,
        "run": run.path.name,
        "updates": done["updates"],
        "training_seconds": done["seconds"],
        "evaluation_seconds": evaluation["seconds"],
        "commit": evaluation["commit"],
    }
    for name, policy in zip(judging.variants, [evaluation, *evaluation["beside"]], strict=True):
        verdicts = (_verdict(verdict, policy["episodes"]) for verdict in policy["verdicts"])
        known = {key: evaluation[key] for key in ENDINGS if key in evaluation}
        rows += [{**about, "variant": name, **known, **verdict} for verdict in verdicts]
    if judging.estimated:
        estimate = _estimate(replace(judging, limits=limits), run, job, listener)
        for row in rows:
            row["estimate"] = estimate_row(estimate, row["limit_name"])
    nothing = evaluation.get("nothing")
    if nothing:
        for row in rows:  # the policy's rows hold them, so that one evaluation is all they need
            (verdict,) = (v for v in nothing["verdicts"] if v["limit"]["name"] == row["limit_name"])
            row["nothing"] = _verdict(verdict, nothing["episodes"])
    return rows


def _evaluation(judging: Judging, run: Run, job: RunJob, listener: Listener) -> Row:
    """Rollouts."""
    how: Row = {**_how(judging, job), "cost_discount": judging.cost_discount}
    how |= {"shield": True} if judging.shield else {}
    return _once("evaluation", how, run, lambda: judge_run(run, judging, job, listener))


def _estimate(judging: Judging, run: Run, job: RunJob, listener: Listener) -> Row:
    """From the run's data alone; apart from rollouts, as it changes with how worlds are learnt."""
    how = {**_how(judging, job), "version": VERSION}
    return _once("estimate", how, run, lambda: estimate_run(run, judging, job, listener))


def _how(judging: Judging, job: RunJob) -> Row:
    named = {"limits": list(judging.limits), "options": dict(judging.options)}
    return {**named, "num_episodes": episodes_of(judging, job), "seed": 0}


def _once(kind: str, how: Row, run: Run, judge: Callable[[], Row]) -> Row:
    """Read from beside the run if it was judged in this way before; else it is judged now."""
    digest = hashlib.sha256(json.dumps(how, sort_keys=True).encode()).hexdigest()[:8]
    name = f"{kind}-{digest}.json"
    if not (run.path / name).exists():
        began = time.perf_counter()
        judged = judge()
        facts = {"seconds": round(time.perf_counter() - began, 1), "commit": commit()}
        run.write_json(name, {**how, **facts, **judged})
    return dict(run.read_json(name))


def _about(training: Training) -> Row:
    return {name: getattr(training, name) for name in KEY if name != "variant"}


def _verdict(verdict: Row, episodes: Sequence[Row]) -> Row:
    own = [row for row in episodes if row["limit_name"] == verdict["limit"]["name"]]
    return {
        "limit_name": verdict["limit"]["name"],
        "limit": verdict["limit"]["values"][0],
        "mean_cost": verdict["mean_cost"][0],
        **{name: verdict[name] for name in ("met", "mean_return", "frontier", *SHARES)},
        "costs": [row["cost"][0] for row in own],
        "returns": [row["episode_return"] for row in own],
        "ended_early": [row.get("ended_early", False) for row in own],
    }


def _curve(training: Training, run: Run) -> Iterator[Row]:
    for row in run.metrics():
        for name, evaluation in row.get("evaluation", {}).items():
            yield {
                **_about(training),
                "update": row["update"],
                "limit_name": name,
                "limit": evaluation["limit"][0],
                "cost": evaluation["cost"][0],
                "return": evaluation["return"],
            }
