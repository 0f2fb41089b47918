"""No episode passes its limit, whatever the policy does; and the policy knows what was done in its
name."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from saformer import Shield
from saformer.agents.registry import create_agent
from saformer.agents.saformer import SaFormerAgent
from saformer.core.budget import Budget
from saformer.core.policy import Decision
from saformer.criteria import Step, criterion
from saformer.data.store import EnvironmentSpec
from saformer.envs import allowance
from saformer.envs.lanes import Maker
from saformer.envs.rollout import rollout
from saformer.shield import LimitBlind
from tests.conftest import tiny_config
from tests.contracts.cases import CASES

BOUNDS = {"action_low": (-1.0, -1.0), "action_high": (1.0, 1.0)}


class Reckless:
    """Acts at random, without a thought for limits; remembers what it is told."""

    def __init__(
        self, *, constraints: int, actions: int = 2, cost_discount: float = 1.0, size: float = 1.5
    ) -> None:
        self._constraints, self._actions, self._size = constraints, actions, size
        self._generator, self.cost_discount = torch.Generator().manual_seed(0), cost_discount
        self.budget = Budget(torch.zeros(0, constraints), cost_discount)
        self.executed: list[torch.Tensor] = []

    def reset(self, state, limit, lanes=None) -> None:
        limit = torch.as_tensor(limit, dtype=torch.float64).reshape(-1, self._constraints)
        if lanes is None:
            self.budget = Budget(limit.expand(len(state), -1), self.cost_discount)
        else:
            self.budget.renew(limit, lanes)

    def act(self, state, lanes=None) -> Decision:
        noise = torch.randn(len(state), self._actions, generator=self._generator)
        return Decision(self._size * noise)

    def observe(self, reward, cost, lanes=None, *, action=None) -> None:
        lanes = torch.arange(len(self.budget.limit)) if lanes is None else lanes
        self.budget.spend(torch.as_tensor(cost, dtype=torch.float32), lanes)
        self.executed.append(action)


def drive(
    shield, criteria, limits, *, steps, discount=1.0, cuts=None
) -> tuple[np.ndarray, list[Decision]]:
    """What each lane spends, counted apart from the shield, exactly; `cuts` names steps and the
    share that is left."""
    spent, decisions = [[[] for _ in criteria] for _ in limits], []
    state, costs = torch.zeros(len(limits), 2), [criterion(name) for name in criteria]
    shield.reset(state, torch.tensor(limits))
    for time in range(steps):
        if cuts and time in cuts:
            so_far = np.array([[math.fsum(account) for account in lane] for lane in spent])
            limits = so_far + cuts[time] * np.maximum(np.array(limits) - so_far, 0)
            shield.budget.limit = torch.from_numpy(limits.astype(np.float32))
        decision = shield.act(state)
        step = Step(action=decision.action.numpy())
        cost = np.stack([c(step) for c in costs], axis=-1)
        for lane, account in enumerate(spent):
            for place, entries in enumerate(account):
                entries.append(discount**time * cost[lane, place])
        shield.observe(torch.zeros(len(limits)), torch.from_numpy(cost))
        decisions.append(decision)
    total = np.array([[math.fsum(account) for account in lane] for lane in spent])
    return total - np.asarray(limits), decisions  # what was spent beyond the limit, and how


@settings(max_examples=60, deadline=None)
@given(
    criteria=st.lists(
        st.sampled_from(
            ["torque", "energy", "torque[0]", "torque[1]", "norm(action)", "action[0] > 0.2"]
        ),
        min_size=1,
        max_size=3,
        unique=True,
    ),
    limits=st.lists(
        st.lists(st.just(0.0) | st.floats(1e-6, 20), min_size=3, max_size=3), min_size=1, max_size=3
    ),
    discount=st.sampled_from([1.0, 0.99, 0.5]),
    cuts=st.dictionaries(st.integers(0, 39), st.floats(0, 1), max_size=3),
    size=st.sampled_from([0.01, 0.5, 5.0]),
)
def test_no_limit_is_passed_whatever_the_policy_does(criteria, limits, discount, cuts, size):
    """Random actions, limits, discounts, costs, and limits cut mid-episode. Seen to fail when
    nothing is projected and when a limit is read at the start alone.
    """
    policy = Reckless(constraints=len(criteria), cost_discount=discount, size=size)
    limits = [limit[: len(criteria)] for limit in limits]
    over, _ = drive(
        Shield(policy, criteria, **BOUNDS), criteria, limits, steps=40, discount=discount, cuts=cuts
    )
    assert (over <= 0).all()


def test_nearly_all_is_spent():
    """A shield that lets nothing happen keeps every limit too. Seen to fail when the margin is a
    tenth."""
    over, decisions = drive(
        Shield(Reckless(constraints=1), ["torque"], **BOUNDS), ["torque"], [[7.3]], steps=40
    )
    assert -1e-5 < over[0, 0] <= 0
    touched = [bool(decision.shielded) for decision in decisions]
    assert not touched[0]
    assert touched[-1]


def test_the_policy_learns_what_was_executed():
    """Seen to fail when it is told what it chose."""
    policy = Reckless(constraints=1)
    _, decisions = drive(Shield(policy, ["torque"], **BOUNDS), ["torque"], [[3.0], [9.0]], steps=30)
    assert any(decision.shielded.any() for decision in decisions)
    for told, decision in zip(policy.executed, decisions, strict=True):
        assert torch.equal(told, decision.action)


@pytest.mark.parametrize("name", list(CASES))
def test_every_agent_can_be_shielded(data, name):
    """Its history holds the executed action, its budget the real cost. Seen to fail when the
    history of either family keeps the chosen action.
    """
    agent = create_agent(data, CASES[name].config(0.0, 1), seed=0)
    plain, shield = (
        agent.policy(),
        Shield(agent.policy(), data.criteria, action_low=(-1.0,), action_high=(1.0,)),
    )
    states = torch.tensor([[1.0, 1.0], [1.0, 1.0]])
    plain.reset(states, [0.001, 50.0])
    shield.reset(states, [0.001, 50.0])
    chosen, decision = plain.act(states), shield.act(states)
    shield.observe([0.0, 0.0], decision.action.abs())
    assert torch.equal(decision.action[1], chosen.action[1])
    assert decision.action[0].abs() <= 0.001
    assert torch.equal(shield.budget.spent, decision.action.abs())
    if CASES[name].reads_windows:
        assert torch.equal(shield.policy.history.action[:, -1], decision.action)


def test_a_shield_that_is_not_needed_changes_no_decision(agent):
    """Seen to fail when actions are rounded on their way."""
    plain, shield = (
        agent.policy(),
        Shield(agent.policy(), ["torque"], action_low=(-1.0,), action_high=(1.0,)),
    )
    state = torch.tensor([[1.0, 1.0], [0.5, 0.2]])
    for policy in (plain, shield):
        policy.reset(state, [60.0, 80.0])
    for _ in range(6):
        chosen, decision = plain.act(state), shield.act(state)
        assert torch.equal(chosen.action, decision.action)
        assert torch.equal(chosen.return_to_go, decision.return_to_go)
        assert not decision.shielded.any()
        for policy in (plain, shield):
            policy.observe([0.0, 0.0], chosen.action.abs())


def test_lanes_keep_accounts_of_their_own():
    """A lane begun anew has all of its limit again, the other one goes on."""
    shield = Shield(Reckless(constraints=1), ["torque"], **BOUNDS)
    shield.reset(torch.zeros(2, 2), torch.tensor([[1.0], [1.0]]))
    for _ in range(10):
        decision = shield.act(torch.zeros(2, 2))
        shield.observe(torch.zeros(2), decision.action.abs().sum(1, keepdim=True))
    shield.reset(torch.zeros(1, 2), torch.tensor([[2.0]]), torch.tensor([1]))
    decision = shield.act(torch.zeros(2, 2))
    assert decision.action[0].abs().sum() < 1e-5
    assert decision.action[1].abs().sum() > 0.1


def test_what_is_told_counts_where_it_is_more():
    """A machine that wears more than was thought is believed. Seen to fail when it is not."""
    shield = Shield(Reckless(constraints=1), ["torque"], **BOUNDS)
    shield.reset(torch.zeros(1, 2), torch.tensor([[10.0]]))
    shield.act(torch.zeros(1, 2))
    shield.observe(torch.zeros(1), torch.tensor([[9.9]]))
    assert shield.act(torch.zeros(1, 2)).action.abs().sum() <= 0.1


def test_costs_that_nothing_avoids_are_set_aside():
    """0.25 a step for doing nothing. Seen to fail when all that remains is spent at once, and when
    discounts are forgotten.
    """
    names = ["0.25 + torque"]
    shield = Shield(Reckless(constraints=1, cost_discount=0.9), names, **BOUNDS, horizon=20)
    over, _ = drive(shield, names, [[4.0]], steps=20, discount=0.9)
    assert -1e-4 < over[0, 0] <= 0
    with pytest.raises(ValueError, match="beyond its horizon of 20 steps"):
        shield.act(torch.zeros(1, 2))


def test_costs_that_nothing_avoids_are_refused_where_they_cannot_be_kept():
    """Seen to fail when a limit is taken that even the cheapest actions pass."""
    with pytest.raises(
        ValueError, match=r"cheapest action costs 0.25 a step .*say how many .* horizon"
    ):
        Shield(Reckless(constraints=1), ["0.25 + torque"], **BOUNDS)
    shield = Shield(Reckless(constraints=1), ["0.25 + torque"], **BOUNDS, horizon=20)
    with pytest.raises(ValueError, match=r"limit of 4.9 cannot be kept: .* 5 over 20 steps"):
        shield.reset(torch.zeros(1, 2), 4.9)
    shield.reset(torch.zeros(1, 2), torch.tensor([[5.0]]))
    assert shield.act(torch.zeros(1, 2)).action.abs().max() == 0
    shield.observe(torch.zeros(1), torch.full((1, 1), 0.25))
    shield.budget.limit[:] = 1.0
    with pytest.warns(UserWarning, match="cut below what even the cheapest actions still cost"):
        shield.act(torch.zeros(1, 2))


def test_costs_of_the_state_alone_are_refused(agent):
    with pytest.raises(ValueError, match=r"no shield can enforce .*reads state.*--floor"):
        Shield(agent.policy(), ["above(state[0], 1)"], action_low=(-1.0,), action_high=(1.0,))


@pytest.mark.parametrize("discount", [1.0, 0.95])
@pytest.mark.parametrize("dimensions", [1, 2])
def test_allowance_episodes_stay_within(dimensions, discount):
    """As they are judged, without any tolerance. Seen to fail when nothing is kept back for
    rounding."""
    data = allowance.dataset(episodes=3, dimensions=dimensions)
    criteria = allowance.criteria(dimensions)
    bounds = {"action_low": (-1.0,) * dimensions, "action_high": (1.0,) * dimensions}
    policy = Reckless(constraints=dimensions, actions=dimensions, cost_discount=discount)
    limits = list(np.random.default_rng(0).uniform(0.1, 12, (300, dimensions)))
    episodes = rollout(
        Shield(policy, criteria, **bounds),
        Maker(data.environment, criteria),
        limits,
        range(300),
        horizon=20,
        workers=0,
    )
    for episode in episodes:
        spent = (discount ** np.arange(20)[:, None] * episode.cost).sum(0)
        assert (spent <= episode.limit).all()
        assert episode.shielded.any() == (spent > (1 - 1e-5) * episode.limit).any()


def test_hopper_episodes_stay_within(data):
    """A real robot, an untrained SaFormer that is told a large limit, and one that is told the
    truth."""
    pytest.importorskip("mujoco")
    spec = EnvironmentSpec((-1.0,) * 3, (1.0,) * 3, 1000, "Hopper-v5", {})
    costs = (criterion("torque"), criterion("energy"))
    limits = [np.array([d, 0.3 * d]) for d in (0.5, 2.0, 5.0, 11.0)]
    bounds = {"action_low": spec.action_low, "action_high": spec.action_high}
    policy = LimitBlind(Reckless(constraints=2, actions=3), (1e4, 1e4))
    episodes = rollout(
        Shield(policy, costs, **bounds), Maker(spec, costs), limits, range(4), horizon=40, workers=0
    )
    for episode in episodes:
        assert (episode.cost.sum(0) <= episode.limit).all()
        assert np.allclose(episode.cost[:, 0], np.abs(episode.trajectory.action).sum(1), atol=1e-6)
    assert any(episode.shielded.any() for episode in episodes)


def test_a_limit_blind_policy_is_told_one_limit(two_cost_data):
    """The account is that of the episode's own limit. Seen to fail when the policy learns the
    limit."""
    inner = SaFormerAgent.create(two_cost_data, tiny_config(), seed=0).policy()
    policy = LimitBlind(inner, (17.0, 18.0))
    policy.reset([[1.0, 1.0], [1.0, 1.0]], [[3.0, 4.0]])
    assert inner.budget.limit.tolist() == [[17.0, 18.0]] * 2
    assert policy.budget.limit.tolist() == [[3.0, 4.0]] * 2
    policy.act([[1.0, 1.0], [1.0, 1.0]])
    policy.observe([0.0, 0.0], [[0.5, 1.0], [0.0, 0.0]])
    assert inner.budget.remaining.tolist() == [[16.5, 17.0], [17.0, 18.0]]
    assert policy.budget.remaining.tolist() == [[2.5, 3.0], [3.0, 4.0]]
