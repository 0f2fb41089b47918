"""The script that trains behaviours and packs them."""

import importlib.util
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from saformer.envs import behaviours
from saformer.envs.bundle import bundle_of, open_bundle


@pytest.fixture(scope="module")
def script():
    """The script as a module."""
    path = Path(__file__).parents[2] / "scripts" / "train_behaviours.py"
    spec = importlib.util.spec_from_file_location("train_behaviours", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_medium_is_the_first_to_reach_a_third_of_the_expert(script):
    """1200 / 3 = 400, reached exactly. Seen to fail when it must be exceeded."""
    roles = script.choose_roles([100.0, 250.0, 400.0, 900.0, 1200.0, 1100.0])
    assert (roles.replay, roles.medium, roles.expert) == ((0, 1, 2), 2, 4)
    assert [roles.of(i) for i in range(6)] == [
        "replay",
        "replay",
        "replay, medium",
        "",
        "expert",
        "",
    ]


def test_negative_returns_are_measured_from_the_first_snapshot(script):
    """-300 + 3300 / 3 = 800; -1500 + 1350 / 3 = -1050. Seen to fail when measured from zero."""
    assert script.choose_roles([-300.0, 850.0, 2000.0, 3000.0]).medium == 1
    assert script.choose_roles([-1500.0, -1200.0, -900.0, -150.0]).medium == 2
    worse = script.choose_roles([-5.0, -9.0])
    assert (worse.replay, worse.medium, worse.expert) == ((0,), 0, 0)


@pytest.mark.parametrize("returns", [[1.0], [1.0, float("nan")]])
def test_roles_need_returns(script, returns):
    with pytest.raises(ValueError, match="finite returns of at least 2 snapshots"):
        script.choose_roles(returns)


def test_snapshots_lie_close_together_early(script):
    assert script.snapshot_steps(100, 5) == [4, 16, 36, 64, 100]
    assert script.snapshot_steps(9, 3) == [1, 4, 9]


def actor_like_theirs() -> SimpleNamespace:
    """Laid out as the actor of Stable-Baselines3's SAC for Pendulum."""
    torch.manual_seed(0)
    hidden = torch.nn.Sequential(
        torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 6), torch.nn.ReLU()
    )
    return SimpleNamespace(
        latent_pi=hidden, mu=torch.nn.Linear(6, 1), log_std=torch.nn.Linear(6, 1)
    )


def packed(script, policy):
    """One snapshot, packed and read back."""
    snapshots = [script.Snapshot(7, script.weights_of(policy), 0.0)] * 2
    with behaviours.make_environment("Pendulum-v1") as environment:
        return bundle_of(
            script.pack(environment, "Pendulum-v1", snapshots, script.Roles((0,), 0, 1)), "here"
        )


def test_packed_weights_give_the_actors_own_gaussian(script):
    """Seen to fail when mean and log-deviation change places."""
    actor = actor_like_theirs()
    bundle = packed(script, SimpleNamespace(actor=actor))
    assert bundle.steps.tolist() == [7, 7]
    assert {layer.dtype for layer in bundle.weights + bundle.biases} == {np.dtype(np.float16)}
    assert (bundle.environment, bundle.action_low, bundle.action_high) == (
        "Pendulum-v1",
        [-2.0],
        [2.0],
    )
    states = np.random.default_rng(0).uniform(-1, 1, (20, 3)).astype(np.float32)
    with torch.no_grad():
        hidden = actor.latent_pi(torch.from_numpy(states))
        expected = torch.cat([actor.mu(hidden), actor.log_std(hidden)], 1).numpy()
    found = np.stack([np.concatenate(bundle.behaviour(1).gaussian(state)) for state in states])
    assert np.allclose(found, expected, atol=2e-3)
    actor.latent_pi = actor.latent_pi[:2]
    with pytest.raises(ValueError, match="2 hidden layers, got 1"):
        script.weights_of(SimpleNamespace(actor=actor))


