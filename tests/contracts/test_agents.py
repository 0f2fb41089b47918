"""What every agent must keep to. `cases.py` has one entry for each."""

import json
import math
from dataclasses import asdict, replace
from typing import Any

import pytest
import torch

from saformer.agents.agent import Agent
from saformer.agents.registry import KINDS, create_agent, restore_agent
from saformer.agents.saformer import SaFormerAgent
from saformer.core.batch import WindowBatch
from saformer.core.objectives import PerSample
from saformer.data.relabel import RelabelledStore
from saformer.data.sampling import WindowSampler
from saformer.runs.checkpoint import load_checkpoint, save_checkpoint
from saformer.training.loop.config import FitConfig
from saformer.training.loop.presets import PRESETS
from saformer.training.loop.trainer import NonFiniteLossError
from tests.alone import Trainer, fit
from tests.conftest import randomise, tiny_config
from tests.contracts.cases import CASES

FULL_CONFIG = FitConfig(updates=6, batch_size=8, warmup_updates=0, checkpoint_every=2)
NAMES = list(KINDS)
WINDOWED = [name for name in NAMES if CASES[name].reads_windows]
CERTAIN = [name for name in NAMES if CASES[name].certain is not None]
TERMS = [(name, term) for name in NAMES for term in CASES[name].reaches]


def made(
    name: str, data: RelabelledStore, *, seed: int = 0, dropout: float = 0.0, spread: bool = False
) -> Agent:
    """A tiny agent; with a `spread` of outputs, its weights are random rather than the near-zero
    initial ones."""
    agent = create_agent(data, CASES[name].config(dropout, data.cost.shape[1]), seed=seed)
    if spread and CASES[name].takes_any_weights:
        randomise(agent.model)
    return agent


def drawn(agent: Agent, data: RelabelledStore, size: int = 16) -> Any:
    return agent.sampler(data).sample(size, torch.Generator().manual_seed(0))


def terms_of(agent: Agent, batch: Any) -> dict[str, PerSample]:
    """All terms that are minimised, as phase/term."""
    found = [
        (phase.name, name, term)
        for phase in agent.phases
        for name, term in phase.terms(batch).items()
    ]
    return {f"{phase}/{name}": term for phase, name, term in found if not term.watched}


def trained(agent: Agent, data: RelabelledStore, updates: int) -> Trainer:
    trainer = Trainer(agent, agent.sampler(data), FULL_CONFIG, seed=3)
    for _ in range(updates):
        trainer.step()
    return trainer


def test_every_agent_keeps_the_contracts():
    assert set(CASES) == set(KINDS)
    for name, kind in KINDS.items():
        assert "\n" not in kind.description
        assert PRESETS["small"](name).agent != PRESETS["paper"](name).agent
        assert {type(preset(name).agent) for preset in PRESETS.values()} == {kind.config_type}
        assert name not in CERTAIN or isinstance(CASES[name].certain, tuple(kind.rules.values()))


@pytest.mark.parametrize(("name", "term"), TERMS)
def test_each_loss_term_reaches_its_module_and_no_other(data, name, term):
    """Seen to fail when the hinge is computed on detached forecasts, and when the entropy reaches
    the temperature."""
    agent, case = made(name, data, spread=True), CASES[name]
    learnt = [
        (n, p) for n, p in agent.model.named_parameters() if p.requires_grad
    ]  # targets only follow
    names, parameters = zip(*learnt, strict=True)
    torch.manual_seed(0)  # losses sample: by rare luck none of CPQ's samples is foreign to the data
    loss = terms_of(agent, drawn(agent, data, 128))[term].mean()
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    moved = [n for n, g in zip(names, gradients, strict=True) if g is not None and g.norm() > 0]
    modules = [next((m for m in case.modules if f"{n}.".startswith(f"{m}.")), n) for n in moved]
    assert set(modules) == case.reaches[term]


