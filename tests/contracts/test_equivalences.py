"""Different ways to the same answer."""

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
import torch

from saformer.agents.saformer import SaFormerAgent
from saformer.core.batch import Dimensions, WindowBatch
from saformer.core.execution import SaFormerPolicy
from saformer.core.gaussian import Gaussian
from saformer.core.history import Prompt
from saformer.core.model import SaFormer
from saformer.core.rules import Fallback, PaperOptions, PaperRule
from saformer.core.tokens import Layout, TokenEmbedding
from saformer.core.transformer import Trunk, TrunkConfig
from saformer.data.relabel import relabel
from saformer.data.store import TrajectoryStore
from saformer.data.trajectory import Trajectory
from saformer.envs import allowance
from saformer.kernels.recording import Recorder
from tests.conftest import randomise, tiny_config


def drive(policy, steps: int, lanes: int = 3):
    """A few steps of made-up episodes; the policy must not notice that nobody simulates them."""
    generator = torch.Generator().manual_seed(1)
    width = policy.history.state.shape[-1] or 2
    state = torch.randn(lanes, width, generator=generator)
    constraints = policy.budget.limit.shape[1]
    policy.reset(state, 5.0 + torch.rand(lanes, constraints, generator=generator))
    for _ in range(steps):
        decision = policy.act(state)
        policy.observe(torch.zeros(lanes, 1), torch.rand(lanes, constraints, generator=generator))
        state = torch.randn(lanes, width, generator=generator)
    return state, decision


