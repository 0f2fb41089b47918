"""Train behaviour policies for a Gymnasium task and pack them like the bundled ones.

    python scripts/train_behaviours.py Hopper-v5 --steps 1500000 --snapshots 20 --out hopper.npz
    --seed 0

The file is then a source of datasets: `saformer.envs.behaviours.build("hopper.npz",
"medium-replay", steps=300_000)`. It needs Stable-Baselines3 (pip install 'saformer[behaviours]'),
whose soft actor-critic is trained with two hidden layers of 256 and ReLU, learning rate 3e-4,
batches of 256, one update per step, discount 0.99, and an automatic temperature with target entropy
-dim(A). Observations are fed raw.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import gymnasium
import numpy as np
import torch
import tyro
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from rich.text import Text

from saformer.data.interrupt import Interrupt
from saformer.envs.behaviours import make_environment, run_episode
from saformer.envs.bundle import LAYERS, bundle_of, check_destination, save_bundle
from saformer.report.bars import Bars

LEAST_SNAPSHOTS = 2
Weights = dict[str, NDArray[np.float16]]


@dataclass(frozen=True)
class Options:
    """Train a soft actor-critic, keep snapshots of it and pack them as a bundle of behaviours.

    Ctrl-C stops early and packs the snapshots that there are by then.
    """

    environment: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="ENVIRONMENT")]]
    """Gymnasium id, as in Hopper-v5; or module:id, where a module registers it."""
    out: Path
    """The .npz file to write; it must not exist."""
    steps: int = 1_500_000
    """Environment steps to train for."""
    snapshots: int = 20
    """How many to keep, at least 2."""
    seed: int = 0
    """Decides initial weights, exploration and evaluation."""
    episodes: int = 5
    """How many to evaluate each snapshot for."""
    learning_starts: int = 10_000
    """Steps of uniformly random actions before the first update."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""

    def __post_init__(self) -> None:
        check_destination(self.out)
        if self.episodes < 1:
            raise ValueError(f"episodes must be at least 1, got {self.episodes}")
        if self.learning_starts < 0:
            raise ValueError(f"learning_starts must not be negative, got {self.learning_starts}")
        if self.snapshots < LEAST_SNAPSHOTS:
            raise ValueError(f"snapshots must be at least {LEAST_SNAPSHOTS}, got {self.snapshots}")
        if self.steps < self.snapshots**2:
            raise ValueError(
                f"{self.steps} steps are too few for {self.snapshots} snapshots; "
                f"at least {self.snapshots**2} are needed, the square of their number"
            )


@dataclass(frozen=True)
class Snapshot:
    """The actor at one moment of training."""

    steps: int
    weights: Weights
    mean_return: float


@dataclass(frozen=True)
class Roles:
    """Which snapshots make up which mixture."""

    replay: tuple[int, ...]
    medium: int
    expert: int

    def of(self, snapshot: int) -> str:
        """What a snapshot is for, in words."""
        members = {"replay": self.replay, "medium": (self.medium,), "expert": (self.expert,)}
        return ", ".join(role for role, indices in members.items() if snapshot in indices)


