"""OSRL 0.1.0's CDT, CPQ and BCQ-L on our data, in our environments, under our judge: rows beside
those of our agents.

python -m benchmarks.osrl_agents --out DIR [--site FOLDER] [--seconds 100] [--jobs 15] [--device
cuda]

Losses, update rules, networks, time-outs as ends and ways of acting are OSRL's own, its settings
those of its examples (rewards scaled by 0.1). CPQ and BCQ-L train on a core each, CDT on --device;
each for --updates or --seconds, whichever ends first, and the row says how many. CDT's classifier
of costs knows two classes, ours are real: its weight is 0.
"""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from benchmarks.agents import Row, Rows, cell, log
from saformer import build_data
from saformer.core.batch import Dimensions
from saformer.core.policy import Decision
from saformer.data.canonical import canonical
from saformer.data.limits import Limit, frontier, parse_limit
from saformer.data.relabel import RelabelledStore, relabelled
from saformer.data.sampling import WindowSampler, dimensions_of
from saformer.data.store import TrajectoryStore
from saformer.data.transitions import TransitionSampler
from saformer.evaluation.evaluate import Terms, evaluate_policy

REWARD_SCALE = 0.1
WINDOW = 10


@dataclass(frozen=True)
class Job:
    """One model to train and judge."""

    agent: str
    task: str
    limits: tuple[str, ...]
    """one, or all that the same model is judged under"""
    seed: int
    device: str
    updates: int
    seconds: float
    episodes: int
    data_steps: int | None
    site: str | None


def algorithms(name: str, site: str | None) -> Any:
    """OSRL's module of this name; where its package asks for more than is there (W&B, SciPy), that
    file by itself.

    Nothing of it is replaced. The one name that is then missing, a logger in an annotation, is the
    logger's base class.
    """
    if site and site not in sys.path:
        sys.path.append(site)
    try:
        return importlib.import_module(f"osrl.algorithms.{name}")
    except ImportError:
        for package in (
            "osrl",
            "osrl.algorithms",
            "osrl.common",
            "fsrl",
            "fsrl.utils",
            "fsrl.utils.logger",
        ):
            sys.modules[package] = _without_its_init(package)
        loggers = importlib.import_module("fsrl.utils.logger.base_logger")
        vars(sys.modules["fsrl.utils"]).update(
            DummyLogger=loggers.DummyLogger, WandbLogger=loggers.BaseLogger
        )
        return importlib.import_module(f"osrl.algorithms.{name}")


def _without_its_init(package: str) -> ModuleType:
    folder = Path(*package.split("."))
    found = next(
        (Path(place) / folder for place in sys.path if (Path(place) / folder).is_dir()), None
    )
    if found is None:
        raise ImportError(
            f"{package} is not installed: see benchmarks/requirements.txt, or give its folder "
            "with --site"
        )
    module = ModuleType(package)
    module.__path__ = [str(found)]
    return module


Act = Callable[[Tensor], Tensor]
Step = Callable[[], None]


def single_steps(
    job: Job, data: RelabelledStore, dimensions: Dimensions, limit: Limit
) -> tuple[Step, Act]:
    """An update of OSRL's CPQ or BCQ-L, and how it acts."""
    sizes = {"a_hidden_sizes": [256, 256], "c_hidden_sizes": [256, 256], "vae_hidden_sizes": 400}
    counts = {
        "num_q": 2,
        "num_qc": 2,
        "cost_limit": limit.values[0],
        "episode_len": dimensions.horizon,
    }
    rates = {"actor_lr": 1e-4, "critic_lr": 1e-3, "vae_lr": 1e-3}
    sampler, generator = TransitionSampler(data), torch.Generator().manual_seed(job.seed)
    if job.agent == "osrl_cpq":
        theirs = algorithms("cpq", job.site)
        model = theirs.CPQ(dimensions.state, dimensions.action, 1.0, **sizes, **counts)
        trainer = theirs.CPQTrainer(model, None, alpha_lr=1e-4, **rates)
        act: Act = lambda state: model._actor_forward(state, True, True)[0]  # noqa: E731
    else:
        theirs = algorithms("bcql", job.site)
        model = theirs.BCQL(dimensions.state, dimensions.action, 1.0, **sizes, **counts)
        trainer = theirs.BCQLTrainer(model, None, **rates)
        act = lambda state: model.actor(state, model.vae.decode(state))  # noqa: E731

    def step() -> None:
        batch = sampler.sample(512, generator)
        ended = (batch.terminated | batch.truncated).float()
        reward, cost = REWARD_SCALE * batch.reward[:, 0], batch.cost[:, 0]
        trainer.train_one_step(batch.state, batch.next_state, batch.action, reward, cost, ended)

    return step, act


