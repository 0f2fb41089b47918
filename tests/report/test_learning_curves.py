"""The figure of what was measured while training."""

import re

from matplotlib.figure import Figure

from saformer.report.learning import _draw_evaluations, learning_curves


def row(update: int, **changes) -> dict:
    return {
        "update": update,
        "actor/reward": -0.5,
        "actor/watched/safe": 0.5,
        "actor/watched/expected_cost_0": 40.0 - update,
        "actor/watched/expected_cost_1": 20.0,
        "actor/gradient_norm": 1.0,
        **changes,
    }


def texts(svg: str) -> list[str]:
    return re.findall(r">([^<>]*[a-z][^<>]*)</text>", svg)


def num_panels(svg: str) -> int:
    return len(re.findall(r'id="axes_\d+"', svg))


def test_what_is_watched_is_drawn_apart_and_held_against_the_limit():
    """Seen to fail when raw costs stand among the terms of a loss."""
    found = texts(learning_curves([row(10), row(20)], limit=(25.0, 30.0)))
    assert found.count("reward") == 1
    assert not any("watched" in text for text in found)
    for title in ("actor: terms of its loss, model units", "actor: safe", "actor: expected cost"):
        assert found.count(title) == 1
    assert found.count("limit") == 2
    assert {"cost 1", "cost 2"} <= set(found)


def test_no_limit_is_drawn_where_an_agent_has_none():
    svg = learning_curves([row(10), row(20)])
    assert "limit" not in texts(svg)
    assert num_panels(svg) == 3


def test_rows_of_another_version_do_not_stop_it():
    """A run that an earlier version began names some figures otherwise."""
    former = {"update": 5, "actor/reward": -0.1, "actor/safe": 0.5, "actor/gradient_norm": 1.0}
    svg = learning_curves([former, row(10)])
    assert num_panels(svg) == 3


def test_one_evaluation_is_no_curve():
    """Seen to fail when it is drawn: a dot, on an axis from 950 to 1050 updates."""
    seen = {"p10": {"return": 1.0, "cost": [2.0], "limit": [3.0]}}
    judged = [{"update": update, "evaluation": seen} for update in (10, 20)]
    rows = [row(10), row(20)]
    assert num_panels(learning_curves([*rows, *judged])) == 5
    assert num_panels(learning_curves([*rows, judged[-1]])) == 3


def test_every_limit_is_in_the_picture():
    """Its cost too. Seen to fail when the axis is fixed after the first limit."""
    seen = {
        name: {"return": 1.0, "cost": [cost], "limit": [cost + 1]}
        for name, cost in (("p10", 4.0), ("p90", 80.0))
    }
    axis = Figure().subplots()
    _draw_evaluations(axis, [{"update": 1, "evaluation": seen}], "cost", 0)
    low, high = axis.get_ylim()
    assert low == 0
    assert high > 81
