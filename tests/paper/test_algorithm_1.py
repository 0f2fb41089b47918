"""Algorithm 1: propose, verify, select, within a budget."""

from dataclasses import replace
from typing import get_args

import pytest
import torch

from saformer.agents.saformer import SaFormerAgent
from saformer.core.budget import Budget
from saformer.core.execution import _with_another_round
from saformer.core.history import NO_STEP
from saformer.core.model import CostForecast, expected_cost
from saformer.core.policy import Candidates, Verification
from saformer.core.rules import (
    Fallback,
    NoCriticOptions,
    NoCriticRule,
    PaperOptions,
    PaperRule,
    propose,
    select,
    verify,
)
from tests.conftest import tiny_config

ALL = torch.arange(1)


def candidates(returns: list[float], density: list[float] | None = None) -> Candidates:
    count = len(returns)
    return Candidates(
        return_to_go=torch.tensor([returns]),
        action=torch.arange(float(count)).reshape(1, count, 1),
        log_density=torch.tensor([density or [0.0] * count]),
    )


def verification(costs: list[float], remaining: float) -> Verification:
    cost = torch.tensor(costs).reshape(1, -1, 1)
    return Verification(cost, torch.tensor([[remaining]]), overrun=cost[..., 0] - remaining)


def test_selects_the_highest_return_among_the_safe():
    """Seen to fail when unsafe candidates are not masked."""
    decision = select(
        candidates([1.0, 5.0, 3.0, 2.0]), verification([10.0, 99.0, 20.0, 50.0], 50.0), "mean"
    )
    assert decision.chosen.tolist() == [2]
    assert decision.action.tolist() == [[2.0]]
    assert decision.return_to_go.tolist() == [3.0]
    assert decision.num_safe.tolist() == [3]
    assert decision.fell_back.tolist() == [False]


def test_a_forecast_equal_to_what_remains_is_safe():
    """Seen to fail with < in place of <=."""
    decision = select(candidates([1.0, 5.0]), verification([10.0, 50.0], 50.0), "mean")
    assert decision.chosen.tolist() == [1]


@pytest.mark.parametrize(("fallback", "expected"), [("mean", 0), ("least_cost", 3), ("likely", 1)])
def test_falls_back_when_nothing_is_safe(fallback, expected):
    """Seen to fail when the fallback's choice is not taken."""
    proposed = candidates(
        [1.0, 5.0, 3.0, 2.0, 0.0, 0.0, 0.0, 0.0], [0.0, -1.0, -9.0, -8.0, -7.0, -7.0, -7.0, -7.0]
    )
    judged = verification([70.0, 65.0, 64.0, 60.0, 80.0, 80.0, 80.0, 80.0], 50.0)
    decision = select(proposed, judged, fallback)
    assert decision.fell_back.tolist() == [True]
    assert decision.num_safe.tolist() == [0]
    assert decision.chosen.tolist() == [expected]


def test_every_constraint_must_hold():
    """Seen to fail when one constraint within its budget is enough."""
    cost = torch.tensor([[[10.0, 99.0], [10.0, 10.0]]])
    judged = Verification(cost, torch.tensor([[50.0, 50.0]]), overrun=torch.zeros(1, 2))
    assert judged.safe.tolist() == [[False, True]]
    assert select(candidates([9.0, 1.0]), judged, "mean").chosen.tolist() == [1]


def test_without_verification_the_highest_return_is_taken():
    """Seen to fail when no critic still rejects."""
    rule = NoCriticRule(NoCriticOptions())
    decision = rule.select(None, None, candidates([1.0, 5.0, 3.0]))
    assert decision.chosen.tolist() == [1]
    assert decision.fell_back.tolist() == [False]


def test_budget_is_derived_from_the_limit():
    """Seen to fail when spending lowers the limit."""
    budget = Budget(torch.tensor([[100.0]]))
    budget.spend(torch.tensor([[30.0]]), ALL)
    assert budget.remaining.tolist() == [[70.0]]
    budget.limit[:] = 50.0  # moved mid-episode
    assert budget.remaining.tolist() == [[20.0]]
    budget.spend(torch.tensor([[25.0]]), ALL)
    assert budget.remaining.tolist() == [[-5.0]]
    budget.limit = torch.tensor([[60.0]])
    assert budget.remaining.tolist() == [[5.0]]


