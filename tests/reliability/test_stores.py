"""Stores that were damaged or made to mislead are refused when they are opened, in one line."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from saformer.data.relabel import relabelled
from saformer.data.store import TrajectoryStore
from saformer.envs import allowance
from tests.editing import unsigned


@pytest.fixture
def store(source, tmp_path) -> Path:
    return Path(shutil.copytree(source.spec.task, tmp_path / "store"))


def edit(path: Path, **changes) -> None:
    """`columns__steps__state__dtype` is an entry within entries."""
    manifest = unsigned(path / "manifest.json")
    for name, value in changes.items():
        *within, last = name.split("__")
        entry = manifest
        for key in within:
            entry = entry[key]
        entry[last] = value
    (path / "manifest.json").write_text(json.dumps(manifest))


def set_lengths(path: Path, change) -> None:
    file = path / "episodes" / "length.bin"
    lengths = np.fromfile(file, np.int64)
    change(lengths)
    lengths.tofile(file)


def wrap_around(lengths) -> None:
    """To the same sum, modulo 2^64."""
    total = int(lengths.sum())
    lengths[:4] = 2**62
    rest = total - int(lengths[4:].sum())
    lengths[3] += rest


def swap(lengths) -> None:
    lengths[0], lengths[1] = lengths[0] - 5, lengths[1] + 5


def zero(lengths) -> None:
    lengths[0], lengths[1] = 0, lengths[1] + lengths[0]


def without_checksum(path: Path) -> None:
    manifest = unsigned(path / "manifest.json")
    manifest.pop("checksum", None)
    (path / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize("change", [wrap_around, zero])
@pytest.mark.parametrize("has_checksum", [True, False])
def test_lengths_that_cannot_be_are_refused(store, change, has_checksum):
    """Seen to fail: those that wrap around ended in a segmentation fault of `saformer data
    inspect`, those of 0 steps were trained on."""
    set_lengths(store, change)
    if not has_checksum:
        without_checksum(store)
    with pytest.raises(ValueError, match="is damaged") as refusal:
        TrajectoryStore.open(store)
    assert str(store) in str(refusal.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"columns__steps__state__dtype": "uint8"},
        {"columns__steps__reward__dtype": "uint8"},
        {"columns__steps__reward__shape": [1]},
        {"columns__steps__action__shape": []},
        {"columns__episodes__final_state__shape": []},
        {"columns__episodes__final_state__shape": [0]},
        {"columns__episodes__final_state__shape": [3]},
        {"columns__episodes__length__dtype": "float64"},
        {"columns__episodes__terminated__dtype": "uint8"},
        {"columns__steps__state__shape": [2**62, 4]},
        {"columns__steps__state": 3},
        {"columns": []},
        {"environment": []},
        {"environment__horizon": 5},
        {"environment__horizon": "20"},
        {"environment__horizon": 20.5},
        {"environment__action_low": ["-1"]},
        {"environment__action_low": [-1.0, -1.0], "environment__action_high": [1.0, 1.0]},
        {"environment__arguments": 3},
        {"environment__may_end": "no"},
        {"environment__identifier": 7},
        {"criteria": "torque"},
        {"criteria": [3]},
        {"provenance": 3},
        {"trajectories": 99},
        {"trajectories": 99, "steps": 1980},
        {"trajectories": 100.5},
        {"trajectories": 10**30},
        {"steps": "2000"},
        {"steps": -2000},
        {"format": "2"},
    ],
    ids=str,
)
def test_a_manifest_that_misleads_is_refused(store, changes):
    """Seen to fail: 8 such stores were trained on in silence, 4 ended in a traceback."""
    edit(store, **changes)
    with pytest.raises(ValueError, match=r"damaged|store format|holds .* bytes") as refusal:
        TrajectoryStore.open(store)
    assert str(store) in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_lengths_that_were_exchanged_are_refused(store):
    """Seen to fail: the fingerprint was the same."""
    set_lengths(store, swap)
    with pytest.raises(ValueError, match="episodes are not what was stored"):
        TrajectoryStore.open(store)


@pytest.mark.parametrize("name", ["state", "action", "reward"])
def test_what_is_no_number_is_said_with_its_store(store, name):
    """Seen to fail: "state needs finite statistics", "range of [nan, nan]"."""
    file = store / "steps" / f"{name}.bin"
    dtype = TrajectoryStore.open(store).steps[name].dtype
    values = np.fromfile(file, dtype)
    values[7] = np.nan
    values.tofile(file)
    with pytest.raises(ValueError, match=f"{re.escape(str(store))} is damaged: {name} holds NaN"):
        relabelled(TrajectoryStore.open(store), ())


def test_a_store_without_a_checksum_opens_and_grows(store):
    """As older versions made them; what is appended by one of them is not checked either."""
    before = TrajectoryStore.open(store).fingerprint
    without_checksum(store)
    assert TrajectoryStore.open(store).fingerprint == before
    longer = TrajectoryStore.open(store).extend([allowance.dataset(episodes=1)[0]])
    assert len(longer) == len(TrajectoryStore.open(store)) == 101
