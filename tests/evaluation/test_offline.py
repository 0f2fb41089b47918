"""Judged on logs alone: every figure against hand-typed numbers."""

import json
import math
import subprocess
import sys

import numpy as np
import pytest
import torch

from saformer.agents.saformer import SaFormerAgent
from saformer.core.batch import Dimensions
from saformer.core.budget import Budget
from saformer.core.history import History
from saformer.core.model import SaFormer
from saformer.core.objectives import actor_nll
from saformer.core.transformer import TrunkConfig
from saformer.criteria import joint_torque, torque
from saformer.data.limits import Limit
from saformer.data.relabel import RelabelledStore, relabel
from saformer.data.sampling import WindowSampler
from saformer.data.store import EnvironmentSpec, TrajectoryStore
from saformer.data.trajectory import Trajectory
from saformer.evaluation.offline.findings import nearest
from saformer.evaluation.offline.held_out import judge_offline
from saformer.evaluation.offline.reader import HeldOutReader, Windows, evenly
from tests.conftest import randomise, tiny_config


def logs(*trajectories, cost_discount=1.0) -> RelabelledStore:
    """Trajectories from their actions alone: a list of numbers, or of rows. Bounds are -10 and 10,
    the cost is |a|."""
    actions = [np.array(rows, dtype=np.float32).reshape(len(rows), -1) for rows in trajectories]
    size = actions[0].shape[1]
    environment = EnvironmentSpec((-10.0,) * size, (10.0,) * size, horizon=8)
    parts = [
        Trajectory.of(
            np.ones((len(rows), 1)),
            rows,
            np.ones(len(rows)),
            [1.0],
            terminated=False,
            truncated=True,
        )
        for rows in actions
    ]
    criteria = [torque] if size == 1 else [joint_torque(i) for i in range(size)]
    return relabel(TrajectoryStore.of(parts, environment), criteria, cost_discount=cost_discount)


def constant_model(*forecast: float, action: float = 0.0, return_to_go: float = 0.0) -> SaFormer:
    """A real model that expects the same at every step: these costs, and this action and return in
    model units.

    Costs have centre 1 and scale 2 in model units, actions scale 10; deviations are 1.
    """
    size = len(forecast)
    model = SaFormer(
        Dimensions(state=1, action=size, constraints=size, horizon=8), TrunkConfig(1, 8, 1, 0.0)
    )
    model.normalizer.centre("cost_to_go").fill_(1.0)
    model.normalizer.scale("cost_to_go").fill_(2.0)
    model.normalizer.scale("action").fill_(10.0)
    model.get_buffer("action_low").fill_(-10.0)
    model.get_buffer("action_high").fill_(10.0)
    with torch.no_grad():
        heads = (
            model.critic.head,
            model.actor.action_head.linear,
            model.actor.return_to_go_head.linear,
        )
        for head in heads:
            head.weight.zero_()
            head.bias.zero_()
        model.critic.head.bias.copy_((torch.tensor(forecast) - 1) / 2)
        model.actor.action_head.linear.bias[:size] = action
        model.actor.return_to_go_head.linear.bias[:1] = return_to_go
    return model


HELD_OUT = logs([1, 2, 3], [4, 0], [1])
"""Costs to go: 6, 5, 3; 4, 0; 1."""


def judge(model, held_out, *limits, training=None, window=2, **options):
    asked = [
        Limit(f"d{i}", values if isinstance(values, tuple) else (values,))
        for i, values in enumerate(limits)
    ]
    return judge_offline(model, training or held_out, held_out, asked, window=window, **options)


def test_errors_of_a_constant_forecast():
    """Forecast 4: errors -2, -1, 1, 0, 4, 3. Seen to fail when the forecast stays in model
    units."""
    found = judge(constant_model(4.0), HELD_OUT, 5.0)
    (critic,) = found.critic
    assert found.num_judged == found.num_steps == 6
    assert critic.mean_absolute == pytest.approx(11 / 6)
    assert critic.bias == pytest.approx(5 / 6)
    assert critic.root_mean_square == pytest.approx(math.sqrt(31 / 6))
    assert critic.deviation == pytest.approx(math.sqrt(161) / 6)
    assert critic.relative == pytest.approx(math.sqrt(186 / 161))
    assert critic.explained == pytest.approx(1 - 186 / 161)


