"""What a run is, and how it differs from another."""

from dataclasses import replace

from saformer.core.batch import Dimensions
from saformer.runs.spec import RunSpec


def test_only_what_differs_is_said():
    """Down to the setting, not whole groups of them."""
    spec = RunSpec(
        task="allowance",
        agent="saformer",
        agent_config={"window": 5, "trunk": {"layers": 2, "width": 64}},
        fit_config={"updates": 10},
        seed=0,
        criteria=("cost",),
        data_steps=None,
        data_seed=0,
        data_fingerprint="f",
        dimensions=Dimensions(2, 1, 1),
    )
    other = replace(
        spec, seed=1, agent_config={"window": 5, "trunk": {"layers": 1, "width": 64}}, limit="p20"
    )
    assert spec.differences(other) == [
        "agent_config.trunk.layers: 2 here, 1 there",
        "seed: 0 here, 1 there",
        "limit: None here, p20 there",
    ]
    assert spec.differences(spec) == []
