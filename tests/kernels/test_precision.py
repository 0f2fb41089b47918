"""Blocks in bfloat16 on a CPU: what is dropped, what is attended to, and who is trained so."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from saformer.agents.saformer import SaFormerAgent
from saformer.core.transformer import Trunk, TrunkConfig
from saformer.data.sampling import WindowSampler
from saformer.kernels import precision
from saformer.kernels.precision import (
    QuickDropout,
    attend_quickly,
    dropout_mask,
    set_training_dtype,
    training_dtype,
)
from saformer.training.loop.config import FitConfig
from saformer.training.packs.pack import PackedAgent
from tests.alone import Trainer
from tests.conftest import tiny_config

CPU = torch.device("cpu")
CONFIG = FitConfig(updates=8, batch_size=8, warmup_updates=2, precision="bfloat16")


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5])
def test_dropping_changes_no_mean(share):
    """Seen to fail when the factor is rounded and the share is not: 1 became 0.998."""
    torch.manual_seed(0)
    mask = dropout_mask(torch.Size([1000, 3001]), share)
    assert mask.dtype == torch.bfloat16
    assert len(mask.unique()) == 2
    assert mask.float().mean().item() == pytest.approx(1, abs=5e-4)
    assert (mask == 0).float().mean().item() == pytest.approx(share, abs=3e-3)


def test_what_is_dropped_is_drawn_independently():
    """Neighbours, and those four apart. Seen to fail when one number decides for all four of its
    quarters."""
    torch.manual_seed(0)
    gone = (dropout_mask(torch.Size([400_001]), 0.5) == 0).float() - 0.5
    for apart in (1, 2, 3, 4):
        assert abs((gone[:-apart] * gone[apart:]).mean().item()) < 0.25 * 0.01, apart


def test_dropping_is_repeated_by_the_seed_and_off_when_not_training():
    drop, x = QuickDropout(0.3), torch.ones(50, 7)
    torch.manual_seed(3)
    first, second = drop(x), drop(x)
    torch.manual_seed(3)
    assert torch.equal(drop(x), first)
    assert not torch.equal(first, second)
    assert torch.equal(drop.eval()(x), x)


@pytest.mark.parametrize("heads", [1, 4])
def test_attention_is_torchs(heads):
    """Outputs and gradients, as near as bfloat16 is. Seen to fail when a token sees those after
    it."""
    generator = torch.Generator().manual_seed(0)
    exact = [torch.randn(3, heads, 20, 16, generator=generator).requires_grad_() for _ in range(3)]
    rounded = [side.detach().bfloat16().requires_grad_() for side in exact]
    expected = F.scaled_dot_product_attention(*exact, is_causal=True)
    found = attend_quickly(*rounded, attn_mask=None, is_causal=True, dropout_p=0.0)
    assert torch.allclose(found.float(), expected, atol=0.03)
    torch.autograd.backward([expected.square().sum(), found.float().square().sum()])
    for one, other in zip(exact, rounded, strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert torch.allclose(one.grad, other.grad.float(), atol=0.15)


def test_float32_and_masked_attention_are_torchs_to_the_bit():
    """A trained model acts in float32. Seen to fail when any mask is taken for a causal one."""
    generator = torch.Generator().manual_seed(0)
    sides = [torch.randn(2, 1, 6, 8, generator=generator) for _ in range(3)]
    allowed = torch.eye(6, dtype=torch.bool) | torch.ones(6, 6, dtype=torch.bool).tril(-2)
    for mask in (None, allowed):
        options = {"attn_mask": mask, "is_causal": mask is None, "dropout_p": 0.0}
        assert torch.equal(
            attend_quickly(*sides, **options), F.scaled_dot_product_attention(*sides, **options)
        )
    reduced = [side.bfloat16() for side in sides]
    options = {"attn_mask": allowed, "is_causal": False, "dropout_p": 0.0}
    assert torch.equal(
        attend_quickly(*reduced, **options), F.scaled_dot_product_attention(*reduced, **options)
    )


@pytest.mark.parametrize(
    ("width", "able", "expected"),
    [(128, True, torch.bfloat16), (128, False, torch.float32), (64, True, torch.float32)],
)
def test_automatic_precision_of_a_cpu(monkeypatch, width, able, expected):
    """Seen to fail when small trunks, whose results are known to the bit, are rounded too."""
    monkeypatch.setattr(precision, "_cpu_multiplies_bfloat16", lambda: able)
    trunk = Trunk(TrunkConfig(layers=1, width=width))
    set_training_dtype(trunk, training_dtype(trunk, "auto", CPU))
    assert trunk.training_dtype == expected
    assert isinstance(trunk.drop, QuickDropout) == (expected == torch.bfloat16)


def test_a_pack_of_wide_trunks_is_reduced_too(monkeypatch, data):
    """Seen to fail when the width is asked of a layer norm: a pack's has another shape."""
    monkeypatch.setattr(precision, "_cpu_multiplies_bfloat16", lambda: True)
    config = tiny_config(trunk=TrunkConfig(layers=1, width=128))
    pack = PackedAgent(
        [SaFormerAgent.create(data, config, seed=seed) for seed in (0, 1)], seeds=[0, 1]
    )
    assert training_dtype(pack.model, "auto", CPU) == torch.bfloat16


def test_a_trunk_goes_back_to_float32():
    """Seen to fail when the quick parts stay."""
    trunk, tokens = Trunk(TrunkConfig(layers=1, width=16, dropout=0.2)), torch.randn(2, 5, 16)

    def output() -> torch.Tensor:
        torch.manual_seed(0)
        return trunk(tokens)

    before = output()
    set_training_dtype(trunk, torch.bfloat16)
    assert not torch.equal(output(), before)
    set_training_dtype(trunk, torch.float32)
    assert torch.equal(output(), before)


def trainer(data, **changes) -> Trainer:
    agent = SaFormerAgent.create(
        data, tiny_config(trunk=TrunkConfig(layers=2, width=16, dropout=0.2)), seed=0
    )
    agent.model.train()
    return Trainer(agent, WindowSampler(data, window=4), replace(CONFIG, **changes), seed=0)


def test_a_seed_repeats_to_the_bit_and_so_does_a_resumed_run(data):
    """Seen to fail when dropping draws from a stream that no checkpoint keeps."""
    whole, again, resumed = trainer(data), trainer(data), trainer(data)
    torch.manual_seed(0)
    losses = [whole.step() for _ in range(8)]
    torch.manual_seed(0)
    assert [again.step() for _ in range(4)] == losses[:4]
    checkpoint = again.checkpoint({})
    torch.rand(5)
    resumed.restore([checkpoint])
    assert [resumed.step() for _ in range(4)] == losses[4:]


def test_losses_are_those_of_float32_nearly(data):
    """Without dropout, over a few updates. Seen to fail when a layer's output is added twice."""
    config = tiny_config(trunk=TrunkConfig(layers=2, width=16, dropout=0.0))
    found = []
    for name in ("float32", "bfloat16"):
        agent = SaFormerAgent.create(data, config, seed=0)
        agent.model.train()
        one = Trainer(agent, WindowSampler(data, window=4), replace(CONFIG, precision=name), seed=0)
        found.append([one.step() for _ in range(8)][-1])
    for name in ("actor/action", "actor/return_to_go", "critic/forecast_error"):
        assert found[1][name] == pytest.approx(found[0][name], abs=0.02), name