@pytest.mark.parametrize(
    ("limit", "over_before_missed", "within_and_alarms"),
    [
        (5.0, (3, 3, 2), (3, 1)),  # remaining 5, 4, 2 (over); 5, 1; 5
        (
            4.0,
            (3, 3, 1),
            (3, 1),
        ),  # remaining 4, 3, 1 (over); 4, 0; 4: a forecast equal to what remains is accepted
        (2.0, (5, 3, 0), (1, 1)),  # remaining 2, 1, -1 (over); 2, -2 (over); 2
        (10.0, (0, 0, 0), (6, 0)),
        (0.5, (6, 3, 0), (0, 0)),
    ],
)
def test_missed_overruns_and_false_alarms(limit, over_before_missed, within_and_alarms):
    """Forecast 4 at every step. Seen to fail when a forecast equal to what remains is rejected."""
    record = judge(constant_model(4.0), HELD_OUT, limit).limits[0].verification
    assert (record.num_over, record.num_over_before, record.num_missed) == over_before_missed
    assert (record.num_within, record.num_false_alarms) == within_and_alarms
    (over, _, missed), (within, alarms) = over_before_missed, within_and_alarms
    assert record.num_missed_before == missed
    assert record.missed == pytest.approx(missed / over if over else math.nan, nan_ok=True)
    assert record.false_alarms == pytest.approx(
        alarms / within if within else math.nan, nan_ok=True
    )


def test_what_is_not_known_is_null_in_json():
    """Seen to fail when NaN is written: JSON has no such number."""
    plain = judge(constant_model(4.0), HELD_OUT, 10.0, 0.0).plain()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert plain["limits"][0]["verification"]["missed"] is None
    assert plain["limits"][1]["verification"]["false_alarms"] is None
    assert plain["limits"][1]["support"] == {"num_within": 0, "share": 0.0, "frontier": None}
    assert plain["label"].startswith("no rollout")


def test_discounted_costs_are_spent_from_the_start_of_the_episode():
    """Costs 4, 4, 4 at 0.5 count 4, 2, 1: remaining of 6 is 6, 2, 0. Seen to fail when nothing is
    ever spent."""
    found = judge(constant_model(3.0), logs([4, 4, 4], cost_discount=0.5), 6.0)
    record = found.limits[0].verification
    assert (record.num_over, record.num_over_before, record.num_missed) == (3, 3, 1)
    assert found.critic[0].bias == pytest.approx((-4 + 0 + 2) / 3)


def test_two_constraints():
    """Costs (1, 5), (1, 0) under (3, 4): only the second goes over. Seen to fail when one
    constraint is enough."""
    found = judge(constant_model(1.0, 2.0), logs([(1, 5), (1, 0)]), (3.0, 4.0), (3.0, 6.0))
    over, within = (evidence.verification for evidence in found.limits)
    assert (over.num_over, over.num_missed, over.num_within) == (
        2,
        1,
        0,
    )  # remaining (3, 4), (2, -1)
    assert (within.num_within, within.num_false_alarms) == (2, 1)  # remaining (3, 6), (2, 1)
    assert [errors.bias for errors in found.critic] == pytest.approx([-0.5, -0.5])
    assert [errors.mean_absolute for errors in found.critic] == pytest.approx([0.5, 2.5])


@pytest.mark.parametrize("window", [1, 2, 3, 9])
def test_every_step_is_judged_once_with_all_the_past_that_fits(window):
    """Seen to fail when later windows judge all of their steps."""
    lengths = np.array([5, 1, 3, 2, 8])
    starts = np.cumsum(lengths) - lengths
    windows = Windows.every_step_once(lengths, window)
    judged = []
    for start, first, trajectory in zip(
        windows.start, windows.first, windows.trajectory, strict=True
    ):
        end = starts[trajectory] + lengths[trajectory]
        for position in range(first, min(window, end - start)):
            timestep = start + position - starts[trajectory]
            assert position == min(timestep, window - 1)
            judged.append(start + position)
    assert sorted(judged) == list(range(lengths.sum()))


