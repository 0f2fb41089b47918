"""How much of each limit to withhold for a violation rate, shown anew or read from disk."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from saformer.api.loaded import Loaded
from saformer.data.canonical import frontier_of
from saformer.data.limits import Limit, Totals
from saformer.evaluation.calibration import Calibration, calibrate_margins
from saformer.evaluation.settings import CalibrateSettings, EvaluateSettings
from saformer.evaluation.verdict import Verdict
from saformer.files import read_json, validated
from saformer.runs.export import policy_identity, read_facts
from saformer.runs.run import FORMAT, Run, check_format

FILE, REMEDY = "calibration.json", "calibrate again (saformer calibrate)"
LEFT_BEHIND = "left_calibrations"
"""Fact of an export: rates of its run's calibrations that rounding made untrue."""


def calibrate_policy(loaded: Loaded, settings: CalibrateSettings) -> Iterator[Calibration]:
    """The margin of each limit, and the policy that they are of, as far as it is known after each
    margin. One that was stopped with the same settings goes on."""
    from saformer.evaluation.evaluate import Terms, evaluate_policy

    run, agent, kind = loaded.run, loaded.agent, loaded.kind
    if kind.has_one_limit or kind.ignores_costs:
        raise ValueError(
            f"{run.path} is {agent.name}, which hears of no limit when it acts: to withhold a part "
            "of it changes nothing. saformer and cdt can be calibrated"
        )
    totals: Totals
    if settings.offline:
        from saformer.api.estimate import logged_limits, world_of

        world = world_of(loaded, settings.may_end)
        totals, limits = world.data, logged_limits(loaded, world, settings.limits)
        where: Any = {"roll_out": world.roll_out}
    else:
        totals, limits = loaded.totals_for(settings.may_end), loaded.parse_limits(settings.limits)
        where = {"workers": loaded.context.workers}
    options = loaded.options(settings.rule, settings.options, may_end=settings.may_end)
    margins = tuple(sorted(settings.margins))

    def trial(tried: Sequence[Limit], margin: float, first_seed: int) -> Sequence[Verdict]:
        number = f"{margins.index(margin) + 1} of {len(margins)}"
        loaded.listener.say(f"margin {margin:.1%} ({number}): {', '.join(map(str, tried))}")
        frontiers = [frontier_of(run.spec.task, totals, limit) for limit in tried]
        return evaluate_policy(
            agent.policy(replace(options, seed=first_seed)),
            totals,
            tried,
            episodes=settings.episodes,
            terms=Terms(frontiers, [margin] * len(tried), first_seed),
            progress=loaded.listener.evaluating,
            **where,
        ).verdicts

    shown = {name: getattr(settings, name) for name in ("rate", "confidence", "seed")}
    blank = Calibration(
        **shown,
        episodes=settings.episodes,
        run=policy_identity(run, agent.model.state_dict()),
        options=_identifying(loaded.described(options)),
        margins=margins,
        may_end=totals.environment.may_end,
        offline=settings.offline,
    )
    stopped = [each for each in read_calibrations(loaded.findings) if not each.is_whole]
    same = (each.limits for each in stopped if replace(each, limits=()) == blank)
    begun = next((found for found in same if [one.limit for one in found] == limits), ())
    for found in calibrate_margins(trial, limits, margins=margins, begun=begun, **shown):
        yield replace(blank, limits=found)


def find_calibration(loaded: Loaded, rate: float) -> Calibration:
    """The one for this rate: in `out`, or else with the run or export itself."""
    run, folder = loaded.run, loaded.findings
    known = {each.rate: each for each in (*read_calibrations(run), *read_calibrations(folder))}
    if rate in known:
        return known[rate]
    facts = read_facts(run) if run.is_export else {}
    rounded = (
        ". The run that it was exported from is, but with weights that are rounded to "
        f"{facts.get('dtype')} here: another policy, if only by a little. Export that run again "
        "with --dtype float32, or calibrate this one"
    )
    rates = ", ".join(f"{each:g}" for each in sorted(known))
    raise ValueError(
        f"{folder.path} is not calibrated for a violation rate of {rate:g}"
        f"{f', only for {rates}' if known else ''}"
        f"{rounded if rate in facts.get(LEFT_BEHIND, ()) else ''}: run saformer calibrate "
        f"{run.path} --rate {rate:g}"
    )


def as_calibrated(
    loaded: Loaded, calibration: Calibration, settings: EvaluateSettings
) -> EvaluateSettings:
    """The settings with the rule and options of the calibration; they must not name others."""
    run, known = loaded.run, dict(calibration.options)
    if calibration.run != policy_identity(run, loaded.agent.model.state_dict()):
        before = "its weights were rounded" if run.is_export else "it learnt on"
        raise ValueError(
            f"the calibration is of another run, or of {run.path} before {before}: calibrate "
            f"again (saformer calibrate {run.path} --rate {calibration.rate:g})"
        )
    named = _identifying({"rule": settings.rule or known["rule"], **settings.options})
    if settings.may_end is not None:
        named["may_end"] = settings.may_end
    judged = {**known, "may_end": calibration.may_end}
    pairs = [(name, value, judged.get(name)) for name, value in named.items()]
    others = [f"{name} {value} for {own}" for name, value, own in pairs if value != own]
    if others:
        raise ValueError(
            f"the calibration is of a policy that acts otherwise ({', '.join(others)}): leave "
            "these options out, or calibrate again with them"
        )
    how: Any = {"rule": known.pop("rule"), "may_end": calibration.may_end}
    return replace(settings, options={**known, **settings.options}, **how)


def read_calibrations(folder: Run) -> list[Calibration]:
    """All calibrations in this folder, one for each rate."""
    path = folder.path / FILE
    if not path.exists():
        return []
    content: Any = read_json(path, dict[str, Any] | list[Any], REMEDY)
    # a list, without a number, is of an older version
    if isinstance(content, dict) and check_format(path, content) == FORMAT:
        return list(validated(list[Calibration], content.get("calibrations"), path, REMEDY))
    reason = f"{path} was made by an older version, whose policies acted otherwise"
    raise ValueError(f"{reason}: remove it and calibrate again (saformer calibrate)")


def file_content(calibrations: Sequence[Calibration]) -> dict[str, Any]:
    """{calibration.json: its content}."""
    plain = [each.plain() for each in calibrations]
    return {FILE: {"format": FORMAT, "calibrations": plain}}


def _identifying(acting: Mapping[str, Any]) -> dict[str, Any]:
    """Without the seed: it does not change which policy it is."""
    return {name: value for name, value in acting.items() if name != "seed"}
