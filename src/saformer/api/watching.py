"""What is seen of a run while it trains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from saformer.agents.agent import Agent
from saformer.api.listener import Listener
from saformer.api.runs import limits_of
from saformer.data.relabel import RelabelledStore
from saformer.runs.run import Run
from saformer.runs.spec import RunSpec
from saformer.training.loop.trainer import Observer


def observer_of(
    run: Run, listener: Listener, updates: int, data: RelabelledStore, watched: Sequence[str]
) -> Observer:
    """Tells the listener; rolls out under the watched limits where there is a simulator."""
    can_be_watched = bool(watched) and data.store.environment.identifier is not None
    return Observer(
        progress=lambda update, metrics: listener.training(update, updates, metrics),
        evaluate=(lambda agent: _watch(agent, run.spec, data, watched)) if can_be_watched else None,
        row=lambda row: listener.row(run.path, row),
    )


def _watch(
    agent: Agent, spec: RunSpec, data: RelabelledStore, watched: Sequence[str], *, episodes: int = 3
) -> dict[str, Any]:
    """A brief evaluation while training goes on."""
    from saformer.evaluation.evaluate import evaluate_policy

    limits = limits_of(spec, data, None, usual=watched)
    found = evaluate_policy(agent.policy(), data, limits, episodes=episodes)
    return {
        v.limit.name: {"return": v.mean_return, "cost": v.mean_cost, "limit": v.limit.values}
        for v in found.verdicts
    }
