"""Estimates from a run's data alone, for the rows that rollouts make."""

from typing import Any

import torch

from saformer.api.estimate import estimate_in, logged_limits, world_of
from saformer.evaluation.offline.estimate import trust_of
from saformer.evaluation.offline.world import World
from saformer.evaluation.settings import JudgeSettings
from saformer.experiments.plan import Row
from saformer.trained import Trained

FIRST_STATES = 64


def estimate_rows(trained: Trained, settings: JudgeSettings) -> dict[str, Any]:
    """The estimate as plain values, and what cruder guesses of cost need."""
    world = world_of(trained, settings.may_end)
    estimate, _ = estimate_in(world, trained, settings)
    forecasts = first_forecasts(world, trained, settings) if trained.kind.verifies else {}
    mean = float(world.data.episode_cost[:, 0].mean())
    return {"limits": estimate.plain()["limits"], "data_mean": mean, "first_forecast": forecasts}


def first_forecasts(world: World, trained: Trained, settings: JudgeSettings) -> dict[str, float]:
    """By limit: what the critic forecasts of the action that is chosen first, on average."""
    data = world.data
    states = torch.from_numpy(data.store.gather("state")[data.store.starts[:FIRST_STATES]])
    policy, forecasts = trained.agent.policy(trained.options("paper")), dict[str, float]()
    for limit in logged_limits(trained, world, settings.limits):
        policy.reset(states, torch.tensor(limit.values).expand(len(states), -1))
        decision = policy.act(states)
        assert decision.verification is not None
        assert decision.chosen is not None
        lanes = torch.arange(len(states), device=decision.chosen.device)
        forecasts[limit.name] = float(decision.verification.cost[lanes, decision.chosen, 0].mean())
    return forecasts


def estimate_row(estimate: dict[str, Any], limit_name: str) -> Row:
    """What a row of verdicts keeps of an estimate under its limit."""
    (own,) = (e for e in estimate["limits"] if e["verdict"]["limit"]["name"] == limit_name)
    trust = trust_of(own["far"], own["spread"])  # by today's thresholds
    return {
        "cost": own["verdict"]["mean_cost"][0],
        "return": own["verdict"]["mean_return"],
        "interval": own["cost_interval"][0],
        **{name: own[name] for name in ("far", "spread")},
        "trust": trust,
        "safe_share": own["verdict"]["safe_share"] if trust == "supported" else 0.0,
        "data_mean": estimate["data_mean"],
        "first_forecast": estimate["first_forecast"].get(limit_name),
    }
