"""A run alone, as tests want it: a pack of one."""

from __future__ import annotations

from typing import Any

import saformer.training.loop.fit
from saformer.agents.agent import Agent, Sampler
from saformer.data.relabel import RelabelledStore
from saformer.runs.run import Run
from saformer.training.loop.config import FitConfig
from saformer.training.loop.trainer import Member, Metrics, Observer, PackTrainer


def fit(
    agent: Agent,
    sampler: Sampler,
    config: FitConfig,
    *,
    seed: int = 0,
    run: Run | None = None,
    observer: Observer | None = None,
    data: RelabelledStore | None = None,
    **options: Any,
) -> Agent:
    """Train one run; a loss that is not finite raises."""
    member = Member(agent, sampler, seed, run, observer or Observer(), data)
    failed = saformer.training.loop.fit.fit([member], config, **options)
    if failed:
        raise failed[0]
    return agent


class Trainer(PackTrainer):
    """The trainer of one run."""

    def __init__(self, agent: Agent, sampler: Sampler, config: FitConfig, *, seed: int) -> None:
        super().__init__([Member(agent, sampler, seed)], config)
        self.agent = agent

    def step(self) -> Metrics:
        """One update of every phase."""
        return self.advance(1)[1][0]
