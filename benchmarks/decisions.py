"""How long a decision takes, beside the naive way: every candidate read as a whole window.

python -m benchmarks.decisions [--device cpu] [--lanes 1] [--threads 2]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from saformer.core.batch import Dimensions, WindowBatch
from saformer.core.execution import ExecutionOptions, SaFormerPolicy
from saformer.core.history import Prompt
from saformer.core.model import SaFormer
from saformer.core.transformer import TrunkConfig

WINDOW, CANDIDATES = 20, 128
HOPPER = Dimensions(state=11, action=3, horizon=1000)


def model_of_paper_size(device: str, dimensions: Dimensions = HOPPER) -> SaFormer:
    """Untrained, which costs the same."""
    torch.manual_seed(0)
    return SaFormer(dimensions, TrunkConfig()).to(device).eval()


def warm_policy(model: SaFormer, *, lanes: int, rounds: int, candidates: int = CANDIDATES) -> SaFormerPolicy:
    """A policy in the middle of its episodes, under limits so tight that every round is rejected."""
    policy = SaFormerPolicy(model, window=WINDOW, options=ExecutionOptions(candidates=candidates, rounds=rounds))
    state = torch.zeros(lanes, model.dimensions.state)
    policy.reset(state, torch.zeros(lanes, model.dimensions.constraints))
    for _ in range(WINDOW + 2):
        policy.act(state)
        policy.observe(torch.zeros(lanes, 1), torch.ones(lanes, model.dimensions.constraints))
    return policy


def decide(policy: SaFormerPolicy, lanes: int) -> Callable[[], None]:
    """One decision and its cost, as in a control loop."""
    state = torch.zeros(lanes, policy.history.state.shape[-1])
    reward, cost = torch.zeros(lanes, 1), torch.zeros(lanes, 1)

    def step() -> None:
        policy.act(state).action.cpu()
        policy.observe(reward, cost)

    return step


@torch.no_grad()
def naive_decision(model: SaFormer, prompt: Prompt, candidates: int) -> Tensor:
    """Each candidate's whole window through both networks: [L, N] forecasts and the best action of each lane."""
    lanes = len(prompt.state)
    window = _whole_windows(prompt, torch.zeros(lanes, 1, 1), torch.zeros(lanes, 1, model.dimensions.action))
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
        valid=torch.ones(lanes * candidates, past.valid.shape[1] + 1, dtype=torch.bool, device=device),
    )


def latencies(step: Callable[[], object], *, repeat: int, device: str) -> list[float]:
    """Seconds of each call, after a few that do not count."""
    for _ in range(5):
        step()
    taken = []
    for _ in range(repeat):
        if device != "cpu":
            torch.cuda.synchronize()
        began = time.perf_counter()
        step()
        if device != "cpu":
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - began)
    return taken


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--lanes", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=200)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = model_of_paper_size(options.device)
    print("| decision | median | p99 | per second |\n|---|---|---|---|")
    naive_policy = warm_policy(model, lanes=options.lanes, rounds=1)
    state = torch.zeros(options.lanes, model.dimensions.state, device=options.device)
    prompt = naive_policy.history.prompt(state, naive_policy.budget, torch.arange(options.lanes, device=options.device))
    rows = [("naive, one round", lambda: naive_decision(model, prompt, CANDIDATES), max(5, options.repeat // 20))]
    for rounds in (1, 4):
        policy = warm_policy(model, lanes=options.lanes, rounds=rounds)
        rows.append((f"ours, {rounds} of {rounds} rounds", decide(policy, options.lanes), options.repeat))
    for name, step, repeat in rows:
        taken = latencies(step, repeat=repeat, device=options.device)
        middle, last = statistics.median(taken), sorted(taken)[int(0.99 * len(taken))]
        print(f"| {name} | {1e3 * middle:.2f} ms | {1e3 * last:.2f} ms | {1 / middle:.0f} |")


if __name__ == "__main__":
    main()