@pytest.mark.parametrize("name", NAMES)
def test_the_losses_are_those_that_the_contracts_name(data, name):
    agent = made(name, data)
    assert set(terms_of(agent, drawn(agent, data))) == set(CASES[name].reaches)


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_is_optimised_once_or_follows(data, name):
    """Seen to fail when a phase takes all parameters for its own."""
    agent = made(name, data)
    optimised = [id(p) for phase in agent.phases for p in phase.parameters]
    following = [id(p) for average in agent.averages for p in average.average]
    assert sorted(optimised + following) == sorted(id(p) for p in agent.model.parameters())


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_moves(data, name):
    """Seen to fail when a head is left out of its phase."""
    agent = made(name, data)
    before = {name: p.detach().clone() for name, p in agent.model.named_parameters()}
    trained(agent, data, 5)
    still = [name for name, p in agent.model.named_parameters() if torch.equal(p, before[name])]
    assert still == []


@pytest.mark.parametrize("name", NAMES)
def test_statistics_stay_frozen(data, name):
    """Seen to fail when they drift with use."""
    agent = made(name, data)
    before = {name: b.clone() for name, b in agent.model.named_buffers()}
    fit(agent, agent.sampler(data), FULL_CONFIG)
    assert all(torch.equal(b, before[name]) for name, b in agent.model.named_buffers())
    assert len(before) >= 12


@pytest.mark.parametrize("name", NAMES)
def test_same_seed_same_bits(data, name):
    """Seen to fail when dropout draws from an unseeded stream."""
    states = []
    for _ in range(2):
        torch.rand(7)  # whatever a caller did before must not matter
        agent = made(name, data, seed=3, dropout=0.3)
        fit(agent, agent.sampler(data), FULL_CONFIG, seed=3)
        states.append(agent.model.state_dict())
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


@pytest.mark.parametrize("name", NAMES)
def test_another_seed_gives_another_model(data, name):
    weights = [dict(made(name, data, seed=seed).model.named_parameters()) for seed in (0, 1)]
    assert any(not torch.equal(weights[0][key], weights[1][key]) for key in weights[0])


@pytest.mark.parametrize("name", NAMES)
def test_save_load_update_equals_update(data, tmp_path, name):
    """To the bit, duals and optimisers included, from nothing but what a run keeps.

    Seen to fail when random states are not kept.
    """
    straight = trained(made(name, data, dropout=0.3), data, 6)
    halfway = trained(made(name, data, dropout=0.3), data, 3)
    save_checkpoint(tmp_path / "checkpoint", halfway.checkpoint({}))
    kept = load_checkpoint(tmp_path / "checkpoint")
    config = json.loads(json.dumps(asdict(halfway.agent.config)))
    agent = restore_agent(name, halfway.agent.dimensions, config, kept.groups["model"])
    assert agent.config == halfway.agent.config
    resumed = Trainer(agent, agent.sampler(data), FULL_CONFIG, seed=99)
    resumed.restore([kept])
    for _ in range(3):
        resumed.step()
    found, expected = resumed.checkpoint({}), straight.checkpoint({})
    assert {g: set(found.groups[g]) for g in found.groups} == {
        g: set(expected.groups[g]) for g in expected.groups
    }
    for group, tensors in expected.groups.items():
        for key, value in tensors.items():
            assert torch.equal(found.groups[group][key], value), (group, key)


def spoilt(batch: WindowBatch, where: torch.Tensor, by: float) -> WindowBatch:
    """The same windows with other content at these places."""
    names = ("cost_to_go", "return_to_go", "state", "action")
    changed = {
        name: torch.where(where[..., None], getattr(batch, name) + by, getattr(batch, name))
        for name in names
    }
    return replace(batch, **changed)


def assert_alike(one: dict[str, PerSample], other: dict[str, PerSample]) -> None:
    for term, value in one.items():
        assert torch.allclose(value.sums, other[term].sums, rtol=1e-4, atol=1e-4), term


@pytest.mark.parametrize("name", WINDOWED)
def test_padding_content_is_irrelevant(data, batch, name):
    """Seen to fail when the loss averages over padding."""
    agent = made(name, data, spread=True)
    assert_alike(terms_of(agent, batch), terms_of(agent, spoilt(batch, ~batch.valid, 1e6)))


