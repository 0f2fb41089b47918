"""What every agent learns and decides is what it was at c700f69."""

import json

import pytest

from tests.golden.unmoved import FILE, differences, machine, measure


def test_weights_and_decisions_are_what_they_were():
    """Seen to fail when an update clips at 0.2 instead of 0.25, and when a proposal's first
    candidate is drawn too."""
    old, now = json.loads(FILE.read_text()), measure()
    if old["machine"] == machine():
        assert not list(differences(old, now))
    for name, agent in old["agents"].items():
        assert now["agents"][name]["size"] == pytest.approx(agent["size"], rel=1e-3), name
