"""How long an update of actor and critic takes: plainly, as we train, packed, and beside OSRL's CDT (its actor alone).

python -m benchmarks.updates                              two CPU cores
python -m benchmarks.updates --device cuda --packs 9 27   a GPU
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from benchmarks.measure import seconds
from saformer.agents.saformer import SaFormerAgent
from saformer.criteria import torque
from saformer.data.relabel import RelabelledStore, relabel
from saformer.data.store import EnvironmentSpec, TrajectoryStore
from saformer.data.trajectory import Trajectory
from saformer.training.presets import paper
from saformer.training.trainer import Member, PackTrainer, Trainer

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


def single(data: RelabelledStore, device: str, *, compiled: bool) -> float:
    """Seconds of one update as `fit` does it."""
    preset = paper()
    agent = SaFormerAgent.create(data, preset.agent, seed=0)
    agent.model.to(device).train()
    sampler = agent.sampler(data, device)
    config = replace(preset.fit, compile="auto" if compiled else "off")
    if not compiled:
        config = replace(config, precision="float32")
    trainer = Trainer(agent, sampler, config, seed=0)
    return per_update(lambda: trainer.advance(50)[0], device)


def packed(data: list[RelabelledStore], device: str) -> float:
    """Seconds of one update of all models together."""
    preset = paper()
    agents = [SaFormerAgent.create(d, preset.agent, seed=i) for i, d in enumerate(data)]
    for agent in agents:
        agent.model.to(device).train()
    samplers = {id(d): agents[0].sampler(d, device) for d in data}
    members = [Member(agent, samplers[id(d)], seed) for seed, (agent, d) in enumerate(zip(agents, data, strict=True))]
    trainer = PackTrainer(members, preset.fit)
    return per_update(lambda: trainer.advance(50)[0], device)


def per_update(advance: Callable[[], int], device: str) -> float:
    """Seconds per update, over a second or two of them."""
    count = advance()
    if device == "cpu":
        return seconds(advance, repeat=5) / count
    advance()
    began, done = time.perf_counter(), 0
    while time.perf_counter() - began < 2:
        done += advance()
    return (time.perf_counter() - began) / done


def osrl_cdt() -> float | None:
    """Seconds of one update of OSRL's CDT of the same size; None where it is not installed."""
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
    trainer = CDTTrainer(model, env=None)
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
    return seconds(lambda: trainer.train_one_step(*arguments), repeat=5)


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--packs", type=int, nargs="*", default=[])
    options = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    data = [made_up(*size) for size in SIZES]
    on_gpu = options.device != "cpu"
    name = torch.cuda.get_device_name() if on_gpu else f"{platform.machine()}, {os.cpu_count()} cores"
    print(f"{name}; torch {torch.__version__}; K = 20, 3 layers, width 128, batch 128, HalfCheetah's sizes\n")
    print("| update of actor and critic | time | per model |\n|---|---|---|")
    rows = [("plain", single(data[1], options.device, compiled=False), 1)]
    if on_gpu:
        rows.append(("as we train", single(data[1], options.device, compiled=True), 1))
    for size in options.packs:
        torch._dynamo.reset()
        members = [data[i % 2] for i in range(size)]
        rows.append((f"{size} models packed, Hopper and HalfCheetah in turn", packed(members, options.device), size))
    theirs = None if on_gpu else osrl_cdt()
    if theirs is not None:
        rows.append(("OSRL's CDT, actor alone, 4 tokens a step", theirs, 1))
    for what, taken, models in rows:
        print(f"| {what} | {1e3 * taken:.2f} ms | {1e3 * taken / models:.3f} ms |")


if __name__ == "__main__":
    main()
