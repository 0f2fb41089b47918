"""A policy that plays: lanes side by side, a step at a time, and what there is to show of each."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from saformer.core.policy import Decision, Policy
from saformer.data.limits import Limit
from saformer.envs.lanes import Maker
from saformer.live.play.outlook import Fan
from saformer.live.play.scene import scene_of
from saformer.live.play.settings import FIRST_SEED


class Player:
    """One policy in as many environments as there are limits, all begun with the same seed."""

    def __init__(
        self, policy: Policy, maker: Maker, limits: Sequence[Limit], fan: Fan | None = None
    ) -> None:
        self._policy, self._fan = policy, fan
        self._limits = [list(limit.values) for limit in limits]
        self._environments = [maker() for _ in limits]
        self._scenes = [scene_of(each) for each in self._environments]
        self._horizon, self._may_end = maker.environment.horizon, maker.environment.may_end

    @property
    def scene(self) -> dict[str, Any]:
        return self._scenes[0].plain()

    def begin(self, seed: int) -> list[dict[str, Any]]:
        """Reset every lane; their first frames, before any action."""
        firsts = [each.reset(seed=FIRST_SEED + seed)[0] for each in self._environments]
        self._states = np.stack(firsts).astype(np.float32)
        self._policy.reset(torch.from_numpy(self._states), torch.tensor(self._limits).double())
        count = len(self._limits)
        self._earned, self._steps = np.zeros(count), np.zeros(count, dtype=int)
        self._ends: list[str | None] = [None] * count
        return [self._frame(lane) for lane in range(count)]

    def is_over(self, lane: int) -> bool:
        return self._ends[lane] is not None

    def move_limit(self, lane: int, constraint: int, value: float) -> None:
        """Change a limit, now and for the episodes to come."""
        self._limits[lane][constraint] = value
        self._policy.budget.limit[lane, constraint] = value

    def limit(self, lane: int) -> list[float]:
        return list(self._limits[lane])

    def step(self) -> dict[int, dict[str, Any]]:
        """Decide and execute one step of every lane that is not over: their frames."""
        alive = [lane for lane in range(len(self._limits)) if not self.is_over(lane)]
        if not alive:
            return {}
        index = torch.tensor(alive)
        states = torch.from_numpy(self._states[alive])
        decision = self._policy.act(states, index)
        least = self._fan(states, self._policy.budget.num_steps[index]) if self._fan else None
        actions = decision.action.cpu().numpy()
        results = [self._execute(lane, actions[row]) for row, lane in enumerate(alive)]
        rewards, costs = (np.array(column) for column in zip(*results, strict=True))
        self._policy.observe(torch.from_numpy(rewards[:, None]), torch.from_numpy(costs), index)
        frames = {}
        for row, lane in enumerate(alive):
            self._end_at_horizon(lane)
            why = {**reasons(decision, row), "least": None if least is None else least[row]}
            step = {"reward": rewards[row], "cost": costs[row].tolist(), "why": why}
            step["action"] = np.round(actions[row], 3).tolist()
            frames[lane] = self._frame(lane, step)
        return frames

    def picture(self, lane: int) -> Any:
        """What its environment renders, if it was made to."""
        return self._environments[lane].render()

    def close(self) -> None:
        for each in self._environments:
            each.close()

    def _execute(self, lane: int, action: Any) -> tuple[float, Any]:
        state, reward, terminated, truncated, info = self._environments[lane].step(action)
        if not (np.isfinite(state).all() and np.isfinite(reward)):
            raise ValueError("the environment gave a state or reward that is NaN or infinite")
        self._states[lane], self._steps[lane] = state, self._steps[lane] + 1
        self._earned[lane] += reward
        is_early = terminated and self._steps[lane] < self._horizon
        self._ends[lane] = "early" if is_early else "whole" if terminated or truncated else None
        return reward, info["cost"]

    def _end_at_horizon(self, lane: int) -> None:
        if self._ends[lane] is None and self._steps[lane] >= self._horizon:
            self._ends[lane] = "whole"

    def _frame(self, lane: int, step: dict[str, Any] | None = None) -> dict[str, Any]:
        budget = self._policy.budget
        return {
            "step": int(self._steps[lane]),
            "pose": self._scenes[lane].pose(self._states[lane]),
            "earned": float(self._earned[lane]),
            "spent": budget.spent[lane].tolist(),
            "limit": budget.limit[lane].tolist(),
            "end": self._ends[lane],
            **(step or {"reward": None, "cost": None, "why": None, "action": None}),
        }


def reasons(decision: Decision, row: int) -> dict[str, Any]:
    """Why this action: what was proposed, what was forecast, and who decided."""

    def of(values: Any) -> Any:
        return None if values is None else values[row].item()

    why: dict[str, Any] = {
        "fallback": bool(of(decision.fell_back)),
        "shield": bool(of(decision.shielded)),
        "rounds": of(decision.num_rounds),
        "asked": of(decision.return_to_go),
        "safe": None,
        "forecast": None,
    }
    verification = decision.verification
    if verification is not None and decision.chosen is not None:
        cost = verification.cost[row]  # [N, C]
        why |= {
            "safe": of(decision.num_safe),
            "candidates": len(cost),
            "chosen": of(decision.chosen),
            "forecast": cost[decision.chosen[row]].tolist(),
            "cheapest": cost.amin(0).tolist(),
            "dearest": cost.amax(0).tolist(),
            "remaining": verification.remaining[row].tolist(),
        }
    return why
