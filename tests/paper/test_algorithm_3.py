"""Algorithm 3, piece by piece: attenuate, roll out, relabel, aggregate, train under an entropy
constraint.

Equations 8 and 9 stand in `test_objectives.py`; the whole loop in
`tests/training/test_finetune.py`.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from saformer.agents.finetuned import EntropyConfig, FineTunedAgent, put_together, taken_apart
from saformer.core.policy import Decision
from saformer.data.growing import GrowingSampler, Room
from saformer.data.limits import Limit
from saformer.data.sampling import WindowSampler
from saformer.evaluation.confidence import holds, upper_bound
from saformer.training.finetune.config import FinetuneConfig
from saformer.training.finetune.events import settled
from saformer.training.finetune.experience import (
    ExploredEpisode,
    Reference,
    next_fallback,
    promising,
    targets_for,
    unspent,
)
from saformer.training.finetune.exploration import Damped
from saformer.training.loop.losses import means_of

HIGH, LOW = Limit("100", (100.0,)), Limit("60", (60.0,))


def row(
    number: int, limit: Limit, *, cost: float = 2.0, earned: float = 3.0, fallback: str = "mean"
) -> ExploredEpisode:
    return ExploredEpisode(
        number,
        0,
        limit.name,
        limit.values,
        (1.0,),
        0,
        (cost,),
        earned,
        4,
        "terminated",
        False,
        0.0,
        0.0,
        fallback,
    )


@pytest.mark.parametrize(
    ("attenuation", "floor"), [(0.0, 0.1), (1.1, 0.5), (0.9, 0.0), (0.9, 0.95)]
)
def test_odd_attenuations_are_refused(attenuation, floor):
    with pytest.raises(ValueError, match="must lie in"):
        FinetuneConfig(attenuation=attenuation, floor=floor)


DATA = Reference(cost=(120.0,), earned=12.0, scale=12.0, shortest=4)


def test_limits_are_explored_in_turn_from_the_data_a_step_or_two_down():
    """The data begins at 120. Seen to fail when it begins at the limit, when what was explored
    before is forgotten, and when actions are damped that cannot be."""
    config = FinetuneConfig(attenuation=0.9, floor=0.85, lanes=2)
    first = targets_for([HIGH, LOW], [], config, DATA, count=4)
    assert [target.limit.name for target in first] == ["100", "60", "100", "60"]
    assert [target.prompt for target in first] == [pytest.approx((120.0,))] * 4
    assert [target.gain for target in first] == pytest.approx([1.0, 1.0, 0.9, 0.9])
    rows = [row(0, HIGH, cost=130.0), row(1, HIGH, cost=130.0)]
    later = targets_for([HIGH], rows, config, DATA, count=3)
    assert [target.prompt[0] for target in later] == pytest.approx([108.0, 108.0, 97.2])
    assert [target.gain for target in later] == pytest.approx([1.0, 0.9, 1.0])
    blunt = targets_for([HIGH], rows, config, DATA, count=3, damps=False)
    assert [target.prompt[0] for target in blunt] == pytest.approx([108.0, 97.2, 97.2])
    assert {target.gain for target in blunt} == {1.0}


def test_the_way_goes_on_from_what_a_few_episodes_reached_and_not_below_the_floor():
    """Seen to fail when one episode, a fall or standing still takes it further down, and when a
    round that was interrupted goes on otherwise than it began."""
    config = FinetuneConfig(attenuation=0.9, floor=0.85, lanes=3)
    good = [row(n, HIGH, cost=cost, earned=6.0) for n, cost in enumerate((110.0, 105.0, 90.0))]
    assert DATA.reached(HIGH, good) == pytest.approx(1.05)
    assert DATA.reached(HIGH, good[2:]) == pytest.approx(1.2)
    still = [row(n, HIGH, cost=80.0, earned=3.9) for n in range(3)]  # 4 is half of 12 for 80 of 120
    assert DATA.reached(HIGH, still) == pytest.approx(1.2)
    fallen = [replace(each, num_steps=3) for each in good]
    assert DATA.reached(HIGH, fallen) == pytest.approx(1.2)
    assert targets_for([HIGH], good, config, DATA, count=1)[0].factor == pytest.approx(0.945)
    assert targets_for([HIGH], good[:2], config, DATA, count=1)[0].factor == pytest.approx(1.08)
    cheap = [row(n, HIGH, cost=50.0, earned=6.0) for n in range(3)]
    assert targets_for([HIGH], cheap, config, DATA, count=1)[0].factor == 0.85
    assert Reference((50.0,), 12.0, 12.0).reached(HIGH, []) == 1.0  # the data knows the limit


def test_a_damped_policy_executes_and_observes_a_share_of_each_action():
    """The rest is doing nothing. Seen to fail when the policy hears of its own action."""
    heard = []

    class Fixed:
        budget = None

        def act(self, state, lanes=None):
            return Decision(torch.tensor([[1.0, -1.0], [0.5, 0.5]])[lanes])

        def observe(self, reward, cost, lanes=None, *, action=None):
            heard.append(action.tolist())

    damped = Damped(Fixed(), [0.5, 0.25], np.array([0.0, 1.0], dtype=np.float32))
    lanes, zero = torch.tensor([0, 1]), torch.zeros(2, 1)
    assert damped.act(zero, lanes).action.tolist() == [[0.5, 0.0], [0.125, 0.875]]
    damped.observe(zero[:, 0], zero, lanes)
    damped.act(zero[1:], lanes[1:])
    damped.observe(zero[1:, 0], zero[1:], lanes[1:])
    assert heard[1] == heard[0][1:] == [[0.125, 0.875]]


def test_exploration_ends_when_a_limit_is_held_and_earns_no_more():
    """Seen to fail when the first evaluation that holds ends it, and when none does."""

    def judged(*earned):
        """A row per evaluation: what was earned, or None where the limit did not hold."""
        cells = [{"holds": e is not None, "met": e is not None, "return": e or 0.0} for e in earned]
        return [{"evaluation": {"60": cell}} for cell in cells]

    assert settled(judged(5.0)) == {"60"}  # it held before anything was explored
    assert settled(judged(None, 5.0)) == set()
    assert settled(judged(None, 5.0, 4.0)) == set()
    assert settled(judged(None, 5.0, 4.0, 4.5)) == {"60"}
    assert settled(judged(None, 5.0, 4.0, 6.0)) == set()
    assert settled(judged(None, 5.0, 4.0, None)) == set()


def test_exploration_goes_on_in_the_way_that_was_better():
    """Seen to fail when the worse way is taken."""
    kinds, reference = ("mean", "least_cost"), Reference((50.0,), 3.0, 3.0)
    rows = [row(0, HIGH, cost=120.0), row(1, HIGH, cost=130.0)]
    assert next_fallback([], kinds, reference, lanes=2) == "mean"
    assert next_fallback(rows, kinds, reference, lanes=2) == "least_cost"
    rows += [
        row(2, HIGH, cost=110.0, fallback="least_cost"),
        row(3, LOW, cost=60.0, fallback="least_cost"),
    ]
    assert next_fallback(rows, kinds, reference, lanes=2) == "least_cost"
    rows += [row(4, HIGH, cost=199.0, fallback="least_cost")]
    assert next_fallback(rows, kinds, reference, lanes=2) == "least_cost"  # as the round began
    rows += [row(5, HIGH, cost=199.0, fallback="least_cost")]
    assert (
        next_fallback(rows, kinds, reference, lanes=2) == "least_cost"
    )  # worse now; the fourth round tries the worse
    assert next_fallback(rows, ("mean", "mean"), reference, lanes=2) == "mean"


def test_to_stand_still_is_a_fault_as_an_overrun_is():
    """Held against what the cheapest data earns for its cost. Seen to fail when only costs
    count."""
    reference = Reference(cost=(80.0,), earned=20.0, scale=25.0)
    assert (
        reference.fault(row(0, LOW, cost=60.0, earned=15.0)) == 0.0
    )  # 60 of 80: three quarters of 20
    assert reference.fault(row(0, LOW, cost=75.0, earned=30.0)) == pytest.approx(0.25)
    assert reference.fault(row(0, LOW, cost=10.0, earned=0.0)) == pytest.approx(15 / 25)
    assert reference.fault(row(0, HIGH, cost=90.0, earned=15.0)) == pytest.approx(
        5 / 25
    )  # no more than the data
    poor = Reference(cost=(80.0,), earned=-10.0, scale=20.0)
    assert poor.fault(row(0, LOW, cost=60.0, earned=-12.0)) == pytest.approx(0.1)


def test_the_reference_is_the_cheapest_tenth(data):
    found, costs = Reference.of(data), data.episode_cost[:, 0]
    cheapest = costs <= np.percentile(costs, 10)
    assert found.cost == pytest.approx((np.median(costs[cheapest]),))
    assert found.earned == pytest.approx(np.median(data.episode_return[cheapest]))


def test_what_was_not_spent_counts_from_the_tightest_limit_that_was_kept():
    """Of those explored so far. Seen to fail when the widest is taken."""
    before = [row(0, HIGH), row(1, LOW)]
    assert unspent(row(2, HIGH, cost=50.0), before).tolist() == [10.0]
    assert unspent(row(2, HIGH, cost=70.0), before).tolist() == [30.0]
    assert unspent(row(2, LOW, cost=70.0), [row(0, LOW)]).tolist() == [0.0]  # it kept none


def test_every_fourth_new_window_is_shown_under_the_limit_that_was_kept(data):
    """Its budget has so much more left all along. Seen to fail when only the limit is raised."""
    old, new = data.filter(np.arange(100)), data.filter(np.arange(100, 102))
    sampler = GrowingSampler(old, window=4, room=Room(2, 100), share=0.5)
    sampler.append(new.filter(np.arange(1)), unspent=[2.5])
    sampler.append(new.filter(np.arange(1, 2)))
    plain = GrowingSampler(old, window=4, room=Room(2, 100), share=0.5)
    plain.append(new)
    shown, real = (one.sample(64, torch.Generator().manual_seed(1)) for one in (sampler, plain))
    more = (shown.limit - real.limit)[:, 0]
    is_first = real.limit[:, 0] == float(np.float32(new.episode_cost[0, 0]))
    expected = torch.where(
        is_first & (torch.arange(64) % 4 == 3) & (torch.arange(64) >= 32), 2.5, 0.0
    )
    assert expected.any()
    assert torch.allclose(more, expected, atol=1e-5)
    assert torch.allclose(
        shown.cost_to_go - real.cost_to_go, more[:, None, None].expand(-1, 4, 1), atol=1e-5
    )
    assert torch.equal(shown.state, real.state)


def test_the_most_promising_kept_a_limit_and_earned_most():
    """Then come those that passed it least. Seen to fail when what was earned is not looked at."""
    costs, returns = (
        (100.0, 80.0, 70.0, 65.0, 64.0, 90.0, 20.0, 10.0),
        (9.0, 8.0, 1.0, 5.0, 3.0, 9.0, 0.5, 0.1),
    )
    pairs = list(enumerate(zip(costs, returns, strict=True)))
    rows = [row(n, LOW, cost=c, earned=r) for n, (c, r) in pairs]
    assert promising(rows) == [6, 7]
    assert promising([*rows[:6], row(6, LOW, cost=70.0)]) == [3, 4]
    both = [row(n, HIGH if n % 2 else LOW, cost=c, earned=r) for n, (c, r) in pairs]
    assert promising(both) == [0, 6]  # a quarter, half of it for each limit


def test_a_limit_holds_when_the_mean_is_surely_within_it():
    """Seen to fail when the mean alone decides."""
    costs = [8.0, 9.0, 10.0, 11.0, 12.0]  # mean 10, deviation 1.581
    assert upper_bound(costs) == pytest.approx(10 + 2.132 * 1.5811 / math.sqrt(5), abs=1e-3)
    assert upper_bound([1.0]) == math.inf
    assert not holds([[cost] for cost in costs], [11.0])
    assert holds([[cost] for cost in costs], [11.6])
    assert not holds([[cost, 1.0] for cost in costs], [11.6, 0.5])


@pytest.fixture
def tuned(agent) -> FineTunedAgent:
    return FineTunedAgent(agent, EntropyConfig(initial_temperature=0.2))


def test_each_loss_reaches_its_own_part_and_no_other(tuned, batch):
    """Seen to fail when the entropy moves the temperature by the actor's loss."""
    parts = {
        "actor": tuned.model.saformer.actor,
        "critic": tuned.model.saformer.critic,
        "temperature": tuned.model.temperature,
    }
    for phase in tuned.phases:
        tuned.model.zero_grad()
        terms = [means_of(term, 1) for term in phase.terms(batch).values() if not term.watched]
        torch.stack(terms).sum().backward()
        reached = {
            name
            for name, part in parts.items()
            if any(p.grad is not None and p.grad.any() for p in part.parameters())
        }
        assert reached == {phase.name}