def test_discounted_budget_counts_from_the_start_of_the_episode():
    """Seen to fail when every step is discounted alike."""
    budget = Budget(torch.tensor([[10.0]]), cost_discount=0.5)
    for _ in range(3):
        budget.spend(torch.tensor([[4.0]]), ALL)
    assert budget.remaining.tolist() == [[10.0 - 4.0 - 2.0 - 1.0]]


def policy_with_forecast(agent, forecast: float, **options):
    """A policy whose critic says the same of every candidate."""
    with torch.no_grad():
        agent.model.critic.head.weight.zero_()
        agent.model.critic.head.bias.copy_(
            agent.model.normalizer.normalize("cost_to_go", torch.tensor([forecast]))
        )
    return agent.policy(PaperOptions(candidates=8, **options))


def test_resampling_is_bounded_and_reported(agent):
    """Seen to fail when the number of rounds is not counted."""
    policy = policy_with_forecast(agent, forecast=5.0, rounds=3)
    policy.reset(torch.zeros(2, 2), [[4.0], [6.0]])  # the first cannot be kept, the second can
    decision = policy.act(torch.zeros(2, 2))
    assert decision.num_rounds.tolist() == [3, 1]
    assert decision.fell_back.tolist() == [True, False]
    assert decision.chosen.tolist()[0] == 0


def test_another_round_is_for_rejected_lanes_only(agent):
    """Seen to fail when accepted lanes are proposed for again."""
    policy, drawn = policy_with_forecast(agent, forecast=5.0, rounds=4), []
    draw = policy._draw
    policy._draw = lambda lanes: drawn.append(lanes) or draw(lanes)
    policy.reset(torch.zeros(2, 2), [[4.0], [6.0]])
    assert policy.act(torch.zeros(2, 2)).num_rounds.tolist() == [4, 1]
    assert drawn == [2, 1, 1, 1]


@pytest.mark.parametrize("fallback", get_args(Fallback))
def test_no_round_more_makes_a_fallback_dearer(agent, fallback):
    """Seen to fail when a round's candidates replace those of the round before: 19 of 32 were
    dearer."""
    torch.manual_seed(0)
    lanes, decisions = 32, []
    states = torch.randn(lanes, 2)
    for rounds in (1, 4):
        options = PaperOptions(candidates=8, rounds=rounds, fallback=fallback)
        policy = agent.policy(options)
        policy.reset(states, torch.zeros(lanes, 1))
        policy.budget.spent.fill_(1e3)  # nothing is safe
        decisions.append(policy.act(states))
    once, often = decisions
    assert once.fell_back.all()
    assert often.fell_back.all()
    assert often.num_rounds.tolist() == [4] * lanes
    taken = torch.arange(lanes)
    before, after = (each.verification.overrun[taken, each.chosen] for each in decisions)
    assert (after <= before).all()
    if fallback == "mean":
        assert torch.equal(once.action, often.action)
        assert torch.equal(once.candidates.action, often.candidates.action)
    else:
        assert (after < before).sum() > lanes / 3  # rounds compete: most found better
        assert torch.equal(often.score, after)
    assert torch.equal(often.action, often.candidates.action[taken, often.chosen])


def test_the_first_safe_round_decides_whatever_a_fallback_scored():
    """Seen to fail when a lower score is preferred to a safe candidate."""
    lanes, none = torch.tensor([0]), torch.zeros(1)
    fallen = select(candidates([1.0]), verification([60.0], 50.0), "mean")
    safe = replace(select(candidates([7.0]), verification([40.0], 50.0), "mean"), score=none + 1)
    decision = _with_another_round(fallen, safe, lanes)
    assert decision.return_to_go.tolist() == [7.0]
    assert (decision.fell_back.tolist(), decision.num_rounds.tolist()) == ([False], [2])


