"""Numbers that must not move by accident. A change that moves them says so and refreshes them."""

import json

import pytest

from tests.golden.refresh import FILE, measure


def test_losses_and_decisions_are_as_they_were():
    """Seen to fail when tokens lose their time."""
    golden, now = json.loads(FILE.read_text()), measure()
    for old, new in zip(golden["losses"], now["losses"], strict=True):
        assert new == pytest.approx(old, rel=1e-4)
    for old, new in zip(golden["decisions"], now["decisions"], strict=True):
        for name in old:
            assert new[name] == pytest.approx(old[name], rel=1e-3, abs=1e-4), name
