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
from saformer.agents.parts import Multiplier, divergence_from_normal
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
    data = short_episodes(spread=spread)
    if kind == "bcq_lag":
        agent = BCQLagAgent.create(
            data, BCQLagConfig(limit=(limit,), candidates=3, multiplier=1.0, **SMALL), seed=0
        )
    else:
        agent = CPQAgent.create(data, CPQConfig(limit=(limit,), **SMALL), seed=0)
    fit(agent, agent.sampler(data), FIT, seed=0)
    agent.model.eval()
    return agent


def values(agent) -> tuple[float, float]:
    """Reward and cost to come at the beginning of an episode, in raw units, by the critics."""
    model, action = agent.model, torch.zeros(1, 1)
    state, step = model.units.state(BEGUN), torch.zeros(1, dtype=torch.int64)
    with torch.no_grad():
        reward = model.reward(state, action).mean(0) * model.units.get_buffer("reward")
        cost = model.units.raw_cost(model.all_cost(model.cost, state, step, action).mean(0))
    return reward.item(), cost.item()


@pytest.mark.parametrize(("kind", "limit"), [("bcq_lag", 3.0), ("cpq", 9.0)])
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


@pytest.mark.parametrize(("limit", "safe"), [(1.0, False), (9.0, True)])
def test_cpq_calls_an_episode_safe_by_all_of_its_cost(limit, safe):
    """Seen to fail when it is held against a step's share of the limit."""
    assert counts_on(trained("cpq", limit).model) == safe


def counts_on(model) -> bool:
    """Whether CPQ counts on what its policy does at the beginning of an episode."""
    step = torch.zeros(1, dtype=torch.int64)
    return model.expected(model.units.state(BEGUN), step, torch.tensor(float("inf")))[1].item()


def test_cpq_counts_on_nothing_that_is_not_safe():
    """Under a limit of 1 every state is unsafe, so that a step is worth what it earns itself.

    Seen to fail when rewards are backed up everywhere.
    """
    assert values(trained("cpq", 1.0))[0] == pytest.approx(1.0, rel=0.25)


@pytest.mark.parametrize("kind", ["bcq_lag", "cpq"])
def test_what_a_step_costs_by_itself_is_known(kind):
    """Whatever a critic says of those after it. Seen to fail when nothing teaches it."""
    agent, data = trained(kind, 9.0), short_episodes()
    batch = agent.model.units.transitions(
        agent.sampler(data).sample(200, torch.Generator().manual_seed(0))
    )
    with torch.no_grad():
        found = agent.model.step_cost(batch.state, batch.action)
    assert batch.cost.unique().numel() == 2
    assert (found - batch.cost).abs().max() < 0.2 * batch.cost.max()


@pytest.mark.parametrize("kind", ["bcq_lag", "cpq"])
def test_nothing_follows_the_last_step_of_the_horizon(kind):
    """Whatever the critic says. Seen to fail when what follows is timed as the step itself."""
    make, config = MADE[kind]
    model = make.create(short_episodes(), config(limit=(3.0,), **SMALL), seed=0).model.eval()
    state, action = model.units.state(BEGUN), torch.zeros(1, 1)
    found = model.all_cost(model.cost, state, torch.tensor([HORIZON - 1]), action)
    assert (
        found.flatten().tolist()
        == model.step_cost(state, action).expand(2, 1, 1).flatten().tolist()
    )


def test_a_steps_cost_is_worth_the_multiplier_in_a_steps_reward():
    """However many steps each critic counts. Seen to fail when costs are priced by the share of
    their own scale."""
    data = short_episodes()
    agent = BCQLagAgent.create(
        data, BCQLagConfig(limit=(3.0,), multiplier=0.5, discount=0.9, **SMALL), seed=0
    )
    model = agent.model
    assert model.reward.scale == pytest.approx(10)
    assert model.cost.scale == HORIZON
    assert model.priced(torch.tensor([[7.0]]), torch.tensor([[4.0]])).item() == pytest.approx(
        (7 - 0.5 * 4) / 10
    )
    told_alike(model, 40.0)
    batch = agent.sampler(data).transitions(torch.tensor([0]), torch.tensor([0]))
    assert agent.perturbation_terms(batch)["cost"].sums.item() == pytest.approx(
        0.5 * 40.0 * (1 - 1 / HORIZON) / 10
    )