def test_candidate_0_is_the_mean_and_temperature_spreads_the_rest(agent):
    """Seen to fail when candidate 0 is sampled like the others."""
    policy = agent.policy(NoCriticOptions(candidates=6, temperature=1.0))
    policy.reset(torch.zeros(1, 2), [[4.0]])
    prefix = agent.model.prefill(
        policy.history.prompt(torch.zeros(1, 2), policy.budget.rows(ALL), ALL)
    )
    generator = torch.Generator().manual_seed(0)
    warm, still = PaperOptions(candidates=6), PaperOptions(candidates=6, temperature=0.0)
    wide = propose(agent.model, prefix, PaperRule(warm), *warm.draw(1, 1, generator))
    cold = propose(agent.model, prefix, PaperRule(still), *still.draw(1, 1, generator))
    expected = agent.model.normalizer.restore("return_to_go", prefix.return_to_go.mean)[:, 0]
    assert torch.allclose(wide.return_to_go[:, 0], expected)
    assert torch.allclose(cold.return_to_go, expected.expand(1, 6))
    assert torch.allclose(cold.action, wide.action[:, :1].expand(1, 6, 1))
    assert wide.return_to_go.std() > 0


def test_two_point_noise_lies_one_deviation_from_the_mean(agent):
    """Seen to fail when the temperature spreads returns alone."""
    policy = agent.policy()
    policy.reset(torch.zeros(1, 2), [[4.0]])
    prefix = agent.model.prefill(
        policy.history.prompt(torch.zeros(1, 2), policy.budget.rows(ALL), ALL)
    )
    with (
        torch.no_grad()
    ):  # a return-to-go that never varies, so that all candidates share one action distribution
        prefix.return_to_go.log_deviation.fill_(-30.0)
    agent.model.get_buffer("action_low").fill_(-99.0)
    agent.model.get_buffer("action_high").fill_(99.0)
    options = PaperOptions(candidates=9, action_noise="two_point", temperature=0.5)
    drawn = options.draw(1, 1, torch.Generator().manual_seed(0))
    action = propose(agent.model, prefix, PaperRule(options), *drawn).action[0, :, 0]
    distance = (action[1:] - action[0]).abs()
    assert torch.allclose(distance, distance[0].expand(8), rtol=1e-4)
    assert len(set((action[1:] > action[0]).tolist())) == 2
    wider = PaperRule(replace(options, temperature=1.0))
    wide = propose(agent.model, prefix, wider, *drawn).action[0]
    assert torch.allclose((wide[1:, 0] - wide[0]).abs(), 2 * distance, rtol=1e-4)


@pytest.mark.parametrize("which", ["selected", "expected", "highest"])
def test_which_return_enters_the_past(agent, which):
    """Seen to fail when the expected return stands in for the highest."""
    policy = policy_with_forecast(agent, forecast=5.0, rounds=1, past_return=which)
    policy.reset(
        torch.zeros(1, 2), [[4.0]]
    )  # nothing is safe: candidate 0 is executed, the first of equal forecasts
    decision = policy.act(torch.zeros(1, 2))
    proposed = decision.candidates.return_to_go[0]
    expected = {"selected": proposed[0], "expected": proposed[0], "highest": proposed.max()}[which]
    assert policy.history.return_to_go[0, -1].item() == pytest.approx(expected.item())
    assert proposed.max() > proposed[0]


def test_actions_stay_within_bounds_and_are_verified_as_executed(agent):
    """Seen to fail when actions are not brought within bounds."""
    with torch.no_grad():
        agent.model.actor.action_head.linear.bias.fill_(9.0)
    policy = agent.policy()
    policy.reset(torch.zeros(1, 2), [[4.0]])
    decision = policy.act(torch.zeros(1, 2))
    assert decision.candidates.action.max() == 1.0
    prefix = agent.model.prefill(
        policy.history.prompt(torch.zeros(1, 2), policy.budget.rows(ALL), ALL)
    )
    again = verify(agent.model, prefix, decision.candidates)
    assert again.cost.shape == (1, 8, 1)


def test_risk_reads_the_forecast(agent):
    """Seen to fail when the risk is ignored."""
    assert expected_cost(CostForecast(torch.tensor([3.0]))).item() == 3.0
    policy = agent.policy()
    policy.reset(torch.zeros(1, 2), [[4.0]])
    prefix = agent.model.prefill(
        policy.history.prompt(torch.zeros(1, 2), policy.budget.rows(ALL), ALL)
    )
    options = PaperOptions(candidates=3)
    drawn = options.draw(1, 1, torch.Generator().manual_seed(0))
    proposed = propose(agent.model, prefix, PaperRule(options), *drawn)
    plain = verify(agent.model, prefix, proposed)
    wary = verify(agent.model, prefix, proposed, risk=lambda f: f.mean + 1.0)
    assert torch.allclose(wary.cost, plain.cost + 1.0)