class Markov:
    """A function of states as a policy."""

    def __init__(self, act: Act) -> None:
        self._act = act

    def reset(self, state: Tensor, limit: Tensor, lanes: Tensor | None = None) -> None:
        """Nothing to remember."""

    @torch.no_grad()
    def act(self, state: Tensor, lanes: Tensor) -> Decision:
        """Within bounds."""
        return Decision(self._act(state.float()).clamp(-1, 1))

    def observe(self, reward: Tensor, cost: Tensor, lanes: Tensor) -> None:
        """Nothing to remember."""


class Sequences:
    """OSRL's CDT as its own `rollout` has it act, on many lanes that begin together."""

    def __init__(self, model: Any, device: str, target: Callable[[Tensor], Tensor]) -> None:
        self._model, self._device, self._target = model, device, target

    def reset(self, state: Tensor, limit: Tensor, lanes: Tensor | None = None) -> None:
        """Ask for the limit's best return."""
        lanes_, steps, model = len(state), self._model.episode_len + 1, self._model
        empty = [
            torch.zeros(lanes_, steps, size, device=self._device)
            for size in (model.state_dim, model.action_dim)
        ]
        self._state, self._action = empty
        self._return, self._cost = (
            torch.zeros(lanes_, steps, device=self._device) for _ in range(2)
        )
        self._return[:, 0] = REWARD_SCALE * self._target(limit).to(self._device)
        self._cost[:, 0] = limit[:, 0].to(self._device)
        self._now = 0

    @torch.no_grad()
    def act(self, state: Tensor, lanes: Tensor) -> Decision:
        """The mean, given the last steps."""
        mine, now = lanes.to(self._device), self._now
        self._state[mine, now] = state.float().to(self._device)
        window = slice(max(0, now + 1 - self._model.seq_len), now + 1)
        columns = [
            part[mine, window] for part in (self._state, self._action, self._return, self._cost)
        ]
        steps = torch.arange(window.start, window.stop, device=self._device).expand(len(mine), -1)
        action = self._model(*columns, steps, None, self._cost[mine, 0])[0].mean[:, -1].clamp(-1, 1)
        self._action[mine, now] = action
        return Decision(action)

    def observe(self, reward: Tensor, cost: Tensor, lanes: Tensor) -> None:
        """Take off what was earned and spent."""
        mine, now = lanes.to(self._device), self._now
        self._return[mine, now + 1] = self._return[mine, now] - REWARD_SCALE * reward[:, 0].to(
            self._device
        )
        self._cost[mine, now + 1] = self._cost[mine, now] - cost[:, 0].to(self._device)
        self._now += 1


def sequences(job: Job, data: RelabelledStore, dimensions: Dimensions) -> tuple[Step, Sequences]:
    """An update of OSRL's CDT, and how it acts; asked for the frontier: the five best returns
    within the limit."""
    theirs = algorithms("cdt", job.site)
    model = theirs.CDT(
        *(dimensions.state, dimensions.action, 1.0),
        **{"seq_len": WINDOW, "episode_len": dimensions.horizon},
        **{"embedding_dim": 128, "num_layers": 3, "num_heads": 8},
        **{"attention_dropout": 0.1, "residual_dropout": 0.1, "embedding_dropout": 0.1},
        **{"use_rew": True, "use_cost": True, "stochastic": True},
        target_entropy=-float(dimensions.action),
    ).to(job.device)
    trainer = theirs.CDTTrainer(model, None, lr_warmup_steps=500, device=job.device)
    sampler = WindowSampler(data, window=WINDOW, device=job.device)
    generator = torch.Generator(job.device).manual_seed(job.seed)

    def step() -> None:
        batch = sampler.sample(2048, generator)
        valid = batch.valid.float()
        earned, cost = REWARD_SCALE * batch.return_to_go[..., 0], batch.cost_to_go[..., 0]
        none = torch.zeros_like(valid)  # of two classes
        trainer.train_one_step(
            batch.state, batch.action, earned, cost, batch.timestep, valid, batch.limit[:, 0], none
        )  # fmt: skip

    def target(limit: Tensor) -> Tensor:
        best = [frontier(data, Limit("", (float(d),))).best for d in limit[:, 0]]
        return torch.tensor(best)

    return step, Sequences(model, job.device, target)


