"""Which limit the actor is told, until what is left is needed to see the episode out."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from saformer.agents.saformer import SaFormerAgent
from saformer.core.batch import Dimensions, WindowBatch
from saformer.core.history import Prompt
from saformer.core.rules import NoCriticOptions
from saformer.criteria import energy, torque
from saformer.data.relabel import relabel
from saformer.data.store import EnvironmentSpec, TrajectoryStore
from saformer.data.trajectory import Trajectory
from saformer.rules.reserve import (
    CAUTION,
    GAIN,
    NUM_LEVELS,
    Reserve,
    best_prompts,
    earned_by,
    fit_reserve,
)
from tests.conftest import tiny_config


def episode(cost: float, reward: float, steps: int = 10) -> Trajectory:
    """Every step costs and earns the same."""
    return Trajectory.of(
        np.zeros((steps, 2)),
        np.full((steps, 1), cost),
        np.full(steps, reward),
        np.zeros(2),
        terminated=False,
        truncated=True,
    )


def poor_and_rich(reward: float, criteria=(torque,), **options):
    """Sixty that cost 5 and earn 1, sixty that cost 10 and earn so much a step."""
    parts = [episode(0.5, 0.1) for _ in range(60)] + [episode(1.0, reward) for _ in range(60)]
    return relabel(
        TrajectoryStore.of(parts, EnvironmentSpec((-1.0,), (1.0,), horizon=10)), criteria, **options
    )


def test_what_had_been_earned_when_so_much_was_spent():
    """Seen to fail when whole returns are compared."""
    found = earned_by(poor_and_rich(2.0), np.array([0.0, 2.0, 5.0, 100.0]))
    assert found[0] == pytest.approx([0.0, 0.4, 1.0, 1.0])
    assert found[-1] == pytest.approx([0.0, 4.0, 10.0, 20.0])


def test_told_what_had_earned_more_by_then():
    """Seen to fail when the limit is told whatever dearer ones earn."""
    found = best_prompts(poor_and_rich(2.0))
    assert found["levels"][0] == pytest.approx(5.0)
    assert found["best"][0] == pytest.approx(10.0)
    assert found["gain"][0] == pytest.approx(9.0), "10 instead of 1"
    assert found["gain"][-1] == 0, "nothing is dearer"


@pytest.mark.parametrize(
    "data",
    [
        poor_and_rich(0.2),  # as much by the time that 5 are spent
        poor_and_rich(2.0, (torque, energy)),
        poor_and_rich(2.0, cost_discount=0.9),
    ],
    ids=["nothing to gain", "two limits", "discounted"],
)
def test_nothing_to_gain(data):
    """Seen to fail when what the others earn is not compared with what the limit's own do."""
    gain = best_prompts(data)["gain"]
    assert gain[0] == pytest.approx(0.0, abs=1e-6)
    assert (gain < GAIN).all()


def test_those_whose_end_was_far_are_followed():
    """Quick ones end soon after 5 are spent. Seen to fail when how far they went is not looked
    at."""
    quick, far = [episode(0.6, 3.0) for _ in range(60)], [episode(1.0, 2.0) for _ in range(60)]
    cheap = [episode(0.5, 1.0) for _ in range(60)]
    environment = EnvironmentSpec((-1.0,), (1.0,), horizon=10)
    found = best_prompts(relabel(TrajectoryStore.of(cheap + quick + far, environment), (torque,)))
    assert found["levels"][0] == pytest.approx(5.0)
    assert found["best"][0] == pytest.approx(10.0), (
        "twice the limit, though those of 6 had earned more"
    )
    near = best_prompts(
        relabel(TrajectoryStore.of(cheap + quick + far[:49], environment), (torque,))
    )
    assert near["best"][0] == pytest.approx(6.0), "too few went far"


def reserve_of(*, stop: float, idle: float = 3.0) -> Reserve:
    """Under limits up to 100 the actor is told 400, up to 200 in a shield alone, never beyond; to
    idle 50."""
    made = Reserve(Dimensions(state=2, action=1, horizon=10))
    made.get_buffer("levels").copy_(torch.linspace(0, 400, NUM_LEVELS)[:, None])
    levels = made.get_buffer("levels")
    made.get_buffer("best").fill_(400.0)
    made.get_buffer("gain").copy_(
        torch.where(levels <= 100, 0.5, torch.where(levels <= 200, -0.05, -0.15))
    )
    for name, value in (("stop_cost", stop), ("idle_cost", idle), ("cheapest", 50.0)):
        made.get_buffer(name).fill_(value)
    return made


def test_seeing_an_episode_out_takes_no_more_than_stopping():
    """Seen to fail when idling is passed over."""
    steps = torch.tensor([0, 5, 9, 10])
    assert reserve_of(stop=20.0).needed(steps)[:, 0].tolist() == [20, 15, 3, 0]
    assert (reserve_of(stop=torch.inf, idle=torch.inf).needed(steps) > 1e30).all()


