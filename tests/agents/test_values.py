"""What is learnt, where it is known in closed form."""

from functools import cache

import pytest
import torch

from saformer.agents.bcq_lag import BCQLagAgent, BCQLagConfig
from saformer.agents.coptidice import (
    COptiDICEAgent,
    COptiDICEConfig,
    conjugate,
    correction,
    episode_mass,
)
from saformer.agents.cpq import CPQAgent, CPQConfig
from saformer.agents.networks import Multiplier, kl_from_normal
from saformer.core.gaussian import Gaussian
from saformer.data.relabel import relabel
from saformer.training.loop.config import FitConfig
from tests.agents.made import HORIZON, LENGTH, short_episodes
from tests.alone import fit

FIT = FitConfig(updates=600, batch_size=64, learning_rate=5e-3, warmup_updates=0)
SMALL = {"hidden": (32, 32), "dropout": 0.0, "average_rate": 0.2}
BEGUN = torch.tensor([[0.0]])
MADE = {"bcq_lag": (BCQLagAgent, BCQLagConfig), "cpq": (CPQAgent, CPQConfig)}


@cache
def trained(kind: str, limit: float, spread: float = 1.0):
    """An agent that has learnt from short episodes under this limit."""
    torch.set_num_threads(1)  # the same sums in the same order, however many cores there are
    data, (make, config) = short_episodes(spread=spread), MADE[kind]
    own = {"candidates": 3, "multiplier": 1.0} if kind == "bcq_lag" else {}
    agent = make.create(data, config(limit=(limit,), **own, **SMALL), seed=0)
    fit(agent, agent.sampler(data), FIT, seed=0)
    agent.model.eval()
    return agent


def values(agent) -> tuple[float, float]:
    """Reward and cost to come at the beginning of an episode, in raw units, by the critics."""
    model, action = agent.model, torch.zeros(1, 1)
    state, step = model.units.state(BEGUN), torch.zeros(1, dtype=torch.int64)
    with torch.no_grad():
        reward = model.critic(state, action).mean(0) * model.units.get_buffer("reward")
        cost = model.units.raw_cost(model.cost_critic(model.timed(state, step), action).mean(0))
    return reward.item(), cost.item()


@pytest.mark.parametrize(
    ("kind", "limit"), [("bcq_lag", 3.0), pytest.param("cpq", 9.0, marks=pytest.mark.long)]
)
def test_critics_know_what_an_episode_brings(kind, limit):
    """Five steps earn 1 each, discounted; the last costs 2. The horizon of 100 does not come into
    it.

    Seen to fail when reward and cost critic are swapped, and when nothing ends at a termination.
    """
    reward, cost = values(trained(kind, limit))
    assert reward == pytest.approx(sum(0.99**t for t in range(LENGTH)), rel=0.1)
    assert cost == pytest.approx(2.0, rel=0.15)


@pytest.mark.parametrize(("limit", "rises"), [(1.0, True), (3.0, False)])
def test_the_multiplier_follows_the_cost_of_whole_episodes_that_end_early(limit, rises):
    """An episode costs 2, after 5 steps of 100. As a rate per step of the horizon, 3 would be
    broken ten times over.

    Seen to fail when the limit is spread over the horizon.
    """
    assert (trained("bcq_lag", limit).model.multiplier().item() > 1) == rises


def test_cpq_counts_on_nothing_that_is_not_safe():
    """Under a limit of 1 every state is unsafe, so that a step is worth what it earns itself.

    Seen to fail when rewards are backed up everywhere.
    """
    assert values(trained("cpq", 1.0))[0] == pytest.approx(1.0, rel=0.25)


def test_a_steps_cost_is_worth_the_multiplier_in_a_steps_reward():
    """However many steps each critic counts. Seen to fail when costs are priced by the share of
    their own scale."""
    data = short_episodes()
    config = BCQLagConfig(limit=(3.0,), multiplier=0.5, discount=0.9, **SMALL)
    agent = BCQLagAgent.create(data, config, seed=0)
    assert agent.model.critic.scale == pytest.approx(10)
    assert agent.model.cost_critic.scale == HORIZON
    constant_cost(agent.model, 40.0)
    batch = agent.sampler(data).transitions(torch.tensor([0]), torch.tensor([0]))
    cost = agent.perturbation_loss(batch)["cost"].sums.item()
    assert cost == pytest.approx(0.5 * 40.0 / 10)


