"""What every agent must keep to."""

import math

import pytest
import torch

from saformer.agents.saformer import SaFormerAgent
from saformer.core.batch import WindowBatch
from saformer.core.transformer import TrunkConfig
from saformer.data.sampling import WindowSampler
from saformer.training.config import FitConfig
from saformer.training.fit import fit
from saformer.training.trainer import NonFiniteLossError, Trainer
from tests.conftest import tiny_config

MODULES = ("actor", "critic")
FULL_CONFIG = FitConfig(updates=6, batch_size=8, warmup_updates=0, checkpoint_every=2)


def gradient_norms(agent: SaFormerAgent, loss: torch.Tensor) -> dict[str, float]:
    agent.model.zero_grad()
    loss.backward()
    norms = {}
    for name in MODULES:
        gradients = [p.grad for p in getattr(agent.model, name).parameters() if p.grad is not None]
        norms[name] = float(sum(g.norm() for g in gradients))
    return norms


@pytest.mark.parametrize(
    ("phase", "term", "reaches"),
    [
        ("actor", "cost_to_go", "actor"),
        ("actor", "return_to_go", "actor"),
        ("actor", "action", "actor"),
        ("critic", "forecast_error", "critic"),
        ("critic", "rising_forecast", "critic"),
    ],
)
def test_each_loss_term_reaches_its_module_and_no_other(agent, batch, phase, term, reaches):
    """Seen to fail when the hinge is computed on detached forecasts."""
    terms = next(p for p in agent.phases if p.name == phase).terms(batch)
    norms = gradient_norms(agent, terms[term].mean())
    assert norms.pop(reaches) > 0
    assert set(norms.values()) == {0.0}


def test_every_parameter_moves(data):
    """Seen to fail when a head is left out of its phase."""
    agent = SaFormerAgent.create(data, tiny_config(), seed=0)
    before = {name: p.detach().clone() for name, p in agent.model.named_parameters()}
    trainer = Trainer(agent, WindowSampler(data, window=4), FULL_CONFIG, seed=0)
    for _ in range(5):
        trainer.step()
    still = [name for name, p in agent.model.named_parameters() if torch.equal(p, before[name])]
    assert still == []


def test_statistics_stay_frozen(data):
    """Seen to fail when they drift with use."""
    agent = SaFormerAgent.create(data, tiny_config(), seed=0)
    before = {name: b.clone() for name, b in agent.model.named_buffers()}
    fit(agent, WindowSampler(data, window=4), FULL_CONFIG)
    assert all(torch.equal(b, before[name]) for name, b in agent.model.named_buffers())
    assert len(before) == 12


def test_same_seed_same_bits(data):
    """Seen to fail when dropout draws from an unseeded stream."""
    config = tiny_config(trunk=TrunkConfig(layers=1, width=16, dropout=0.3))
    states = []
    for _ in range(2):
        torch.rand(7)  # whatever a caller did before must not matter
        agent = SaFormerAgent.create(data, config, seed=3)
        fit(agent, WindowSampler(data, window=4), FULL_CONFIG, seed=3)
        states.append(agent.model.state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_another_seed_gives_another_model(data):
    agents = [SaFormerAgent.create(data, tiny_config(), seed=seed) for seed in (0, 1)]
    assert not torch.equal(
        agents[0].model.actor.embedding.of_time.weight, agents[1].model.actor.embedding.of_time.weight
    )


def test_padding_content_is_irrelevant(agent, batch):
    """Seen to fail when the loss averages over padding."""
    spoilt = {name: getattr(batch, name).clone() for name in ("cost_to_go", "return_to_go", "state", "action")}
    for values in spoilt.values():
        values[~batch.valid] = 1e6
    other = WindowBatch(limit=batch.limit, timestep=batch.timestep, valid=batch.valid, **spoilt)
    for phase in agent.phases:
        clean, dirty = phase.terms(batch), phase.terms(other)
        for name in clean:
            assert torch.allclose(clean[name].sums, dirty[name].sums, rtol=1e-5), (phase.name, name)


def test_future_content_is_irrelevant(agent, batch):
    """Seen to fail without the causal mask."""
    changed = batch.state.clone()
    changed[:, 2:] += 5.0
    other = WindowBatch(**{**vars(batch), "state": changed})
    for network in (agent.model.actor, agent.model.critic):
        now, then = network(batch), network(other)
        first, second = (now.action.mean, then.action.mean) if hasattr(now, "action") else (now, then)
        assert torch.allclose(first[:, :2], second[:, :2], atol=1e-6)
        assert not torch.allclose(first[:, 2:], second[:, 2:], atol=1e-3)


def test_a_policy_acts_without_dropout(data):
    """Seen to fail when the policy leaves the model in training mode."""
    agent = SaFormerAgent.create(data, tiny_config(trunk=TrunkConfig(layers=1, width=16, dropout=0.5)), seed=0)
    agent.model.train()
    actions = []
    for _ in range(2):
        policy = agent.policy()
        policy.reset([1.0, 1.0], 5.0)
        actions.append(policy.act([1.0, 1.0]).action)
    assert torch.equal(actions[0], actions[1])


def actor_parameters(agent: SaFormerAgent) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in agent.model.actor.named_parameters()}


def test_a_loss_that_is_not_finite_stops_before_it_does_harm(data):
    """Seen to fail when losses are not checked."""
    agent = SaFormerAgent.create(data, tiny_config(), seed=0)
    trainer = Trainer(agent, WindowSampler(data, window=4), FULL_CONFIG, seed=0)
    with torch.no_grad():
        agent.model.critic.head.bias.fill_(math.nan)
    before = actor_parameters(agent)
    with pytest.raises(NonFiniteLossError, match="update 0: critic/forecast_error"):
        trainer.step()
    assert all(torch.equal(value, before[name]) for name, value in actor_parameters(agent).items())


def test_a_gradient_that_is_not_finite_stops_before_it_does_harm(data):
    """The loss is finite, so the state that gets saved must be too. Seen to fail when gradients are not checked."""
    agent = SaFormerAgent.create(data, tiny_config(), seed=0)
    trainer = Trainer(agent, WindowSampler(data, window=4), FULL_CONFIG, seed=0)
    agent.model.critic.head.weight.register_hook(lambda gradient: gradient * math.inf)
    before = actor_parameters(agent)
    with pytest.raises(NonFiniteLossError, match="update 0: critic/gradient_norm"):
        trainer.step()
    assert all(torch.equal(value, before[name]) for name, value in actor_parameters(agent).items())
    assert all(torch.isfinite(p).all() for p in agent.model.parameters())
