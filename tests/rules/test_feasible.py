"""What the rule promises, in data where the least cost of every course is known."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

import saformer
from saformer.agents.saformer import SaFormerAgent
from saformer.core.batch import Dimensions
from saformer.core.budget import Budget
from saformer.core.history import History
from saformer.criteria import torque
from saformer.data.idling import idling_of
from saformer.data.relabel import relabel
from saformer.rules.feasible import FeasibleOptions
from saformer.rules.fitting import axes_of, fit_outlook, some_of
from saformer.rules.outlook import Outlook
from tests import brief
from tests.conftest import tiny_config
from tests.rules import chain
from tests.rules.chain import (
    FALL,
    GAMBLE,
    HORIZON,
    LEFT,
    MIDDLE,
    OFF,
    RIGHT,
    RIGHT_TRAP,
    STAY,
    SURE,
    decide,
)
from tests.runs.exported import telling_run

PLENTY = 20.0
DISCOUNT = 0.8
TOLERANCE = 0.25  # of networks that were fitted for a few seconds


def to_the_end(timestep: int) -> float:
    """What it costs to be in a trap from this step on."""
    return sum(DISCOUNT**step for step in range(timestep, HORIZON))


@pytest.fixture(scope="module", autouse=True)
def _few_small_batches() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("saformer.rules.fitting.UPDATES", (600, 600))
        patch.setattr("saformer.rules.fitting.BATCH_SIZE", 128)
        yield


@pytest.fixture(scope="module")
def walker() -> SaFormerAgent:
    """Of two constraints and discounted costs; nobody does nothing."""
    return chain.finished(chain.chain(constraints=2, cost_discount=DISCOUNT))


@pytest.fixture(scope="module")
def spender() -> SaFormerAgent:
    """Of data in which whole episodes do nothing."""
    return chain.finished(chain.allowances())


def least_cost(agent: SaFormerAgent, state: float, timestep: int) -> torch.Tensor:
    """[2, C] where no episode may end, and where it may."""
    outlook, time = agent.outlook, torch.tensor([timestep])
    state = agent.model.normalizer.normalize("state", torch.tensor([[state]]))
    rate = outlook.least(state, time).mean(0)[0]
    return rate * outlook.get_buffer("cost_scale") * outlook.weight_left(time)


def test_the_least_cost_is_of_the_cheapest_course_that_is_shown(walker):
    """Most who are in the middle step into the right trap, a few stay. Costs count as they do at
    the start of the episode. Seen to fail when values are of the usual course (an expectile of 0.5)
    and when costs are not discounted."""
    data = chain.chain(constraints=2, cost_discount=DISCOUNT)
    usual = data.episode_cost[~data.ended_early, 0].mean()
    assert least_cost(walker, MIDDLE, 0)[0, 0] < 0.5 * usual
    for timestep in (1, 3):
        trapped = least_cost(walker, RIGHT_TRAP, timestep)[0]
        assert trapped[0] == pytest.approx(to_the_end(timestep), rel=TOLERANCE)
        assert trapped[1] < TOLERANCE


@pytest.mark.parametrize(
    ("remaining", "admissible"),
    [
        ([PLENTY, PLENTY], [True, True, True]),
        ([2.0, PLENTY], [True, False, True]),
        ([PLENTY, 2.0], [True, True, False]),
    ],
)
def test_an_action_is_admissible_if_every_limit_can_be_kept_after_it(walker, remaining, admissible):
    """A step out of the middle is free, what follows is not. Seen to fail when steps are judged by
    their own cost, and when one constraint is enough."""
    moment = {"state": MIDDLE, "timestep": 0, "remaining": remaining}
    decision = decide(walker, [STAY, RIGHT, LEFT], **moment)
    assert decision.verification.safe[0, :3].tolist() == admissible


def test_an_end_saves_only_where_it_may_be_brought_about(walker):
    """Seen to fail when an end costs nothing more in both settings, and when the rule reads the
    other setting."""
    moment = {"state": RIGHT_TRAP, "timestep": 2, "remaining": [2.0, PLENTY]}
    cost = {}
    for may_end in (False, True):
        decision = decide(walker, [STAY, FALL], **moment, may_end=may_end)
        cost[may_end] = decision.verification.cost[0, :, 0]
        assert decision.verification.safe[0, 1] == may_end
    going_on, falling, _ = cost[False]
    assert falling > (1 - TOLERANCE) * going_on
    assert cost[True][1] < 0.5 * falling
    least = least_cost(walker, RIGHT_TRAP, 2)[:, 0]
    assert least[1] < 0.5 * least[0]


@pytest.mark.parametrize(("remaining", "executed"), [(PLENTY, 0.9), (0.5, 0.3), (0.05, 0.0)])
def test_what_is_inadmissible_is_left_and_nothing_is_done_if_all_is(spender, remaining, executed):
    """What is expected, another candidate, none of them. Seen to fail when whatever is worth most
    is taken, and when doing nothing is no candidate."""
    moment = {"state": MIDDLE, "timestep": 5, "remaining": [remaining]}
    decision = decide(spender, [0.9, 0.3, 0.6], **moment)
    assert decision.action.item() == pytest.approx(executed)
    assert decision.fell_back.item() == (executed == 0.0)


def test_no_decision_waits_for_the_critic(spender, monkeypatch):
    """It does not even read the past."""

    def read(*_: object) -> None:
        raise AssertionError("the critic read the past")

    monkeypatch.setattr(spender.model.critic.trunk, "prefill", read)
    policy = spender.policy(FeasibleOptions(candidates=4))
    policy.reset(torch.tensor([[MIDDLE]]), torch.tensor([[PLENTY]]))
    assert policy.act(torch.tensor([[MIDDLE]])).action.isfinite().all()


@pytest.mark.parametrize(("state", "taken"), [(MIDDLE, STAY), (2 * RIGHT_TRAP, RIGHT)])
def test_what_surely_saves_is_taken_where_nothing_can_be_stopped(walker, state, taken):
    """Nobody does nothing here, and nothing fits: staying out of the trap saves most. Where hardly
    anybody was, what is unlikely is left: taken again and again, it would lead further away. Seen to
    fail when the expected action is taken whatever it costs, and when what is unlikely may save
    everywhere."""
    moment = {"state": state, "timestep": 0, "remaining": [0.0, 0.0]}
    decision = decide(walker, [RIGHT, STAY, RIGHT, RIGHT], log_density=[0.0, -9, 0, 0], **moment)
    assert decision.fell_back.item()
    assert decision.action.item() == taken


def test_usual_states_are_those_that_all_but_rare_ones_lie_among():
    """In no direction further than 19 in 20: a sum of entries may be unusual though none is alone.
    A column that never changes is usual but for rounding. Seen to fail when each entry is held
    against its own range."""
    outlook, rng = Outlook(Dimensions(3, 1, 1, 4)), np.random.default_rng(0)
    both = rng.normal(0, 1, (4000, 1)) + 0.1 * rng.normal(0, 1, (4000, 2))
    states = torch.from_numpy(np.concatenate([both, np.zeros((4000, 1))], 1)).float()
    outlook.state_centre, outlook.state_axes = (each.float() for each in axes_of(states))
    assert outlook.is_usual(states).float().mean().item() == pytest.approx(0.95, abs=1e-3)
    some = torch.tensor([[1.0, 1.0, 0.0], [1.0, -1.0, 0.0], [1.0, 1.0, 1e-5], [1.0, 1.0, 0.1]])
    assert outlook.is_usual(some).tolist() == [True, False, True, False]


def test_of_many_states_some_decide_what_is_usual(monkeypatch):
    """Ten million would not fit twice. Seen to fail when all are copied, and with another draw."""
    rows = np.arange(1000)[:, None]
    assert np.array_equal(some_of(rows), rows)
    monkeypatch.setattr("saformer.rules.fitting.MOST_STATES", 100)
    assert len(some_of(rows)) == 100
    assert np.array_equal(some_of(rows), some_of(rows))
    assert 0.4 < (some_of(rows) < 500).mean() < 0.6


def test_what_is_kept_back_is_not_kept_from_the_actor(walker, spender):
    """Seen to fail when the prompt is lowered, and when something is kept back where doing nothing
    is a way."""
    for agent, share in ((walker, 0.05), (spender, 0.0)):
        constraints, window = agent.dimensions.constraints, agent.config.window
        history = History(1, window - 1, agent.dimensions, torch.device("cpu"))
        budget = Budget(torch.full((1, constraints), 10.0), agent.config.cost_discount)
        prompt = history.prompt(
            torch.tensor([[MIDDLE]]), budget.rows(torch.tensor([0])), torch.tensor([0])
        )
        shown = agent.policy(FeasibleOptions()).rule.prompt(prompt)
        assert torch.equal(shown.past.limit, prompt.past.limit)
        assert torch.equal(shown.cost_to_go, prompt.cost_to_go)
        assert shown.remaining.tolist() == [[pytest.approx(10 * (1 - share))] * constraints]


def wished(agent: SaFormerAgent, *, remaining: float, timestep: int, offset: float) -> float:
    """By how many deviations the return that is asked for lies off the expected one, where the data
    shows that more by `offset` is possible."""
    model, rule = agent.model, agent.policy(FeasibleOptions()).rule
    history, lane = History(1, 3, model.dimensions, torch.device("cpu")), torch.arange(1)
    limit = torch.full((1, model.dimensions.constraints), remaining)
    budget, front = Budget(limit), agent.outlook.get_buffer("front_return")
    budget.num_steps.fill_(timestep)
    with torch.inference_mode():
        prompt = history.prompt(torch.tensor([[MIDDLE]]), budget.rows(lane), lane)
        prefix = model.prefill(rule.prompt(prompt))
        kept, _ = front.clone(), front.fill_(prefix.return_to_go.mean.item() + offset)
        drawn = torch.zeros(1, 4), torch.zeros(1, 4, model.dimensions.action)
        noise, _ = rule.deviations(prefix, *drawn)
        front.copy_(kept)
    return noise[0, 0].item()


@pytest.mark.parametrize(
    ("offset", "timestep", "deviations"), [(9, 0, 1.645), (-9, 0, -1.645), (9, 1, 0)]
)
def test_an_episode_begins_with_a_wish_for_what_the_data_shows(
    spender, offset, timestep, deviations
):
    """As far as that is likely, from below and from above. Seen to fail when an actor that expects
    more than anybody earned is left to it, and when it is asked again later."""
    asked = wished(spender, remaining=1.0, timestep=timestep, offset=offset)
    assert asked == pytest.approx(deviations, abs=1e-3)


@pytest.mark.parametrize(
    ("remaining", "offset", "deviations"), [(PLENTY, 9, 1.645), (0.0, 9, 0.0), (0.0, -9, -1.645)]
)
def test_no_more_is_wished_for_under_a_limit_that_nobody_kept(
    walker, remaining, offset, deviations
):
    """But less, where the data shows less. Seen to fail when the highest return is asked for
    whatever the limit, and when nothing is asked for."""
    asked = wished(walker, remaining=remaining, timestep=0, offset=offset)
    assert asked == pytest.approx(deviations, abs=1e-3)


def test_nothing_is_done_only_where_the_data_shows_it(walker, spender):
    """Elsewhere cheap courses are followed: in a trap most stay. Seen to fail when doing nothing is
    always taken for a way."""
    assert spender.outlook.get_buffer("can_idle")
    assert not walker.outlook.get_buffer("can_idle")
    moment = {"state": RIGHT_TRAP, "timestep": 2, "remaining": [0.0, 0.0]}
    decision = decide(walker, [STAY, RIGHT], **moment)
    assert decision.fell_back.item()
    assert decision.candidates.action[0, -1].item() == pytest.approx(STAY, abs=TOLERANCE)


def test_a_gamble_is_refused_where_what_is_sure_still_fits():
    """Both cost 1 on average; a gamble of 4 at odds of a quarter deviates by 1.73, and 0.95 is
    1.645 deviations. Seen to fail when chance is left out."""
    gambler = chain.finished(chain.gambles())
    moment = {"state": MIDDLE, "timestep": HORIZON - 1, "remaining": [2.5]}
    decision = decide(gambler, [GAMBLE, SURE], **moment, may_end=False)
    assert decision.verification.safe[0, :2].tolist() == [False, True]
    dearer, sure = decision.verification.cost[0, :2, 0].tolist()
    assert dearer == pytest.approx(1 + 1.645 * 3**0.5, rel=TOLERANCE)
    assert sure < 1.5 + TOLERANCE


def test_luck_is_no_way_to_spend_less():
    """Ten throws cost 10 on average whatever is done, and one course in six costs 4 or less. Seen to
    fail when the least is of what was spent, not of what was to be expected of it."""
    thrower = chain.finished(chain.dice())
    assert least_cost(thrower, MIDDLE, 0)[0].item() > 7


def test_off_is_what_the_cheapest_stretches_do_and_costs_the_same_always():
    """Where no criterion tells. Seen to fail when the action nearest to 0 is taken for nothing, when
    every entry has to be still, and when a cost that comes and goes counts as steady."""
    idling = idling_of(chain.switched())
    assert idling.action[0] == pytest.approx(OFF)
    assert idling.cost.tolist() == [0.0]
    assert idling.is_a_way
    assert not idling_of(chain.switched(standby=0.5)).is_a_way


def test_slight_corrections_are_not_doing_nothing():
    """A machine that falls without them would. Seen to fail when whatever is slight counts."""
    assert not idling_of(chain.trembling()).is_a_way


def test_doing_nothing_has_to_have_been_kept_up():
    """What is off for one step at a time may have to go on again. Seen to fail when steps count one
    by one."""
    assert not idling_of(chain.switched(spell=1)).is_a_way


def test_what_off_costs_is_told_by_the_criteria_that_tell():
    """Beside a recorded cost. Seen to fail when it is that of the action nearest to 0."""
    logged = chain.switched()
    both = relabel(logged.store, [*logged.criteria, torque])
    idling = idling_of(both)
    assert idling.cost[1] == pytest.approx(np.abs(idling.action).sum(), rel=1e-5)
    assert idling.action[0] == pytest.approx(OFF)


def test_fitting_draws_its_own_numbers(data, monkeypatch):
    """The same twice, whatever torch has drawn, and torch draws on as it would have. Seen to fail
    when networks begin from torch's own state, and when windows are drawn from it."""
    monkeypatch.setattr("saformer.rules.fitting.UPDATES", brief.BRIEF)
    model = SaFormerAgent.create(data, tiny_config(), seed=0).model
    outlooks = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        before = torch.random.get_rng_state()
        outlooks.append(
            fit_outlook(model, data, window=2, replay=lambda play, _: play).state_dict()
        )
        assert torch.equal(torch.random.get_rng_state(), before)
    assert outlooks[0].keys() == outlooks[1].keys()
    for name, value in outlooks[0].items():
        assert torch.equal(value, outlooks[1][name]), name


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_files_keep_the_outlook_to_the_bit(tmp_path, monkeypatch, dtype):
    """A run, its checkpoint, and an export whose other weights are rounded. Seen to fail when the
    outlook's weights are rounded too."""
    monkeypatch.setattr("saformer.rules.fitting.UPDATES", brief.BRIEF)
    run = telling_run(tmp_path / "run")
    saformer.export(run.path, tmp_path / "export", dtype=dtype)
    saved = run.load().groups["model"]
    fitted = {name: value for name, value in saved.items() if name.startswith("outlook.")}
    assert fitted
    for path in (run.path, tmp_path / "export"):
        loaded = saformer.load(path, device="cpu").agent.model.state_dict()
        for name, value in fitted.items():
            assert loaded[name].dtype == value.dtype
            assert torch.equal(loaded[name], value), name