def whole_window(
    prompt: Prompt, lane: int, return_to_go: torch.Tensor, action: torch.Tensor
) -> WindowBatch:
    """One lane's past and one candidate, as an unpadded training window."""
    past, keep = prompt.past, prompt.past.valid[lane]

    def whole(column: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
        return torch.cat([column[lane][keep], present.reshape(1, -1)])[None]

    return WindowBatch(
        limit=past.limit[lane : lane + 1],
        cost_to_go=whole(past.cost_to_go, prompt.cost_to_go[lane]),
        return_to_go=whole(past.return_to_go, return_to_go),
        state=whole(past.state, prompt.state[lane]),
        action=whole(past.action, action),
        timestep=torch.cat([past.timestep[lane][keep], prompt.timestep[lane : lane + 1]])[None],
        valid=torch.ones(1, int(keep.sum()) + 1, dtype=torch.bool),
    )


@pytest.mark.parametrize("steps", [0, 1, 3, 6])
def test_shared_past_equals_the_full_forward(agent, steps):
    """One reading and N branches = N whole windows. Seen to fail when branches see each other."""
    policy = agent.policy(PaperOptions(candidates=5))
    lanes = 3
    if steps:
        state, _ = drive(policy, steps, lanes)
    else:
        state = torch.randn(lanes, 2, generator=torch.Generator().manual_seed(1))
        policy.reset(state, torch.full((lanes, 1), 5.0))
    prompt = policy.history.prompt(
        state, policy.budget.rows(torch.arange(lanes)), torch.arange(lanes)
    )
    decision = policy.act(state)
    proposed, judged = decision.candidates, decision.verification

    model = agent.model.eval()
    for lane in range(lanes):
        for n in range(5):
            window = whole_window(
                prompt, lane, proposed.return_to_go[lane, n], proposed.action[lane, n]
            )
            normal = model.normalizer.window(window)
            with torch.no_grad():
                predictions, forecast = model.actor(normal), model.critic(normal)
            cost = model.normalizer.restore("cost_to_go", forecast[0, -1])
            assert torch.allclose(judged.cost[lane, n], cost, atol=1e-4), "the critic's forecast"
            if n == 0:  # the mean of both heads
                expected = model.normalizer.restore(
                    "return_to_go", predictions.return_to_go.mean[0, -1]
                )
                assert torch.allclose(proposed.return_to_go[lane, 0], expected, atol=1e-4)
                action = model.normalizer.restore("action", predictions.action.mean[0, -1]).clamp(
                    -1, 1
                )
                assert torch.allclose(proposed.action[lane, 0], action, atol=1e-5)


def test_branches_equal_separate_sequences_to_1e_5():
    """The trunk alone, in float32. Seen to fail when the past's padding is visible."""
    config = TrunkConfig(layers=3, width=32, heads=4, dropout=0.0)
    trunk = Trunk(config).eval()
    randomise(trunk)
    generator = torch.Generator().manual_seed(0)
    past, own = (
        torch.randn(2, 7, 32, generator=generator),
        torch.randn(2, 4, 3, 32, generator=generator),
    )
    valid = torch.ones(2, 7, dtype=torch.bool)
    valid[1, :3] = False
    _, cache = trunk.prefill(past, valid)
    branches = trunk.branch(own, cache)
    for lane in range(2):
        for n in range(4):
            sequence = torch.cat([past[lane][valid[lane]], own[lane, n]])[None]
            assert torch.allclose(branches[lane, n], trunk(sequence)[0, -1], atol=1e-5)


def test_lanes_do_not_see_each_other(agent):
    """Seen to fail when a lane's memory is mixed up with its neighbour's."""
    options = PaperOptions(candidates=1)
    together, alone = agent.policy(options), agent.policy(options)
    states = torch.randn(4, 2, 2, generator=torch.Generator().manual_seed(0))
    together.reset(states[0], [[4.0], [8.0]])
    alone.reset(states[0, 1:], [[8.0]])
    for state in states:
        both, one = together.act(state), alone.act(state[1:])
        assert torch.allclose(both.action[1:], one.action, atol=1e-6)
        together.observe([[0.0], [0.0]], [[0.3], [0.2]])
        alone.observe([[0.0]], [[0.2]])


def test_trunk_with_dts_layout_is_a_decision_transformer():
    """Return, state, action tokens through the same embedding and trunk: the action is read at the
    state token.

    Seen to fail when `at` looks one token too far: the prediction then sees the action itself.
    """
    layout = Layout(("return_to_go", "state", "action"))
    dimensions = Dimensions(state=2, action=1, horizon=20)
    embedding, trunk = (
        TokenEmbedding(layout, dimensions, 16),
        Trunk(TrunkConfig(layers=1, width=16, dropout=0.0)),
    )
    randomise(embedding)
    randomise(trunk)
    values = {
        "return_to_go": torch.randn(1, 4, 1),
        "state": torch.randn(1, 4, 2),
        "action": torch.randn(1, 4, 1),
    }
    steps = torch.arange(4)[None]
    tokens = embedding.embed(values, steps)
    assert tokens.shape == (1, 12, 16)
    read = layout.at("state", trunk(tokens))
    changed = {
        **values,
        "action": values["action"] + torch.tensor([0.0, 0.0, 0.0, 9.0]).reshape(1, 4, 1),
    }
    assert torch.allclose(read, layout.at("state", trunk(embedding.embed(changed, steps))))
    changed = {
        **values,
        "state": values["state"] + torch.tensor([0.0, 0.0, 0.0, 9.0]).reshape(1, 4, 1),
    }
    assert not torch.allclose(read, layout.at("state", trunk(embedding.embed(changed, steps))))


def extended_by_a_constraint(model: SaFormer) -> SaFormer:
    """The same model with a second cost, through zero columns and rows."""
    wider = SaFormer(
        replace(model.dimensions, constraints=2),
        TrunkConfig(layers=2, width=16, heads=2, dropout=0.0),
    )
    state = wider.state_dict()
    for name, old in model.state_dict().items():
        new = torch.zeros_like(state[name])
        if name.endswith("_scale"):
            new.fill_(1.0)
        if name.startswith(
            "actor.cost_to_go_head"
        ):  # rows: (mean, log-deviation) -> (mean, 0, log-deviation, 0)
            new[0], new[2] = old[0], old[1]
        else:
            new[tuple(slice(size) for size in old.shape)] = old
        state[name] = new
    wider.load_state_dict(state)
    return wider


@pytest.mark.parametrize("fallback", get_args(Fallback))
def test_a_second_constraint_of_zero_cost_changes_no_decision(agent, fallback):
    """Weights extended by zero columns. Seen to fail when a forecast of 0 overruns a budget of
    0."""
    rule = PaperRule(PaperOptions(candidates=6, fallback=fallback))
    one = SaFormerPolicy(agent.model, rule, Recorder, window=4)
    two = SaFormerPolicy(extended_by_a_constraint(agent.model), rule, Recorder, window=4)
    states = torch.randn(5, 3, 2, generator=torch.Generator().manual_seed(0))
    limits = torch.tensor([[0.5], [10.0], [30.0]])
    one.reset(states[0], limits)
    two.reset(states[0], torch.cat([limits, torch.zeros(3, 1)], dim=1))
    fell_back = []
    for state in states:
        first, second = one.act(state), two.act(state)
        assert torch.allclose(first.action, second.action, atol=1e-6)
        assert torch.equal(first.chosen, second.chosen)
        one.observe(torch.zeros(3, 1), torch.full((3, 1), 0.5))
        two.observe(torch.zeros(3, 1), torch.tensor([0.5, 0.0]).expand(3, 2))
        fell_back += first.fell_back.tolist()
    assert any(fell_back), "some decisions were the fallback's"
    assert not all(fell_back), "some decisions were safe"


def scaled(store: TrajectoryStore, factor: float) -> TrajectoryStore:
    parts = [
        Trajectory.of(
            t.state, t.action, t.reward * factor, t.final_state, terminated=True, truncated=False
        )
        for t in store
    ]
    return TrajectoryStore.of(parts, store.environment)


def test_scaling_rewards_costs_and_limits_changes_no_decision():
    """Seen to fail when a quantity bypasses the normaliser."""
    from saformer.criteria import CostCriterion

    factor = 1000.0
    store = allowance.dataset(episodes=50)
    dear = CostCriterion("dear", lambda step: factor * np.abs(step.action).sum(-1))
    plain = SaFormerAgent.create(relabel(store, allowance.criteria()), tiny_config(), seed=0)
    large = SaFormerAgent.create(relabel(scaled(store, factor), [dear]), tiny_config(), seed=0)
    randomise(plain.model)
    randomise(large.model)
    policies = plain.policy(), large.policy()
    for policy, unit in zip(policies, (1.0, factor), strict=True):
        policy.reset([1.0, 1.0], 6.0 * unit)
    for _ in range(5):
        small, big = (policy.act([0.5, 1.2]) for policy in policies)
        assert torch.allclose(small.action, big.action, atol=1e-4)
        assert torch.allclose(small.candidates.action, big.candidates.action, atol=1e-4)
        assert torch.equal(small.chosen, big.chosen)
        policies[0].observe(0.0, 0.7)
        policies[1].observe(0.0, 0.7 * factor)


def test_gaussian_agrees_with_torch():
    mean, log_deviation = torch.randn(4, 3), torch.randn(4, 3)
    value = torch.randn(4, 3)
    ours = Gaussian(mean, log_deviation)
    theirs = torch.distributions.Independent(
        torch.distributions.Normal(mean, log_deviation.exp()), 1
    )
    assert torch.allclose(ours.log_prob(value), theirs.log_prob(value), atol=1e-5)
    assert torch.allclose(ours.entropy(), theirs.entropy(), atol=1e-5)
