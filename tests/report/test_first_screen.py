"""What a page shows first, and what it answers when pointed at."""

import re

import pytest

from saformer.report.page import Page, Remark, Tiles
from saformer.report.rollouts import _among_the_data, _tiles


def evaluation(*within: bool, share: float = 0.9, idle: tuple[str, ...] = ()) -> dict:
    """One limit of 10; an episode each, costing 9 if it is within and 12 if not."""
    rows = [
        {
            "limit_name": "<d>",
            "cost": [9.0 if each else 12.0],
            "episode_return": 5.0,
            "within": each,
        }
        for each in within
    ]
    mean = sum(row["cost"][0] for row in rows) / len(rows)
    verdict = {
        "limit": {"name": "<d>", "values": [10.0]},
        "within": sum(within) / len(within),
        "met": mean <= 10,
    }
    return {
        "verdicts": [verdict],
        "episodes": rows,
        "limits_met": int(mean <= 10),
        "frontier_share": share,
        "idle_limits": idle,
    }


@pytest.mark.parametrize(
    ("judged", "texts", "marks"),
    [
        (evaluation(True, True, share=0.97), ["1 of 1", "100%", "97%"], ["safe", "safe", "safe"]),
        (evaluation(True, True, True, False), ["1 of 1", "75%", "90%"], ["met", "met", ""]),
        (evaluation(False), ["0 of 1", "0%", "90%"], ["missed", "missed", ""]),
        (evaluation(True, idle=("d",)), ["1 of 1", "100%", "90%"], ["safe", "safe", "missed"]),
    ],
    ids=["kept", "on average", "missed", "no better than doing nothing"],
)
def test_three_tiles_say_what_was_promised_and_what_it_earned(judged, texts, marks):
    """Green follows episodes, not the mean. Seen to fail when it follows the mean, and when doing
    nothing counts as earning."""
    tiles = _tiles(judged)
    assert [text for text, _, _ in tiles] == texts
    assert [mark for _, _, mark in tiles] == marks


def test_every_dot_among_the_data_says_what_it_is():
    """Seen to fail when the stored episodes have no text."""
    data = {"criteria": ["torque"], "cost": [[1.0], [2.0], [3.0]], "return": [4.0, 5.0, 6.0]}
    drawn = _among_the_data(evaluation(True, False), data)
    hints = re.findall(r"<use [^>]*><title>(.*?)</title></use>", drawn)
    assert hints[:2] == ["recorded: cost 1, return 4", "recorded: cost 2, return 5"]
    assert hints[3:] == [f"policy under &lt;d&gt;: cost {cost}, return 5" for cost in (9, 12)]


def test_a_page_is_for_the_dark_for_phones_and_folds_what_is_long(tmp_path):
    """Seen to fail without the folding, and with a fixed colour scheme."""
    parts = [Tiles([("1 of 1", "limits kept", "safe")]), Remark(("{}",), "How", "listing")]
    text = Page("t", parts).write_beside_markdown(tmp_path, "t").read_text()
    assert '<div class="tile safe"><b>1 of 1</b><small>limits kept</small></div>' in text
    assert re.search(r"<details>.*<pre>\{\}</pre></details>", text)
    assert "prefers-color-scheme: dark" in text
    assert "color-scheme: light dark" in text
    assert "max-width: 40rem" in text
    assert "- 1 of 1 ✓: limits kept" in (tmp_path / "t.md").read_text()
