"""Stores are whole or absent, only grow, and are never read before they are needed."""

import os
import resource
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from saformer.data import folder
from saformer.data.relabel import relabel
from saformer.data.sampling import WindowSampler
from saformer.data.store import TrajectoryStore
from saformer.envs import allowance
from saformer.files import remove_abandoned
from tests.data.test_trajectory_and_store import BOX, trajectory
from tests.editing import edit


def same(ours, theirs) -> bool:
    if dict(ours.columns).keys() != dict(theirs.columns).keys():
        return False
    return np.array_equal(ours.digest(), theirs.digest())


def contents(path: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()
    }


@contextmanager
def files_may_hold(size: int):
    """Writing more than this fails, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def saved(tmp_path) -> TrajectoryStore:
    parts = [
        trajectory(steps, reward=np.full(steps, float(steps)), columns={"speed": np.ones(steps)})
        for steps in (3, 1, 4)
    ]
    return TrajectoryStore.of(parts, BOX, {"source": "by hand"}, criteria=("speed",)).save(
        tmp_path / "store"
    )


@pytest.mark.parametrize("is_larger_than_memory", [False, True])
def test_what_is_saved_is_what_is_opened(tmp_path, monkeypatch, is_larger_than_memory):
    """Seen to fail when what is larger than memory is not mapped otherwise."""
    if is_larger_than_memory:
        monkeypatch.setattr(torch, "from_file", Mock(side_effect=RuntimeError("no memory")))
    store = allowance.dataset(episodes=3)
    opened = store.save(tmp_path / "store")
    assert len(opened) == 3
    assert opened.num_steps == 60
    assert opened.environment == store.environment
    assert opened.provenance == store.provenance
    assert opened.fingerprint == store.fingerprint
    assert all(same(ours, theirs) for ours, theirs in zip(store, opened, strict=True))
    assert isinstance(opened.steps["state"], np.memmap) == is_larger_than_memory
    assert not opened.steps["state"].flags.writeable
    assert opened.damaged() == []


def test_named_columns_and_criteria_are_kept(saved):
    assert saved.column_names == ("speed",)
    assert saved.criteria == ("speed",)
    assert saved[2].columns["speed"].tolist() == [1.0] * 4


def test_stores_are_never_overwritten(saved):
    with pytest.raises(FileExistsError, match="never overwritten"):
        saved.save(saved.path)


def test_views_share_what_they_show(saved):
    """Seen to fail when a view forgets where its trajectories lie."""
    view = saved.filter(np.array([2, 0]))
    assert view.steps is saved.steps
    assert [len(part) for part in view] == [4, 3]
    assert all(same(ours, saved[i]) for ours, i in zip(view, (2, 0), strict=True))
    assert view.gather("reward").tolist() == [4.0] * 4 + [3.0] * 3
    assert view.fingerprint == TrajectoryStore.of([saved[2], saved[0]], BOX).fingerprint
    assert saved.filter(saved.lengths > 1).lengths.tolist() == [3, 4]
    with pytest.raises(ValueError, match="no trajectory is left of 3"):
        saved.filter(saved.lengths > 9)


def test_a_view_can_be_saved(saved, tmp_path):
    view = saved.filter(np.array([1, 2]))
    assert view.save(tmp_path / "view").fingerprint == view.fingerprint


def test_split_holds_out_a_share_and_loses_none():
    """Seen to fail when both parts hold the same trajectories."""
    store = TrajectoryStore.of([trajectory(reward=np.full(3, float(i))) for i in range(20)], BOX)
    rest, held_out = store.split(0.1, seed=3)
    numbers = [[int(part.reward[0]) for part in view] for view in (rest, held_out)]
    assert sorted(numbers[0] + numbers[1]) == list(range(20))
    assert len(held_out) == 2
    assert store.split(0.1, seed=3)[1].fingerprint == held_out.fingerprint
    assert store.split(0.1, seed=4)[1].fingerprint != held_out.fingerprint
    for share in (0.0, 1.0, 0.99):
        with pytest.raises(ValueError, match="cannot hold out"):
            store.split(share)


def test_only_finished_trajectories_are_held_out():
    """Seen to fail when any may be: with nothing but unfinished ones held out, no model can be
    judged."""
    parts = [trajectory(reward=np.full(3, float(i)), terminated=i % 5 == 0) for i in range(20)]
    for seed in range(10):
        rest, held_out = TrajectoryStore.of(parts, BOX).split(0.5, seed=seed)
        assert held_out.finished.tolist() == [True, True]
        assert rest.finished.sum() == 2
        assert len(rest) == 18
    with pytest.raises(
        ValueError, match="of 1 finished trajectories and keep some; 0 holds none out"
    ):
        TrajectoryStore.of(parts[:5], BOX).split(0.5)


@pytest.mark.parametrize("on_disk", [True, False])
def test_extend_adds_behind_and_rewrites_nothing(saved, on_disk):
    """Seen to fail when an append begins anew at the start of a column."""
    before = contents(saved.path)
    store = saved if on_disk else TrajectoryStore.of(saved, BOX, criteria=("speed",))
    view = store.filter(np.array([2]))
    new = [
        trajectory(2, columns={"speed": np.zeros(2)}),
        trajectory(1, columns={"speed": np.ones(1)}),
    ]
    longer, longer_view = store.extend(new[:1]), view.extend(new[1:])
    assert [len(part) for part in longer] == [3, 1, 4, 2]
    assert same(longer[3], new[0])
    assert [len(part) for part in longer_view] == [4, 1]
    assert same(longer_view[0], store[2])
    assert same(longer_view[1], new[1])
    assert [len(part) for part in store] == [3, 1, 4], (
        "an earlier view goes on showing what it showed"
    )
    if on_disk:
        after = contents(saved.path)
        for name, content in before.items():
            assert name == "manifest.json" or after[name][: len(content)] == content
        assert TrajectoryStore.open(saved.path).lengths.tolist() == [3, 1, 4, 2, 1]
        assert TrajectoryStore.open(saved.path).damaged() == []
    assert store.extend([]) is store


def test_what_another_writer_adds_at_the_same_time_is_not_ours(saved, monkeypatch):
    """Seen to fail when all that lies behind counts as added by this call."""
    append, theirs = folder.append, trajectory(2, columns={"speed": np.zeros(2)})

    def then_another(path, parts):
        num_before = append(path, parts)
        append(path, [theirs])
        return num_before

    monkeypatch.setattr(folder, "append", then_another)
    longer = saved.extend([trajectory(1, columns={"speed": np.ones(1)})])
    assert longer.lengths.tolist() == [3, 1, 4, 1]
    assert TrajectoryStore.open(saved.path).lengths.tolist() == [3, 1, 4, 1, 2]


def test_extending_with_other_columns_is_refused(saved):
    before = contents(saved.path)
    with pytest.raises(ValueError, match="trajectory 3 has no speed columns, expected float64"):
        saved.extend([trajectory()])
    assert contents(saved.path).keys() - before.keys() <= {"lock"}
    assert TrajectoryStore.open(saved.path).fingerprint == saved.fingerprint


def test_what_an_interrupted_append_left_is_never_read(saved):
    """Seen to fail when an append goes on behind what another one left."""
    with (saved.path / "steps" / "reward.bin").open("ab") as file:
        file.write(b"torn")
    assert TrajectoryStore.open(saved.path).fingerprint == saved.fingerprint
    longer = saved.extend([trajectory(2, columns={"speed": np.zeros(2)})])
    assert longer[3].reward.tolist() == [1.0, 1.0]


def test_a_full_disk_leaves_an_extended_store_as_it_was(saved):
    """Seen to fail when columns that grew are not cut back: they would no longer agree with each
    other."""
    before = contents(saved.path)
    long = trajectory(500, columns={"speed": np.zeros(500)}, terminated=False)
    with files_may_hold(3000), pytest.raises(OSError, match="File too large"):
        saved.extend([long])
    after = contents(saved.path)
    assert {name: content for name, content in after.items() if name != "lock"} == before
    assert len(saved.extend([long])) == 4


def test_a_full_disk_leaves_no_new_store(tmp_path):
    """Seen to fail when the unfinished folder is not removed."""
    store = allowance.dataset(episodes=200)
    with files_may_hold(5000), pytest.raises(OSError, match="File too large"):
        store.save(tmp_path / "store")
    assert os.listdir(tmp_path) == []


def test_what_a_killed_writer_left_is_removed_by_the_next(tmp_path):
    """Seen to fail when abandoned folders are never looked for."""
    code = (
        "import sys, time\n"
        "from saformer.data.folder import StoreWriter\n"
        "from saformer.envs import allowance\n"
        "with StoreWriter(sys.argv[1]) as writer:\n"
        "    writer.add(allowance.dataset(episodes=1)[0])\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(60)\n"
    )
    path = tmp_path / "store"
    process = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    left = list(tmp_path.iterdir())
    assert len(left) == 1
    remove_abandoned(tmp_path)
    assert list(tmp_path.iterdir()) == left, "its writer is still alive"
    process.send_signal(signal.SIGKILL)
    process.wait()
    allowance.dataset(episodes=2).save(path)
    assert list(tmp_path.iterdir()) == [path]


def test_two_writers_take_turns(saved):
    """Who comes second waits, and adds behind the first. Seen to fail without a lock."""
    code = (
        "import sys\n"
        "from saformer.data.store import TrajectoryStore\n"
        "store = TrajectoryStore.open(sys.argv[1])\n"
        "print('ready', flush=True)\n"
        "store.extend([store[0]])\n"
        "print('done', flush=True)\n"
    )
    with folder.locked(saved.path / folder.LOCK):
        second = subprocess.Popen(
            [sys.executable, "-c", code, str(saved.path)], stdout=subprocess.PIPE
        )
        assert second.stdout is not None
        assert second.stdout.readline() == b"ready\n"
        time.sleep(0.5)
        assert len(TrajectoryStore.open(saved.path)) == 3, "it waits"
    assert second.stdout.readline() == b"done\n"
    second.wait()
    assert len(TrajectoryStore.open(saved.path)) == 4
    assert len(saved.extend([saved[1]])) == 4, "this view and its own, not the other's"
    opened = TrajectoryStore.open(saved.path)
    assert opened.lengths.tolist() == [3, 1, 4, 3, 1]
    assert opened.damaged() == []


def test_damage_is_found(saved):
    """Seen to fail when digests are not compared."""
    file = saved.path / "steps" / "reward.bin"
    spoilt = bytearray(file.read_bytes())
    spoilt[3 * 4] ^= 1  # the only reward of trajectory 1
    file.write_bytes(bytes(spoilt))
    assert TrajectoryStore.open(saved.path).damaged() == [1]


def _edit(path: Path, **changes: object) -> None:
    edit(path / "manifest.json", **changes)


def _replace_manifest_by_a_folder(path: Path) -> None:
    (path / "manifest.json").unlink()
    (path / "manifest.json").mkdir()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path: (path / "manifest.json").unlink(), "not a trajectory store"),
        (lambda path: (path / "manifest.json").write_text("{"), "damaged"),
        (lambda path: (path / "manifest.json").write_bytes(b"\xff\xfe"), "damaged"),
        (
            lambda path: (path / "manifest.json").write_text("[]"),
            "damaged or of another version .Input should be an object",
        ),
        (
            lambda path: _edit(path, format=1),
            "store format 1, this version reads 2: remove it and build",
        ),
        (lambda path: _edit(path, columns={}), "damaged"),
        (lambda path: _edit(path, environment={"bounds": 1}), "damaged"),
        (lambda path: _edit(path, steps=-3), "damaged.*-3 steps"),
        (lambda path: _edit(path, trajectories=0), "damaged.*0 trajectories"),
        (
            lambda path: _edit(path, steps=7),
            "damaged: its trajectories have 8 steps, its manifest says 7",
        ),
        (_replace_manifest_by_a_folder, "damaged"),
        (
            lambda path: (path / "steps" / "reward.bin").write_bytes(b"12"),
            "holds 2 bytes, its manifest says 32",
        ),
        (lambda path: (path / "steps" / "state.bin").unlink(), "missing or damaged"),
        (lambda path: (path / "episodes" / "length.bin").unlink(), "missing or damaged"),
    ],
)
def test_damaged_stores_are_refused(saved, spoil, message):
    spoil(saved.path)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        TrajectoryStore.open(saved.path)


def test_windows_of_a_view_are_those_of_its_trajectories(data, tmp_path):
    """On disk and in memory. Seen to fail when windows are gathered as if the view lay end to
    end."""
    chosen = np.array([9, 2, 3, 140])
    apart = relabel(
        TrajectoryStore.of([data.store[i] for i in chosen], data.store.environment), data.criteria
    )
    for store in (data.store, data.store.save(tmp_path / "store")):
        view = relabel(store.filter(chosen), data.criteria)
        starts = torch.tensor([0, 5, 19, 20, 39, 61, 79])
        ours, theirs = (WindowSampler(d, window=6).windows(starts) for d in (view, apart))
        assert all(
            torch.equal(a, b)
            for a, b in zip(vars(ours).values(), vars(theirs).values(), strict=True)
        )


@settings(max_examples=30, deadline=None)
@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=20), max_steps=st.integers(1, 30))
def test_blocks_cover_every_trajectory_once(lengths, max_steps):
    store = TrajectoryStore.of([trajectory(length) for length in lengths], BOX)
    ranges = list(store.blocks(max_steps))
    assert [i for first, stop in ranges for i in range(first, stop)] == list(range(len(lengths)))
    assert all(stop == first + 1 or sum(lengths[first:stop]) <= max_steps for first, stop in ranges)
