"""Verification by reserve: when a limit is at stake, what is taken then, and what it knows of
costs."""

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

import saformer
from saformer.agents.saformer import SaFormerAgent
from saformer.cli.main import main
from saformer.core.proposals import Candidates, ExecutionOptions, Verification, deviations, draw
from saformer.criteria import torque
from saformer.data.relabel import relabel
from saformer.data.store import EnvironmentSpec, TrajectoryStore
from saformer.data.trajectory import Trajectory
from saformer.reserve import hold_back
from saformer.runs.checkpoint import load_checkpoint
from saformer.runs.run import Run
from saformer.training.reserve import fit_reserve, stop_cost
from tests.cli.test_cli import tiny_run
from tests.conftest import tiny_config

FORECAST = [60.0, 58.0, 60.0, 40.0]
STEP_COST = [3.0, 2.5, 1.0, 9.0]
"""Of four candidates, the last two of which are spread widely."""


def chosen(remaining: float, stop: float, *, forecast=FORECAST, step_cost=STEP_COST, usual=2.0):
    """By one constraint."""
    cost = torch.tensor(forecast).reshape(1, -1, 1)
    proposed = Candidates(torch.zeros(1, 4), torch.arange(4.0).reshape(1, 4, 1), torch.zeros(1, 4))
    judged = Verification(cost, torch.tensor([[remaining]]), cost[..., 0] - remaining)
    own = torch.tensor(step_cost).reshape(1, -1, 1)
    return hold_back(
        proposed,
        judged,
        own,
        usual=torch.tensor([usual]),
        needed=torch.tensor([[stop]]),
        can_stop=torch.tensor([stop]).isfinite(),
        scale=torch.ones(1),
    )


@pytest.mark.parametrize(
    ("remaining", "stop", "expected"),
    [
        (60.0, 20.0, 0),  # the mean is forecast to keep it
        (50.0, 20.0, 0),  # it will be overrun, but there is still more than stopping takes
        (20.0, 20.0, 2),  # 60 + 3 * 1 < 40 + 3 * 9
        (50.0, torch.inf, 1),  # nothing ends an episode: the cheaper of the usual ones
        (
            -41.0,
            torch.inf,
            2,
        ),  # which would take too long to save what is missing: 101 > 200 * (3 - 2.5)
    ],
)
def test_goes_on_until_stopping_takes_all_that_is_left(remaining, stop, expected):
    """Seen to fail when wide proposals are taken where no episode can be ended, when they are
    never, and when the reserve is passed over."""
    decision = chosen(remaining, stop)
    assert decision.chosen.tolist() == [expected]
    assert decision.fell_back.tolist() == [expected != 0]
    assert decision.action.tolist() == [[float(expected)]]


def test_what_leads_to_an_end_is_taken_though_it_costs_more_now():
    """Seen to fail when a step's own cost alone decides."""
    assert chosen(20.0, 20.0, forecast=[60.0, 58.0, 60.0, 10.0]).chosen.tolist() == [3]


def test_what_costs_no_more_than_usual_is_not_cut_short():
    """A robot that stands need not brake. Seen to fail when wide proposals are taken whatever a
    step costs."""
    assert chosen(-41.0, torch.inf, usual=3.0).chosen.tolist() == [1]


def test_only_limits_at_stake_count():
    """Seen to fail when prices of all constraints are added up."""
    cost = torch.tensor([[[60.0, 5.0], [60.0, 0.0], [59.0, 9.0], [58.0, 9.0]]])
    remaining = torch.tensor([[10.0, 100.0]])
    judged = Verification(cost, remaining, torch.zeros(1, 4))
    proposed = Candidates(torch.zeros(1, 4), torch.zeros(1, 4, 1), torch.zeros(1, 4))
    known = {"needed": torch.full((1, 2), 20.0), "can_stop": torch.ones(2, dtype=torch.bool)}
    scale = torch.tensor([1.0, 0.01])
    found = hold_back(
        proposed, judged, torch.zeros(1, 4, 2), usual=torch.zeros(2), scale=scale, **known
    )
    assert found.chosen.tolist() == [3]


def test_half_of_the_proposals_are_wide():
    """Seen to fail when wide proposals ask for other returns than the expected one."""
    options = ExecutionOptions(candidates=400, verification="reserve", temperature=0.5, spread=8.0)
    returns, actions = deviations(options, *draw(3, 2, options, torch.Generator().manual_seed(0)))
    assert (actions[:, 0] == 0).all()
    assert actions[:, 1:200].std().item() == pytest.approx(0.5, rel=0.1)
    assert actions[:, 200:].std().item() == pytest.approx(4.0, rel=0.1)
    assert returns[:, 1:200].std().item() == pytest.approx(0.5, rel=0.1)
    assert (returns[:, 200:] == 0).all()


def test_of_two_points_the_first_is_one():
    """Where data acts with either sign, the mean is what nobody did. Seen to fail when the first is
    the mean."""
    options = ExecutionOptions(
        candidates=8, verification="reserve", action_noise="two_point", temperature=0.5
    )
    drawn = draw(50, 2, options, torch.Generator().manual_seed(0))
    returns, actions = deviations(options, *drawn)
    assert (actions[:, 0].abs() == 0.5).all()
    assert (returns[:, 0] == 0).all()
    _, by_the_paper = deviations(replace(options, verification="paper"), *drawn)
    assert (by_the_paper[:, 0] == 0).all()


def episode(length: int, *, terminated: bool, seed: int) -> Trajectory:
    draw = np.random.default_rng(seed)
    return Trajectory.of(
        draw.standard_normal((length, 3)),
        draw.uniform(-1, 1, (length, 2)),
        np.zeros(length),
        np.zeros(3),
        terminated=terminated,
        truncated=not terminated,
    )


