"""Actions that cost no more than may be spent, where action and present state decide the cost."""

import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from saformer.criteria.expression import Expression
from saformer.criteria.step import Array, CostCriterion, Doubles, Step

Floats = NDArray[np.float32]
NUM_POINTS = 33
"""Scales that are tried at once; each round leaves 1/32 of the stretch that is in question."""
NUM_ROUNDS = 5  # 32**-5 is less than float32 tells apart
SHARES = np.linspace(0.0, 1.0, NUM_POINTS)
CLOSE = 2.0**-20  # A stretch so short, as a share of its upper end, is in question no more


def least_cost_action(
    criteria: Sequence[CostCriterion],
    low: Sequence[float],
    high: Sequence[float],
    levels: Sequence[Sequence[float]] = (),
) -> Floats:
    """[A] within bounds: of least cost by the criteria of the action alone, else nearest to 0."""
    of_action = [criterion for criterion in criteria if criterion.reads_action_alone]
    return Affordable(of_action, low, high, levels=levels).cheapest


class Affordable:
    """Brings actions within what they may cost, by moving them towards the cheapest action.

    Every action is costed as it will be executed (float32, within bounds, each entry at the nearest
    of its `levels` if it has any), in the state in which it will be: its promise rests on that, and
    on an action that costs at most `floor` [C] in every state. That is `cheapest`, where its cost
    does not depend on the state; else `floor` is what the caller states, and such an action is
    searched for in each state.
    """

    def __init__(
        self,
        criteria: Sequence[CostCriterion],
        low: Sequence[float],
        high: Sequence[float],
        floor: Sequence[float] = (),
        *,
        levels: Sequence[Sequence[float]] = (),
    ) -> None:
        self._levels = [np.asarray(values, np.float32) for values in levels]
        self.criteria = tuple(criteria)
        for criterion in self.criteria:
            self._refuse_hindsight(criterion)
        self.reads_state = any(not criterion.reads_action_alone for criterion in self.criteria)
        self._low, self._high = np.asarray(low, np.float32), np.asarray(high, np.float32)
        self.cheapest = self._search(lambda action: self._cost_in_any_state(action).sum(-1))  # [A]
        known = self._cost_in_any_state(self.cheapest)
        self.floor = np.where(np.isnan(known), self._stated(floor, known), known)  # [C]

    def cost(self, action: Floats, state: Array | None = None) -> Doubles:
        """[..., A] -> [..., C], in a state [..., S] if any criterion reads it."""
        if state is not None:
            state = np.broadcast_to(state, (*action.shape[:-1], state.shape[-1]))
        step = Step(action=action, state=state, origin="an action and the present state")
        costs = [criterion(step) for criterion in self.criteria]
        return np.stack(costs, axis=-1) if costs else np.zeros((*action.shape[:-1], 0))

    def project(
        self, action: Array, allowed: Doubles, state: Array | None = None
    ) -> tuple[Floats, Doubles, NDArray[np.bool_]]:
        """Actions [L, A] that cost at most `allowed` [L, C] in states [L, S], what they cost
        [L, C], and which had to be made cheaper [L]. The cheapest action is always allowed."""
        executed = self.bounded(action)
        cheapest, least = self._cheapest_in(state, len(executed))
        allowed = np.maximum(allowed, least)
        cost = self.cost(executed, state)
        over: NDArray[np.bool_] = np.any(cost > allowed, axis=-1)
        if over.any():
            there = None if state is None else state[over]
            lanes = _Overspent(self, executed[over], cheapest[over], there)
            executed[over] = lanes.nearest(cost[over], least[over], allowed[over])
            cost[over] = self.cost(executed[over], there)
        return executed, cost, over

    def bounded(self, action: Array) -> Floats:
        """As it is executed."""
        executed = np.clip(np.asarray(action, np.float32), self._low, self._high)
        for entry, values in enumerate(self._levels):
            if len(values):
                distance = np.abs(executed[..., entry, None] - values)
                executed[..., entry] = values[distance.argmin(-1)]
        return executed

    def _refuse_hindsight(self, criterion: CostCriterion) -> None:
        unknown = sorted(criterion.reads - {"action", "state"})
        if unknown:
            raise ValueError(
                f"no shield can enforce the criterion {criterion.name!r}: it reads "
                f"{', '.join(unknown)}, so what an action costs is known only once it was taken. A "
                "shield needs costs of the action and the present state, such as torque or "
                '"state[2] * action[0]"; judge without it'
            )

    def _stated(self, floor: Sequence[float], known: Doubles) -> Doubles:
        """[C] the caller's floor, one for all or one each; needed where nothing is known."""
        for criterion, cost in zip(self.criteria, known, strict=True):
            if np.isnan(cost) and not len(floor):
                raise ValueError(
                    f"no shield can enforce the criterion {criterion.name!r} as it stands: it "
                    "reads state, and what some action costs at most in every state cannot be told "
                    "from it. If you know, say so by floor (--floor): 0 if one is always free"
                )
        if len(floor) not in (0, 1, len(known)) or not all(0 <= each < np.inf for each in floor):
            wanted = f"a number of at least 0, or one for each of {len(known)} criteria"
            raise ValueError(f"floor is {list(floor)}; expected {wanted}")
        return np.broadcast_to(np.asarray(floor or 0.0, dtype=np.float64), known.shape)

    def _cost_in_any_state(self, action: Floats) -> Doubles:
        """[..., A] -> [..., C]; NaN where it depends on the state, or might."""
        step, costs = Step(action=action, origin="an action alone"), []
        for criterion in self.criteria:
            cost = np.full(action.shape[:-1], np.nan)
            if criterion.reads_action_alone:
                cost = criterion(step)
            elif isinstance(criterion.function, Expression):
                with suppress(ValueError):  # it reads more of the state than entries
                    cost = criterion.function.in_any_state(step)
            costs.append(np.where((cost >= 0) & np.isfinite(cost), cost, np.nan))
        return np.stack(costs, axis=-1) if costs else np.zeros((*action.shape[:-1], 0))

    def _cheapest_in(self, state: Array | None, num_lanes: int) -> tuple[Floats, Doubles]:
        """[L, A] and what they cost [L, C]: no more than the floor, if what was stated is true."""
        cheapest = np.repeat(self.cheapest[None], num_lanes, axis=0)
        if not self.reads_state or state is None:
            return cheapest, np.repeat(self.floor[None], num_lanes, axis=0)
        least = self.cost(cheapest, state)
        for lane in np.flatnonzero((least > self.floor).any(-1)):
            there = state[lane]
            cheapest[lane] = self._search(partial(self._above_floor, there))
            least[lane] = self.cost(cheapest[lane], there)
            if (least[lane] > self.floor).any():
                floor, found = (
                    [float(f"{c:g}") for c in each] for each in (self.floor, least[lane])
                )
                problem = f"no action was found that costs at most the floor {floor}, but {found}"
                warnings.warn(f"{problem}: the limit of lane {lane} may be passed", stacklevel=4)
        return cheapest, least

    def _above_floor(self, state: Array, action: Floats) -> Doubles:
        above: Doubles = np.maximum(self.cost(action, state) - self.floor, 0).sum(-1)
        return above

    def _search(self, total: Callable[[Floats], Doubles]) -> Floats:
        """[A] of least total: nothing at all (or the bound nearest to it) if that is 0; else the
        best of a search, entry by entry."""
        action = self.bounded(np.zeros_like(self._low))
        least = float(np.nan_to_num(total(action), nan=np.inf))
        for entry in np.flatnonzero(np.isfinite(self._low) & np.isfinite(self._high)):
            left, right = float(self._low[entry]), float(self._high[entry])
            for _ in range(NUM_ROUNDS):
                if least == 0:
                    return action
                values: Array = left + (right - left) * SHARES
                if self._levels and len(self._levels[entry]):
                    values = self._levels[entry]
                tried = np.repeat(action[None], len(values), axis=0)
                tried[:, entry] = values
                tried = self.bounded(tried)
                totals = np.nan_to_num(total(tried), nan=np.inf)
                best = int(totals.argmin())
                if totals[best] < least:
                    action, least = tried[best], float(totals[best])
                around = np.clip([best - 1, best + 1], 0, len(values) - 1)
                left, right = (float(bound) for bound in tried[around, entry])
        return action