def test_the_reader_finds_each_step_where_it_stands(data, agent):
    """Seen to fail when positions before the judged ones are kept."""
    reader = HeldOutReader(agent.model, data, data, window=4, batch_size=7)
    steps = reader.read(Windows.every_step_once(data.store.lengths, 4))
    order = np.argsort(steps.step)
    assert np.array_equal(steps.step[order], np.arange(data.store.num_steps))
    assert np.array_equal(steps.cost_to_go[order], data.cost_to_go)
    assert np.array_equal(steps.trajectory[order], np.repeat(np.arange(200), 20))
    assert np.allclose(steps.progress[order], np.tile(np.arange(20) / 20, 200))


def test_what_is_judged_is_what_a_policy_would_see(data):
    """Drive `History` and `Budget` along a log. Seen to fail when the cost-to-go stays that of
    hindsight."""
    log = relabel(data.store, data.criteria, cost_discount=0.9)
    agent = SaFormerAgent.create(log, tiny_config(cost_discount=0.9), seed=0)
    randomise(agent.model)
    model, lane = agent.model, torch.tensor([0])
    model.get_buffer("action_low").fill_(-torch.inf)  # so that an action tells its mean
    model.get_buffer("action_high").fill_(torch.inf)
    budget = Budget(torch.tensor([[12.0]]), cost_discount=0.9)  # the log cost 3.6
    history = History(1, 3, model.dimensions, torch.device("cpu"))
    whole = WindowSampler(log, window=20).windows(torch.tensor([40]))  # the third trajectory
    forecasts, likelihoods = [], []
    for time in range(20):
        state, action, asked = (
            whole.state[:, time],
            whole.action[:, time],
            whole.return_to_go[:, time],
        )
        with torch.no_grad():
            prefix = model.prefill(history.prompt(state, budget.rows(lane), lane))
            mean, highest = model.sample_actions(prefix, asked[:, None], torch.zeros(1, 1, 1))
            forecasts.append(model.forecast(prefix, action[:, None]).mean.item())
        deviations = (action - mean[:, 0]).item() * math.exp(
            highest.item() + 0.5 * math.log(2 * math.pi)
        )
        likelihoods.append(highest.item() - 0.5 * deviations**2)
        history.append(budget.rows(lane), lane, asked, state, action)
        budget.spend(torch.tensor(log.cost[40 + time], dtype=torch.float32)[None], lane)
    reader = HeldOutReader(model, log, log, window=4, batch_size=256)
    windows = Windows.every_step_once(log.store.lengths, 4)
    steps = reader.read(windows.only(windows.trajectory == 2), limit=(12.0,))
    assert np.allclose(steps.forecast[:, 0], forecasts, atol=1e-4)
    assert np.allclose(steps.log_likelihood, likelihoods, atol=1e-4)


def test_likelihood_is_the_actors_objective():
    """On a window that is a whole trajectory. Seen to fail when actions stay in raw units."""
    held_out, model = logs([3, -7, 2]), constant_model(1.0)
    randomise(model.actor)
    batch = model.normalizer.window(WindowSampler(held_out, window=3).windows(torch.tensor([0])))
    expected = -actor_nll(model.actor(batch), batch)["action"].mean()
    found = judge(model, held_out, 12.0, window=3)
    assert found.action.log_likelihood == pytest.approx(expected.item(), rel=1e-5)
    assert found.limits[0].near.action.log_likelihood == pytest.approx(expected.item(), rel=1e-5)


