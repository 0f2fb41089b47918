"""How much of each limit to withhold for a stated violation rate; calibrations on disk, and
whether they are of the policy at hand."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from saformer.api.judge import EvaluateSettings, JudgeSettings, frontier_of
from saformer.data.limits import Limit
from saformer.evaluation.calibration import MARGINS, Calibration, calibrate_margins, fewest_episodes
from saformer.evaluation.verdict import Verdict
from saformer.runs.export import read_facts
from saformer.runs.run import FORMAT, Run, check_format

if TYPE_CHECKING:
    from saformer.trained import Trained

FILE = "calibration.json"
LEFT_BEHIND = "left_calibrations"
"""Fact of an export: rates that its run was calibrated for, with weights that the export
rounds."""
NOT_IDENTIFYING = ("seed",)
"""Options that do not change which policy it is."""


@dataclass(frozen=True)
class CalibrateSettings(JudgeSettings):
    """What `calibrate` shows, and how."""

    rate: float = 0.05
    """Share of episodes that may pass their limit."""
    episodes: int = 200
    """Fresh episodes for each margin and limit."""
    confidence: float = 0.95
    """That the rate is kept, for each limit by itself."""
    margins: Sequence[float] = MARGINS
    """Shares of the limit to withhold, tried from the largest to the smallest."""

    def __post_init__(self) -> None:
        rate, confidence, margins = self.rate, self.confidence, self.margins
        if not (0 < rate < 1 and 0 < confidence < 1):
            raise ValueError(
                f"rate and confidence are shares between 0 and 1, got {rate} and {confidence}"
            )
        are_shares = all(0 <= margin < 1 for margin in margins)
        if not margins or not are_shares or list(margins) != sorted(margins, reverse=True):
            raise ValueError(
                "margins are shares of a limit, at least 0 and below 1, from the largest to the "
                f"smallest: got {margins}"
            )
        fewest = fewest_episodes(rate, confidence)
        if self.episodes < fewest:
            raise ValueError(
                f"{self.episodes} episodes cannot show a violation rate of {rate:g} with "
                f"confidence {confidence:g}, even if none passes its limit: give at least "
                f"{fewest} (--episodes), better {5 * fewest}"
            )


def calibrate_policy(trained: Trained, settings: CalibrateSettings) -> Calibration:
    """The margin of each limit, and the policy that they are of."""
    from saformer.evaluation.evaluate import Terms, evaluate_policy

    run, agent, kind = trained.run, trained.agent, trained.kind
    if kind.has_one_limit or kind.ignores_costs:
        raise ValueError(
            f"{run.path} is {agent.name}, which hears of no limit when it acts: to withhold a part "
            "of it changes nothing. saformer and cdt can be calibrated"
        )
    totals, limits = trained.totals, trained.parse_limits(settings.limits)
    options = trained.options(settings.rule, settings.options)

    def trial(tried: Sequence[Limit], margin: float, first_seed: int) -> Sequence[Verdict]:
        frontiers = [frontier_of(run.spec, totals, limit) for limit in tried]
        return evaluate_policy(
            agent.policy(replace(options, seed=first_seed)),
            totals,
            tried,
            episodes=settings.episodes,
            terms=Terms(frontiers, [margin] * len(tried), first_seed),
            progress=trained.listener.evaluating,
            workers=trained.context.workers,
        ).verdicts

    calibrated = calibrate_margins(
        trial,
        limits,
        rate=settings.rate,
        confidence=settings.confidence,
        seed=settings.seed,
        margins=settings.margins,
    )
    return Calibration(
        rate=settings.rate,
        confidence=settings.confidence,
        episodes=settings.episodes,
        seed=settings.seed,
        run=policy_identity(run, agent.model.state_dict()),
        options=_identifying(trained.acting(settings)),
        limits=calibrated,
    )


@dataclass(frozen=True)
class Calibrations:
    """What a trained agent was calibrated for, one for each rate: in `out`, or with the run or
    export itself."""

    trained: Trained

    def of_rate(self, rate: float) -> Calibration:
        """The calibration for this rate; one in `out` comes first."""
        run, folder = self.trained.run, self.trained.findings
        known = {each.rate: each for each in (*read_calibrations(run), *read_calibrations(folder))}
        if rate in known:
            return known[rate]
        facts = read_facts(run) if run.is_export else {}
        rounded = (
            ". The run that it was exported from is, but with weights that are rounded to "
            f"{facts.get('dtype')} here: another policy, if only by a little. Export that run "
            "again with --dtype float32, or calibrate this one"
        )
        rates = ", ".join(f"{each:g}" for each in sorted(known))
        raise ValueError(
            f"{folder.path} is not calibrated for a violation rate of {rate:g}, "
            f"{f'only for {rates}' if known else 'for none'}"
            f"{rounded if rate in facts.get(LEFT_BEHIND, ()) else ''}: run saformer calibrate "
            f"{run.path} --rate {rate:g}"
        )

    def applied(self, calibration: Calibration, settings: EvaluateSettings) -> EvaluateSettings:
        """The settings with the rule and options of the calibration; they must not name others."""
        run, agent = self.trained.run, self.trained.agent
        if calibration.run != policy_identity(run, agent.model.state_dict()):
            before = "its weights were rounded" if run.is_export else "it learnt on"
            raise ValueError(
                f"the calibration is of another run, or of {run.path} before {before}: calibrate "
                f"again (saformer calibrate {run.path} --rate {calibration.rate:g})"
            )
        known = dict(calibration.options)
        named = {"rule": settings.rule or known["rule"], **settings.options}
        others = [
            f"{name} {value} for {known.get(name)}"
            for name, value in _identifying(named).items()
            if known.get(name) != value
        ]
        if others:
            raise ValueError(
                f"the calibration is of a policy that acts otherwise ({', '.join(others)}): leave "
                "these options out, or calibrate again with them"
            )
        return replace(settings, rule=known.pop("rule"), options={**known, **settings.options})

    def with_another(self, calibration: Calibration) -> dict[str, Any]:
        """The content of calibration.json with this one in it."""
        there = read_calibrations(self.trained.findings)
        others = [each for each in there if each.rate != calibration.rate]
        return file_content([*others, calibration])


def read_calibrations(folder: Run) -> list[Calibration]:
    """All calibrations in this folder, one for each rate."""
    path = folder.path / FILE
    if not path.exists():
        return []
    try:
        content = folder.read_json(FILE)
        # a list, without a number, is of an older version
        if isinstance(content, dict) and check_format(path, content) == FORMAT:
            return [Calibration.from_plain(plain) for plain in content["calibrations"]]
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is damaged ({error!r}): calibrate again (saformer calibrate)"
        ) from None
    raise ValueError(
        f"{path} was made by an older version, whose policies acted otherwise: remove it and "
        "calibrate again (saformer calibrate)"
    )


def file_content(calibrations: Sequence[Calibration]) -> dict[str, Any]:
    """{calibration.json: its content}."""
    plain = [each.plain() for each in calibrations]
    return {FILE: {"format": FORMAT, "calibrations": plain}}


def _identifying(acting: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in acting.items() if name not in NOT_IDENTIFYING}


def policy_identity(run: Run, weights: Mapping[str, Tensor]) -> str:
    """Equal for the same run with the same weights, those of its rule too, exported or not."""
    digest = hashlib.sha256(f"{run.spec.digest} {FORMAT}".encode())
    for name, value in sorted(weights.items()):
        digest.update(name.encode() + value.cpu().numpy().tobytes())
    return digest.hexdigest()[:16]