def constant_cost(model, value: float) -> None:
    """Let the cost critic say this of everything, of a whole horizon."""
    with torch.no_grad():
        model.cost_critic.output.weight.zero_()
        model.cost_critic.begin_at(torch.tensor([value]))


def cpq(*, spread: float = 0.2, **changes) -> CPQAgent:
    config = CPQConfig(limit=(3.0,), **SMALL, **changes)
    return CPQAgent.create(short_episodes(spread=spread), config, seed=0)


def test_actions_unlike_the_data_are_out_of_distribution(monkeypatch):
    """The data acts within 0.2 of 0: actions of 0.8 are out of it, and all but a twentieth of its
    own are not. Seen to fail when the threshold is that of the actor's own actions."""
    agent = trained("cpq", 3.0, 0.2)
    model, batch = agent.model, some_steps(agent)
    timed = model.timed(batch.state, batch.timestep)
    own = batch.action[:, None].expand(-1, 10, -1)
    for action, share in ((torch.full((200, 10, 1), 0.8), 1.0), (own, 0.05)):
        monkeypatch.setattr(model.actor, "sample", lambda _, action=action: action)
        _, is_ood = agent._out_of_distribution(batch.state, timed, batch.action)
        assert is_ood.float().mean().item() == pytest.approx(share, abs=0.02)


def some_steps(agent, count: int = 200):
    data = short_episodes(spread=0.2)
    batch = agent.sampler(data).sample(count, torch.Generator().manual_seed(0))
    return agent.model.units.transitions(batch)


@pytest.mark.parametrize(("said", "rises"), [(1.0, True), (5.0, False)])
def test_alpha_rises_while_unfamiliar_actions_look_cheaper_than_the_limit(said, rises):
    """Its gradient is l - Q_c of these actions, reversed. Seen to fail when the sign is lost."""
    agent = cpq()
    data, model = short_episodes(spread=0.2), agent.model
    constant_cost(model, said / model.units.get_buffer("cost").item())
    with torch.no_grad():
        model.alpha.value.fill_(1.0)
    terms = agent.cost_critic_loss(agent.sampler(data).sample(64, torch.Generator().manual_seed(0)))
    (terms["alpha"].mean() + terms["penalty"].mean()).backward()
    assert (model.alpha.value.grad.item() < 0) == rises
    assert model.cost_critic.output.bias.grad.item() < 0, "the penalty raises their cost"


@pytest.mark.parametrize(("recovery", "moves"), [(False, False), (True, True)])
def test_what_moves_unsafe_actions(recovery, moves):
    """In the original nothing does. Seen to fail when unsafe actions still seek reward."""
    agent = cpq(recovery=recovery)
    with torch.no_grad():
        agent.model.cost_critic.begin_at(torch.tensor([1000.0]))
    data = short_episodes(spread=0.2)
    batch = agent.sampler(data).sample(64, torch.Generator().manual_seed(0))
    loss = sum(t.mean() for t in agent.actor_loss(batch).values() if not t.watched)
    gradient = torch.autograd.grad(loss, tuple(agent.model.actor.parameters()))
    assert any(part.abs().sum() > 0 for part in gradient) == moves