def test_unfamiliar_actions_look_costly():
    """The data acts within 0.2 of 0; evenly drawn actions look costlier than the limit, its own do
    not.

    Seen to fail when the penalty has no gradient.
    """
    data, agent = short_episodes(spread=0.2), trained("cpq", 3.0, spread=0.2)
    model, batch = agent.model, agent.sampler(data).sample(200, torch.Generator().manual_seed(0))
    batch = model.units.transitions(batch)
    far = torch.where(
        torch.rand(200, 1, generator=torch.Generator().manual_seed(1)) < 0.5, -0.8, 0.8
    )
    with torch.no_grad():
        own, other = (
            model.all_cost(model.cost, batch.state, batch.timestep, a).mean(0)
            for a in (batch.action, far)
        )
    allowed = model.allowed(batch.timestep)
    assert (other > allowed).float().mean() > 0.95
    assert (own <= allowed).float().mean() > 0.95


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
    told_alike(model, 5.0)
    steps = torch.tensor([0, HORIZON // 2, HORIZON])
    found = model.cost(
        model.timed(model.units.state(BEGUN).expand(3, -1), steps), torch.zeros(3, 1)
    )
    assert found.flatten().tolist() == pytest.approx([*said, *said])


def test_unfamiliar_actions_need_not_look_costlier_than_unsafe_ones_of_the_data():
    """What is unsafe already is no safer for a neighbour beyond it. Seen to fail when a margin lies
    between them."""
    data = short_episodes(spread=0.2)
    agent = CPQAgent.create(data, CPQConfig(limit=(3.0,), **SMALL), seed=0)
    batch = agent.sampler(data).sample(64, torch.Generator().manual_seed(0))
    for said, is_enough in ((1000.0, True), (0.0, False)):
        told_alike(agent.model, said)
        assert (agent.cost_terms(batch)["penalty"].sums.max().item() == 0) == is_enough


def acting_strangely(monkeypatch):
    """CPQ's model with a policy that leaves what the data does, steps of the data, and what counts
    as strange."""
    data, agent = short_episodes(spread=0.2), trained("cpq", 3.0, spread=0.2)
    model, batch = agent.model, agent.sampler(data).sample(200, torch.Generator().manual_seed(0))
    batch = model.units.transitions(batch)
    monkeypatch.setattr(model, "drawn", lambda timed: torch.full((*timed.shape[:-1], 1), 0.8))
    monkeypatch.setattr(model.step_cost, "forward", lambda _, action: torch.zeros(len(action), 1))
    threshold = model.threshold(batch)
    _, strange = model.examined(batch, model.timed(batch.state, batch.timestep), threshold)
    assert strange[:, : strange.shape[1] // 2].all()
    return model, batch, threshold


def test_what_strange_actions_cost_is_not_backed_up(monkeypatch):
    """Where the policy acts strangely, what follows costs what the data's actions do.

    Seen to fail when what is said of strange actions is counted on.
    """
    model, batch, threshold = acting_strangely(monkeypatch)
    monkeypatch.setattr(
        model.honest_target, "forward", lambda timed, action: action[None].expand(2, -1, -1).abs()
    )
    assert (model.expected_cost(batch.state, batch.timestep, threshold) < 0.5).all()
    assert (
        model.expected_cost(batch.state, batch.timestep, torch.tensor(float("inf"))) > 0.5
    ).all()


def test_penalties_are_not_backed_up():
    """Whatever the penalised critic says. Seen to fail when the next state's cost is asked of
    it."""
    data, agent = (
        short_episodes(),
        CPQAgent.create(short_episodes(), CPQConfig(limit=(3.0,), **SMALL), seed=0),
    )
    batch, found = agent.sampler(data).sample(64, torch.Generator().manual_seed(0)), []
    for said in (0.0, 1000.0):
        agent.model.cost_target.begin_at(torch.tensor([said]))
        torch.manual_seed(0)
        found.append(agent.cost_terms(batch)["honest_error"].sums.tolist())
    assert found[0] == found[1]


def test_what_strange_actions_earn_is_not_backed_up(monkeypatch):
    """Where the policy acts strangely, what follows earns what the data's actions do, and is as
    safe as those.

    Seen to fail when what is said of strange actions is counted on.
    """
    model, batch, threshold = acting_strangely(monkeypatch)
    said = 1000 * model.units.get_buffer("limit")
    monkeypatch.setattr(
        model.reward_target, "forward", lambda state, action: action[None].expand(2, -1, -1).abs()
    )
    monkeypatch.setattr(
        model.cost_target, "forward", lambda timed, action: said * (action > 0.5).expand(2, -1, -1)
    )
    for at_most, is_usual in ((threshold, True), (torch.tensor(float("inf")), False)):
        reward, counts = model.expected(batch.state, batch.timestep, at_most)
        assert ((reward < 0.5) == is_usual).all()
        assert (counts == is_usual).all()


@pytest.mark.parametrize(("said", "counts"), [(3.0, True), (3.1, True), (3.2, False)])
def test_cpq_counts_on_what_is_nearly_safe(said, counts):
    """Up to half of the margin of a tenth. Seen to fail when the future is cut off at the limit
    itself."""
    model = CPQAgent.create(short_episodes(), CPQConfig(limit=(3.0,), **SMALL), seed=0).model
    told_alike(model, said / model.units.get_buffer("cost").item())
    model.cost_target.load_state_dict(model.cost.state_dict())
    assert counts_on(model) == counts


def told_alike(model, value: float) -> None:
    """Let the cost critic say this of everything, of a whole horizon; steps cost nothing of their
    own."""
    with torch.no_grad():
        model.step_cost.network.output.weight.zero_()
        model.step_cost.network.output.bias.zero_()
        model.cost.output.weight.zero_()
        model.cost.begin_at(torch.tensor([value]))


@pytest.mark.parametrize("kind", ["bcq_lag", "cpq"])
def test_no_cost_to_come_is_negative(kind):
    """However low a critic's output. Seen to fail when costs are backed up as they come."""
    data = short_episodes()
    make, config = MADE[kind]
    model = make.create(data, config(limit=(3.0,), **SMALL), seed=0).model
    state, step = model.units.state(BEGUN), torch.zeros(1, dtype=torch.int64)
    if kind == "bcq_lag":
        model.cost_target.begin_at(torch.tensor([-1000.0]))
        assert model.best(state, step, torch.zeros(1, 2, 2))[2].item() == 0
    else:
        model.honest_target.begin_at(torch.tensor([-1000.0]))
        assert model.expected_cost(state, step, torch.tensor(float("inf"))).item() == 0


def test_a_multiplier_rises_falls_and_waits_at_zero():
    """Its gradient is the excess, reversed. Seen to fail when it goes on falling below 0."""
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
    assert divergence_from_normal(code).item() == pytest.approx(0.5 + 1.5 - 0.6931472)


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
    assert agent.model.advantage(batch)[0].tolist() == pytest.approx([2.0, 2.0 - 0.5 * 5**0.5])
