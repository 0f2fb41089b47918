"""Roll a policy of one's own out in an environment of one's own, into a store."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from inspect import signature
from itertools import chain
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from saformer.criteria import code
from saformer.data.interrupt import Interrupt
from saformer.data.sources.source import EnvironmentHints, Imported, Source, import_source
from saformer.data.store import EnvironmentSpec
from saformer.data.trajectory import RESERVED, Trajectory
from saformer.envs.costed import flattening, make_by_id, maker_of, numbers_of

ENDLESS = 100_000
"""Steps after which an episode that nothing limits is taken for one that never ends."""
Floats = NDArray[np.float32]
NO_COST = (
    'info holds no "cost" and no criterion was named: a step costs torque, the sum of magnitudes '
    "of the action (--criteria names others)"
)
NO_NAME = (
    "no other process could find this environment by a name, so the store names none: attach one "
    "later (--environment, environment=...)"
)


def collect_episodes(
    environment: Any,
    policy: Any,
    path: str | Path,
    *,
    episodes: int,
    criteria: Sequence[str] = (),
    seed: int = 0,
    horizon: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Imported:
    """A new store of so many episodes, fewer if Ctrl-C ends it: whole ones are kept.

    `environment`: a name, a class, a function that makes one, an environment. `policy`: a function
    of the observation, or a class that is made anew for every episode, with a numpy `Generator` if
    it takes one; or the name of either. Numbers in `info` become columns, and "cost" the criterion
    unless others are named. `horizon` ends episodes that the environment would not.
    """
    if episodes < 1:
        raise ValueError(f"at least one episode is needed, got {episodes}")
    if horizon is not None and horizon < 1:
        raise ValueError(f"the horizon must be at least 1 step, got {horizon}")
    name, acting = code.typed(maker_of(environment)), find_policy(policy)
    with closing(make_by_id(name)) as made, Interrupt() as interrupt:
        rolling = _Rolling(made, name, acting, horizon or _longest_episode(made), seed, interrupt)
        parts = rolling.episodes(episodes, progress)
        first = next(parts, None)
        if first is None:
            raise KeyboardInterrupt
        usual = ("cost",) if "cost" in first.columns else ("torque",)
        rolling.notes += [] if criteria or usual == ("cost",) else [NO_COST]
        about = {"source": f"collected in {name}", "seed": seed, "episodes": episodes}
        source = Source(
            lambda: chain([first], parts), 0, rolling.hints(), about, usual, lambda: rolling.notes
        )
        return import_source(source, path, criteria=criteria or None)


def find_policy(policy: Any) -> Callable[..., Any]:
    """The function or class that was passed, or is meant by a name that was typed."""
    acting, what = policy, f"policy {policy!r}"
    if isinstance(policy, str):
        name = code.typed(policy)
        if not code.is_code(name):
            raise ValueError(f"{what} is no name of code: write module:Name or ./file.py:Name")
        acting = code.load(name, "policy")
    if not callable(acting):
        expected = "a function of the observation, or a class whose instances are, is expected"
        raise ValueError(f"{what} is {type(acting).__name__}: {expected}")
    return acting


@dataclass
class _Rolling:
    environment: gymnasium.Env
    name: str
    policy: Callable[..., Any]
    horizon: int | None
    seed: int
    interrupt: Interrupt
    notes: list[str] = field(default_factory=list)
    columns: dict[str, tuple[int, ...]] | None = None  # shapes, by the names of the first episode

    def __post_init__(self) -> None:
        observations, actions = self.environment.observation_space, self.environment.action_space
        self.notes += flattening(observations)
        flat = gymnasium.spaces.flatten_space(observations)
        for what, space in {"observations": flat, "actions": actions}.items():
            if not isinstance(space, gymnasium.spaces.Box) or len(space.shape) != 1:
                raise ValueError(f"{what} of {self.name!r} are {space}, expected a vector (a Box)")
        low, high = (tuple(getattr(actions, bound).tolist()) for bound in ("low", "high"))
        self.bounds = EnvironmentSpec(low, high, horizon=self.horizon or 1)  # refuses infinite ones

    def hints(self) -> EnvironmentHints:
        """What a store says of the environment, if another process can make it by its name."""
        is_known = self.name in gymnasium.registry or code.importable(self.name) is not None
        self.notes += [] if is_known else [NO_NAME]
        identifier = self.name if is_known else None
        low, high = self.bounds.action_low, self.bounds.action_high
        return EnvironmentHints(identifier, self.horizon, low, high)

    def episodes(
        self, count: int, progress: Callable[[int, int], None] | None
    ) -> Iterator[Trajectory]:
        """Whole episodes, until there are enough or Ctrl-C ends it."""
        for index in range(count):
            act = self.policy
            if isinstance(act, type):
                wants_rng = bool(signature(act).parameters)
                act = act(np.random.default_rng((self.seed, index))) if wants_rng else act()
            trajectory = self._episode(act, self.seed if index == 0 else None)
            if trajectory is None:
                self.notes.append(f"stopped after {index} of {count} episodes: these are kept")
                return
            if progress:
                progress(index + 1, count)
            yield trajectory

    def _episode(self, act: Callable[[Any], Any], seed: int | None) -> Trajectory | None:
        """One to its end; None if it was interrupted before."""
        space, actions = self.environment.observation_space, self.environment.action_space
        states, infos = list[Any](), list[dict[str, NDArray[Any]]]()
        chosen, rewards = list[Floats](), list[float]()
        observation, _ = self.environment.reset(seed=seed)
        terminated = truncated = False
        while not (terminated or truncated):
            if self.interrupt.requested:
                return None
            states.append(gymnasium.spaces.flatten(space, observation))
            chosen.append(self._action(act(observation)))
            taken = chosen[-1].astype(actions.dtype)
            observation, reward, terminated, truncated, info = self.environment.step(taken)
            rewards.append(float(reward))
            infos.append(numbers_of(info))
            truncated = bool(truncated) or (not terminated and len(rewards) == self.horizon)
            if len(rewards) == ENDLESS and not (terminated or truncated):
                remedy = "say after how many steps one is over (--horizon)"
                raise ValueError(f"an episode of {self.name!r} goes on after {ENDLESS}: {remedy}")
        final: Any = gymnasium.spaces.flatten(space, observation)
        ends = {"terminated": bool(terminated), "truncated": bool(truncated)}
        return Trajectory.of(states, chosen, rewards, final, columns=self._columns(infos), **ends)

    def _action(self, action: Any) -> Floats:
        """Within bounds, as it is executed and stored."""
        low, high = np.array(self.bounds.action_low), np.array(self.bounds.action_high)
        values = np.asarray(action, dtype=np.float32)
        if values.shape != low.shape or not np.isfinite(values).all():
            got = f"{action!r} of shape {values.shape}"
            raise ValueError(f"the policy gave {got}, expected numbers of shape {low.shape}")
        return np.clip(values, low, high).astype(np.float32)

    def _columns(self, infos: list[dict[str, NDArray[Any]]]) -> dict[str, NDArray[np.float64]]:
        """Numbers in info; NaN in steps whose info lacks them."""
        shapes = {
            name: value.shape
            for info in reversed(infos)
            for name, value in info.items()
            if name not in RESERVED and value.ndim < 2 and value.size
        }
        if self.columns is None:
            self.columns = shapes
        new = ", ".join(sorted(set(shapes) - set(self.columns)))
        if new and (note := f"not stored, as the first episode's info lacks it: {new}"):
            self.notes += [] if note in self.notes else [note]
        columns = {name: np.full((len(infos), *s), np.nan) for name, s in self.columns.items()}
        for step, info in enumerate(infos):
            for name in columns.keys() & info.keys():
                columns[name][step] = info[name]
        return columns


def _longest_episode(environment: gymnasium.Env) -> int | None:
    """By Gymnasium's registry or a TimeLimit; None where neither says it."""
    if environment.spec and environment.spec.max_episode_steps:
        return int(environment.spec.max_episode_steps)
    name = "_max_episode_steps"
    is_there = environment.has_wrapper_attr(name)
    return int(environment.get_wrapper_attr(name)) if is_there else None