def done(job: Job) -> list[Row]:
    """Train one model and judge it."""
    torch.set_num_threads(1)
    torch.manual_seed(job.seed)
    data = relabelled(TrajectoryStore.open(build_data(job.task, steps=job.data_steps)), ())
    limits, dimensions = [parse_limit(name, data) for name in job.limits], dimensions_of(data)
    if job.agent == "osrl_cdt":
        step, policy = sequences(job, data, dimensions)
        model = policy.model
    else:
        step, act = single_steps(job, data, dimensions, limits[0])
        policy, model = Markov(act), None
    began, updates = time.perf_counter(), 0
    while updates < job.updates and time.perf_counter() - began < job.seconds:
        step()
        updates += 1
    if model is not None:
        model.eval()
    taken = time.perf_counter() - began
    build = canonical(job.task)
    possible = [build.frontier.at(d.values[0]) if build else frontier(data, d) for d in limits]
    found = evaluate_policy(
        policy, data, limits, episodes=job.episodes, terms=Terms(possible), workers=0
    )
    pairs = zip(limits, found.verdicts, strict=True)
    return [
        cell(job.agent, job.task, d, job.seed, v, updates=updates, seconds=round(taken))
        for d, v in pairs
    ]


def jobs(options: argparse.Namespace, known: Sequence[Row]) -> list[Job]:
    """What is missing."""
    have = {
        (row["agent"], row["task"], row["limit"], row["seed"])
        for row in known
        if row["kind"] == "cell"
    }
    common = (options.updates, options.seconds, options.episodes, options.data_steps, options.site)
    wanted = []
    for seed in range(options.seeds):
        for task in options.tasks:
            for agent in options.agents:
                limits = tuple(options.limits)
                whole = [limits] if agent == "osrl_cdt" else [(limit,) for limit in limits]
                device = options.device if agent == "osrl_cdt" else "cpu"
                wanted += [Job(agent, task, own, seed, device, *common) for own in whole]
    return [
        job
        for job in wanted
        if any((job.agent, job.task, d, job.seed) not in have for d in job.limits)
    ]


def main() -> None:
    """Train and judge what is missing, several at a time."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("agents-out"))
    parser.add_argument(
        "--site", default=None, help="folder that holds osrl and fsrl, if they are not installed"
    )
    agents = ["osrl_cdt", "osrl_cpq", "osrl_bcq_lag"]
    parser.add_argument("--agents", nargs="+", default=agents, choices=agents)
    parser.add_argument("--tasks", nargs="+", default=["hopper-medium", "walker2d-medium"])
    parser.add_argument("--limits", nargs="+", default=["p20", "p50"])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--updates", type=int, default=20_000)
    parser.add_argument(
        "--seconds", type=float, default=100.0, help="of training, at most, for each model"
    )
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--data-steps", type=int, default=None)
    parser.add_argument("--jobs", type=int, default=15, help="processes")
    parser.add_argument("--device", default="cpu", help="for CDT")
    options = parser.parse_args()
    rows = Rows(options.out)
    missing = jobs(options, list(rows))
    for task in options.tasks:
        build_data(task, steps=options.data_steps)
    log(f"{len(missing)} models, {options.jobs} at a time, at most {options.seconds:.0f} s each")
    with ProcessPoolExecutor(options.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        for finished in as_completed([pool.submit(done, job) for job in missing]):
            for row in finished.result():
                rows.add(row)
                log(
                    ", ".join(
                        f"{name} {row[name]}"
                        for name in ("agent", "task", "limit", "seed", "cost", "return")
                    )
                )


if __name__ == "__main__":
    main()
