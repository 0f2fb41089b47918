"""Roll a policy out in environments, many episodes at once."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from saformer.core.policy import Policy
from saformer.envs.costed import Costed
from saformer.envs.episodes import Episode, Hooks, drive
from saformer.envs.stepping import Workers, environments, pick_workers


def rollout(
    policy: Policy,
    make_environment: Callable[[], Costed],
    limits: Sequence[NDArray[np.float64]],
    seeds: Sequence[int],
    *,
    horizon: int,
    hooks: Hooks | None = None,
    workers: Workers = "auto",
) -> list[Episode]:
    """Run one episode per (limit, seed), all at once; finished lanes are dropped from the batch.

    `horizon` ends episodes that the environment would not. `workers` processes step the
    environments, about one per core where that pays, 0 for this process; the episodes are the same.
    Only a `Maker` can travel to another process: other environments are stepped in this one.
    """
    if not seeds or len(limits) != len(seeds):
        counts = f"{len(limits)} for {len(seeds)} seeds"
        raise ValueError(f"a limit for each seed is needed, at least one: got {counts}")
    num_workers = pick_workers(workers, num_lanes=len(seeds), num_steps=len(seeds) * horizon)
    with environments(make_environment, seeds, num_workers) as stepper:
        return drive(policy, stepper, limits, seeds, horizon=horizon, hooks=hooks)