def asked(limit: float, spent: float) -> Prompt:
    """At the sixth step, with one step remembered."""
    past = WindowBatch(
        limit=torch.tensor([[limit]]),
        cost_to_go=torch.tensor([[[limit]]]),
        return_to_go=torch.zeros(1, 1, 1),
        state=torch.zeros(1, 1, 2),
        action=torch.zeros(1, 1, 1),
        timestep=torch.tensor([[4]]),
        valid=torch.ones(1, 1, dtype=torch.bool),
    )
    return Prompt(past, torch.tensor([[limit - spent]]), torch.zeros(1, 2), torch.tensor([5]))


@pytest.mark.parametrize(
    ("limit", "spent", "stop", "expected"),
    [
        (90.0, 30.0, torch.inf, 400.0),  # 60 are left, idling takes 15
        (90.0, 80.0, torch.inf, 50.0),  # 10 are left: idle
        (40.0, 39.0, torch.inf, 40.0),  # never more than the limit to idle
        (90.0, 80.0, 12.0, 400.0),  # what can be stopped need not idle
        (300.0, 30.0, torch.inf, 300.0),
        (900.0, 30.0, torch.inf, 900.0),  # beyond the data
        (300.0, 295.0, torch.inf, 300.0),  # told the limit, it goes on being told
    ],
)
def test_the_prompt_tells_another_limit(limit, spent, stop, expected):
    """What was spent is the same. Seen to fail when the past tells the old one, and when nobody
    idles."""
    prompt = asked(limit, spent)
    told = reserve_of(stop=stop).prompt(prompt, prompt.cost_to_go)
    assert told.past.limit.tolist() == [[expected]]
    assert (told.past.limit - told.cost_to_go).tolist() == [[spent]]
    assert told.past.cost_to_go.tolist() == [[[expected]]]


@pytest.mark.parametrize(
    ("limit", "in_shield", "expected"),
    [(150.0, False, 150.0), (150.0, True, 400.0), (250.0, True, 250.0)],
)
def test_a_small_loss_is_for_shields(limit, in_shield, expected):
    """Seen to fail when any gain is worth it, or any loss."""
    prompt = asked(limit, 10.0)
    told = reserve_of(stop=torch.inf).prompt(prompt, None if in_shield else prompt.cost_to_go)
    assert told.past.limit.tolist() == [[expected]]


def test_the_networks_read_what_is_told_and_the_budget_stays(data, monkeypatch):
    """Seen to fail when the budget that is verified is the one that networks read."""
    agent = SaFormerAgent.create(data, tiny_config(), seed=0)
    agent.finish(data)

    def hundred_more(self, prompt, remaining):
        limit, cost_to_go = prompt.past.limit + 100, prompt.past.cost_to_go + 100
        past = replace(prompt.past, limit=limit, cost_to_go=cost_to_go)
        return replace(prompt, past=past, cost_to_go=prompt.cost_to_go + 100)

    monkeypatch.setattr(Reserve, "prompt", hundred_more)
    elsewhere = agent.policy(replace(agent.options(), holdback=0.0))
    plain = agent.policy(NoCriticOptions(candidates=1))
    state = torch.ones(1, agent.dimensions.state)
    elsewhere.reset(state, torch.tensor([[5.0]]))
    plain.reset(state, torch.tensor([[105.0]]))
    decision = elsewhere.act(state)
    assert decision.verification.remaining.tolist() == [[5.0]]
    assert torch.allclose(decision.candidates.action[:, 0], plain.act(state).action)


def test_idling_costs_what_the_cheapest_proposals_do():
    """Seen to fail when the dearest are counted."""
    data = poor_and_rich(2.0)
    agent = SaFormerAgent.create(data, tiny_config(), seed=0)
    reserve = fit_reserve(agent.model, data, window=4, updates=200)
    assert 0 <= reserve.get_buffer("idle_cost").item() < CAUTION * 0.5
    assert (
        fit_reserve(agent.model, data, window=11, updates=1).get_buffer("idle_cost").isinf().all()
    ), "no such window"


def test_in_a_shield_nobody_stops_or_idles(data):
    """Nothing is verified: the mean is executed whatever is left. Seen to fail when those in a
    shield idle."""
    agent = SaFormerAgent.create(data, tiny_config(), seed=0)
    agent.finish(data)
    agent.reserve.get_buffer("best").fill_(400.0)
    agent.reserve.get_buffer("idle_cost").fill_(3.0)
    told = agent.policy(agent.options(shielded=True))
    plain = agent.policy(agent.mean_options())
    state = torch.ones(1, agent.dimensions.state)
    told.reset(state, torch.tensor([[1.0]]))
    plain.reset(state, torch.tensor([[400.0]]))
    decision = told.act(state)
    assert decision.verification is None
    assert not decision.fell_back.any()
    assert torch.allclose(decision.action, plain.act(state).action)
