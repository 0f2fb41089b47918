"""How garages are run today: a rate for all, or waiting for cleaner hours; and a year of logs by
operators who each had their own idea of it."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from garage import STATES


@dataclass
class Rule:
    """Two rates, waiting for cleaner hours, and a budget after which nothing is charged."""

    urgent: float = 1.0
    other: float = 1.0
    ceilings: tuple[float, float] = (np.inf, np.inf)
    """kg of CO2 per kWh above which urgent cars, and others, have to wait"""
    patience: float = np.inf
    """others wait while carbon is above this share of its mean in the next three hours"""
    budget: float = np.inf  # kg in a day
    spent: float = field(default=0.0, init=False)

    def __call__(self, state: NDArray[np.floating]) -> NDArray[np.float32]:
        seen = dict(zip(STATES, state.tolist(), strict=True))
        carbon, soon = seen["carbon"], seen["carbon_in_3h"]
        is_clean = [
            carbon <= self.ceilings[0],
            carbon <= min(self.ceilings[1], self.patience * soon),
        ]
        rates = np.array([self.urgent, self.other]) * is_clean * (self.spent < self.budget)
        self.spent += carbon * float(rates @ [seen["urgent_now"], seen["other_now"]])
        return rates.astype(np.float32)


RULES: dict[str, dict[str, float]] = {
    "full rate": {},
    "half rate": {"urgent": 0.5, "other": 0.5},
    "carbon-aware rule": {"patience": 1.0},
}
"""Settings of what a garage may do today, with or without a budget."""


class Operator:
    """A rule with settings of its own, for one day, and a hand that is not quite steady."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        ceiling = rng.uniform(0.08, 0.8)
        self._rule = Rule(
            urgent=rng.uniform(0.5, 1),
            other=rng.uniform(0, 1),
            ceilings=(ceiling, ceiling * rng.uniform(0.5, 1)),
            patience=rng.choice([1.0, np.inf]),
            budget=rng.uniform(5, 200),
        )

    def __call__(self, state: NDArray[np.floating]) -> NDArray[np.float32]:
        rates = self._rule(state)
        noise = 0.1 * self._rng.standard_normal(2) * (rates > 0)
        return np.clip(rates + noise, 0, 1).astype(np.float32)
