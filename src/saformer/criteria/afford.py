"""Actions that cost no more than may be spent, where the cost is a function of the action alone."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from saformer.criteria.step import Array, CostCriterion, Doubles, Step

Floats = NDArray[np.float32]
NUM_POINTS = 33
"""Scales that are tried at once; each round leaves 1/32 of the stretch that is in question."""
NUM_ROUNDS = 5  # 32**-5 is less than float32 tells apart
SHARES = np.linspace(0.0, 1.0, NUM_POINTS)
CLOSE = 2.0**-20  # A stretch so short, as a share of its upper end, is in question no more


def least_cost_action(
    criteria: Sequence[CostCriterion], low: Sequence[float], high: Sequence[float]
) -> Floats:
    """[A] within bounds: of least cost by the criteria of the action alone, else nearest to 0."""
    of_action = [criterion for criterion in criteria if criterion.reads_action_alone]
    return Affordable(of_action, low, high).cheapest


class Affordable:
    """Brings actions within what they may cost, by moving them towards the cheapest action.

    Every action is costed as it will be executed (float32, within bounds): its promise rests on
    nothing else. Where costs do not fall towards the cheapest action, as those of torque and energy
    do, the search may find less than the largest scale. It has a fixed number of rounds.
    """

    def __init__(
        self, criteria: Sequence[CostCriterion], low: Sequence[float], high: Sequence[float]
    ) -> None:
        self.criteria = tuple(criteria)
        for criterion in self.criteria:
            if not criterion.reads_action_alone:
                read = ", ".join(sorted(criterion.reads - {"action"}))
                raise ValueError(
                    f"no shield can enforce the criterion {criterion.name!r}: it reads {read}, so "
                    "what an action costs is known only once it was taken. A shield needs costs of "
                    'the action alone, such as torque or "abs(action[0])"; judge without it'
                )
        self._low, self._high = np.asarray(low, np.float32), np.asarray(high, np.float32)
        self.cheapest = self._cheapest()  # [A] within bounds
        self.least = self.cost(self.cheapest)  # [C]

    def cost(self, action: Floats) -> Doubles:
        """[..., A] -> [..., C]."""
        step = Step(action=action, origin="an action alone")
        costs = [criterion(step) for criterion in self.criteria]
        return np.stack(costs, axis=-1) if costs else np.zeros((*action.shape[:-1], 0))

    def project(self, action: Array, allowed: Doubles) -> tuple[Floats, Doubles, NDArray[np.bool_]]:
        """Actions [L, A] that cost at most `allowed` [L, C], what they cost [L, C], and which were
        changed [L]: not those that are affordable. The cheapest action is always allowed."""
        allowed = np.maximum(allowed, self.least)
        executed = self._bounded(action)
        cost = self.cost(executed)
        over: NDArray[np.bool_] = np.any(cost > allowed, axis=-1)
        if over.any():
            executed[over] = self._nearest(executed[over], cost[over], allowed[over])
            cost[over] = self.cost(executed[over])
        return executed, cost, over

    def _nearest(self, action: Floats, cost: Doubles, allowed: Doubles) -> Floats:
        """The action scaled towards the cheapest one as a whole, then each entry back as far as
        costs allow: else one exhausted constraint would still entries that cost it nothing."""
        nothing, guesses = np.zeros(action.shape), self._guesses(cost, allowed)
        scale = self._raised(action, nothing, slice(None), allowed, guesses=guesses, close=CLOSE**2)
        if len(self.criteria) > 1:
            # most entries can be raised to the end, or not even so little
            little, close = np.full((len(action), 1), 4 * CLOSE), 4 * CLOSE
            for entry in range(action.shape[1]):
                entries = slice(entry, entry + 1)
                scale = self._raised(action, scale, entries, allowed, guesses=little, close=close)
        return self._scaled(action, scale)

    def _guesses(self, cost: Doubles, allowed: Doubles) -> Doubles:
        """[L, 6] scales near the ones for costs that grow with the action, or with its square."""
        above, spare = np.maximum(cost - self.least, CLOSE**2), np.maximum(allowed - self.least, 0)
        room = np.minimum(spare / above, 1).min(-1)[:, None]
        about, beyond = np.array([1 - CLOSE / 4, 1, 1 + CLOSE / 4]), np.array([0, 0, CLOSE**2])
        near = [room * about + beyond, np.sqrt(room) * about + beyond]
        guesses: Doubles = np.minimum(np.concatenate(near, axis=1), 1)
        return guesses

    def _raised(
        self,
        action: Floats,
        scale: Doubles,
        entries: slice,
        allowed: Doubles,
        *,
        guesses: Doubles,
        close: float,
    ) -> Doubles:
        """The scale [L, A] with these entries raised towards 1 as far as is affordable, or by
        `close` less. The lower end of the stretch in question is always affordable."""
        lanes = np.arange(len(action))
        low, high = np.zeros(len(action)), np.ones(len(action))
        for attempt in range(NUM_ROUNDS):
            shares = low[:, None] + (high - low)[:, None] * SHARES  # [L, points]
            if attempt == 0:
                shares = np.sort(np.concatenate([shares, guesses], axis=1), axis=1)
            end = shares.shape[1] - 1
            tried = np.repeat(scale[:, None], end + 1, axis=1)  # [L, points, A]
            tried[..., entries] += shares[..., None] * (1 - tried[..., entries])
            within = self.cost(self._scaled(action[:, None], tried)) <= allowed[:, None]
            affordable: NDArray[np.bool_] = np.all(within, axis=-1)
            affordable[:, 0] = True
            last = end - affordable[:, ::-1].argmax(1)
            low, high = shares[lanes, last], shares[lanes, np.minimum(last + 1, end)]
            if (high - low <= CLOSE * high + close).all():
                break
        raised = scale.copy()
        raised[:, entries] += low[:, None] * (1 - raised[:, entries])
        return raised

    def _scaled(self, action: Floats, scale: Doubles) -> Floats:
        return self._bounded(self.cheapest + scale * (action - self.cheapest.astype(np.float64)))

    def _bounded(self, action: Array) -> Floats:
        return np.clip(np.asarray(action, np.float32), self._low, self._high)

    def _cheapest(self) -> Floats:
        """Nothing at all (or the bound nearest to it) if that is free; else the best of a search,
        entry by entry."""
        action = self._bounded(np.zeros_like(self._low))
        least = float(self.cost(action).sum())
        for entry in np.flatnonzero(np.isfinite(self._low) & np.isfinite(self._high)):
            left, right = float(self._low[entry]), float(self._high[entry])
            for _ in range(NUM_ROUNDS):
                if least == 0:
                    return action
                tried = np.repeat(action[None], NUM_POINTS, axis=0)
                tried[:, entry] = left + (right - left) * SHARES
                tried = self._bounded(tried)
                totals = self.cost(tried).sum(-1)
                best = int(totals.argmin())
                if totals[best] < least:
                    action, least = tried[best], float(totals[best])
                around = np.clip([best - 1, best + 1], 0, NUM_POINTS - 1)
                left, right = (float(bound) for bound in tried[around, entry])
        return action