def test_the_actor_minimises_eq_8(tuned, batch):
    """The likelihood of Eq. 5, and what entropy is left over, weighted. Seen to fail when the
    target is 0."""
    terms = {name: term.mean().item() for name, term in tuned.actor_terms(batch).items()}
    expected = -0.2 * (terms["entropy"] + 1)  # one action: the target is -1
    assert terms["entropy_bonus"] == pytest.approx(expected, rel=1e-5)
    dual = tuned.temperature_terms(batch)
    assert dual["dual"].mean().item() == pytest.approx(0.2 * (terms["entropy"] + 1), rel=1e-5)
    assert dual["temperature"].mean().item() == pytest.approx(0.2)


def test_weights_are_those_of_any_saformer_and_the_temperature_is_beside_them(tuned, agent):
    networks, temperature = taken_apart(tuned.model.state_dict())
    assert set(networks) == set(agent.model.state_dict())
    assert list(temperature) == ["temperature.log.weight"]
    assert set(put_together(networks, temperature)) == set(tuned.model.state_dict())


def test_new_windows_have_a_stated_share_and_their_real_cost(data):
    """Windows of new trajectories are a sampler's of those alone. Seen to fail when new ones are
    drowned."""
    old, new = data.filter(np.arange(100)), data.filter(np.arange(100, 103))
    sampler = GrowingSampler(old, window=4, room=Room(5, 100), share=0.25, device="cpu")
    generator = torch.Generator().manual_seed(0)
    before = sampler.sample(16, generator)
    assert set(before.limit[:, 0].tolist()) <= set(np.float32(old.episode_cost[:, 0]).tolist())
    places = [sampler._new.state.data_ptr(), sampler._counted.data_ptr()]
    sampler.append(new.filter(np.arange(2)))
    sampler.append(new.filter(np.arange(2, 3)))
    assert [
        sampler._new.state.data_ptr(),
        sampler._counted.data_ptr(),
    ] == places  # a recorded update reads it there
    real = set(np.float32(new.episode_cost[:, 0]).tolist())
    drawn = [sampler.sample(16, generator) for _ in range(20)]
    for batch in drawn:
        assert [cost in real for cost in batch.limit[:, 0].tolist()] == [False] * 12 + [True] * 4
    assert {cost for batch in drawn for cost in batch.limit[:, 0].tolist()} >= real
    starts = torch.arange(60)
    ours, theirs = (
        sampler._new.windows(starts, torch.arange(4)),
        WindowSampler(new, window=4).windows(starts),
    )
    assert all(torch.equal(getattr(ours, name), getattr(theirs, name)) for name in vars(ours))


def test_there_is_only_the_room_there_is(data):
    sampler = GrowingSampler(data, window=4, room=Room(1, 100), share=0.5)
    sampler.append(data.filter(np.arange(1)))
    with pytest.raises(ValueError, match="room for 1 new trajectories"):
        sampler.append(data.filter(np.arange(1)))