@dataclass(frozen=True)
class _Overspent:
    """Lanes whose actions cost too much. Where costs do not fall towards the cheapest action, as
    those of torque and energy do, the search may find less than the largest scale. It has a fixed
    number of rounds."""

    within: Affordable
    action: Floats  # [L, A]
    cheapest: Floats  # [L, A]
    state: Array | None  # [L, S]

    def nearest(self, cost: Doubles, least: Doubles, allowed: Doubles) -> Floats:
        """The action scaled towards the cheapest one as a whole, then each entry back as far as
        costs allow: else one exhausted constraint would still entries that cost it nothing."""
        nothing, guesses = np.zeros(self.action.shape), _guesses(cost, least, allowed)
        scale = self._raised(nothing, slice(None), allowed, guesses=guesses, close=CLOSE**2)
        if len(self.within.criteria) > 1:
            # most entries can be raised to the end, or not even so little
            little, close = np.full((len(self.action), 1), 4 * CLOSE), 4 * CLOSE
            for entry in range(self.action.shape[1]):
                entries = slice(entry, entry + 1)
                scale = self._raised(scale, entries, allowed, guesses=little, close=close)
        return self._scaled(scale[:, None])[:, 0]

    def _raised(
        self, scale: Doubles, entries: slice, allowed: Doubles, *, guesses: Doubles, close: float
    ) -> Doubles:
        """The scale [L, A] with these entries raised towards 1 as far as is affordable, or by
        `close` less. The lower end of the stretch in question is always affordable."""
        lanes = np.arange(len(scale))
        low, high = np.zeros(len(scale)), np.ones(len(scale))
        state = None if self.state is None else self.state[:, None]
        for attempt in range(NUM_ROUNDS):
            shares = low[:, None] + (high - low)[:, None] * SHARES  # [L, points]
            if attempt == 0:
                shares = np.sort(np.concatenate([shares, guesses], axis=1), axis=1)
            end = shares.shape[1] - 1
            tried = np.repeat(scale[:, None], end + 1, axis=1)  # [L, points, A]
            tried[..., entries] += shares[..., None] * (1 - tried[..., entries])
            within = self.within.cost(self._scaled(tried), state) <= allowed[:, None]
            affordable: NDArray[np.bool_] = np.all(within, axis=-1)
            affordable[:, 0] = True
            last = end - affordable[:, ::-1].argmax(1)
            low, high = shares[lanes, last], shares[lanes, np.minimum(last + 1, end)]
            if (high - low <= CLOSE * high + close).all():
                break
        raised = scale.copy()
        raised[:, entries] += low[:, None] * (1 - raised[:, entries])
        return raised

    def _scaled(self, scale: Doubles) -> Floats:
        """[L, points, A]"""
        cheapest = self.cheapest[:, None].astype(np.float64)
        return self.within.bounded(cheapest + scale * (self.action[:, None] - cheapest))


def _guesses(cost: Doubles, least: Doubles, allowed: Doubles) -> Doubles:
    """[L, 6] scales near the ones for costs that grow with the action, or with its square."""
    above, spare = np.maximum(cost - least, CLOSE**2), np.maximum(allowed - least, 0)
    room = np.minimum(spare / above, 1).min(-1)[:, None]
    about, beyond = np.array([1 - CLOSE / 4, 1, 1 + CLOSE / 4]), np.array([0, 0, CLOSE**2])
    near = [room * about + beyond, np.sqrt(room) * about + beyond]
    guesses: Doubles = np.minimum(np.concatenate(near, axis=1), 1)
    return guesses
