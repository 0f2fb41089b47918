"""Judge a model on held-out logs alone: no simulator, no rollout."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from saformer.core.model import SaFormer
from saformer.data.limits import Limit
from saformer.data.relabel import RelabelledStore
from saformer.data.shown import Shown, frame_of
from saformer.data.statistics import without_nan
from saformer.data.store import ACTION_NAMES
from saformer.evaluation.offline.findings import (
    FEW,
    NEAREST,
    ActionFit,
    Errors,
    LimitFindings,
    Near,
    Support,
    VerificationRecord,
    nearest,
)
from saformer.evaluation.offline.reader import HeldOutReader, JudgedSteps, Windows, evenly

NO_ROLLOUT = (
    "no rollout: judged on held-out logs alone; nothing here says what the policy would do once "
    "its own actions decide what it sees"
)
MAX_WINDOWS = 10_000
MAX_POINTS, NUM_STRETCHES = 2_000, 20
LARGE_BIAS = 0.1  # a critic that is off by more than this share of a limit cannot guard it
MANY_MISSED = 0.5


@dataclass(frozen=True, repr=False)
class OfflineEvaluation(Shown):
    """A model judged on held-out logs: no rollout took place."""

    criteria: tuple[str, ...]
    cost_discount: float
    window: int
    num_training: int  # trajectories that the model was trained on
    num_held_out: int  # trajectories that it was not
    num_steps: int  # held-out steps
    num_judged: int  # how many of them were judged: all, or an even subsample
    num_windows: int  # windows that it takes to judge every step once
    num_windows_judged: int
    critic: tuple[Errors, ...]  # of the cost-to-go, per constraint
    return_to_go: Errors  # of what the actor expects, prompted with hindsight
    action: ActionFit
    limits: tuple[LimitFindings, ...]
    calibration: dict[str, Any]  # forecast and logged cost-to-go of some steps, to draw
    by_progress: tuple[dict[str, Any], ...]  # critic's errors over a trajectory's course, to draw
    day: dict[str, Any]  # one trajectory's actions beside those expected under limits, to draw

    @property
    def warnings(self) -> tuple[str, ...]:
        """Claims that these figures do not support, in sentences."""
        return tuple(_warnings(self))

    def to_frame(self) -> Any:
        """A row for each limit, as a pandas (or else polars) frame."""
        return frame_of([asdict(findings) for findings in self.limits])

    def plain(self) -> dict[str, Any]:
        """For JSON: what is not a number is null."""
        plain = {"label": NO_ROLLOUT, **asdict(self), "warnings": self.warnings}
        return dict(without_nan(plain))


def judge_offline(
    model: SaFormer,
    training: RelabelledStore,
    held_out: RelabelledStore,
    limits: Sequence[Limit],
    *,
    window: int,
    max_windows: int = MAX_WINDOWS,
    progress: Callable[[int, int], None] | None = None,
) -> OfflineEvaluation:
    """Hold a model against trajectories that it was not trained on.

    Every step is judged once, with the K - 1 steps of past that the policy would have. More than
    `max_windows` windows are subsampled evenly; near each limit, at most a tenth of that is read.
    `progress` hears (windows read, in all).
    """
    _check(model, training, held_out, limits, max_windows)
    windows = Windows.every_step_once(np.asarray(held_out.store.lengths), window)
    chosen = windows.only(evenly(len(windows), max_windows))
    episode_cost = np.asarray(held_out.episode_cost)
    scale = model.normalizer.scale("limit").double().cpu().numpy()
    near_limit = [nearest(episode_cost, limit, scale) for limit in limits]
    near_windows = [_of(windows, trajectories, max_windows) for trajectories in near_limit]
    typical = np.argsort(episode_cost[:, 0], kind="stable")[len(episode_cost) // 2]
    day, shown = _of(windows, typical, max_windows), _some(limits)
    total = len(chosen) + 2 * sum(len(part) for part in near_windows) + len(shown) * len(day)

    def on_read(num_read: int) -> None:
        if progress is not None:
            progress(num_read, total)

    reader = HeldOutReader(model, held_out, training, window=window, on_read=on_read)
    judged = reader.read(chosen)
    per_limit = []
    for limit, trajectories, part in zip(limits, near_limit, near_windows, strict=True):
        prompted, hindsight = reader.read(part, limit=limit.values), reader.read(part)
        near = Near.of(episode_cost[trajectories], prompted, hindsight)
        record = VerificationRecord.of(judged, limit)
        support = Support.of(training, limit)
        per_limit.append(LimitFindings(limit, support, near, record))
    drawn = evenly(len(judged.step), MAX_POINTS)
    forecast, logged = _brief(judged.forecast[drawn]), _brief(judged.cost_to_go[drawn])
    return OfflineEvaluation(
        criteria=tuple(criterion.name for criterion in held_out.criteria),
        cost_discount=held_out.cost_discount,
        window=window,
        num_training=len(training.store),
        num_held_out=len(held_out.store),
        num_steps=held_out.store.num_steps,
        num_judged=len(judged.step),
        num_windows=len(windows),
        num_windows_judged=len(chosen),
        critic=Errors.of_critic(judged),
        return_to_go=Errors.of(judged.expected_return, judged.return_to_go),
        action=ActionFit.of(judged),
        limits=tuple(per_limit),
        calibration={"forecast": forecast, "logged": logged},
        by_progress=tuple(_by_progress(judged)),
        day=_day({limit.name: reader.read(day, limit=limit.values) for limit in shown}, held_out),
    )


def _check(
    model: SaFormer,
    training: RelabelledStore,
    held_out: RelabelledStore,
    limits: Sequence[Limit],
    max_windows: int,
) -> None:
    constraints, costs = model.dimensions.constraints, []
    for data in (training, held_out):
        names = [criterion.name for criterion in data.criteria]
        costs.append(f"{names} at discount {data.cost_discount}")
    if costs[0] != costs[1]:
        remedy = "relabel both with the same criteria and discount"
        raise ValueError(f"training data costs {costs[0]}, held-out data {costs[1]}; {remedy}")
    if (size := len(training.criteria)) != constraints:
        raise ValueError(f"the data has {size} constraints, the model was made for {constraints}")
    if len(held_out.store) == 0:
        raise ValueError("no trajectory was held out: keep some out of training to judge by")
    if not limits or max_windows < 1:
        counts = f"{len(limits)} and {max_windows}"
        raise ValueError(f"at least one limit and one window are needed, got {counts}")
    for limit in limits:
        if (size := len(limit.values)) != constraints:
            sizes = f"{size} values for {constraints} constraints"
            raise ValueError(f"limit {limit.name!r} has {sizes}")


def _of(windows: Windows, trajectories: Any, max_windows: int) -> Windows:
    """The windows of these trajectories, at most a tenth of `max_windows` of them."""
    theirs = windows.only(np.isin(windows.trajectory, trajectories))
    return theirs.only(evenly(len(theirs), max(1, round(NEAREST * max_windows))))


def _some(limits: Sequence[Limit]) -> list[Limit]:
    """The first, one between, the last."""
    return [limits[index] for index in dict.fromkeys((0, len(limits) // 2, len(limits) - 1))]


def _day(reads: dict[str, JudgedSteps], held_out: RelabelledStore) -> dict[str, Any]:
    """One trajectory, read under several limits: its actions, and those that the actor expects."""
    first = next(iter(reads.values()))
    return {
        "actions": list(held_out.store.provenance.get(ACTION_NAMES, ())),
        "cost": _brief(first.episode_cost[0]),
        "step": (first.step - first.step.min()).tolist(),
        "logged": _brief(first.action),
        "proposed": {name: _brief(steps.expected_action) for name, steps in reads.items()},
    }


def _by_progress(steps: JudgedSteps) -> Iterator[dict[str, Any]]:
    """The critic's errors in each of twenty stretches of the trajectories' course."""
    stretch = (NUM_STRETCHES * steps.progress).astype(int)
    error = steps.forecast - steps.cost_to_go
    for index in np.unique(stretch):
        errors_within = error[stretch == index]
        yield {
            "progress": float(index + 0.5) / NUM_STRETCHES,
            "num_steps": len(errors_within),
            "mean_absolute": _brief(np.abs(errors_within).mean(0)),
            "bias": _brief(errors_within.mean(0)),
        }


def _brief(values: np.ndarray) -> Any:
    """Nested lists of six significant digits: enough to draw."""
    if values.ndim > 1:
        return [_brief(row) for row in values]
    return [float(f"{value:.6g}") for value in values]


def _warnings(evaluation: OfflineEvaluation) -> Iterator[str]:
    if (count := evaluation.num_held_out) < FEW:
        yield f"only {count} held-out trajectories: no figure here carries weight"
    if not evaluation.action.gain > 0:
        baseline = "one Gaussian that is blind to state and limit"
        yield f"the actor predicts logged actions no better than {baseline}"
    for name, critic in zip(evaluation.criteria, evaluation.critic, strict=True):
        if not critic.explained > 0:
            yield f"the critic forecasts {name} no better than a constant would"
    yield from _few(evaluation.limits)
    for findings in evaluation.limits:
        for text in _limit_warnings(findings, evaluation.criteria):
            yield f"limit {findings.limit.name}: {text}"


def _few(limits: Sequence[LimitFindings]) -> Iterator[str]:
    """Which limits too few trajectories speak of, and of what then."""
    records = [(each.limit.name, each.support, each.verification) for each in limits]
    counts = {
        "training trajectories lie within {}: little can have been learnt of keeping it": [
            (name, support.num_within) for name, support, _ in records
        ],
        "held-out trajectories stay within {}: false alarms are uncertain": [
            (name, record.num_trajectories_within) for name, _, record in records
        ],
        "held-out trajectories go over {}: missed overruns are uncertain": [
            (name, record.num_trajectories_over) for name, _, record in records
        ],
    }
    for text, known in counts.items():
        few = [f"{name} ({count})" for name, count in known if count < FEW]
        if few:
            yield f"few {text.format(', '.join(few))}"


def _limit_warnings(findings: LimitFindings, criteria: tuple[str, ...]) -> Iterator[str]:
    record = findings.verification
    limit, critics = findings.limit.values, findings.near.critic
    for name, value, critic in zip(criteria, limit, critics, strict=True):
        if abs(critic.bias) > LARGE_BIAS * value:
            error = f"off by {critic.bias:+.3g}, more than a tenth of the limit"
            yield f"near it, forecasts of {name} are {error}"
    if record.missed_before > MANY_MISSED:
        yield f"the critic accepted {record.missed_before:.0%} of the steps that led to an overrun"