@pytest.mark.parametrize("name", WINDOWED)
def test_future_content_is_irrelevant(data, batch, name):
    """What happened from step 2 on says nothing of steps 0 and 1, but much of itself.

    Seen to fail without the causal mask.
    """
    agent = made(name, data, spread=True)
    later = torch.arange(batch.valid.shape[1]).expand_as(batch.valid) >= 2
    judged = replace(batch, valid=batch.valid & ~later)
    assert_alike(terms_of(agent, judged), terms_of(agent, spoilt(judged, later, 5.0)))
    whole, changed = terms_of(agent, batch), terms_of(agent, spoilt(batch, later, 5.0))
    assert any(
        not torch.allclose(whole[term].sums, changed[term].sums, rtol=1e-2) for term in whole
    )


def two_steps(
    agent: Agent, options: Any, states: torch.Tensor, limit: list[list[float]]
) -> torch.Tensor:
    """The actions of two steps on as many lanes as there are limits: [2, L, A]."""
    policy, actions = agent.policy(options), []
    policy.reset(states[0], limit)
    for state in states:
        actions.append(policy.act(state).action)
        policy.observe(torch.full((len(limit), 1), 0.4), torch.full((len(limit), 1), 0.3))
    return torch.stack(actions)


@pytest.mark.parametrize("name", NAMES)
def test_a_policy_acts_without_dropout(data, name):
    """Seen to fail when a policy leaves the model in training mode."""
    agent = made(name, data, dropout=0.5, spread=True)
    states = torch.randn(2, 1, 2, generator=torch.Generator().manual_seed(0))
    agent.model.train()
    first = two_steps(agent, None, states, [[5.0]])
    agent.model.train()
    assert torch.equal(first, two_steps(agent, None, states, [[5.0]]))


@pytest.mark.parametrize("name", CERTAIN)
def test_lanes_do_not_see_each_other(data, name):
    """Seen to fail when every lane is told the first lane's return."""
    agent, certain = made(name, data, spread=True), CASES[name].certain
    states = torch.randn(2, 3, 2, generator=torch.Generator().manual_seed(0))
    limits = [[4.0], [8.0], [11.0]]
    together = two_steps(agent, certain, states, limits)
    for lane, limit in enumerate(limits):
        alone = two_steps(agent, certain, states[:, lane : lane + 1], [limit])
        assert torch.allclose(together[:, lane : lane + 1], alone, atol=1e-5), lane


@pytest.mark.parametrize("name", CERTAIN)
def test_a_lane_that_is_begun_anew_remembers_nothing(data, name):
    """Seen to fail when what was earned before is still counted."""
    agent, certain = made(name, data, spread=True), CASES[name].certain
    states = torch.randn(3, 2, 2, generator=torch.Generator().manual_seed(0))
    policy = agent.policy(certain)
    policy.reset(states[0], [[9.0], [9.0]])
    policy.act(states[0])
    policy.observe([[2.0], [2.0]], [[1.0], [1.0]])
    lane = torch.tensor([1])
    policy.reset(states[1, 1:], [[6.0]], lane)
    again = policy.act(states[1], None).action[1:]
    assert torch.allclose(again, two_steps(agent, certain, states[1:, 1:], [[6.0]])[0], atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_actions_lie_within_bounds(data, name):
    agent = made(name, data, spread=True)
    agent.model.get_buffer(
        next(n for n, _ in agent.model.named_buffers() if n.endswith("action_high"))
    ).fill_(0.01)
    states = torch.randn(2, 8, 2, generator=torch.Generator().manual_seed(0))
    actions = two_steps(agent, None, states, [[float(d)] for d in range(8)])
    assert actions.max() <= 0.01
    assert actions.min() >= -1


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
    """The loss is finite, so the state that gets saved must be too. Seen to fail when gradients are
    not checked."""
    agent = SaFormerAgent.create(data, tiny_config(), seed=0)
    trainer = Trainer(agent, WindowSampler(data, window=4), FULL_CONFIG, seed=0)
    agent.model.critic.head.weight.register_hook(lambda gradient: gradient * math.inf)
    before = actor_parameters(agent)
    with pytest.raises(NonFiniteLossError, match="update 0: critic/gradient_norm"):
        trainer.step()
    assert all(torch.equal(value, before[name]) for name, value in actor_parameters(agent).items())
    assert all(torch.isfinite(p).all() for p in agent.model.parameters())