def test_a_packed_policy_acts_like_the_one_it_was_taken_from(script):
    """Their mean action, which they scale to the bounds, and their log-deviation."""
    sac = pytest.importorskip("stable_baselines3").SAC
    with behaviours.make_environment("Pendulum-v1") as environment:
        model = sac(
            "MlpPolicy", environment, seed=3, device="cpu", policy_kwargs={"net_arch": [256, 256]}
        )
    with torch.no_grad():  # far from the near-zero outputs of an untrained policy
        model.actor.mu.weight *= 10
    behaviour = packed(script, model.policy).behaviour(0)
    states = np.random.default_rng(0).uniform([-1, -1, -8], [1, 1, 8], (50, 3)).astype(np.float32)
    theirs, _ = model.predict(states, deterministic=True)
    assert np.abs(theirs).max() > 1
    _, log_deviation, _ = model.actor.get_action_dist_params(torch.from_numpy(states))
    for state, action, spread in zip(states, theirs, log_deviation.detach().numpy(), strict=True):
        mean, ours = behaviour.gaussian(state)
        assert behaviour.squash(mean) == pytest.approx(action, abs=1e-2)
        assert ours == pytest.approx(spread, abs=1e-2)


SMALL = [
    "Pendulum-v1",
    "--steps",
    "300",
    "--snapshots",
    "3",
    "--episodes",
    "1",
    "--learning-starts",
]


def test_a_small_run_makes_a_source_of_data(script, tmp_path, capsys):
    """From training to a store, through the command."""
    pytest.importorskip("stable_baselines3")
    path = tmp_path / "pendulum.npz"
    assert script.main([*SMALL, "150", "--out", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "mean return" in shown
    assert "expert" in shown
    assert "holds 3 of 3 snapshots" in shown
    bundle = open_bundle(path)
    assert bundle.steps.tolist() == [33, 133, 300]
    assert not np.array_equal(bundle.weights[0][1], bundle.weights[0][2]), (
        "it learnt something in between"
    )
    assert np.array_equal(bundle.weights[0][0], bundle.weights[0][1]), (
        "but not before learning starts"
    )
    store = behaviours.build(path, "medium-replay", steps=400, workers=1)
    assert store.environment.identifier == "Pendulum-v1"
    assert store.num_steps >= 400
    assert 1 < np.abs(store.steps["action"]).max() <= 2
    assert script.main([*SMALL, "150", "--out", str(path)]) == 1
    assert "never overwritten" in capsys.readouterr().out


@pytest.fixture
def interrupted_at(script, monkeypatch):
    """Ctrl-C while this snapshot is evaluated."""
    pytest.importorskip("stable_baselines3")

    def arrange(number: int) -> list[float]:
        evaluated: list[float] = []

        def evaluate(*_):
            evaluated.append(-10.0 + len(evaluated))
            if len(evaluated) == number:
                signal.raise_signal(signal.SIGINT)
            return evaluated[-1]

        monkeypatch.setattr(script, "evaluate", evaluate)
        return evaluated

    return arrange


def test_an_interrupted_run_packs_what_there_is(script, interrupted_at, tmp_path, capsys):
    evaluated, path = interrupted_at(2), tmp_path / "pendulum.npz"
    assert script.main([*SMALL, "300", "--out", str(path)]) == 130
    assert len(evaluated) == 2
    assert f"interrupted: {path} holds 2 of 3 snapshots" in capsys.readouterr().out
    assert (open_bundle(path).medium, open_bundle(path).expert) == (1, 1)


def test_a_run_interrupted_too_early_packs_nothing(script, interrupted_at, tmp_path, capsys):
    interrupted_at(1)
    assert script.main([*SMALL, "300", "--out", str(tmp_path / "pendulum.npz")]) == 130
    shown = capsys.readouterr().out
    assert (
        "interrupted with 1 of 3 snapshots, of which a bundle needs 2: nothing is packed" in shown
    )
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"steps": 399}, "399 steps are too few for 20 snapshots; at least 400"),
        ({"snapshots": 1}, "snapshots must be at least 2, got 1"),
        ({"episodes": 0}, "episodes must be at least 1"),
        ({"learning_starts": -1}, "learning_starts must not be negative"),
    ],
)
def test_options_are_checked_before_anything_is_trained(script, tmp_path, arguments, complaint):
    """Seen to fail when the number of steps is not looked at: two snapshots would be due at
    once."""
    with pytest.raises(ValueError, match=complaint):
        script.Options("Pendulum-v1", tmp_path / "new.npz", **arguments)


def test_what_is_missing_is_named(script, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "stable_baselines3", None)
    assert script.main([*SMALL, "300", "--out", str(tmp_path / "new.npz")]) == 1
    assert "pip install 'saformer[behaviours]'" in capsys.readouterr().out