def test_gain_over_a_blind_gaussian():
    """Training actions -5 and 5 have deviation 0.5 in model units. Seen to fail when it is the
    variance."""
    found = judge(constant_model(1.0), logs([5]), 1.0, training=logs([-5, 5]))
    normal = -0.5 * math.log(2 * math.pi)
    assert found.action.blind_log_likelihood == pytest.approx(normal - 0.5 + math.log(2), rel=1e-5)
    assert found.action.log_likelihood == pytest.approx(normal - 0.125, rel=1e-5)
    assert found.action.gain == pytest.approx(0.375 - math.log(2), rel=1e-4)


def test_expected_action_and_return():
    """Mean action 3 is 30 raw, so 10 is executed. Seen to fail when it is not brought within
    bounds."""
    found = judge(
        constant_model(1.0, 1.0, action=3.0, return_to_go=4.0), logs([(5, -1), (10, 3)]), (1.0, 1.0)
    )
    assert found.action.mean_absolute_error == pytest.approx([2.5, 9.0])
    assert found.return_to_go.bias == pytest.approx(2.5)  # each step earns 1: 2 and 1 to go


def test_the_nearest_tenth_but_at_least_five():
    """Seen to fail when the nearer constraint counts."""
    costs = np.arange(60.0)[:, None]
    assert nearest(costs, Limit("d", (20.2,)), np.ones(1)).tolist() == [18, 19, 20, 21, 22, 23]
    assert nearest(costs[:30], Limit("d", (0.0,)), np.ones(1)).tolist() == [0, 1, 2, 3, 4]
    assert nearest(costs[:3], Limit("d", (0.0,)), np.ones(1)).tolist() == [0, 1, 2]
    far = np.array([[0, 9], [0, 0], [9, 0], [1, 1], [2, 2], [3, 3], [4, 4]], dtype=float)
    assert nearest(far, Limit("d", (0.0, 0.0)), np.ones(2)).tolist() == [1, 3, 4, 5, 6]
    assert nearest(far, Limit("d", (0.0, 0.0)), np.array([1.0, 100.0])).tolist() == [0, 1, 3, 4, 5]


def test_near_a_limit():
    """Six logs, the five nearest to 3. Seen to fail when all are taken."""
    found = judge(constant_model(4.0), logs([1], [2], [3], [4], [5], [9]), 3.0)
    near = found.limits[0].near
    assert (near.num_trajectories, near.lowest_cost, near.highest_cost) == (5, (1.0,), (5.0,))
    assert near.critic[0].bias == pytest.approx(1.0)
    assert near.action.log_likelihood == pytest.approx(near.hindsight_log_likelihood)


def test_support_is_counted_in_the_training_data():
    """Seen to fail when it is counted in the held-out data."""
    found = judge(constant_model(4.0), logs([9]), 5.0, training=logs([1, 1], [5], [6], [7]))
    assert found.limits[0].support.num_within == 2
    assert found.limits[0].support.share == 0.5
    assert found.limits[0].support.frontier == pytest.approx(1.5)  # returns 2 and 1


