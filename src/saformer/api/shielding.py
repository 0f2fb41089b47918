"""What a run's policy is judged as: as it was trained, within a shield, and beside what heeds no
limit."""

from __future__ import annotations

from typing import Any

from saformer.agents.agent import Agent
from saformer.core.policy import Policy
from saformer.data.totals import Totals
from saformer.shield import LimitBlind, Shield

PLAIN, SHIELDED, REFERENCE = "the policy", "the policy + shield", "limit-blind mean action + shield"


def shielded(policy: Policy, data: Totals) -> Shield:
    """The policy within what this data's costs, bounds and horizon allow."""
    environment = data.environment
    return Shield(
        policy,
        data.criteria,
        action_low=environment.action_low,
        action_high=environment.action_high,
        cost_discount=data.cost_discount,
        horizon=environment.horizon,
    )


def judged_policies(
    agent: Agent,
    options: Any,
    data: Totals,
    *,
    shield: bool,
    both: bool,
    reference: bool,
    in_shield: Any = None,
) -> dict[str, Policy]:
    """By name: first the one that is asked about, then those to compare it with; `in_shield`: its
    options there."""
    policies: dict[str, Policy] = {}
    if shield or both:
        policies[SHIELDED] = shielded(agent.policy(in_shield or options), data)
    if both or not shield:
        policies[PLAIN] = agent.policy(options)
    if reference:
        policies[REFERENCE] = shielded(limit_blind(agent, options, data), data)
    return policies


def limit_blind(agent: Agent, options: Any, data: Totals) -> LimitBlind:
    """The agent's mean action, prompted in every episode with the largest cost of the data."""
    return LimitBlind(agent.policy(agent.mean_options(options)), data.episode_cost.max(0).tolist())
