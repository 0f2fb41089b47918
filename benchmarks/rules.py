"""What the rule `feasible` costs beside the paper's: a decision, and the last stage of training.

    OMP_NUM_THREADS=1 python -m benchmarks.rules --sizes small full

Processor time of one thread, in turns, so that other programs do little harm; medians. The paper's
rule proposes one round. Training is one update times as many as the preset has, made-up data of
HalfCheetah's sizes.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from benchmarks.updates import SIZES, made_up
from saformer.agents.saformer import SaFormerAgent
from saformer.core.policy import Policy
from saformer.core.rules import PaperOptions
from saformer.rules.feasible import FeasibleOptions
from saformer.training.loop.presets import PRESETS
from saformer.training.loop.trainer import Member, PackTrainer

WARM_UP = 30


def processor_seconds(function: Callable[[], Any]) -> float:
    """Of this process, whatever else runs."""
    began = time.process_time()
    function()
    return time.process_time() - began


def decide(policy: Policy, state: torch.Tensor) -> None:
    """Act and observe once."""
    policy.act(state)
    policy.observe(torch.zeros(1), torch.zeros(1, 1))


def decision_seconds(policies: Sequence[Policy], num_states: int, repeat: int) -> list[float]:
    """Of each policy, one lane, in turns, with a full window."""
    taken: list[list[float]] = [[] for _ in policies]
    states = torch.randn(repeat + WARM_UP, 1, num_states)
    for policy in policies:
        policy.reset(states[0], torch.tensor([[1e9]]))
    for state in states:
        for policy, own in zip(policies, taken, strict=True):
            own.append(processor_seconds(partial(decide, policy, state)))
    return [statistics.median(own[WARM_UP:]) for own in taken]


def measure(size: str, repeat: int, updates: int) -> str:
    """A row of the table."""
    preset = PRESETS[size]("saformer")
    data = made_up(*SIZES[1])
    agent = SaFormerAgent.create(data, preset.agent, seed=0)  # type: ignore[arg-type]
    trainer = PackTrainer([Member(agent, agent.sampler(data))], preset.fit)
    trainer.advance(2)
    one = [processor_seconds(lambda: trainer.advance(1)) for _ in range(updates)]
    training = statistics.median(one) * preset.fit.updates
    trainer.unpack()
    fitting = processor_seconds(lambda: agent.finish(data))
    agent.model.eval()
    candidates = preset.agent.candidates  # type: ignore[attr-defined]
    options = (
        PaperOptions(candidates=candidates, rounds=1),
        FeasibleOptions(candidates=candidates),
    )
    policies = [agent.policy(each) for each in options]
    paper, ours = decision_seconds(policies, agent.dimensions.state, repeat)
    shares = f"{ours / paper:.2f} | {training / 60:.1f} min | {fitting / 60:.2f} min"
    decision = f"{1e3 * paper:.2f} ms | {1e3 * ours:.2f} ms"
    return f"| {size} | {decision} | {shares} | {1 + fitting / training:.2f} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", nargs="+", default=["small", "full"], choices=list(PRESETS))
    parser.add_argument("--repeat", type=int, default=100, help="decisions of each rule")
    parser.add_argument("--updates", type=int, default=10, help="updates that are timed")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| size | the paper's rule | feasible | times | training | outlook | times |")
    print("|---|---|---|---|---|---|---|")
    for size in options.sizes:
        print(measure(size, options.repeat, options.updates), flush=True)


if __name__ == "__main__":
    main()