def test_too_many_windows_are_subsampled_evenly(data, agent):
    """Seen to fail when the first ones are taken."""
    limits, told = [Limit("d", (8.0,))], []
    found = judge_offline(
        agent.model,
        data,
        data,
        limits,
        window=4,
        max_windows=50,
        progress=lambda *counts: told.append(counts),
    )
    assert (found.num_windows, found.num_windows_judged) == (3400, 50)
    assert 50 <= found.num_judged < 200
    assert found.limits[0].near.num_judged < 20
    assert told[-1] == (65, 65), "once, near the limit twice, and one day"
    places = evenly(1000, 50)
    assert np.array_equal(places // 20, np.arange(50))
    assert np.array_equal(evenly(7, 50), np.arange(7))


def test_the_model_is_left_as_it_was(data):
    """Seen to fail when dropout stays off."""
    agent = SaFormerAgent.create(data, tiny_config(trunk=TrunkConfig(1, 8, 1, 0.5)), seed=0)
    agent.model.train()
    limits = [Limit("d", (8.0,))]
    found = [
        judge_offline(agent.model, data, data, limits, window=4, max_windows=20).plain()
        for _ in range(2)
    ]
    assert found[0] == found[1], "no dropout while judging"
    assert agent.model.training


def test_error_over_the_course_of_a_trajectory():
    """Seen to fail when stretches are counted in steps."""
    found = judge(constant_model(4.0), logs([1, 2], [2, 1], [1] * 4), 3.0)
    course = {round(row["progress"], 3): row for row in found.by_progress}
    assert list(course) == [0.025, 0.275, 0.525, 0.775]
    assert course[0.025]["num_steps"] == 3
    assert course[0.025]["bias"] == pytest.approx([2 / 3], rel=1e-5)  # 4 against 3, 3, 4
    assert course[0.525]["bias"] == pytest.approx([7 / 3], rel=1e-5)  # 4 against 2, 1, 2
    assert found.calibration["logged"] == [[3.0], [2.0], [3.0], [1.0], [4.0], [3.0], [2.0], [1.0]]


def test_warnings_say_what_is_not_supported():
    """Seen to fail when a large bias goes unmentioned."""
    said = "\n".join(
        judge(constant_model(4.0), HELD_OUT, 5.0, 0.5, training=logs(*[[6]] * 6)).warnings
    )
    assert "only 3 held-out trajectories" in said
    assert "few training trajectories lie within d0 (0)" in said
    assert "few held-out trajectories go over d0 (1)" in said
    assert (
        "limit d0: near it, forecasts of torque are off by +0.833, more than a tenth of the limit"
        in said
    )
    assert "limit d0: the critic accepted 67% of the steps that led to an overrun" in said
    assert "few held-out trajectories stay within d0 (2), d1 (0)" in said
    assert "the critic forecasts torque no better than a constant would" in said
    many = logs(*[[1, 2, 3]] * 5, *[[0, 1]] * 5)
    assert not any(
        "few" in text or "only" in text for text in judge(constant_model(3.0), many, 2.0).warnings
    )


def test_what_does_not_fit_together_is_refused():
    model = constant_model(1.0)
    with pytest.raises(ValueError, match="relabel both with the same criteria and discount"):
        judge(model, HELD_OUT, 1.0, training=logs([1], cost_discount=0.5))
    with pytest.raises(ValueError, match="2 values for 1 constraints"):
        judge(model, HELD_OUT, (1.0, 2.0))
    with pytest.raises(ValueError, match="the data has 2 constraints, the model was made for 1"):
        judge(model, logs([(1, 1)]), 1.0)
    with pytest.raises(ValueError, match="at least one limit"):
        judge(model, HELD_OUT)


def test_neither_gymnasium_nor_mujoco_is_needed():
    """Seen to fail when it imports rollouts."""
    code = (
        "import sys\n"
        "sys.modules['gymnasium'] = sys.modules['mujoco'] = None\n"
        "import numpy as np\n"
        "from saformer.core.model import SaFormer\n"
        "from saformer.core.transformer import TrunkConfig\n"
        "from saformer.criteria import torque\n"
        "from saformer.data.limits import parse_limit\n"
        "from saformer.data.relabel import relabel\n"
        "from saformer.data.sampling import dimensions_of\n"
        "from saformer.data.store import EnvironmentSpec, TrajectoryStore\n"
        "from saformer.data.trajectory import Trajectory\n"
        "from saformer.evaluation.offline.held_out import judge_offline\n"
        "import saformer.report.offline\n"
        "steps = np.random.default_rng(0).uniform(-1, 1, (6, 5, 1))\n"
        "parts = [Trajectory.of(s, s, s[:, 0], s[0], terminated=True, truncated=False) for s in "
        "steps]\n"
        "data = relabel(TrajectoryStore.of(parts, EnvironmentSpec((-1.0,), (1.0,), 5)), [torque])\n"
        "model = SaFormer(dimensions_of(data), TrunkConfig(1, 8, 1, 0.0))\n"
        "found = judge_offline(model, data, data, [parse_limit('p50', data)], window=3)\n"
        "assert found.num_judged == 30\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
