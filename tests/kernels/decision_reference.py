"""How far fused prefixes, branches and decisions are from plain ones: a program, because Triton is
interpreted or not.

Prints a JSON object. On a GPU the kernels are compiled, elsewhere interpreted (TRITON_INTERPRET=1)
and slow.
"""

from __future__ import annotations

import json
from unittest.mock import patch

import torch
from torch import Tensor

from saformer.core.batch import Dimensions
from saformer.core.execution import SaFormerPolicy
from saformer.core.model import SaFormer
from saformer.core.rules import PaperOptions, PaperRule
from saformer.core.transformer import Trunk, TrunkConfig
from saformer.kernels import decision_modules
from saformer.kernels.decisions import FusedSaFormer
from saformer.kernels.recording import Recorder
from tests.conftest import randomise
from tests.contracts.test_recording import Eager

ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
TILES = {"R": 16, "C": 16, "num_warps": 4, "num_stages": 2}
QKV_TILES = TILES | {"K": 16}
"""Several tiles even of the few rows that an interpreter can afford."""


@torch.no_grad()
def trunk_differences(sizes: tuple[int, ...], candidates: int = 11) -> dict[str, float]:
    """Of prefixes and branches, on lanes of which some are padded, and on some of the lanes in
    another order."""
    width, heads, layers, length, own = sizes
    trunk = Trunk(TrunkConfig(layers=layers, width=width, heads=heads)).to(DEVICE).eval()
    randomise(trunk, seed=width + own)
    for parameter in trunk.parameters():
        parameter.mul_(
            (32 / width) ** 0.5
        )  # lest wide models weigh one token alone, and rounding with it
    made, lanes = torch.Generator().manual_seed(length), 3
    tokens = torch.randn(lanes, length, width, generator=made).to(DEVICE)
    padding = torch.tensor([0, min(4, length - 1), length - 1], device=DEVICE)
    valid = torch.arange(length, device=DEVICE) >= padding[:, None]
    branches = torch.randn(lanes, candidates, own, width, generator=made).to(DEVICE)
    ours = decision_modules.DecisionTrunk(trunk)
    (last, cache), (our_last, our_cache) = trunk.prefill(tokens, valid), ours.prefill(tokens, valid)
    some = torch.tensor([2, 0], device=DEVICE)
    return {
        "prefill": off(our_last, last),
        "branch": off(ours.branch(branches, our_cache), trunk.branch(branches, cache)),
        "some": off(
            ours.branch(branches[some], our_cache.of_lanes(some)),
            trunk.branch(branches[some], cache.of_lanes(some)),
        ),
    }


def decision_differences(
    dimensions: Dimensions, *, steps: int, window: int = 4, recorded: bool = True
) -> dict[str, float]:
    """Of whole decisions: pasts from empty to full, several rounds, lanes that end, one begun anew,
    weights changed."""
    plain = SaFormer(dimensions, TrunkConfig(layers=2, width=32, heads=2)).to(DEVICE)
    randomise(plain)
    make_it_matter(plain)
    lanes, rounds = 3, set()
    made = torch.Generator().manual_seed(0)
    options = PaperOptions(candidates=9, rounds=3, fallback="likely")
    models = FusedSaFormer(plain), plain
    recorder = Recorder if recorded else Eager
    policies = [
        SaFormerPolicy(model, PaperRule(options), recorder, window=window) for model in models
    ]
    forecast = _typical_forecast(policies[1], dimensions)
    for policy in policies:
        policy.reset(
            torch.zeros(lanes, dimensions.state),
            torch.stack([0 * forecast[0], forecast[1], forecast[2] + 9]),
        )
    worst: dict[str, float] = {}
    for step in range(steps):
        alive = torch.tensor([0, 2] if step % 3 == 2 else [0, 1, 2])
        if step == steps // 2:
            with torch.no_grad():
                plain.actor.action_head.linear.bias.add_(0.1)  # in place: both must see it
            for policy in policies:
                policy.reset(
                    torch.zeros(1, dimensions.state), forecast[:1], lanes=torch.tensor([1])
                )
        state = torch.randn(len(alive), dimensions.state, generator=made)
        ours, theirs = (policy.act(state, alive) for policy in policies)
        cost = 0.05 * torch.rand(len(alive), dimensions.constraints, generator=made)
        for policy in policies:
            policy.observe(torch.zeros(len(alive), 1), cost, alive)
        rounds |= set(theirs.num_rounds.tolist())
        found = {
            name: off(getattr(ours, name).float(), getattr(theirs, name).float())
            for name in COMPARED
        }
        found |= {"cost": off(ours.verification.cost, theirs.verification.cost)}
        found |= {"density": off(ours.candidates.log_density, theirs.candidates.log_density)}
        worst = {name: max(value, worst.get(name, 0.0)) for name, value in found.items()}
    return worst | {"only one number of rounds": float(len(rounds) < 2)}


def make_it_matter(model: SaFormer) -> None:
    """Units, bounds of actions and of deviations; and costs lie ahead: no round is safe under a
    limit of 0."""
    model.critic.head.bias.data.add_(20.0)
    model.actor.action_head.linear.bias.data[-2:] += torch.tensor([-9.0, 4.0], device=DEVICE)
    model.get_buffer("action_low").fill_(-1.0)
    model.get_buffer("action_high").fill_(1.5)
    for number, kind in enumerate(("return_to_go", "action", "cost_to_go"), 1):
        model.normalizer.centre(kind).fill_(0.1 * number)
        model.normalizer.scale(kind).fill_(1.0 + 0.3 * number)


COMPARED = ("action", "return_to_go", "chosen", "num_safe", "num_rounds", "fell_back")


def _typical_forecast(policy: SaFormerPolicy, dimensions: Dimensions) -> Tensor:
    policy.reset(torch.zeros(3, dimensions.state), torch.full((3, dimensions.constraints), 5.0))
    return policy.act(torch.zeros(3, dimensions.state)).verification.cost.mean(1).cpu()


def off(one: Tensor, other: Tensor) -> float:
    """The largest difference, in parts of one or of the value."""
    return ((one - other).abs() / (1 + other.abs())).nan_to_num(nan=torch.inf).max().item()


def main() -> None:
    """Print what was found."""
    found = {}
    sizes = [(32, 1, 2, 18, 2), (64, 2, 1, 5, 1), (32, 2, 2, 1, 1)]
    if ON_GPU:
        sizes += [(128, 1, 3, 97, 2), (128, 1, 3, 39, 1), (128, 4, 2, 40, 2), (64, 1, 3, 197, 2)]
    with patch.multiple(decision_modules, ATTENTION_FEW=TILES, MLP_FEW=TILES, QKV_FEW=QKV_TILES):
        for size in sizes:
            found[f"trunk {size}"] = trunk_differences(size)
        found["decisions"] = decision_differences(Dimensions(state=5, action=3, horizon=3), steps=4)
    if ON_GPU:
        for size in sizes:
            found[f"trunk {size} of many rows"] = trunk_differences(size, candidates=2000)
        found["unrecorded decisions"] = decision_differences(
            Dimensions(state=17, action=6, horizon=9), steps=12, recorded=False
        )
    found["a past of nothing"] = decision_differences(
        Dimensions(state=2, action=1, horizon=6), steps=2, window=1
    )
    print(json.dumps(found))


if __name__ == "__main__":
    main()