def test_an_episode_books_costs_and_remembers_whole_steps(agent):
    """Seen to fail when what was spent is not remembered."""
    policy = agent.policy()
    policy.reset([1.0, 2.0], 9.0)
    first = policy.act([1.0, 2.0])
    policy.observe(0.0, 2.5)
    policy.act([3.0, 4.0])
    policy.observe(0.0, 0.5)
    assert policy.budget.remaining.tolist() == [[6.0]]
    history = policy.history
    assert history.spent[0, 1:].tolist() == [[0.0], [2.5]]
    assert history.state[0, 1:].tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert history.timestep.tolist() == [[NO_STEP, 0, 1]]
    assert torch.equal(history.action[0, 1], first.action[0])
    assert torch.equal(history.return_to_go[0, 1], first.return_to_go)


def test_a_window_of_one_step_has_no_past(data):
    policy = SaFormerAgent.create(data, tiny_config(window=1), seed=0).policy()
    policy.reset([1.0, 2.0], 9.0)
    for _ in range(3):
        assert policy.act([1.0, 2.0]).action.shape == (1, 1)
        policy.observe(0.0, 0.5)
    assert policy.budget.remaining.tolist() == [[7.5]]


def test_moving_the_limit_moves_the_past_with_it(agent):
    """Seen to fail when past costs-to-go are kept as they were first told."""
    policy = agent.policy()
    policy.reset([1.0, 2.0], 9.0)
    policy.act([1.0, 2.0])
    policy.observe(0.0, 2.0)
    policy.budget.limit[:] = 5.0
    prompt = policy.history.prompt(torch.zeros(1, 2), policy.budget.rows(ALL), ALL)
    assert prompt.past.limit.tolist() == [[5.0]]
    assert prompt.past.cost_to_go[0, -1].tolist() == [5.0]
    assert prompt.cost_to_go.tolist() == [[3.0]]


def test_lanes_can_be_begun_anew(agent):
    """Seen to fail when the other lanes forget too."""
    policy = agent.policy()
    policy.reset(torch.zeros(2, 2), [[9.0], [9.0]])
    policy.act(torch.zeros(2, 2))
    policy.observe([[0.0], [0.0]], [[1.0], [1.0]])
    policy.reset(torch.zeros(1, 2), [[7.0]], lanes=torch.tensor([1]))
    assert policy.budget.remaining.tolist() == [[8.0], [7.0]]
    assert (policy.history.timestep != NO_STEP).any(1).tolist() == [True, False]
    assert policy.act(torch.zeros(1, 2), lanes=torch.tensor([1])).action.shape == (1, 1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: p.reset([1.0, 2.0], -1.0), "limit of lane 0 is -1"),
        (lambda p: p.reset([1.0, 2.0], float("nan")), "limit of lane 0 is nan"),
        (lambda p: p.reset([1.0, 2.0, 3.0], 1.0), "expected 2 values"),
        (lambda p: p.act([float("inf"), 0.0]), "state of lane 0 is inf"),
        (lambda p: p.act(torch.zeros(3, 2)), "3 states for 1 lanes"),
        (lambda p: p.observe(0.0, -1.0), "cost of lane 0 is -1"),
    ],
)
def test_bad_input_is_refused(agent, call, message):
    policy = agent.policy()
    policy.reset([1.0, 2.0], 9.0)
    with pytest.raises(ValueError, match=message):
        call(policy)


def test_options_are_checked():
    with pytest.raises(ValueError, match="at least 1"):
        PaperOptions(candidates=0)
    with pytest.raises(ValueError, match="rounds"):
        PaperOptions(rounds=0)
    with pytest.raises(ValueError, match="temperature"):
        NoCriticOptions(temperature=-1.0)
    with pytest.raises(ValueError, match="window"):
        tiny_config(window=0)
