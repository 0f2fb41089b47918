"""What a person finds by tab, `help` and `print`."""

import pydoc
import subprocess
import sys

import pytest
import torch

import saformer
from saformer.training.loop.presets import changed_preset, small

BRIEF = {"data_steps": 2000, "evaluate_every": 0, "device": "cpu", "width": 16, "layers": 1}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("discovery") / "run"
    return saformer.train("allowance", updates=3, batch_size=8, candidates=4, out=out, **BRIEF)


def test_tab_shows_the_public_names_and_nothing_else():
    """In a process of its own, as a session begins. Seen to fail: `dir` showed five names of
    modules, and none of ours."""
    code = "import saformer; print(*dir(saformer))"
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert shown.stdout.split() == sorted(saformer.__all__)
    assert all(getattr(saformer, name) is not None for name in dir(saformer))


def test_help_reads_like_a_page():
    """Every public name has its docstring there. Seen to fail: it listed no function."""
    page = pydoc.plain(pydoc.render_doc(saformer))
    for name in set(saformer.__all__) - {"__version__"}:
        assert f" {name}" in page, name
        assert getattr(saformer, name).__doc__, name
    assert "policy.observe(reward, cost)" in page
    names = set(saformer.__all__) - {"__version__", "Trained"}
    assert all(f"`{name}`" in saformer.__doc__ for name in names)


def test_settings_of_training_are_keywords(trained):
    """Of the loop, the agent and its transformer. Seen to fail: TypeError, unexpected keyword."""
    spec = trained.run.spec
    assert spec.fit_config["updates"] == 3
    assert spec.agent_config["candidates"] == 4
    assert spec.agent_config["trunk"]["width"] == 16
    with pytest.raises(ValueError, match="no setting 'update' to train by; did you mean updates"):
        saformer.train("allowance", update=3)
    with pytest.raises(ValueError, match="cpq has no setting 'width'"):
        saformer.train("allowance", agent="cpq", limit="p20", width=3)
    assert changed_preset(small(), {}) == small()


def test_tensorboard_by_keyword(tmp_path):
    """Beside what a listener hears. Seen to fail: only the command had it."""
    pytest.importorskip("tensorboard")
    rows: list[dict] = []
    listener = saformer.Listener(row=lambda run, row: rows.append(row))
    how = {"updates": 2, "batch_size": 8, "report_every": 1, "listener": listener}
    saformer.train("allowance", tensorboard=True, out=tmp_path / "run", **how, **BRIEF)
    assert len(rows) == 2
    assert list((tmp_path / "run" / "tensorboard").glob("events*"))


def test_limits_by_name(trained):
    """One for all lanes, or one for each; as Python's numbers, to the last digit. Seen to fail:
    "new(): invalid data type 'str'", and rounded to float32."""
    policy = trained.policy()
    values = [float(limit) for limit in (trained._limit_of(name)[0] for name in ("p50", "p90"))]
    policy.reset(torch.zeros(2, 2), limit="p50")
    assert policy.budget.limit.tolist() == [[values[0]]] * 2
    policy.reset(torch.zeros(2, 2), limit=["p50", "p90"])
    assert policy.budget.limit[:, 0].tolist() == values
    with pytest.raises(ValueError, match="p50%"):
        policy.reset(torch.zeros(2, 2), limit="p50%")


def test_observing_twice_is_refused(trained):
    """Seen to fail: the cost was booked twice."""
    policy = trained.policy()
    policy.reset(torch.zeros(1, 2), limit="p50")
    policy.act(torch.zeros(1, 2))
    policy.observe(1.0, 1.0)
    with pytest.raises(ValueError, match="has not acted since it was last observed"):
        policy.observe(1.0, 1.0)


def test_results_print_as_tables(trained, tmp_path):
    """In notebooks too. Seen to fail: 3.8 kB of a dataclass's fields."""
    evaluation = trained.evaluate(["p50"], episodes=1)
    lines = repr(evaluation).splitlines()
    assert lines[0].split()[:3] == ["limit", "met", "cost"]
    assert lines[1].startswith("p50 = ")
    assert "of 1 limit met (tolerance 0, 1 episode each)" in str(evaluation)
    assert "<pre" in evaluation._repr_html_()
    assert "p50 = " in evaluation._repr_html_()
    assert "Thresholds" in repr(saformer.inspect_data("allowance", steps=2000))
    swept = trained.sweep([2, 4], option="candidates", limits=["p50"], episodes=1)
    assert repr(swept).startswith("candidates")
    store = saformer.data_of(trained.run).store
    assert repr(store).endswith(": 100 trajectories, 2000 steps; torque)")
    assert repr(trained).startswith(f"Trained({trained.path}: allowance")
