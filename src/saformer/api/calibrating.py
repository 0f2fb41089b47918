"""Find how much of each limit to keep back for a stated violation rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from saformer.agents.agent import Agent
from saformer.agents.registry import find_kind
from saformer.api.calibrated import FILE, identity, kept_calibrations, said_options
from saformer.api.findings import findings_of, keep_findings
from saformer.api.listener import Listener
from saformer.api.run_data import totals_of
from saformer.api.runs import frontier_of, limits_of, load
from saformer.api.settings import options_of
from saformer.data.limits import Limit
from saformer.evaluation.calibration import (
    MARGINS,
    Calibration,
    calibrate_margins,
    fewest_episodes,
)
from saformer.evaluation.verdict import Verdict
from saformer.runs.run import Run, find_run


def calibrate(
    path: str | Path,
    *,
    rate: float,
    limits: Sequence[str] | None = None,
    episodes: int = 200,
    confidence: float = 0.95,
    margins: Sequence[float] = MARGINS,
    execution: Mapping[str, Any] | None = None,
    data: str | Path | None = None,
    out: str | Path | None = None,
    seed: int = 0,
    device: str = "auto",
    workers: int | Literal["auto"] = "auto",
    listener: Listener | None = None,
) -> Calibration:
    """Find the smallest margin of each limit under which at most `rate` of episodes passes it, with
    `confidence`.

    A margin is the share of a limit that the policy is not told of. `margins` are tried in their
    order, each on `episodes` fresh episodes under each limit, until one cannot be shown to keep the
    rate. `execution`: as in `evaluate`. Kept as calibration.json in `out`, by default beside the
    run, where `evaluate(path, rate=rate)` finds it; another rate's is left there, the same rate's
    replaced.
    """
    from saformer.evaluation.evaluate import Terms, evaluate_policy

    listener, run, kept = listener or Listener(), find_run(path), findings_of(path, out)
    _check(rate, episodes, confidence, margins)
    agent = load(path, device=device)
    _check_heeds_limits(agent, run)
    found = totals_of(run, listener, data=data)
    if found.environment.identifier is None:
        raise ValueError(
            f"the data of {path} has no environment to roll out in: how often limits are passed "
            "can only be counted in "
            "fresh episodes, so nothing can be calibrated"
        )
    options = options_of(agent, execution or {})

    def trial(tried: Sequence[Limit], margin: float, first_seed: int) -> Sequence[Verdict]:
        terms = Terms(
            frontiers=[frontier_of(run.spec, found, limit) for limit in tried],
            margins=[margin] * len(tried),
            first_seed=first_seed,
        )
        return evaluate_policy(
            agent.policy(replace(options, seed=first_seed)),
            found,
            tried,
            episodes=episodes,
            terms=terms,
            progress=listener.evaluating,
            workers=workers,
        ).verdicts

    parsed = limits_of(run.spec, found, limits)
    calibration = Calibration(
        rate=rate,
        confidence=confidence,
        episodes=episodes,
        seed=seed,
        run=identity(run, agent.model.state_dict()),
        options=said_options(agent, options),
        limits=calibrate_margins(
            trial, parsed, rate=rate, confidence=confidence, seed=seed, margins=margins
        ),
    )
    others = [one for one in kept_calibrations(kept) if one.rate != rate]
    plain = [one.plain() for one in (*others, calibration)]
    listener.say(f"calibration kept in {keep_findings(run, kept, {FILE: plain})}")
    if all(criterion.reads_action_alone for criterion in found.criteria):
        listener.say(
            "costs are of the action alone: with --shield no episode passes a limit, and no "
            "margin is needed"
        )
    return calibration


def _check(rate: float, episodes: int, confidence: float, margins: Sequence[float]) -> None:
    if not (0 < rate < 1 and 0 < confidence < 1):
        raise ValueError(
            f"rate and confidence are shares between 0 and 1, got {rate} and {confidence}"
        )
    if (
        not margins
        or not all(0 <= margin < 1 for margin in margins)
        or list(margins) != sorted(margins, reverse=True)
    ):
        raise ValueError(
            "margins are shares of a limit, at least 0 and below 1, from the largest to the "
            f"smallest: got {margins}"
        )
    fewest = fewest_episodes(rate, confidence)
    if episodes < fewest:
        raise ValueError(
            f"{episodes} episodes cannot show a violation rate of {rate:g} with confidence "
            f"{confidence:g}, even if "
            f"none passes its limit: give at least {fewest} (--episodes), better {5 * fewest}"
        )


def _check_heeds_limits(agent: Agent, run: Run) -> None:
    if find_kind(agent.name).has_one_limit or agent.name == "dt":
        raise ValueError(
            f"{run.path} is {agent.name}, which hears of no limit when it acts: to keep a part "
            "of it back changes "
            "nothing. saformer and cdt can be calibrated"
        )