def of_robots(*, terminated: int):
    """Twenty episodes of 200 steps; these end before their time, after 100."""
    parts = [
        episode(100 if i < terminated else 200, terminated=i < terminated, seed=i)
        for i in range(20)
    ]
    return relabel(
        TrajectoryStore.of(parts, EnvironmentSpec((-1.0,) * 2, (1.0,) * 2, horizon=200)), [torque]
    )


def test_stopping_costs_what_last_steps_do():
    """Seen to fail when all of an episode counts."""
    assert stop_cost(of_robots(terminated=0)).tolist() == [np.inf]
    data = of_robots(terminated=10)
    last = [
        float(np.asarray(data.cost)[start + 50 : start + 100].sum())
        for start in data.store.starts[:10]
    ]
    assert stop_cost(data)[0] == pytest.approx(np.percentile(last, 90), rel=1e-5)


def test_what_ends_at_its_time_was_not_stopped():
    """Allowance always does. Seen to fail when every end counts."""
    parts = [episode(200, terminated=True, seed=i) for i in range(20)]
    store = TrajectoryStore.of(parts, EnvironmentSpec((-1.0,) * 2, (1.0,) * 2, horizon=200))
    assert stop_cost(relabel(store, [torque])).tolist() == [np.inf]


def test_learns_what_a_step_costs():
    """Torque is a function of the action alone, so it can be known. Seen to fail when the action is
    not read."""
    data = of_robots(terminated=10)
    agent = SaFormerAgent.create(data, tiny_config(), seed=0)
    reserve = fit_reserve(agent.model, data, window=4, updates=600)
    action = torch.rand(500, 2, generator=torch.Generator().manual_seed(1)) * 1.8 - 0.9
    state = torch.randn(500, 3, generator=torch.Generator().manual_seed(2))
    normalize = agent.model.normalizer.normalize
    found = reserve.step_cost(normalize("state", state), normalize("action", action))[:, 0]
    assert (found - action.abs().sum(1)).abs().mean().item() < 0.1  # of 0.9 on average
    assert reserve.get_buffer("stop_cost").isfinite().all()


def test_nothing_is_learnt_of_what_was_held_out(tmp_path, monkeypatch):
    """Neither what steps cost nor what stopping does. Seen to fail when a run's data is not split
    as it was."""
    monkeypatch.setattr("saformer.api.reserving.fit_reserve", partial(fit_reserve, updates=5))
    store = of_robots(terminated=10).store.save(tmp_path / "logs")
    brief = [
        "--held-out",
        "0.5",
        "--updates",
        "1",
        "--batch-size",
        "4",
        "--width",
        "16",
        "--layers",
        "1",
    ]
    assert main(["train", str(tmp_path / "logs"), *brief, "--out", str(tmp_path / "run")]) == 0
    saformer.export(tmp_path / "run", tmp_path / "export")
    kept = load_checkpoint(Run(tmp_path / "run").reserve_path, groups=("reserve",)).groups[
        "reserve"
    ]
    model = saformer.load(tmp_path / "run", device="cpu").model
    training, everything = (
        fit_reserve(model, relabel(part, [torque]), window=5, updates=5).state_dict()
        for part in (store.split(0.5)[0], store)
    )
    for name, value in kept.items():
        assert torch.equal(value, training[name]), name
        assert name in {"told", "gain"} or not torch.equal(value, everything[name]), (
            name
        )  # nothing is to be gained


def test_a_policy_keeps_its_margin(data):
    """Seen to fail when nothing is kept back."""
    agent = SaFormerAgent.create(data, tiny_config(), seed=0)
    agent.reserve = fit_reserve(agent.model, data, window=4, updates=1)
    for margin, expected in ((0.0, 10.0), (0.1, 9.0)):
        policy = agent.policy(replace(agent.default_options, verification="reserve", margin=margin))
        state = torch.zeros(1, agent.dimensions.state)
        policy.reset(state, [10.0])
        assert policy.act(state).verification.remaining.tolist() == [[pytest.approx(expected)]]


def test_without_a_reserve_there_is_no_such_policy(agent):
    with pytest.raises(ValueError, match="give the policy a reserve"):
        agent.policy(ExecutionOptions(verification="reserve"))


def test_evaluation_prepares_it_once_and_exports_carry_it(tmp_path, capsys, monkeypatch):
    """Seen to fail when exports leave it behind."""
    monkeypatch.setattr("saformer.api.reserving.fit_reserve", partial(fit_reserve, updates=20))
    run = tmp_path / "run"
    tiny_run(run)
    with monkeypatch.context() as patch:  # as older versions did
        patch.setattr("saformer.api.exporting.prepare_reserve", lambda *_, **__: None)
        saformer.export(run, tmp_path / "bare")
    asked = [
        "--verification",
        "reserve",
        "--limits",
        "p50",
        "--episodes",
        "2",
        "--workers",
        "0",
        "--json",
    ]
    capsys.readouterr()
    assert main(["evaluate", str(tmp_path / "bare"), *asked]) == 1
    assert "exported without a reserve" in " ".join(capsys.readouterr().err.split())
    found = []
    for number in range(2):
        assert main(["evaluate", str(run), *asked]) == 0
        captured = capsys.readouterr()
        assert ("fitting what steps cost" in captured.err) is (number == 0)
        found.append(json.loads(captured.out)["episodes"])
    saformer.export(run, tmp_path / "whole", dtype="float32")
    Run(run).reserve_path.unlink()
    assert main(["evaluate", str(tmp_path / "whole"), *asked]) == 0
    found.append(json.loads(capsys.readouterr().out)["episodes"])
    assert found[0] == found[1] == found[2]