def snapshot_steps(steps: int, snapshots: int) -> list[int]:
    """When to take snapshots: close together early, the last one at the end."""
    return [steps * number**2 // snapshots**2 for number in range(1, snapshots + 1)]


def choose_roles(returns: Sequence[float]) -> Roles:
    """Expert: the best. Medium: the first to come a third of the way there, from zero or a negative
    start."""
    if len(returns) < LEAST_SNAPSHOTS or not np.isfinite(returns).all():
        raise ValueError(
            f"roles need the finite returns of at least {LEAST_SNAPSHOTS} snapshots, got "
            f"{list(returns)}"
        )
    expert = int(np.argmax(returns))
    start = min(returns[0], 0.0)
    enough = start + (returns[expert] - start) / 3
    medium = next(index for index, mean_return in enumerate(returns) if mean_return >= enough)
    return Roles(tuple(range(medium + 1)), medium, expert)


def weights_of(policy: Any) -> Weights:
    """The layers of a Stable-Baselines3 SAC policy's actor as float16, inputs first: mean and
    log-deviation in one."""
    actor = policy.actor
    hidden = [layer for layer in actor.latent_pi if isinstance(layer, torch.nn.Linear)]
    if len(hidden) != LAYERS - 1:
        raise ValueError(f"a bundle's policies have {LAYERS - 1} hidden layers, got {len(hidden)}")
    packed: Weights = {}
    for number, heads in enumerate([*((layer,) for layer in hidden), (actor.mu, actor.log_std)]):
        packed[f"w{number}"] = np.concatenate(
            [_half(head.weight).T for head in heads], axis=1
        )  # [inputs, outputs]
        packed[f"b{number}"] = np.concatenate([_half(head.bias) for head in heads])
    return packed


def pack(
    environment: gymnasium.Env, identifier: str, snapshots: Sequence[Snapshot], roles: Roles
) -> dict[str, Any]:
    """The arrays of a bundle."""
    bounds = environment.action_space
    layers = {
        name: np.stack([snapshot.weights[name] for snapshot in snapshots])
        for name in snapshots[0].weights
    }
    return {
        **layers,
        "steps": np.array([snapshot.steps for snapshot in snapshots], np.int64),
        "replay": np.array(roles.replay, np.int64),
        "medium": np.array(roles.medium, np.int64),
        "expert": np.array(roles.expert, np.int64),
        "environment": np.array(identifier),
        "action_low": bounds.low.astype(np.float32),  # type: ignore[attr-defined]
        "action_high": bounds.high.astype(np.float32),  # type: ignore[attr-defined]
    }


def evaluate(
    environment: gymnasium.Env,
    identifier: str,
    weights: Weights,
    episodes: int,
    seed: Sequence[int],
) -> float:
    """Mean return of a snapshot as it will be packed, with sampled actions."""
    alone = pack(environment, identifier, [Snapshot(0, weights, 0.0)], Roles((0,), 0, 0))
    behaviour = bundle_of(alone, f"the snapshot of {identifier}").behaviour(0)
    rng = np.random.default_rng(np.random.SeedSequence(seed))
    returns = []
    for _ in range(episodes):
        state, _ = environment.reset(seed=int(rng.integers(2**31)))
        returns.append(float(run_episode(environment, behaviour, state, rng).reward.sum()))
    return float(np.mean(returns))


def train(
    options: Options, *, stop: Callable[[], bool], progress: Callable[[int, str], None]
) -> list[Snapshot]:
    """Snapshots of one run; fewer than asked for if `stop` says so."""
    try:
        from stable_baselines3 import SAC
    except ModuleNotFoundError:
        raise ValueError(
            "training needs Stable-Baselines3: pip install 'saformer[behaviours]'"
        ) from None
    due = snapshot_steps(options.steps, options.snapshots)
    snapshots: list[Snapshot] = []
    with (
        make_environment(options.environment) as rehearsal,
        make_environment(options.environment) as environment,
    ):
        model = SAC(
            "MlpPolicy",
            environment,
            learning_rate=3e-4,
            batch_size=256,
            train_freq=1,
            gradient_steps=1,
            gamma=0.99,
            ent_coef="auto",
            target_entropy="auto",  # -dim(A)
            learning_starts=options.learning_starts,
            policy_kwargs={"net_arch": [256, 256]},  # ReLU is the default
            seed=options.seed,
            device=options.device,
        )

        def after_step(*_: dict[str, Any]) -> bool:
            step = model.num_timesteps
            if step == due[len(snapshots)]:
                weights, seed = weights_of(model.policy), (options.seed, len(snapshots))
                mean_return = evaluate(
                    rehearsal, options.environment, weights, options.episodes, seed
                )
                snapshots.append(Snapshot(step, weights, mean_return))
            progress(step, f"return {snapshots[-1].mean_return:.1f}" if snapshots else "")
            return not stop() and len(snapshots) < options.snapshots

        model.learn(options.steps, callback=after_step)
    return snapshots


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, choose roles, show them and write the bundle."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    console = Console(highlight=False)
    try:
        options = tyro.cli(Options, args=arguments, prog="train_behaviours.py")
        with Interrupt() as interrupt, Bars(console) as bars:
            snapshots = train(
                options,
                stop=lambda: interrupt.requested,
                progress=lambda step, note: bars.advance("training", step, options.steps, note),
            )
        return _finish(options, snapshots, console)
    except (ValueError, OSError) as error:
        console.print(Text(f"train_behaviours.py: {error}", style="red"), soft_wrap=True)
        return 1


def _finish(options: Options, snapshots: Sequence[Snapshot], console: Console) -> int:
    found = f"{len(snapshots)} of {options.snapshots} snapshots"
    if len(snapshots) < LEAST_SNAPSHOTS:
        console.print(
            f"interrupted with {found}, of which a bundle needs {LEAST_SNAPSHOTS}: nothing is "
            "packed"
        )
        return 130
    roles = choose_roles([snapshot.mean_return for snapshot in snapshots])
    console.print(_table(snapshots, roles))
    if roles.medium == roles.expert:
        console.print(
            "medium and expert are the same snapshot: train for longer, or take more",
            soft_wrap=True,
        )
    with make_environment(options.environment) as environment:
        save_bundle(pack(environment, options.environment, snapshots, roles), options.out)
    interrupted = len(snapshots) < options.snapshots
    console.print(
        f"{'interrupted: ' if interrupted else ''}{options.out} holds {found}", soft_wrap=True
    )
    return 130 if interrupted else 0


def _table(snapshots: Sequence[Snapshot], roles: Roles) -> Table:
    table = Table(box=None, pad_edge=False)
    for title in ("snapshot", "steps", "mean return"):
        table.add_column(title, justify="right")
    table.add_column("role")
    for index, snapshot in enumerate(snapshots):
        table.add_row(
            str(index), f"{snapshot.steps:,}", f"{snapshot.mean_return:.1f}", roles.of(index)
        )
    return table


def _half(parameter: Any) -> NDArray[np.float16]:
    return parameter.detach().cpu().numpy().astype(np.float16)


if __name__ == "__main__":
    sys.exit(main())
