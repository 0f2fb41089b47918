"""Every agent's losses can be compiled and recorded: nothing in them waits for a number or depends
on one."""

from dataclasses import replace

import pytest
import torch
import torch._inductor.config

from saformer.agents.registry import KINDS, create_agent
from saformer.core.transformer import TrunkConfig
from saformer.training.loop.config import FitConfig
from tests.alone import Trainer
from tests.contracts.cases import CASES

CONFIG = FitConfig(updates=20, batch_size=8, warmup_updates=2, precision="float32")


@pytest.mark.parametrize("name", list(KINDS))
def test_losses_are_one_graph(data, name):
    """Traced as a whole, they say what they say when they are not. Seen to fail when a loss asks
    for a number."""
    torch.compiler.reset()
    agent = create_agent(data, CASES[name].config(0.0, 1), seed=0)
    batch = agent.sampler(data).sample(8, torch.Generator().manual_seed(0))
    for phase in agent.phases:
        traced = torch.compile(
            lambda values, p=phase: sums_of(p, type(batch)(**values)),
            backend="eager",
            fullgraph=True,
        )
        found, expected = seeded(traced, dict(vars(batch))), seeded(sums_of, phase, batch)
        assert found.keys() == expected.keys()
        assert all(torch.allclose(found[term], expected[term], atol=1e-5) for term in expected)


def seeded(function, *arguments):
    """What a loss draws, it draws alike each time."""
    torch.manual_seed(0)
    return function(*arguments)


def sums_of(phase, batch) -> dict[str, torch.Tensor]:
    return {term: value.sums for term, value in phase.terms(batch).items()}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", list(KINDS))
@torch._inductor.config.patch(fallback_random=True)  # compiled losses draw what plain ones do
def test_on_a_gpu_recorded_updates_equal_plain_ones(data, name):
    """To within 1e-3: a GPU adds gradients of embeddings in any order."""
    weights = []
    for compiled in ("auto", "off"):
        agent = create_agent(data, CASES[name].config(0.0, 1), seed=0)
        agent.model.to("cuda").train()
        trainer = Trainer(
            agent, agent.sampler(data, "cuda"), replace(CONFIG, compile=compiled), seed=0
        )
        while trainer.update < CONFIG.updates:
            trainer.advance(CONFIG.updates - trainer.update)
        weights.append(dict(agent.model.named_parameters()))
    for key, value in weights[0].items():
        assert torch.allclose(value, weights[1][key], atol=1e-3), key


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", [name for name in KINDS if CASES[name].reads_windows])
def test_on_a_gpu_fused_updates_measure_nearly_the_same(data, name):
    """Blocks in bfloat16, one run alone in a pack: the first losses differ by rounding only."""
    config = replace(CASES[name].config(0.0, 1), trunk=TrunkConfig(layers=2, width=32, dropout=0.0))
    found = []
    for settings in ({"precision": "auto"}, {"precision": "float32", "compile": "off"}):
        agent = create_agent(data, config, seed=0)
        agent.model.to("cuda").train()
        trainer = Trainer(agent, agent.sampler(data, "cuda"), replace(CONFIG, **settings), seed=0)
        found.append([trainer.step() for _ in range(3)])
    for fused, plain in zip(*found, strict=True):
        for term in (term for term in plain if not term.endswith("gradient_norm")):
            assert fused[term] == pytest.approx(plain[term], rel=0.05, abs=0.02), term
