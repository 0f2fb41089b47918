"""Decisions by kernels of our own are the plain ones, and where they cannot be made the plain ones
are."""

import copy
import importlib.util
import json
import os
import subprocess
import sys
import warnings

import pytest
import torch

from saformer.agents.saformer import SaFormerAgent
from saformer.core.batch import Dimensions
from saformer.core.execution import SaFormerPolicy
from saformer.core.history import History
from saformer.core.model import SaFormer
from saformer.core.rules import PaperOptions, PaperRule
from saformer.core.transformer import TrunkConfig
from saformer.kernels import decisions
from saformer.kernels.decisions import FusedSaFormer, fastest
from saformer.kernels.recording import Recorder
from saformer.kernels.sizes import fits_kernels
from tests.conftest import randomise, tiny_config

needs_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
FUSED = TrunkConfig(layers=2, width=64, heads=2, dropout=0.1)


@pytest.fixture
def found():
    """What the kernels are off by: compiled on a GPU, else interpreted."""
    environment = (
        os.environ if torch.cuda.is_available() else os.environ | {"TRITON_INTERPRET": "1"}
    )
    command = [sys.executable, "-m", "tests.kernels.decision_reference"]
    result = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return json.loads(result.stdout.splitlines()[-1])


@needs_triton
def test_kernels_equal_plain_pytorch(found):
    """Readings and branches of odd sizes, padded pasts, some lanes; whole decisions of several
    rounds."""
    for case, differences in found.items():
        assert max(differences.values()) < 1e-5, (case, differences)


def test_a_cpu_computes_the_plain_model(agent, monkeypatch):
    """Seen to fail when the device does not matter."""
    monkeypatch.setattr(decisions, "fits_kernels", lambda config: True)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    assert fastest(agent.model) is agent.model


def test_only_what_the_kernels_hold_is_fused():
    """Seen to fail when narrow heads are let through."""
    assert fits_kernels(TrunkConfig())
    assert fits_kernels(TrunkConfig(width=32, heads=2))
    assert not fits_kernels(TrunkConfig(width=48, heads=1))
    assert not fits_kernels(TrunkConfig(width=256, heads=1))
    assert not fits_kernels(TrunkConfig(width=32, heads=4))


def test_a_model_of_doubles_is_left_alone(agent, monkeypatch):
    """Seen to fail when the weights' type does not matter."""
    monkeypatch.setattr(decisions, "fits_kernels", lambda config: True)
    monkeypatch.setattr(decisions, "_has_kernels", lambda device: True)
    monkeypatch.setattr(decisions, "_rehearsed", lambda *sizes: pytest.fail("rehearsed"))
    model = copy.deepcopy(agent.model).double()
    assert fastest(model) is model


def test_kernels_that_fail_are_done_without(agent, monkeypatch):
    """A warning of one line. Seen to fail when what a rehearsal finds is ignored."""
    monkeypatch.setattr(decisions, "fits_kernels", lambda config: True)
    monkeypatch.setattr(decisions, "_has_kernels", lambda device: True)

    def fails(plain):
        raise OSError("no compiler\nand much more")

    monkeypatch.setattr(decisions, "FusedSaFormer", fails)
    decisions._rehearsed.cache_clear()
    with pytest.warns(UserWarning, match=r"\(OSError: no compiler\): they are slower$"):
        assert fastest(agent.model) is agent.model


@pytest.mark.parametrize("mistake", [0.01, torch.nan])
def test_kernels_that_are_wrong_are_done_without(agent, monkeypatch, mistake):
    """Seen to fail when a rehearsal compares nothing."""
    monkeypatch.setattr(decisions, "fits_kernels", lambda config: True)
    monkeypatch.setattr(decisions, "_has_kernels", lambda device: True)

    def wrong(plain):
        other = copy.deepcopy(plain)
        other.critic.head.bias.data.add_(mistake)
        return other

    monkeypatch.setattr(decisions, "FusedSaFormer", wrong)
    decisions._rehearsed.cache_clear()
    with pytest.warns(UserWarning, match="off by 0, 0, 0, 0, (0.0|nan)"):
        assert fastest(agent.model) is agent.model


def test_a_prefix_of_some_lanes_is_theirs(agent):
    """Seen to fail when one network is read on other lanes."""
    model: SaFormer = agent.model
    policy = agent.policy()
    policy.reset(torch.zeros(3, 2), [[4.0], [5.0], [6.0]])
    policy.act(torch.randn(3, 2, generator=torch.Generator().manual_seed(0)))
    history: History = policy.history
    lanes, state = torch.tensor([2, 0]), torch.tensor([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]])
    with torch.no_grad():
        some = model.prefill(
            history.prompt(state, policy.budget.rows(torch.arange(3)), torch.arange(3))
        ).of_lanes(lanes)
        alone = model.prefill(history.prompt(state[lanes], policy.budget.rows(lanes), lanes))
        action, wanted = torch.zeros(2, 4, 1), torch.zeros(2, 4, 1)
        for one, other in zip((some, alone), (alone, some), strict=True):
            assert torch.allclose(
                model.forecast(one, action).mean, model.forecast(other, action).mean
            )
            assert torch.allclose(
                model.sample_actions(one, wanted, action)[0],
                model.sample_actions(other, wanted, action)[0],
            )
    assert torch.equal(some.remaining, alone.remaining)


@needs_triton
def test_weights_are_shared(agent):
    """Not one is copied, and all go by their names."""
    ours = dict(FusedSaFormer(agent.model).named_parameters()) | dict(
        FusedSaFormer(agent.model).named_buffers()
    )
    theirs = dict(agent.model.named_parameters()) | dict(agent.model.named_buffers())
    assert ours.keys() == theirs.keys()
    assert all(ours[name] is theirs[name] for name in theirs)


@needs_a_gpu
@needs_triton
def test_an_agent_on_a_gpu_decides_by_kernels(data):
    agent = SaFormerAgent.create(data, tiny_config(trunk=FUSED), seed=0)
    randomise(agent.model)
    agent.model.cuda()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert isinstance(agent.policy().model, FusedSaFormer)


@needs_a_gpu
@needs_triton
def test_decisions_of_the_papers_size_are_the_plain_ones():
    """64 lanes from their first step until the window is full and beyond; a third of them ends on
    the way."""
    torch.manual_seed(0)
    plain = SaFormer(Dimensions(state=17, action=6, horizon=1000), TrunkConfig()).cuda()
    options = PaperOptions(candidates=128, rounds=1)
    policies = [
        SaFormerPolicy(model, PaperRule(options), window=20, recorder=Recorder)
        for model in (fastest(plain), plain)
    ]
    made = torch.Generator().manual_seed(0)
    for policy in policies:
        policy.reset(torch.zeros(64, 17), torch.full((64, 1), 1.0))
    for step in range(45):
        lanes = torch.arange(64 if step < 30 else 43)
        state = torch.randn(len(lanes), 17, generator=made)
        ours, theirs = (policy.act(state, lanes) for policy in policies)
        for one, other in (
            (ours.candidates.return_to_go, theirs.candidates.return_to_go),
            (ours.candidates.action, theirs.candidates.action),
            (ours.candidates.log_density, theirs.candidates.log_density),
            (ours.verification.cost, theirs.verification.cost),
        ):
            assert ((one - other).abs() / (1 + other.abs())).max() < 1e-5, step
        policies[0].history.steps.copy_(
            policies[1].history.steps
        )  # one that is a hair safer must not lead astray
        for policy in policies:
            policy.observe(torch.zeros(len(lanes), 1), torch.full((len(lanes), 1), 0.01), lanes)
