"""Findings on judged steps: errors, likelihoods and, for each limit, how reliable its verification
is."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from saformer.data.limits import Limit, frontier
from saformer.data.relabel import RelabelledStore
from saformer.evaluation.offline_reader import Doubles, Indices, JudgedSteps

NEAREST = 0.1
"""Share of the held-out trajectories that counts as near a limit."""
FEW = 5
"""Fewer trajectories than this support no claim; at least so many count as near."""


@dataclass(frozen=True)
class Errors:
    """How far expectations lay from what was logged, over steps, in raw units."""

    mean_absolute: float
    root_mean_square: float
    bias: float
    """expected - logged: below 0 where too little was expected"""
    deviation: float
    """standard deviation of what was logged"""
    relative: float
    """root_mean_square / deviation; NaN if what was logged never changes"""
    explained: float
    """share of the variance, 1 - relative**2: 1 is perfect, 0 no better than a constant"""


def errors(expected: Doubles, logged: Doubles) -> Errors:
    """Compare [M] expectations with [M] logged values."""
    error = expected - logged
    root_mean_square, deviation = float(np.sqrt((error**2).mean())), float(logged.std())
    relative = root_mean_square / deviation if deviation > 0 else float("nan")
    return Errors(
        mean_absolute=float(np.abs(error).mean()),
        root_mean_square=root_mean_square,
        bias=float(error.mean()),
        deviation=deviation,
        relative=relative,
        explained=1 - relative**2,
    )


def critic_errors(steps: JudgedSteps) -> tuple[Errors, ...]:
    """Of the forecast cost-to-go, one per constraint."""
    pairs = zip(steps.forecast.T, steps.cost_to_go.T, strict=True)
    return tuple(errors(forecast, logged) for forecast, logged in pairs)


@dataclass(frozen=True)
class ActionFit:
    """How well the actor predicts logged actions, in nats per step, of actions in model units."""

    log_likelihood: float
    blind_log_likelihood: float
    """of one Gaussian over all training actions, blind to limit, state and past"""
    mean_absolute_error: tuple[float, ...]
    """of the expected action, per dimension, in raw units"""

    @property
    def gain(self) -> float:
        """What the actor knows beyond the blind Gaussian."""
        return self.log_likelihood - self.blind_log_likelihood

    def plain(self) -> dict[str, Any]:
        return {**asdict(self), "gain": self.gain}


def action_fit(steps: JudgedSteps) -> ActionFit:
    return ActionFit(
        float(steps.log_likelihood.mean()),
        float(steps.blind_log_likelihood.mean()),
        tuple(steps.action_error.mean(0).tolist()),
    )


@dataclass(frozen=True)
class Support:
    """The training trajectories within a limit."""

    num_within: int
    share: float
    frontier: float
    """mean of the five best returns among them; NaN if there are none"""


def support(training: RelabelledStore, limit: Limit) -> Support:
    within = (training.episode_cost <= np.array(limit.values)).all(-1)
    return Support(int(within.sum()), float(within.mean()), frontier(training, limit).best)


@dataclass(frozen=True)
class Near:
    """The held-out trajectories of a cost nearest to a limit, prompted with it as when acting."""

    num_trajectories: int
    lowest_cost: tuple[float, ...]
    highest_cost: tuple[float, ...]
    num_judged: int
    """steps of theirs: all, or an even subsample"""
    action: ActionFit
    hindsight_log_likelihood: float
    """of the same actions when each trajectory is prompted with what it really cost"""
    critic: tuple[Errors, ...]

    def plain(self) -> dict[str, Any]:
        return {**asdict(self), "action": self.action.plain()}


def nearest(episode_cost: Doubles, limit: Limit, scale: Doubles) -> Indices:
    """The tenth of the trajectories, at least five, whose cost is nearest to the limit: [N, C] ->
    [n]. Distance is that of the furthest constraint, in units of `scale` [C]."""
    distance = (np.abs(episode_cost - np.array(limit.values)) / scale).max(-1)
    num_near = max(FEW, round(NEAREST * len(distance)))
    return np.sort(np.argsort(distance, kind="stable")[:num_near])


def near(episode_cost: Doubles, prompted: JudgedSteps, hindsight: JudgedSteps) -> Near:
    """Describe trajectories of these costs [n, C], read under the limit and under their own."""
    return Near(
        num_trajectories=len(episode_cost),
        lowest_cost=tuple(episode_cost.min(0).tolist()),
        highest_cost=tuple(episode_cost.max(0).tolist()),
        num_judged=len(prompted.step),
        action=action_fit(prompted),
        hindsight_log_likelihood=float(hindsight.log_likelihood.mean()),
        critic=critic_errors(prompted),
    )


@dataclass(frozen=True)
class VerificationRecord:
    """Whether the critic's word on logged actions (forecast <= remaining) agrees with the outcome.

    The cost-to-go stays within what remains exactly if the whole trajectory stays within the limit.
    """

    num_trajectories_over: int
    num_trajectories_within: int
    """those with at least one step judged"""
    num_over: int
    """steps of trajectories that went over the limit"""
    num_over_before: int
    """those of them at which the limit was not yet passed: afterwards, rejecting is easy"""
    num_within: int
    """steps of trajectories that stayed within it"""
    num_missed: int
    """steps over, yet accepted"""
    num_missed_before: int
    """those of them at which the limit was not yet passed"""
    num_false_alarms: int
    """steps within, yet rejected"""

    @property
    def missed(self) -> float:
        """Share of the steps over that were accepted; NaN if there are none."""
        return _share(self.num_missed, self.num_over)

    @property
    def missed_before(self) -> float:
        """The same among steps at which the limit was not yet passed."""
        return _share(self.num_missed_before, self.num_over_before)

    @property
    def false_alarms(self) -> float:
        """Share of the steps within that were rejected; NaN if there are none."""
        return _share(self.num_false_alarms, self.num_within)

    def plain(self) -> dict[str, Any]:
        shares = {name: getattr(self, name) for name in ("missed", "missed_before", "false_alarms")}
        return {**asdict(self), **shares}


def verification_record(steps: JudgedSteps, limit: Limit) -> VerificationRecord:
    budget = np.array(limit.values)
    spent = steps.episode_cost - steps.cost_to_go
    accepted = (steps.forecast <= budget - spent).all(-1)
    over = (steps.episode_cost > budget).any(-1)
    before = over & (spent <= budget).all(-1)
    return VerificationRecord(
        num_trajectories_over=len(np.unique(steps.trajectory[over])),
        num_trajectories_within=len(np.unique(steps.trajectory[~over])),
        num_over=int(over.sum()),
        num_over_before=int(before.sum()),
        num_within=int((~over).sum()),
        num_missed=int((over & accepted).sum()),
        num_missed_before=int((before & accepted).sum()),
        num_false_alarms=int((~over & ~accepted).sum()),
    )


@dataclass(frozen=True)
class LimitFindings:
    """All findings on one limit."""

    limit: Limit
    support: Support
    near: Near
    verification: VerificationRecord

    def plain(self) -> dict[str, Any]:
        parts = {"near": self.near.plain(), "verification": self.verification.plain()}
        return {**asdict(self), **parts}


def _share(part: int, whole: int) -> float:
    return part / whole if whole else float("nan")
