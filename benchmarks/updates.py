"""How long an update of actor and critic takes: plainly, as we train, packed, and beside OSRL's CDT
(its actor alone).

python -m benchmarks.updates --scaling                    two CPU cores
python -m benchmarks.updates --device cuda --packs 9 27   a GPU
python -m benchmarks.updates --device cuda --single-steps 18   agents of single steps
"""

from __future__ import annotations

import argparse
import itertools
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from benchmarks.rooflines import ceilings, update_work
from saformer.agents.registry import create_agent
from saformer.agents.saformer import SaFormerAgent
from saformer.criteria import torque
from saformer.data.relabel import RelabelledStore, relabel
from saformer.data.sampling import dimensions_of
from saformer.data.store import EnvironmentSpec, TrajectoryStore
from saformer.data.trajectory import Trajectory
from saformer.training.loop.config import FitConfig
from saformer.training.loop.presets import paper
from saformer.training.loop.trainer import Member, PackTrainer

Advance = Callable[[], int]
"""Makes some updates and answers how many."""
SIZES = ((11, 3), (17, 6))
"""States and actions of Hopper and HalfCheetah."""


def made_up(num_states: int, num_actions: int, *, episodes: int = 100) -> RelabelledStore:
    """Data of a robot's shape: what it holds does not change what an update costs."""
    rng = np.random.default_rng(num_states)
    parts = [
        Trajectory.of(
            rng.standard_normal((1000, num_states)),
            np.tanh(rng.standard_normal((1000, num_actions))),
            rng.standard_normal(1000),
            np.zeros(num_states),
            terminated=False,
            truncated=True,
        )
        for _ in range(episodes)
    ]
    bounds = EnvironmentSpec((-1.0,) * num_actions, (1.0,) * num_actions, horizon=1000)
    return relabel(TrajectoryStore.of(parts, bounds), [torque])


def single(data: RelabelledStore, device: str, fit: FitConfig, *, window: int = 20) -> Advance:
    """Updates of one model as `fit` does them."""
    agent = SaFormerAgent.create(data, replace(paper().agent, window=window), seed=0)
    agent.model.to(device).train()
    trainer = PackTrainer([Member(agent, agent.sampler(data, device))], fit)
    return lambda: trainer.advance(50)[0]


def packed(data: list[RelabelledStore], device: str) -> Advance:
    """Updates of all models together."""
    preset = paper()
    agents = [SaFormerAgent.create(d, preset.agent, seed=i) for i, d in enumerate(data)]
    for agent in agents:
        agent.model.to(device).train()
    samplers = {id(d): agents[0].sampler(d, device) for d in data}
    members = [
        Member(agent, samplers[id(d)], seed)
        for seed, (agent, d) in enumerate(zip(agents, data, strict=True))
    ]
    trainer = PackTrainer(members, preset.fit)
    return lambda: trainer.advance(50)[0]


def per_update(cases: dict[str, Advance], device: str) -> dict[str, float]:
    """Seconds per update: on a CPU the median of nine, in turn, so that whatever else goes on hits
    all alike."""
    for advance in cases.values():
        advance()
        advance()
    if device != "cpu":
        return {name: _over_two_seconds(advance) for name, advance in cases.items()}
    taken: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(9):
        for name, advance in cases.items():
            began = time.perf_counter()
            count = advance()
            taken[name].append((time.perf_counter() - began) / count)
    return {name: statistics.median(found) for name, found in taken.items()}


def _over_two_seconds(advance: Advance) -> float:
    began, done = time.perf_counter(), 0
    while time.perf_counter() - began < 2:
        done += advance()
    return (time.perf_counter() - began) / done


def osrl_cdt() -> Advance | None:
    """Updates of OSRL's CDT of the same size; None where it is not installed."""
    try:
        from osrl.algorithms.cdt import CDT, CDTTrainer
    except ImportError:
        return None
    (num_states, num_actions), preset = SIZES[1], paper()
    window, batch = preset.agent.window, preset.fit.batch_size
    model = CDT(
        num_states,
        num_actions,
        1.0,
        seq_len=window,
        embedding_dim=preset.agent.trunk.width,
        num_layers=preset.agent.trunk.layers,
        num_heads=preset.agent.trunk.heads,
        attention_dropout=0.1,
        residual_dropout=0.1,
        embedding_dropout=0.1,
        use_rew=True,
        use_cost=True,
        stochastic=True,
        target_entropy=-float(num_actions),
    )
    trainer = CDTTrainer(model, env=None, learning_rate=preset.fit.learning_rate)
    arguments = (
        torch.randn(batch, window, num_states),
        torch.rand(batch, window, num_actions) * 2 - 1,
        torch.randn(batch, window),
        torch.rand(batch, window),
        torch.arange(window).expand(batch, -1),
        torch.ones(batch, window),
        torch.rand(batch),
        torch.zeros(batch, window),
    )

    def advance() -> int:
        trainer.train_one_step(*arguments)
        return 1

    return advance


def scaling(data: RelabelledStore, device: str) -> list[tuple[str, float]]:
    """Seconds per update as one size grows and the others stay as in the paper."""
    fit, found = paper().fit, []
    for window in (5, 10, 20, 40):
        torch._dynamo.reset()
        found.append((f"K = {window}", _alone(single(data, device, fit, window=window), device)))
    for batch in (32, 64, 128, 256):
        torch._dynamo.reset()
        found.append(
            (f"batch {batch}", _alone(single(data, device, replace(fit, batch_size=batch)), device))
        )
    for episodes in (10, 100, 1000):
        torch._dynamo.reset()
        grown = made_up(*SIZES[1], episodes=episodes)
        found.append(
            (f"{1000 * episodes:,} steps of data", _alone(single(grown, device, fit), device))
        )
    return found


