"""Actions brought within what they may cost: checked by hand and for any cost of the action
alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from saformer.criteria import criterion, energy, torque
from saformer.criteria.afford import Affordable

COSTS = (
    "torque",
    "energy",
    "torque[0]",
    "norm(action)",
    "above(abs(action[1]), 0.3)",
    "(action[0] > 0.5) + torque",
)


def affordable(*names, low=(-1.0, -1.0), high=(1.0, 1.0)) -> Affordable:
    return Affordable([criterion(name) for name in names], low, high)


def project(within: Affordable, action, *allowed):
    executed, cost, changed = within.project(np.array([action], np.float32), np.array([allowed]))
    return executed[0], cost[0], bool(changed[0])


def test_torque_is_afforded_by_scaling():
    """0.5 of 2 remain: a quarter of the action. Seen to fail when the cheapest action is executed
    instead."""
    executed, cost, changed = project(affordable("torque"), [0.5, -1.0], 0.75)
    assert executed == pytest.approx([0.25, -0.5], abs=1e-6)
    assert 0.75 - 1e-6 <= cost[0] <= 0.75
    assert changed


def test_energy_is_afforded_by_the_root():
    executed, _, _ = project(affordable("energy"), [0.6, -0.8], 0.25)
    assert executed == pytest.approx([0.3, -0.4], abs=1e-6)


def test_what_is_affordable_is_left_alone():
    """To the last bit. Seen to fail when an action that costs just what is allowed is changed."""
    executed, cost, changed = project(affordable("torque"), [0.5, -0.25], 0.75)
    assert executed.tolist() == [0.5, -0.25]
    assert cost.tolist() == [0.75]
    assert not changed


def test_an_exhausted_constraint_leaves_free_what_costs_it_nothing():
    """Seen to fail when all entries are scaled alike."""
    executed, cost, _ = project(affordable("torque[0]", "torque[1]"), [1.0, -1.0], 0.0, 5.0)
    assert executed.tolist() == [0.0, -1.0]
    assert cost.tolist() == [0.0, 1.0]


def test_the_smallest_scale_counts():
    """Energy would allow 0.5 of the action, torque 0.25."""
    executed, _, _ = project(affordable("torque", "energy"), [1.0, 0.0], 0.25, 0.25)
    assert executed == pytest.approx([0.25, 0.0], abs=1e-6)


def test_actions_beyond_their_bounds_are_costed_as_they_are_executed():
    executed, cost, changed = project(affordable("torque"), [3.0, 0.0], 1.0)
    assert executed.tolist() == [1.0, 0.0]
    assert cost.tolist() == [1.0]
    assert not changed


def test_the_cheapest_action_is_searched_where_nothing_is_not_free():
    """Seen to fail when doing nothing is taken for the cheapest."""
    within = affordable("abs(action[0] - 0.3) + above(-action[1], -0.7)")
    assert within.cheapest[0] == pytest.approx(0.3, abs=1e-6)
    assert within.cheapest[1] >= 0.7 - 1e-6
    assert within.floor[0] == pytest.approx(0, abs=1e-6)


def test_bounds_may_leave_doing_nothing_out():
    within = affordable("torque", low=(0.2, -1.0), high=(1.0, 1.0))
    assert within.cheapest.tolist() == pytest.approx([0.2, 0.0])
    assert within.floor == pytest.approx([0.2])


def test_no_bounds_at_all_are_bounds_too():
    within = affordable("torque", low=(-np.inf,) * 2, high=(np.inf,) * 2)
    executed, _, _ = project(within, [300.0, -100.0], 4.0)
    assert executed == pytest.approx([3.0, -1.0], rel=1e-6)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("reward * action[0]", "reward"),
        ("next_state[0] ** 2 + torque", "next_state"),
        ("cost", "cost"),
    ],
)
def test_costs_of_anything_else_are_refused(text, read):
    """Seen to fail when any criterion is taken for one of the action."""
    with pytest.raises(
        ValueError, match=rf"no shield can enforce .*reads {read}, .*once it was taken"
    ):
        affordable(text)


@given(
    names=st.lists(st.sampled_from(COSTS), min_size=1, max_size=3, unique=True),
    action=st.lists(st.floats(-2, 2, width=32), min_size=2, max_size=2),
    allowed=st.lists(st.floats(0, 2), min_size=3, max_size=3),
)
def test_no_action_costs_more_than_is_allowed(names, action, allowed):
    """For costs that jump and ones that do not. Seen to fail when the search ends above what is
    affordable."""
    within = affordable(*names)
    executed, cost, changed = project(within, action, *allowed[: len(names)])
    assert (within.cost(executed) == cost).all()
    assert (cost <= allowed[: len(names)]).all()
    assert changed or executed.tolist() == np.clip(action, -1, 1).tolist()


@given(
    action=st.lists(st.floats(-1, 1, width=32), min_size=3, max_size=3), allowed=st.floats(0.01, 3)
)
def test_no_more_is_taken_away_than_must_be(action, allowed):
    """Seen to fail when the search ends after its first round."""
    for criteria in ([torque], [energy], [criterion("torque + energy")]):
        within = Affordable(criteria, [-1.0] * 3, [1.0] * 3)
        _, cost, changed = project(within, action, allowed)
        if changed:
            assert cost[0] >= allowed * (1 - 1e-5)
