"""Verification by reserve: when a limit is at stake, what is taken then, and what it knows of
costs."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

import saformer
from saformer.agents.saformer import SaFormerAgent
from saformer.cli.main import main
from saformer.core.batch import Dimensions
from saformer.core.policy import Candidates, Verification
from saformer.core.rules import PaperOptions, PaperRule
from saformer.criteria import torque
from saformer.data.relabel import relabel
from saformer.data.store import EnvironmentSpec, TrajectoryStore
from saformer.data.trajectory import Trajectory
from saformer.rules.reserve import (
    Reserve,
    ReserveOptions,
    ReserveRule,
    fit_reserve,
    hold_back,
    stop_cost,
)
from saformer.runs.run import Run
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
    options = ReserveOptions(candidates=400, temperature=0.5, spread=8.0)
    rule = ReserveRule(options, Reserve(Dimensions(3, 2)))
    returns, actions = rule.deviations(*options.draw(3, 2, torch.Generator().manual_seed(0)))
    assert (actions[:, 0] == 0).all()
    assert actions[:, 1:200].std().item() == pytest.approx(0.5, rel=0.1)
    assert actions[:, 200:].std().item() == pytest.approx(4.0, rel=0.1)
    assert returns[:, 1:200].std().item() == pytest.approx(0.5, rel=0.1)
    assert (returns[:, 200:] == 0).all()


def test_of_two_points_the_first_is_one():
    """Where data acts with either sign, the mean is what nobody did. Seen to fail when the first is
    the mean."""
    common = {"candidates": 8, "action_noise": "two_point", "temperature": 0.5}
    options = ReserveOptions(**common)
    drawn = options.draw(50, 2, torch.Generator().manual_seed(0))
    returns, actions = ReserveRule(options, Reserve(Dimensions(3, 2))).deviations(*drawn)
    assert (actions[:, 0].abs() == 0.5).all()
    assert (returns[:, 0] == 0).all()
    _, by_the_paper = PaperRule(PaperOptions(**common)).deviations(*drawn)
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
    monkeypatch.setattr("saformer.agents.saformer.fit_reserve", partial(fit_reserve, updates=5))
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
    agent = saformer.load(tmp_path / "run", device="cpu").agent
    model, kept = agent.model, agent.reserve.state_dict()
    training, everything = (
        fit_reserve(model, relabel(part, [torque]), window=5, updates=5).state_dict()
        for part in (store.split(0.5)[0], store)
    )
    for name, value in kept.items():
        assert torch.equal(value, training[name]), name
        assert name in {"best", "gain"} or not torch.equal(value, everything[name]), (
            name
        )  # nothing is to be gained


def test_a_policy_holds_back_a_share(data):
    """Seen to fail when nothing is held back."""
    agent = SaFormerAgent.create(data, tiny_config(), seed=0)
    agent.finish(data)
    for holdback, expected in ((0.0, 10.0), (0.1, 9.0)):
        policy = agent.policy(replace(agent.options(), holdback=holdback))
        state = torch.zeros(1, agent.dimensions.state)
        policy.reset(state, [10.0])
        assert policy.act(state).verification.remaining.tolist() == [[pytest.approx(expected)]]


def test_unfinished_training_acts_by_the_papers_rule(data):
    """Seen to fail when a reserve that was never fitted decides."""
    agent = SaFormerAgent.create(data, tiny_config(), seed=0)
    assert isinstance(agent.options(), PaperOptions)
    with pytest.raises(ValueError, match="fitted as training ends"):
        agent.policy(ReserveOptions())
    agent.finish(data)
    assert isinstance(agent.options(), ReserveOptions)
    bare = SaFormerAgent.create(data, tiny_config(), seed=0).model.state_dict()
    agent.model.load_state_dict(bare)
    assert isinstance(agent.options(), PaperOptions)


def test_options_of_a_reserve_are_checked():
    with pytest.raises(ValueError, match="spread"):
        ReserveOptions(spread=-1.0)
    with pytest.raises(ValueError, match="holdback"):
        ReserveOptions(holdback=1.0)


def test_finishing_is_a_function_of_the_weights(data):
    """With dropout, in training mode, whatever torch's generator has drawn before, and it draws
    nothing itself. Seen to fail when windows are read with dropout."""
    config = tiny_config(trunk=replace(tiny_config().trunk, dropout=0.1))
    agents = [SaFormerAgent.create(data, config, seed=0) for _ in range(2)]
    for seed, agent in enumerate(agents):
        agent.model.train()
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        agent.finish(data)
        assert torch.equal(torch.get_rng_state(), before)
        assert agent.model.training
    first, second = (agent.model.state_dict() for agent in agents)
    assert any(name.startswith("reserve.") for name in first)
    for name, value in first.items():
        assert torch.equal(value, second[name]), name
    assert not {id(b) for b in agents[0].reserve.buffers()} & {
        id(p) for phase in agents[0].phases for p in phase.parameters
    }


def test_training_ends_with_it_and_every_copy_acts_alike(tmp_path, monkeypatch):
    """A run acts the same before and after it was evaluated, and as its export does. Seen to fail
    when evaluating fits anything, or exports leave it behind."""
    fit_brief = partial(fit_reserve, updates=20)
    monkeypatch.setattr("saformer.agents.saformer.fit_reserve", fit_brief)
    run = tmp_path / "run"
    tiny_run(run)
    files = sorted(path.name for path in run.iterdir())
    monkeypatch.setattr("saformer.agents.saformer.fit_reserve", None)  # nobody fits it again
    saformer.export(run, tmp_path / "whole", dtype="float32")
    before = saformer.load(run, device="cpu")
    saformer.evaluate(run, limits=["p50"], episodes=2, workers=0, device="cpu")
    copies = [before, *(saformer.load(path, device="cpu") for path in (run, tmp_path / "whole"))]
    state, actions = torch.zeros(3, before.agent.dimensions.state), []
    for agent in copies:
        assert isinstance(agent.options(), ReserveOptions)
        policy = agent.policy()
        policy.reset(state, [[0.5], [5.0], [50.0]])
        actions.append(policy.act(state).action)
    assert torch.equal(actions[0], actions[1])
    assert torch.equal(actions[0], actions[2])
    assert {"checkpoint.safetensors", "run.json"} <= set(files)
    assert Run(run).read_json("evaluation.json")["options"]["rule"] == "reserve"
