"""Findings on judged steps: errors, likelihoods and, per limit, how reliable verification is."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from saformer.data.limits import Limit, frontier, stored_within
from saformer.data.relabel import RelabelledStore
from saformer.evaluation.offline.reader import Doubles, Indices, JudgedSteps

NEAREST = 0.1  # share of the held-out trajectories that counts as near a limit
FEW = 5  # fewer trajectories than this support no claim; at least so many count as near


@dataclass(frozen=True)
class Errors:
    """How far expectations lay from what was logged, over steps, in raw units."""

    mean_absolute: float
    root_mean_square: float
    bias: float  # expected - logged: below 0 where too little was expected
    deviation: float  # standard deviation of what was logged
    relative: float  # root_mean_square / deviation; NaN if what was logged never changes
    explained: float  # share of the variance: 1 is perfect, 0 no better than a constant

    @classmethod
    def of(cls, expected: Doubles, logged: Doubles) -> Self:
        """Compare [M] expectations with [M] logged values."""
        error = expected - logged
        mean_absolute, bias = float(np.abs(error).mean()), float(error.mean())
        root_mean_square, deviation = float(np.sqrt((error**2).mean())), float(logged.std())
        relative = root_mean_square / deviation if deviation > 0 else float("nan")
        return cls(mean_absolute, root_mean_square, bias, deviation, relative, 1 - relative**2)

    @classmethod
    def of_critic(cls, steps: JudgedSteps) -> tuple[Self, ...]:
        """Of the forecast cost-to-go, one per constraint."""
        return tuple(map(cls.of, steps.forecast.T, steps.cost_to_go.T))


@dataclass(frozen=True)
class ActionFit:
    """How well the actor predicts logged actions, in nats per step, of actions in model units."""

    log_likelihood: float
    blind_log_likelihood: float  # by the blind baseline
    mean_absolute_error: tuple[float, ...]  # of the expected action, per dimension, in raw units
    gain: float  # log_likelihood - blind_log_likelihood

    @classmethod
    def of(cls, steps: JudgedSteps) -> Self:
        own, blind = float(steps.log_likelihood.mean()), float(steps.blind_log_likelihood.mean())
        distance = np.abs(steps.action - steps.expected_action).mean(0)
        return cls(own, blind, tuple(distance.tolist()), own - blind)


@dataclass(frozen=True)
class Support:
    """The training trajectories within a limit."""

    num_within: int
    share: float
    frontier: float  # mean of the five best returns among them; NaN if there are none

    @classmethod
    def of(cls, training: RelabelledStore, limit: Limit) -> Self:
        within = stored_within(training, limit)
        return cls(int(within.sum()), float(within.mean()), frontier(training, limit).best)


@dataclass(frozen=True)
class Near:
    """The held-out trajectories of a cost nearest to a limit, prompted with it as when acting."""

    num_trajectories: int
    lowest_cost: tuple[float, ...]
    highest_cost: tuple[float, ...]
    num_judged: int  # steps of theirs: all, or an even subsample
    action: ActionFit
    hindsight_log_likelihood: float  # of the same actions, prompted with the trajectory's own cost
    critic: tuple[Errors, ...]

    @classmethod
    def of(cls, episode_cost: Doubles, prompted: JudgedSteps, hindsight: JudgedSteps) -> Self:
        """Describe trajectories of these costs [n, C], read under the limit and under their own."""
        return cls(
            num_trajectories=len(episode_cost),
            lowest_cost=tuple(episode_cost.min(0).tolist()),
            highest_cost=tuple(episode_cost.max(0).tolist()),
            num_judged=len(prompted.step),
            action=ActionFit.of(prompted),
            hindsight_log_likelihood=float(hindsight.log_likelihood.mean()),
            critic=Errors.of_critic(prompted),
        )


def nearest(episode_cost: Doubles, limit: Limit, scale: Doubles) -> Indices:
    """The tenth of the trajectories, at least five, whose cost is nearest to the limit: [N, C] ->
    [n]. Distance is that of the furthest constraint, in units of `scale` [C]."""
    distance = (np.abs(episode_cost - np.array(limit.values)) / scale).max(-1)
    num_near = max(FEW, round(NEAREST * len(distance)))
    return np.sort(np.argsort(distance, kind="stable")[:num_near])


@dataclass(frozen=True)
class VerificationRecord:
    """Whether the critic's word on logged actions (forecast <= remaining) agrees with the outcome.

    The cost-to-go stays within what remains exactly if the whole trajectory stays within the limit.
    """

    num_trajectories_over: int
    num_trajectories_within: int  # those with at least one step judged
    num_over: int  # steps of trajectories that went over the limit
    num_over_before: int  # those of them before the limit was passed: then rejecting is easy
    num_within: int  # steps of trajectories that stayed within it
    num_missed: int  # steps over, yet accepted
    num_missed_before: int  # those of them at which the limit was not yet passed
    num_false_alarms: int  # steps within, yet rejected
    missed: float  # num_missed / num_over; like the others NaN where there are none
    missed_before: float  # num_missed_before / num_over_before
    false_alarms: float  # num_false_alarms / num_within

    @classmethod
    def of(cls, steps: JudgedSteps, limit: Limit) -> Self:
        budget, spent = np.array(limit.values), steps.episode_cost - steps.cost_to_go
        accepted = (steps.forecast <= budget - spent).all(-1)
        over = (steps.episode_cost > budget).any(-1)
        before = over & (spent <= budget).all(-1)
        trajectories = [len(np.unique(steps.trajectory[mask])) for mask in (over, ~over)]
        wholes = [int(mask.sum()) for mask in (over, before, ~over)]
        errors = (over & accepted, before & accepted, ~over & ~accepted)
        wrong = [int(mask.sum()) for mask in errors]
        pairs = zip(wrong, wholes, strict=True)
        shares = [part / whole if whole else float("nan") for part, whole in pairs]
        return cls(*trajectories, *wholes, *wrong, *shares)


@dataclass(frozen=True)
class LimitFindings:
    """All findings on one limit."""

    limit: Limit
    support: Support
    near: Near
    verification: VerificationRecord