def _alone(advance: Advance, device: str) -> float:
    return per_update({"": advance}, device)[""]


def print_single_steps(data: RelabelledStore, device: str, stacks: list[int]) -> None:
    """Updates of agents of single steps, alone and stacked, recorded with and without compiling;
    and how long it takes to make the agents and, with compiling and recording, to come through the
    first updates."""
    print(
        "\n| agents of single steps, batch 256 | compiled | time | per model | made | first 50 "
        "updates |"
    )
    print("|---|---|---|---|---|---|")
    for name, how, size in itertools.product(
        ("bcq_lag", "cpq", "coptidice"), ("record", "auto"), (1, *stacks)
    ):
        torch._dynamo.reset()
        began = time.perf_counter()
        fit = replace(paper(name).fit, batch_size=256, compile=how)
        config = replace(paper(name).agent, limit=(300.0,))
        agents = [create_agent(data, config, seed=seed) for seed in range(size)]
        for agent in agents:
            agent.model.to(device).train()
        sampler = agents[0].sampler(data, device)
        trainer = PackTrainer(
            [Member(agent, sampler, seed) for seed, agent in enumerate(agents)], fit
        )
        made = time.perf_counter()
        trainer.advance(50)
        first = time.perf_counter()
        taken = 1e3 * _alone(lambda trainer=trainer: trainer.advance(50)[0], device)
        what, begun = (
            f"{name}, models: {size} | {how == 'auto'}",
            f"{made - began:.1f} s | {first - made:.1f} s",
        )
        print(f"| {what} | {taken:.2f} ms | {taken / size:.3f} ms | {begun} |", flush=True)


def print_rooflines(data: RelabelledStore, device: str, packs: list[int]) -> None:
    """What an update takes at the least, by arithmetic and by bytes."""
    preset = paper()
    print(
        "\n| roofline of an update | operations | bytes | by arithmetic | by bytes "
        "|\n|---|---|---|---|---|"
    )
    for dtype in (torch.float32, torch.bfloat16):
        most = ceilings(device, dtype)
        one = update_work(
            dimensions_of(data),
            preset.agent.trunk,
            window=preset.agent.window,
            batch=preset.fit.batch_size,
            element_bytes=dtype.itemsize,
        )
        name = str(dtype).removeprefix("torch.")
        print(
            f"| {name}: at most | {most.operations / 1e9:,.0f} G/s | {most.bytes / 1e9:,.0f} "
            "GB/s | | |"
        )
        for models in (1, *packs):
            work = one.times(models)
            least = (1e3 * most.arithmetic_seconds(work), 1e3 * most.byte_seconds(work))
            amount = f"{work.operations / 1e9:,.0f} G | {work.bytes / 1e9:.2f} GB"
            seconds = f"{least[0]:.2f} ms | {least[1]:.2f} ms"
            print(f"| {name}, models: {models} | {amount} | {seconds} |")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--packs", type=int, nargs="*", default=[])
    parser.add_argument("--threads", type=int, default=2, help="of a CPU")
    parser.add_argument(
        "--scaling",
        action="store_true",
        help="also with other windows, batches and amounts of data",
    )
    parser.add_argument(
        "--single-steps",
        type=int,
        nargs="*",
        help="only BCQ-L, CPQ and COptiDICE: alone, and so many",
    )
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    data = [made_up(*size) for size in SIZES]
    if options.single_steps is not None:
        print_single_steps(data[1], options.device, options.single_steps)
        return
    on_gpu = options.device != "cpu"
    name = (
        torch.cuda.get_device_name()
        if on_gpu
        else f"{platform.machine()}, {options.threads} threads"
    )
    print(
        f"{name}; torch {torch.__version__}; K = 20, 3 layers, width 128, batch 128, "
        "HalfCheetah's sizes\n"
    )
    print("| update of actor and critic | time | per model |\n|---|---|---|")
    fit = paper().fit
    cases = {
        "plain (float32)": single(
            data[1], options.device, replace(fit, compile="off", precision="float32")
        ),
        "as we train": single(data[1], options.device, fit),
    }
    theirs = None if on_gpu else osrl_cdt()
    if theirs is not None:
        cases["OSRL's CDT, actor alone, 4 tokens a step (float32)"] = theirs
    for what, taken in per_update(cases, options.device).items():
        print(f"| {what} | {1e3 * taken:.2f} ms | {1e3 * taken:.3f} ms |", flush=True)
    for size in options.packs:
        torch._dynamo.reset()
        taken = _alone(packed([data[i % 2] for i in range(size)], options.device), options.device)
        what = f"{size} models packed, Hopper and HalfCheetah in turn"
        print(f"| {what} | {1e3 * taken:.2f} ms | {1e3 * taken / size:.3f} ms |", flush=True)
    print_rooflines(data[1], options.device, options.packs)
    if options.scaling:
        print("\n| as we train, with | time |\n|---|---|")
        for what, taken in scaling(data[1], options.device):
            print(f"| {what} | {1e3 * taken:.2f} ms |", flush=True)


if __name__ == "__main__":
    main()
