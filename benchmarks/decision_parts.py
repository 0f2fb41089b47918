"""Where the time of a decision goes: what a GPU computes, and what the host does around it. One
table.

python -m benchmarks.decision_parts --device cuda --lanes 64
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.decisions import (
    HOPPER,
    Case,
    decide,
    latencies,
    model_of_paper_size,
    policy_at_work,
)
from saformer.core.execution import SaFormerPolicy
from saformer.core.policy import Decision
from saformer.kernels.decisions import fastest

IN_A_ROW = 20
"""Replays that are asked for before anybody waits, so that it is the GPU that takes its time."""


def wait(device: str) -> None:
    """Until a GPU has done all that it was asked for."""
    if device != "cpu":
        torch.cuda.synchronize()


def without_waiting(
    step: Callable[[], object], after: Callable[[], object], *, repeat: int, device: str
) -> float:
    """Median seconds until a call returns, whatever a GPU still has to do; `after` makes ready for
    the next."""
    taken = []
    for _ in range(repeat):
        wait(device)
        began = time.perf_counter()
        step()
        taken.append(time.perf_counter() - began)
        after()
    return statistics.median(taken)


def in_a_row(step: Callable[[], object], *, repeat: int, device: str) -> float:
    """Median seconds of a call among several that follow each other."""

    def several() -> None:
        for _ in range(IN_A_ROW):
            step()

    return (
        statistics.median(latencies(several, repeat=max(1, repeat // IN_A_ROW), device=device))
        / IN_A_ROW
    )


def recorded_parts(
    policy: SaFormerPolicy, case: Case, repeat: int, device: str
) -> dict[str, float]:
    """Seconds of what a GPU replays, each one after the other."""
    with torch.inference_mode():
        state, every = (
            torch.zeros(case.lanes, HOPPER.state, device=device),
            torch.arange(case.lanes, device=device),
        )
        present = (state, policy.budget.rows(torch.arange(case.lanes)).to(device), every)
        prefix = policy._prefill(policy.history, *present)
        drawn = policy.rule.options.draw(case.lanes, HOPPER.action, policy._generator)
        of_reading = in_a_row(
            lambda: policy._prefill(policy.history, *present), repeat=repeat, device=device
        )
        of_round = in_a_row(
            lambda: policy._first_round(prefix, *drawn), repeat=repeat, device=device
        )
    return {"reading, one after the other": of_reading, "a round, one after the other": of_round}


def host_parts(policy: SaFormerPolicy, case: Case, repeat: int, device: str) -> dict[str, float]:
    """Seconds until calls return."""
    state, cost = torch.zeros(case.lanes, HOPPER.state), torch.zeros(case.lanes, 1)

    def act() -> Decision:
        return policy.act(state)

    def act_and_fetch() -> Tensor:
        return act().action.cpu()

    def observe() -> None:
        policy.observe(cost, cost)

    return {
        "`act`, until it returns": without_waiting(act, observe, repeat=repeat, device=device),
        "`act` and its action on the host": without_waiting(
            act_and_fetch, observe, repeat=repeat, device=device
        ),
        "`observe`, until it returns": without_waiting(observe, act, repeat=repeat, device=device),
    }


def parts(policy: SaFormerPolicy, case: Case, repeat: int, device: str) -> dict[str, float]:
    """Seconds of everything, and of what it consists of."""
    whole = statistics.median(latencies(decide(policy, case.lanes), repeat=repeat, device=device))
    sizes = (policy, case, repeat, device)
    return {"all of it": whole, **recorded_parts(*sizes), **host_parts(*sizes)}


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--lanes", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=200)
    options = parser.parse_args()
    model = fastest(model_of_paper_size(options.device))
    print("| N | part | median |\n|---|---|---|")
    for candidates in (1, 128):
        case = Case(options.lanes, candidates)
        for part, seconds in parts(
            policy_at_work(model, case), case, options.repeat, options.device
        ).items():
            print(f"| {candidates} | {part} | {1e3 * seconds:.3f} ms |", flush=True)


if __name__ == "__main__":
    main()
