"""The figure of what was explored."""

from saformer.report.learning import cost_against_target


def episode(number: int, cost: list[float], *, broke_ceiling: bool = False) -> dict:
    limit = {"limit_name": "5,40", "limit": [5.0, 40.0]}
    return {
        **limit,
        "number": number,
        "prompt": [4.0, 32.0],
        "cost": cost,
        "broke_ceiling": broke_ceiling,
    }


def test_every_cost_has_a_panel_of_its_own():
    """Seen to fail when only the first is drawn."""
    rows = [
        episode(0, [4.0, 30.0]),
        episode(1, [4.5, 50.0]),
        episode(2, [6.0, 20.0], broke_ceiling=True),
    ]
    judged = [
        {
            "episodes": 3,
            "evaluation": {"5,40": {"cost": [4.2, 38.0]}, "not explored": {"cost": [1.0, 1.0]}},
        }
    ]
    drawn = cost_against_target(rows, judged, ("spent", "heat"))
    assert "episode cost (spent)" in drawn
    assert "episode cost (heat)" in drawn
