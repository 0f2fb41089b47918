"""DT, CDT and BC-Safe: what is each one's own."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from saformer.agents.bc_safe import BCSafeAgent, BCSafeConfig
from saformer.agents.cdt import CDTAgent, CDTConfig, CDTOptions
from saformer.agents.dt import DTAgent, DTConfig, DTOptions, usual_target
from saformer.agents.sequence import SequenceOptions
from saformer.core.batch import WindowBatch
from saformer.core.gaussian import Gaussian
from saformer.core.objectives import over_valid_steps
from saformer.core.transformer import TrunkConfig
from saformer.data.limits import pareto_front
from saformer.training.loop.config import FitConfig
from tests.alone import Trainer
from tests.conftest import randomise

TRUNK = TrunkConfig(layers=2, width=16, heads=2, dropout=0.0)
FIT = FitConfig(updates=50, batch_size=16, warmup_updates=0)


def dt(data, **changes) -> DTAgent:
    agent = DTAgent.create(data, DTConfig(window=4, trunk=TRUNK, **changes), seed=0)
    randomise(agent.model)
    return agent


def cdt(data, **changes) -> CDTAgent:
    agent = CDTAgent.create(data, CDTConfig(window=4, trunk=TRUNK, **changes), seed=0)
    randomise(agent.model.sequence)
    return agent


def bc(data, **changes) -> BCSafeAgent:
    return BCSafeAgent.create(
        data, BCSafeConfig(trunk=TRUNK, **{"limit": (8.0,), **changes}), seed=0
    )


def test_dt_learns_by_eq_2(data, batch):
    agent = dt(data)
    normal = agent.model.normalizer.window(batch)
    error = (agent.model(normal) - normal.action).square().sum(-1)
    assert torch.allclose(
        agent.actor_terms(batch)["action"].sums, over_valid_steps(error, batch.valid).sums
    )


@pytest.mark.parametrize("kind", [dt, cdt])
def test_acting_reads_what_training_reads(data, kind):
    """Six steps of an episode through the policy, then the last window of it as training would see
    it.

    Seen to fail when what was earned is added to the return that is asked for.
    """
    agent = kind(data)
    sequence = agent.model.sequence if kind is cdt else agent.model
    limit, target, generator = 7.0, 9.0, torch.Generator().manual_seed(0)
    states = torch.randn(6, 1, 2, generator=generator)
    rewards, costs = torch.rand(2, 6, 1, 1, generator=generator)
    policy = agent.policy((CDTOptions if kind is cdt else DTOptions)(target_return=target))
    policy.reset(states[0], limit)
    actions = []
    for state, reward, cost in zip(states, rewards, costs, strict=True):
        actions.append(policy.act(state).action)
        policy.observe(reward, cost)
    earned = torch.cat([torch.zeros(1), rewards.flatten().cumsum(0)[:-1]])
    spent = torch.cat([torch.zeros(1), costs.flatten().cumsum(0)[:-1]])
    window = WindowBatch(
        limit=torch.full((1, 1), limit),
        cost_to_go=(limit - spent)[None, 2:, None],
        return_to_go=(target - earned)[None, 2:, None],
        state=states[2:].transpose(0, 1),
        action=torch.cat(actions)[None, 2:],
        timestep=torch.arange(2, 6)[None],
        valid=torch.ones(1, 4, dtype=torch.bool),
    )
    with torch.no_grad():
        predicted = sequence.eval()(sequence.normalizer.window(window))
    mean = predicted if kind is dt else predicted.mean
    assert torch.allclose(sequence.raw_action(mean[0, -1:]), actions[-1], atol=1e-5)


def test_dt_is_asked_for_the_papers_returns(data):
    """3600, 5000 and 6000 for its robots, the highest stored elsewhere. Seen to fail when robots
    are mixed up."""

    def of(identifier: str | None) -> float:
        environment = replace(data.store.environment, identifier=identifier)
        return usual_target(replace(data, store=replace(data.store, environment=environment)))

    assert [of(f"{robot}-v5") for robot in ("Hopper", "Walker2d", "HalfCheetah")] == [
        3600,
        5000,
        6000,
    ]
    assert of(None) == data.episode_return.max()
    for options, expected in (
        (None, data.episode_return.max()),
        (DTOptions(target_return=3.5), 3.5),
    ):
        policy = dt(data).policy(options)
        policy.reset([1.0, 1.0], 5.0)
        assert policy.act([1.0, 1.0]).return_to_go.item() == pytest.approx(expected, rel=1e-6)


def test_dt_pays_no_heed_to_limits(data):
    policy = dt(data).policy()
    policy.reset([[1.0, 1.0], [1.0, 1.0]], [[1.0], [19.0]])
    first, second = policy.act([[1.0, 1.0], [1.0, 1.0]]).action
    assert torch.equal(first, second)


def test_a_point_cannot_be_drawn_from(data):
    with pytest.raises(ValueError, match="needs a Gaussian: train with --action gaussian"):
        dt(data).policy(DTOptions(noise="normal"))
    dt(data, action="gaussian").policy(DTOptions(noise="normal"))


def test_drawing():
    """Seen to fail when both points lie on the same side."""
    gaussian = Gaussian(torch.full((4000, 1), 2.0), torch.full((4000, 1), np.log(0.5)))
    generator = torch.Generator().manual_seed(0)
    assert SequenceOptions("none").draw(gaussian, generator).unique().tolist() == [2.0]
    points = SequenceOptions("two_point", temperature=2.0).draw(gaussian, generator)
    assert points.unique().tolist() == [1.0, 3.0]
    assert 0.45 < (points == 3.0).float().mean() < 0.55
    drawn = SequenceOptions("normal").draw(gaussian, generator)
    assert drawn.std().item() == pytest.approx(0.5, rel=0.05)


def test_cdt_asks_for_the_best_that_the_data_shows_within_a_limit(data):
    """Seen to fail when the limit is not looked at."""
    model = cdt(data).model
    limits = np.array([[2.0], [5.0], [9.0], [15.0], [30.0]])
    found = model.best_return(torch.tensor(limits, dtype=torch.float32)).numpy()
    best = [data.episode_return[(data.episode_cost <= limit).all(-1)].max() for limit in limits]
    assert len(pareto_front(data)) <= 64, "else the model remembers a choice of the front"
    assert found == pytest.approx(best, rel=1e-6)
    assert model.best_return(torch.zeros(1, 1)).item() == pytest.approx(
        data.episode_return[pareto_front(data)].min()
    )


@pytest.mark.parametrize(("target", "rises"), [(5.0, True), (-20.0, False)])
def test_the_temperature_rises_while_the_entropy_is_too_low(data, target, rises):
    """And takes the entropy with it. Seen to fail when the dual has the wrong sign."""
    agent = CDTAgent.create(
        data, CDTConfig(window=4, trunk=TRUNK, target_entropy=target, temperature_rate=0.05), seed=0
    )
    trainer = Trainer(agent, agent.sampler(data), FIT, seed=0)
    found = [trainer.step() for _ in range(50)]
    log_temperature = agent.model.temperature(torch.zeros(1)).item()
    assert (log_temperature > np.log(0.1)) == rises
    assert (found[-1]["temperature/dual"] > 0) != rises


def test_the_entropy_is_summed_over_dimensions(two_cost_data):
    """Two dimensions, each of entropy h: 2h is held against -2, not h. Seen to fail when it is
    averaged."""
    agent = cdt(two_cost_data)
    batch = agent.sampler(two_cost_data).sample(8, torch.Generator().manual_seed(0))
    with torch.no_grad():
        action = agent.model.sequence(agent.model.sequence.normalizer.window(batch))
        of_one_dimension = action.log_deviation + 0.5 * np.log(2 * np.pi * np.e)
        expected = 0.1 * (of_one_dimension.sum(-1)[batch.valid].mean() + 2)
        dual = agent.temperature_terms(batch)["dual"].mean()
    assert dual.item() == pytest.approx(expected.item(), rel=1e-5)


def test_the_temperature_does_not_decay(data):
    """Weight decay would drag it to 1. Seen to fail when the phase has the network's."""
    phase = cdt(data).phases[1]
    assert phase.name == "temperature"
    assert phase.weight_decay == 0
    assert phase.learning_rate == 1e-4


