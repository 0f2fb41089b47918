"""How long a decision takes, beside the naive way: every candidate read as a whole window. One
table.

python -m benchmarks.decisions                             one lane on two CPU cores
python -m benchmarks.decisions --device cuda --lanes 64    a GPU; --no-kernels: the plain model
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from benchmarks import rooflines
from benchmarks.rooflines import Ceilings, Work, float32_ceilings
from saformer.core.batch import Dimensions, WindowBatch
from saformer.core.execution import SaFormerPolicy
from saformer.core.history import Prompt
from saformer.core.model import SaFormer
from saformer.core.policy import Policy
from saformer.core.rules import PaperOptions, PaperRule, Rule
from saformer.core.transformer import TrunkConfig
from saformer.criteria import torque
from saformer.kernels.decisions import fastest
from saformer.kernels.recording import Recorder
from saformer.rules.feasible import FeasibleOptions, FeasibleRule
from saformer.rules.outlook import Outlook
from saformer.shield import Shield

HOPPER = Dimensions(state=11, action=3, horizon=1000)
TRUNK = TrunkConfig()
PATIENCE = 3.0
"""Seconds that one figure may take; a naive decision that would take longer is left out."""


@dataclass(frozen=True)
class Case:
    """One row of the table. Every round is rejected, so that as many are played as there may be."""

    lanes: int
    candidates: int = 128
    window: int = 20
    rounds: int = 1

    @property
    def work(self) -> Work:
        """What our way must compute and move."""
        sizes = {"lanes": self.lanes, "window": self.window}
        rounds = rooflines.one_round(TRUNK, candidates=self.candidates, **sizes).times(self.rounds)
        return rooflines.reading(TRUNK, **sizes) + rounds

    @property
    def naive_work(self) -> Work:
        """What the naive way must, in one round."""
        return rooflines.naive(
            TRUNK, lanes=self.lanes, candidates=self.candidates, window=self.window
        )


def cases(base: Case, *, curves: bool) -> Iterator[Case]:
    """The case itself, all four rounds of it, and curves in N, K and lanes."""
    yield base
    yield replace(base, rounds=4)
    if curves:
        yield from (replace(base, candidates=n) for n in (1, 8, 32, 64, 256, 512))
        yield from (replace(base, window=k) for k in (5, 10, 40))
        yield from (
            replace(base, lanes=lanes) for lanes in (1, 4, 16, 64, 256) if lanes != base.lanes
        )


def model_of_paper_size(device: str, dimensions: Dimensions = HOPPER) -> SaFormer:
    """Untrained, which costs the same."""
    torch.manual_seed(0)
    return SaFormer(dimensions, TRUNK).to(device).eval()


def policy_at_work(model: SaFormer, case: Case, outlook: Outlook | None = None) -> SaFormerPolicy:
    """A policy in the middle of its episodes, so far over its limits that every round is rejected.

    It computes the model as it is given: `fastest(model)` is how an agent's policy does.
    """
    rule: Rule = PaperRule(PaperOptions(candidates=case.candidates, rounds=case.rounds))
    if outlook is not None:
        rule = FeasibleRule(FeasibleOptions(candidates=case.candidates), outlook, cost_discount=1.0)
    policy = SaFormerPolicy(model, rule, window=case.window, recorder=Recorder)
    policy.reset(
        torch.zeros(case.lanes, model.dimensions.state),
        torch.zeros(case.lanes, model.dimensions.constraints),
    )
    policy.history.timestep.copy_(torch.arange(case.window - 1).expand(case.lanes, -1))
    policy.budget.num_steps.fill_(case.window - 1)
    policy.budget.spent.fill_(1e6)
    return policy


def decide(policy: Policy, lanes: int, states: int = HOPPER.state) -> Callable[[], None]:
    """One decision and its cost, as in a control loop."""
    state = torch.zeros(lanes, states)
    reward, cost = torch.zeros(lanes, 1), torch.zeros(lanes, 1)

    def step() -> None:
        policy.act(state).action.cpu()
        policy.observe(reward, cost)

    return step


@torch.no_grad()
def naive_decision(model: SaFormer, prompt: Prompt, candidates: int) -> Tensor:
    """Each candidate's whole window through both networks: [L, N] forecasts and the best action of
    each lane."""
    lanes = len(prompt.state)
    window = _whole_windows(
        prompt, torch.zeros(lanes, 1, 1), torch.zeros(lanes, 1, model.dimensions.action)
    )
    expected = model.actor(model.normalizer.window(window)).return_to_go
    noise = torch.randn(lanes, candidates, 1, device=prompt.state.device)
    asked = expected.mean[:, -1:] + expected.log_deviation[:, -1:].exp() * noise  # [L, N, 1]
    windows = _whole_windows(prompt, asked, torch.zeros(lanes, candidates, model.dimensions.action))
    proposal = model.actor(model.normalizer.window(windows)).action
    action = proposal.at(torch.randn_like(proposal.mean))[:, -1].reshape(lanes, candidates, -1)
    windows = _whole_windows(prompt, asked, action)
    forecast = model.critic(model.normalizer.window(windows))[:, -1].reshape(lanes, candidates, -1)
    safe = (forecast <= prompt.cost_to_go[:, None]).all(-1)
    chosen = asked[..., 0].masked_fill(~safe, -torch.inf).argmax(1)
    return action[torch.arange(lanes), chosen]


def _whole_windows(prompt: Prompt, return_to_go: Tensor, action: Tensor) -> WindowBatch:
    """[L * N] windows of K steps that share their past."""
    past, device = prompt.past, prompt.state.device
    lanes, candidates = return_to_go.shape[:2]

    def repeated(values: Tensor) -> Tensor:
        return values.repeat_interleave(candidates, dim=0)

    def whole(column: Tensor, present: Tensor) -> Tensor:
        return torch.cat([repeated(column), present.reshape(lanes * candidates, 1, -1)], dim=1)

    return WindowBatch(
        limit=repeated(past.limit),
        cost_to_go=whole(past.cost_to_go, repeated(prompt.cost_to_go)),
        return_to_go=whole(past.return_to_go, return_to_go.to(device)),
        state=whole(past.state, repeated(prompt.state)),
        action=whole(past.action, action.to(device)),
        timestep=torch.cat([repeated(past.timestep), repeated(prompt.timestep[:, None])], dim=1),
        valid=torch.ones(
            lanes * candidates, past.valid.shape[1] + 1, dtype=torch.bool, device=device
        ),
    )


def latencies(step: Callable[[], object], *, repeat: int, device: str) -> list[float]:
    """Seconds of each call, after a few that do not count; fewer calls where they take long."""
    for _ in range(3):
        step()
    taken: list[float] = []
    while len(taken) < repeat and (len(taken) < 3 or sum(taken) < PATIENCE):
        if device != "cpu":
            torch.cuda.synchronize()
        began = time.perf_counter()
        step()
        if device != "cpu":
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - began)
    return taken


def naive_seconds(
    model: SaFormer, case: Case, machine: Ceilings, device: str, repeat: int
) -> float | None:
    """The median of a naive round, unless it takes too long."""
    if 3 * machine.arithmetic_seconds(case.naive_work) > PATIENCE:
        return None
    policy = policy_at_work(model, case)
    state = torch.zeros(case.lanes, model.dimensions.state, device=device)
    lanes = torch.arange(case.lanes)
    account = policy.budget.rows(lanes).to(device)
    prompt = policy.history.prompt(state, account, lanes.to(device))
    taken = latencies(
        lambda: naive_decision(model, prompt, case.candidates), repeat=repeat, device=device
    )
    return statistics.median(taken)


def row(model: SaFormer, case: Case, machine: Ceilings, options: argparse.Namespace) -> str:
    """What one case took, and the naive way beside it."""
    device, repeat = options.device, options.repeat
    computed = fastest(model) if options.kernels else model
    naive = naive_seconds(model, case, machine, device, repeat // 10) if case.rounds == 1 else None
    taken = latencies(
        decide(policy_at_work(computed, case), case.lanes), repeat=repeat, device=device
    )
    middle, last = statistics.median(taken), sorted(taken)[int(0.99 * len(taken))]
    beside = ["", ""] if naive is None else [f"{1e3 * naive:.1f} ms", f"{naive / middle:.1f}"]
    bounds = [machine.arithmetic_seconds(case.work), machine.byte_seconds(case.work)]
    cells = [str(part) for part in (case.lanes, case.candidates, case.window, case.rounds)]
    cells += [f"{1e3 * middle:.2f} ms", f"{1e3 * last:.2f} ms", f"{1 / middle:.0f}", *beside]
    return "| " + " | ".join([*cells, *(f"{1e3 * bound:.2f} ms" for bound in bounds)]) + " |"


def ways_to_verify(model: SaFormer, case: Case, options: argparse.Namespace) -> Iterator[str]:
    """One round of the paper's rule, our own, that within a shield, and as policies act in one, by
    turns."""
    computed, dimensions = fastest(model) if options.kernels else model, model.dimensions
    outlook = Outlook(dimensions).to(options.device)
    bounds = {"action_low": (-1.0,) * dimensions.action, "action_high": (1.0,) * dimensions.action}
    shielded = [
        Shield(policy_at_work(computed, each, outlook), [torque], **bounds)
        for each in (case, replace(case, candidates=1))
    ]
    for policy in shielded:
        policy.reset(torch.zeros(case.lanes, dimensions.state), torch.full((case.lanes, 1), 1e6))
    policies: dict[str, Policy] = {
        "the paper's rule, one round": policy_at_work(computed, case),
        "our own": policy_at_work(computed, case, outlook),
        "our own, in a shield": shielded[0],
        "our own, expected action alone, in a shield (the default there)": shielded[1],
    }
    taken: dict[str, list[float]] = {name: [] for name in policies}
    for _ in range(5):
        for name, policy in policies.items():
            taken[name] += latencies(
                decide(policy, case.lanes), repeat=options.repeat // 5, device=options.device
            )
    plain, *_ = (statistics.median(found) for found in taken.values())
    for name, found in taken.items():
        middle, last = statistics.median(found), sorted(found)[int(0.99 * len(found))]
        yield f"| {name} | {1e3 * middle:.2f} ms | {1e3 * last:.2f} ms | {middle / plain:.2f} |"


def resident() -> int:
    """Bytes of memory that this process holds (Linux)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def memory_over(model: SaFormer, case: Case, steps: int, device: str) -> str:
    """Memory of the process, and of the GPU, after a tenth of the steps and after all of them."""
    step, held = decide(policy_at_work(model, case), case.lanes), []
    for number in range(1, steps + 1):
        step()
        if number in (steps // 10, steps):
            allocated = 0 if device == "cpu" else torch.cuda.memory_allocated()
            held.append((resident() / 2**20, allocated / 2**20))
    (before, on_gpu_before), (after, on_gpu_after) = held
    return (
        f"Memory after {steps // 10} and {steps} steps ({case.lanes} lanes, N = "
        f"{case.candidates}): process "
        f"{before:.1f} and {after:.1f} MB, GPU {on_gpu_before:.3f} and {on_gpu_after:.3f} MB "
        "allocated."
    )


def _how_it_is_computed(model: SaFormer, options: argparse.Namespace) -> str:
    """Which way, and how long it takes to get ready: kernels are built when first needed, and kept
    on disk."""
    began = time.perf_counter()
    computed = fastest(model) if options.kernels else model
    return f"{type(computed).__name__}, ready after {time.perf_counter() - began:.1f} s.\n"


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--lanes", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=200)
    parser.add_argument("--curves", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument(
        "--kernels", action=argparse.BooleanOptionalAction, default=True, help="our own, on a GPU"
    )
    parser.add_argument("--memory-steps", type=int, default=10_000, help="0: not measured")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model, machine = model_of_paper_size(options.device), float32_ceilings(options.device)
    print(_how_it_is_computed(model, options))
    print(
        "| lanes | N | K | rounds | median | p99 | per second | naive | times faster | "
        "arithmetic | bytes |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for case in cases(Case(options.lanes), curves=options.curves):
        print(row(model, case, machine, options), flush=True)
    print(
        f"\nArithmetic and bytes: the least time they take at {machine.operations / 1e12:.2f} "
        "TFLOP/s and "
        f"{machine.bytes / 1e9:.0f} GB/s, which a large product and a large copy reach here in "
        "float32 "
        "(tensor cores: a third of what they do in tf32, whose three passes are float32)."
    )
    print("\n| verification | median | p99 | against the paper's |\n|---|---|---|---|")
    for line in ways_to_verify(model, Case(options.lanes), options):
        print(line, flush=True)
    if options.memory_steps:
        print(
            memory_over(
                fastest(model),
                Case(options.lanes, candidates=16),
                options.memory_steps,
                options.device,
            )
        )


if __name__ == "__main__":
    main()