def test_a_limit_is_held_against_the_first_state_whole():
    """Undiscounted, later steps have their share of it. Seen to fail when a limit per episode is
    compared at every step."""
    steps, agent = torch.tensor([0, HORIZON // 4, HORIZON, HORIZON + 5]), cpq()
    limit = agent.model.units.raw_cost(agent._limit(steps))
    assert limit[:, 0].tolist() == pytest.approx([3.0, 2.25, 0.0, 0.0])


@pytest.mark.parametrize(("discount", "said"), [(1.0, [5.0, 2.5, 0.0]), (0.99, [5.0, 5.0, 5.0])])
@pytest.mark.parametrize("kind", ["bcq_lag", "cpq"])
def test_an_undiscounted_cost_critic_begins_with_what_is_left_of_the_horizon(kind, discount, said):
    """At its beginning, half-way and at its end. Seen to fail when values must travel from the
    horizon first."""
    make, config = MADE[kind]
    data = relabel(short_episodes().store, short_episodes().criteria, cost_discount=discount)
    model = make.create(
        data, config(limit=(3.0,), cost_discount=discount, **SMALL), seed=0
    ).model.eval()
    constant_cost(model, 5.0)
    steps = torch.tensor([0, HORIZON // 2, HORIZON])
    timed = model.timed(model.units.state(BEGUN).expand(3, -1), steps)
    for member in model.cost_critic(timed, torch.zeros(3, 1)):
        assert member.flatten().tolist() == pytest.approx(said)


def test_a_multiplier_rises_falls_and_waits_at_its_bounds():
    """Its gradient is the excess, reversed. Seen to fail when it goes on falling below 0."""
    multiplier = Multiplier(2, 0.5, highest=0.5)
    multiplier.loss(torch.tensor([[2.0, -1.0]])).mean().backward()
    assert multiplier.value.grad.tolist() == [0.0, 1.0]
    multiplier = Multiplier(2, 0.5)
    multiplier.loss(torch.tensor([[2.0, -1.0], [4.0, -1.0]])).mean().backward()
    assert multiplier.value.grad.tolist() == [-3.0, 1.0]
    with torch.no_grad():
        multiplier.value.copy_(torch.tensor([0.0, -0.1]))
    multiplier.value.grad = None
    multiplier.loss(torch.tensor([[2.0, -1.0]])).mean().backward()
    assert multiplier.value.grad.tolist() == [-2.0, 0.0]
    assert multiplier().tolist() == [0.0, 0.0]


def test_the_code_diverges_as_two_normals_do():
    """(s^2 + m^2 - 1) / 2 - log s. Seen to fail when the deviation is taken for the variance."""
    code = Gaussian(torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 2.0]]).log())
    assert kl_from_normal(code).item() == pytest.approx(0.5 + 1.5 - 0.6931472)


def test_corrections_are_the_slope_of_the_conjugate():
    """Values by hand: exp(y) - 1 below 0, y^2 / 2 + y above. Seen to fail with the plain
    chi-square."""
    advantage = torch.tensor([-1.0, 0.0, 2.0], requires_grad=True)
    found = conjugate(advantage)
    assert found.tolist() == pytest.approx([-0.6321206, 0.0, 4.0])
    found.sum().backward()
    assert advantage.grad.tolist() == pytest.approx([0.3678794, 1.0, 3.0])
    assert correction(advantage).tolist() == pytest.approx([0.3678794, 1.0, 3.0])


def test_an_episode_counts_as_many_steps_as_it_has():
    """Seen to fail when the horizon is taken for the length of every episode."""
    data = short_episodes()
    assert episode_mass(data, 1.0) == LENGTH != HORIZON
    assert episode_mass(data, 0.9) == pytest.approx(4.0951)


def test_coptidice_prices_cost_against_reward():
    """With values of 0, an advantage is reward less priced cost. Seen to fail when the two are
    swapped."""
    data = short_episodes()
    agent = COptiDICEAgent.create(
        data, COptiDICEConfig(limit=(3.0,), caution=0.5, multiplier=0.25), seed=0
    )
    with torch.no_grad():
        for parameter in agent.model.value.parameters():
            parameter.zero_()
    batch = agent.sampler(data).transitions(torch.tensor([0, LENGTH - 1]), torch.tensor([0, 0]))
    batch = agent.model.units.transitions(batch)
    assert batch.reward[:, 0].tolist() == [1.0, 1.0]
    assert batch.cost[:, 0].tolist() == pytest.approx(
        [0.0, 5**0.5]
    )  # the root mean square of a step is 2 / sqrt(5)
    assert agent._advantage(batch)[0].tolist() == pytest.approx([2.0, 2.0 - 0.5 * 5**0.5])