def test_cdt_predicts_real_costs(data, batch):
    """What a step costs is what the cost-to-go falls by, in any amount. Seen to fail when it is cut
    at 1."""
    agent = cdt(data, cost_weight=0.5)
    sequence = agent.model.sequence
    dear = replace(batch, cost_to_go=batch.cost_to_go * 100)
    normal = sequence.normalizer.window(dear)
    with torch.no_grad():
        predicted = sequence.head_outputs(normal, {"action": agent.model.cost_head})[0][:, :-1, 0]
    cost = (
        20
        * (dear.cost_to_go[:, :-1, 0] - dear.cost_to_go[:, 1:, 0])
        / sequence.normalizer.scale("cost_to_go")
    )
    assert cost.max() > 100
    counted = dear.valid[:, 1:]
    expected = 0.5 * ((predicted - cost) ** 2)[counted].sum() / counted.sum()
    assert agent.actor_terms(dear)["cost_error"].mean().item() == pytest.approx(
        expected.item(), rel=1e-4
    )


@pytest.mark.parametrize("best", [1.0, 0.25])
def test_bc_safe_learns_from_what_stayed_within_the_limit(data, best):
    """Seen to fail when it learns from everything."""
    limit = 8.0
    agent = bc(data, limit=(limit,), best=best, window=4)
    seen = agent.sampler(data).sample(2000, torch.Generator().manual_seed(0))
    assert seen.limit.max() <= limit
    within = np.sort(data.episode_return[data.episode_cost[:, 0] <= limit])
    least = within[-round(best * len(within))]
    begun = seen.timestep[:, 0] == 0
    assert seen.return_to_go[begun, 0].min().item() == pytest.approx(least, rel=1e-5)


def test_bc_safe_refuses_what_it_cannot_learn(data, two_cost_data):
    with pytest.raises(ValueError, match="nothing to learn from: the cheapest costs"):
        bc(data, limit=(0.01,))
    with pytest.raises(ValueError, match="one limit for each of 1 constraints, got"):
        bc(data, limit=())
    with pytest.raises(ValueError, match="one limit for each of 2 constraints"):
        bc(two_cost_data)


def test_bc_safe_asks_for_no_return(data):
    policy = bc(data).policy(SequenceOptions())
    policy.reset([1.0, 1.0], 5.0)
    assert policy.act([1.0, 1.0]).return_to_go is None


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: DTConfig(window=0), "window must be at least 1"),
        (lambda: CDTConfig(cost_discount=0.0), "cost_discount must lie in"),
        (lambda: CDTConfig(initial_temperature=0.0), "initial_temperature must be above 0"),
        (lambda: CDTConfig(augmentation=-0.1), "augmentation must be at least 0"),
        (lambda: BCSafeConfig(best=0.0), "best must lie in"),
        (lambda: SequenceOptions(temperature=-1.0), "temperature must be at least 0"),
    ],
)
def test_wrong_settings_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        wrong()
