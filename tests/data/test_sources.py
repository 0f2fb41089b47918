"""Other people's files: in their layouts, made here, to known trajectories."""

import json
import urllib.error
import urllib.request

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from saformer.criteria import criterion
from saformer.data.relabel import relabel
from saformer.data.sources.arrays import MISASSEMBLED_ROWS, read_hdf5, read_npz
from saformer.data.sources.names import is_hosted, open_source
from saformer.data.sources.rows import Cutter, Rows
from saformer.data.sources.source import EnvironmentHints, import_source
from saformer.data.store import EnvironmentSpec, TrajectoryStore
from saformer.data.trajectory import Trajectory
from saformer.envs.tasks import find_task, load_data

h5py = pytest.importorskip("h5py")


def recording(lengths, *, ends="t", num_actions=3, num_states=11):
    """Flat arrays as D4RL has them; `ends` says how each episode ends: t(erminal), o(ut of time), -
    (not)."""
    rows = sum(lengths)
    rng = np.random.default_rng(rows)
    arrays = {
        "observations": rng.standard_normal((rows, num_states)).astype(np.float32),
        "actions": rng.uniform(-1, 1, (rows, num_actions)).astype(np.float32),
        "rewards": rng.standard_normal(rows).astype(np.float32),
        "terminals": np.zeros(rows, dtype=bool),
        "timeouts": np.zeros(rows, dtype=bool),
    }
    for last, end in zip(np.cumsum(lengths) - 1, ends, strict=True):
        arrays["terminals"][last] = end == "t"
        arrays["timeouts"][last] = end == "o"
    return arrays


def write_hdf5(path, arrays):
    with h5py.File(path, "w") as file:
        for name, values in arrays.items():
            file[name] = values
    return path


def load(source, tmp_path) -> tuple[TrajectoryStore, tuple[str, ...]]:
    found = import_source(source, tmp_path / "store")
    return found.store, found.notes


def test_d4rl_v2(tmp_path):
    """With time-outs, infos and next observations; the last trajectory has no end.

    Seen to fail when rows are cut before their end instead of after it.
    """
    arrays = recording([3, 2, 4], ends="to-")
    arrays["next_observations"] = arrays["observations"] + 1
    arrays["infos/qpos"] = np.arange(18.0).reshape(9, 2)
    arrays["infos/action_log_probs"] = np.arange(9.0, dtype=np.float32)
    arrays["metadata/algorithm"] = np.bytes_("SAC")
    source = read_hdf5(write_hdf5(tmp_path / "hopper_medium-v2.hdf5", arrays))
    store, notes = load(source, tmp_path)
    assert store.lengths.tolist() == [3, 2, 4]
    assert store.episodes["terminated"].tolist() == [True, False, False]
    assert store.episodes["truncated"].tolist() == [False, True, False]
    assert np.array_equal(store[1].state, arrays["observations"][3:5])
    assert np.array_equal(store[1].final_state, arrays["observations"][4] + 1)
    assert np.array_equal(store[2].action, arrays["actions"][5:])
    assert np.array_equal(store[2].columns["infos/qpos"], arrays["infos/qpos"][5:])
    assert store.steps["infos/action_log_probs"].dtype == np.float32
    assert store.environment == EnvironmentSpec((-1.0,) * 3, (1.0,) * 3, 1000, "Hopper-v4")
    assert store.provenance["metadata/algorithm"] == "SAC"
    assert any("no end is recorded of 1 trajectory (4 steps)" in note for note in notes)
    assert relabel(store, [criterion("torque")]).num_left_out == 1


def test_d4rl_v0_has_no_timeouts(tmp_path):
    """Episodes end where they are terminal, or after 1,000 steps. Seen to fail when the horizon is
    ignored."""
    arrays = recording([30, 1500, 7], ends="tt-")
    del arrays["timeouts"]
    arrays["terminals"] = arrays["terminals"].astype(np.float32)[:, None]
    store, notes = load(read_hdf5(write_hdf5(tmp_path / "hopper_medium.hdf5", arrays)), tmp_path)
    assert store.lengths.tolist() == [30, 1000, 500, 7]
    assert store.episodes["truncated"].tolist() == [False, True, False, False]
    assert store.finished.tolist() == [True, True, True, False]
    assert np.array_equal(store[0].final_state, arrays["observations"][29]), (
        "what was not recorded is stood in for"
    )
    for part in (
        "time-outs are not marked",
        "cut after 1000 steps",
        "the one before it stands in",
        "7 steps",
    ):
        assert any(part in note for note in notes), part


def test_the_misassembled_v0_is_warned_about(tmp_path):
    """Seen to fail when every hopper file is suspected."""

    def notes_of(name: str, rows: int) -> list[str]:
        arrays = {
            "observations": (rows, 11),
            "actions": (rows, 3),
            "rewards": (rows,),
            "terminals": (rows,),
        }
        with h5py.File(tmp_path / name, "w") as file:
            for key, shape in arrays.items():
                file.create_dataset(
                    key, shape, dtype="f4"
                )  # no storage is used until something is written
        return [
            note for note in read_hdf5(tmp_path / name).notes() if "put together wrongly" in note
        ]

    assert notes_of("hopper_medium_expert.hdf5", 10)
    assert notes_of("hopper_medium_expert-v1.hdf5", MISASSEMBLED_ROWS)
    assert not notes_of("hopper_medium_expert-v2.hdf5", 10)
    assert not notes_of("hopper_medium.hdf5", 10)
    assert not notes_of("walker2d_medium_expert.hdf5", 10)


def test_dsrl(tmp_path):
    """Recorded costs become the store's criterion. Seen to fail when they are dropped."""
    arrays = recording([4, 4], ends="oo", num_actions=2)
    arrays["next_observations"] = arrays["observations"]
    arrays["costs"] = np.array([0, 1, 1, 0, 0, 0, 0, 2.5], dtype=np.float32)
    store, notes = load(
        read_hdf5(write_hdf5(tmp_path / "SafetyPointGoal1Gymnasium-v0-2022.hdf5", arrays)), tmp_path
    )
    assert store.criteria == ("cost",)
    assert relabel(store, [criterion("cost")]).episode_cost.tolist() == [[2.0], [2.5]]
    assert store.environment.identifier is None
    assert store.environment.horizon == 4
    assert any("action bounds are those of the data" in note for note in notes)


@pytest.mark.parametrize("kind", ["hdf5", "npz"])
def test_what_no_column_can_be_is_left_out_and_said(tmp_path, kind):
    """Seen to fail when text beside the steps keeps a file from being read, or images are dropped
    without a word."""
    odd = {
        "tag": np.array([b"a"] * 5),
        "image": np.zeros((5, 2, 2)),
        "none": np.zeros((5, 0)),
        "state": np.ones(5),
    }
    arrays = {**recording([3, 2], ends="tt"), **odd, "speed": np.arange(5)}
    path = tmp_path / f"log.{kind}"
    if kind == "npz":
        np.savez(path, **arrays)
    else:
        with h5py.File(path, "w") as file:
            for name, values in arrays.items():
                file[name] = values
    found = import_source(open_source(str(path)), tmp_path / "store")
    assert set(found.store.column_names) == {"speed", "info/state"}
    (note,) = [note for note in found.notes if "left out" in note]
    assert {name for name in odd if name in note.split(": ")[1]} == {"tag", "image", "none"}


def test_metadata_of_any_kind_is_kept(tmp_path):
    """Seen to fail when it is written to the manifest as it is: JSON has no complex numbers."""
    facts = {"metadata/pole": np.complex64(1j), "metadata/seed": 3, "metadata/algorithm": b"SAC"}
    np.savez(tmp_path / "log.npz", **recording([3], ends="t"), **facts)
    found = import_source(
        open_source(str(tmp_path / "log.npz")), tmp_path / "store"
    ).store.provenance
    assert [found[name] for name in facts] == ["1j", 3, "SAC"]


def test_npz_by_usual_names_and_with_what_the_user_knows(tmp_path):
    """Seen to fail when the user's horizon does not end episodes."""
    arrays = recording([5, 5], ends="--", num_actions=1, num_states=2)
    renamed = {
        "states": arrays["observations"],
        "actions": 2 * arrays["actions"],
        "rewards": arrays["rewards"],
    }
    np.savez_compressed(tmp_path / "mine.npz", **renamed, temperature=np.arange(10))
    known = EnvironmentHints(horizon=5, action_low=(-1.0,), action_high=(1.0,))
    store, notes = load(read_npz(tmp_path / "mine.npz", known), tmp_path)
    assert store.lengths.tolist() == [5, 5]
    assert store.finished.all()
    assert store.column_names == ("temperature",)
    assert any("beyond the bounds" in note for note in notes)
    assert relabel(store, [criterion("torque")]).cost.max() == 1.0


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        ({"rewards": np.zeros(4)}, r"rewards has shape \(4,\), expected 5 rows as in observations"),
        (
            {
                "observations": np.zeros((0, 11)),
                "actions": np.zeros((0, 3)),
                "rewards": np.zeros(0),
            },
            "is empty",
        ),
        ({"observations": np.zeros(5)}, "expected 2 dimensions"),
        ({"actions": np.array([b"a"] * 5)}, "actions"),
        ({"rewards": np.array([b"a"] * 5)}, "trajectory 0: rewards holds .S1, expected numbers"),
        ({"observations": np.full((5, 11), np.nan)}, "trajectory 0: state holds 55 NaN"),
    ],
)
@pytest.mark.parametrize("kind", ["hdf5", "npz"])
def test_files_that_cannot_be_used_are_refused(tmp_path, kind, spoil, message):
    arrays = {
        k: v
        for k, v in {**recording([5], ends="t"), **spoil}.items()
        if k not in ("terminals", "timeouts")
    }
    path = tmp_path / f"file.{kind}"
    (write_hdf5 if kind == "hdf5" else lambda path, arrays: np.savez(path, **arrays))(path, arrays)
    with pytest.raises(ValueError, match=message):
        import_source(open_source(str(path)), tmp_path / "store")
    assert sorted(file.name for file in tmp_path.iterdir()) == [path.name], "nothing is left behind"


@pytest.mark.parametrize("kind", ["hdf5", "npz"])
def test_missing_parts_are_named(tmp_path, kind):
    arrays = recording([5], ends="t")
    del arrays["rewards"]
    path = tmp_path / f"file.{kind}"
    (write_hdf5 if kind == "hdf5" else lambda path, arrays: np.savez(path, **arrays))(path, arrays)
    with pytest.raises(
        ValueError, match=r"has no reward \(rewards or reward\); it holds actions, observations"
    ):
        open_source(str(path))


@pytest.mark.parametrize("kind", ["hdf5", "npz"])
@pytest.mark.parametrize("keep", [0, 20, 0.5])
def test_truncated_files_are_refused(tmp_path, kind, keep):
    path = tmp_path / f"file.{kind}"
    arrays = recording([500], ends="t")
    (write_hdf5 if kind == "hdf5" else lambda path, arrays: np.savez(path, **arrays))(path, arrays)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(keep * len(whole)) if isinstance(keep, float) else keep])
    with pytest.raises(ValueError, match="truncated or damaged"):
        import_source(open_source(str(path)), tmp_path / "store")
    assert not (tmp_path / "store").exists()


def test_nothing_is_ever_unpickled(tmp_path):
    class Hostile:
        def __reduce__(self):
            return (open, (str(tmp_path / "hacked"), "w"))

    np.savez(tmp_path / "file.npz", observations=np.array([Hostile()], dtype=object))
    with pytest.raises(ValueError, match="pickled objects are never loaded"):
        open_source(str(tmp_path / "file.npz"))
    assert not (tmp_path / "hacked").exists()


def test_unknown_files_and_names_teach(tmp_path):
    (tmp_path / "notes.docx").write_text("")
    with pytest.raises(ValueError, match=r"none of the files that can be read: .hdf5"):
        open_source(str(tmp_path / "notes.docx"))
    with pytest.raises(FileNotFoundError, match="no file or folder"):
        open_source(str(tmp_path / "absent.hdf5"))
    with pytest.raises(
        ValueError, match=r"unknown D4RL dataset 'hoper-medium-v2'.*as in hopper-medium-v2"
    ):
        open_source("d4rl:hoper-medium-v2")


@pytest.fixture
def no_network(monkeypatch):
    asked = []

    def refuse(address, timeout):
        asked.append(address)
        raise urllib.error.URLError("no route to host")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    return asked


@pytest.mark.parametrize(
    "case",
    [
        ("hopper-medium-v2", "gym_mujoco_v2/hopper_medium-v2.hdf5", "hopper_medium-v2.hdf5"),
        (
            "walker2d-medium-expert-v1",
            "gym_mujoco_v1/walker2d_medium_expert-v1.hdf5",
            "walker2d_medium_expert-v1.hdf5",
        ),
        ("hopper-medium-replay-v0", "gym_mujoco/hopper_mixed.hdf5", "hopper_medium_replay-v0.hdf5"),
        (
            "walker2d-medium-replay-v0",
            "gym_mujoco/walker_mixed.hdf5",
            "walker2d_medium_replay-v0.hdf5",
        ),
    ],
)
def test_without_a_network_it_says_where_to_put_the_file(no_network, monkeypatch, tmp_path, case):
    """And reads it from there. Seen to fail when the file is looked for elsewhere."""
    name, address, file = case
    monkeypatch.setenv("SAFORMER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert is_hosted(f"d4rl:{name}")
    place = tmp_path / "home" / "d4rl" / file
    with pytest.raises(FileNotFoundError, match=f"no route to host.*put it at {place}"):
        open_source(f"d4rl:{name}")
    assert no_network[0].endswith(address)
    assert list(place.parent.iterdir()) == []
    actions = 3 if "hopper" in name else 6
    write_hdf5(place, recording([3], ends="t", num_actions=actions))
    assert open_source(f"d4rl:{name}").num_steps == 3


class Answer:
    """A download of these parts."""

    def __init__(self, *parts: bytes, length: int):
        self.headers, self.parts = {"Content-Length": str(length)}, [*parts, b""]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def read(self, _):
        return self.parts.pop(0)


@pytest.mark.parametrize(
    ("length", "message"), [(100, "only 4 of 100 bytes came"), (4, "its sha256 is another")]
)
def test_a_download_that_is_not_what_it_should_be_leaves_nothing(
    monkeypatch, tmp_path, length, message
):
    """Seen to fail when the bytes that came are not counted, and when nobody knows D4RL's files."""
    monkeypatch.setenv("SAFORMER_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    answer = Answer(b"half", length=length)
    monkeypatch.setattr(urllib.request, "urlopen", lambda address, timeout: answer)
    with pytest.raises(FileNotFoundError, match=message):
        open_source("d4rl:hopper-medium-v2")
    assert list((tmp_path / "d4rl").iterdir()) == []


@st.composite
def cuts(draw):
    """Episodes with marked or unmarked ends, spread over blocks anyhow."""
    lengths = draw(st.lists(st.integers(1, 6), min_size=1, max_size=12))
    marks = draw(st.lists(st.sampled_from("to-"), min_size=len(lengths), max_size=len(lengths)))
    rows = sum(lengths)
    blocks = sorted(draw(st.sets(st.integers(1, rows), max_size=5)) | {rows})
    return lengths, marks, blocks


@settings(max_examples=200, deadline=None)
@given(cuts())
def test_no_row_is_lost_wherever_blocks_end(case):
    """Whatever way a file is read in blocks, the trajectories are those that were recorded.

    Seen to fail when a trajectory that reaches into the next block is yielded twice.
    """
    lengths, marks, stops = case
    rows = sum(lengths)
    number = np.arange(rows, dtype=np.float32)
    terminated, truncated, begins = np.zeros((3, rows), dtype=bool)
    last = np.cumsum(lengths) - 1
    for place, mark, length in zip(last, marks, lengths, strict=True):
        terminated[place], truncated[place] = mark == "t", mark == "o"
        begins[place - length + 1] = True
    whole = Rows(number[:, None], number[:, None], number, terminated, truncated, begins)
    blocks = [whole[start:stop] for start, stop in zip([0, *stops[:-1]], stops, strict=True)]
    found = list(Cutter().cut(blocks))
    assert [len(part) for part in found] == lengths
    assert np.concatenate([part.reward for part in found]).tolist() == number.tolist()
    assert [part.finished for part in found] == [mark != "-" for mark in marks]
    complete = list(Cutter(ends_are_complete=True).cut(blocks))
    assert all(part.finished for part in complete)
    short = Cutter(horizon=2)
    assert all(len(part) <= 2 for part in short.cut(blocks))
    assert short.num_cut_at_horizon == sum(
        (length - 1) // 2 + (length % 2 == 0 and mark == "-")
        for length, mark in zip(lengths, marks, strict=True)
    )


minari = pytest.importorskip("minari")


@pytest.fixture
def minari_home(monkeypatch, tmp_path):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    return tmp_path / "minari"


def hopper_store() -> TrajectoryStore:
    """Shaped like Hopper, with an unfinished last trajectory and named columns."""
    rng = np.random.default_rng(0)

    def part(steps, **ends):
        draw = lambda *shape: rng.standard_normal(shape).astype(np.float32)  # noqa: E731
        columns = {"speed": draw(steps), "joints": draw(steps, 2)}
        return Trajectory.of(
            draw(steps, 11), draw(steps, 3), draw(steps), draw(11), columns=columns, **ends
        )

    parts = [
        part(4, terminated=True, truncated=False),
        part(6, terminated=False, truncated=True),
        part(2, terminated=False, truncated=False),
    ]
    return TrajectoryStore.of(parts, EnvironmentSpec((-1.0,) * 3, (1.0,) * 3, 1000, "Hopper-v5"))


@pytest.mark.parametrize("identifier", ["Hopper-v5", None, "NotRegistered-v7"])
def test_minari_round_trip(minari_home, tmp_path, identifier):
    """Export, load with Minari itself, import again: identical arrays.

    Seen to fail when infos are shifted by a step.
    """
    from dataclasses import replace

    from saformer.data.sources.minari import write_minari

    store = hopper_store()
    store = replace(store, environment=replace(store.environment, identifier=identifier))
    folder = write_minari(store, "tests/hopper/mine-v0")
    theirs = minari.load_dataset("tests/hopper/mine-v0")
    assert theirs.total_steps == 12
    second = theirs[1]
    assert np.array_equal(second.observations[:-1], store[1].state)
    assert np.array_equal(second.observations[-1], store[1].final_state)
    assert second.truncations.tolist() == [False] * 5 + [True]
    for name in ("minari:tests/hopper/mine-v0", str(folder), str(folder / "data")):
        again, notes = load(open_source(name), tmp_path / name.replace("/", "-"))
        assert again.fingerprint == store.fingerprint
        assert again.environment.action_low == store.environment.action_low
        assert again.environment.identifier == ("Hopper-v5" if identifier == "Hopper-v5" else None)
        assert any("no end is recorded of 1 trajectory (2 steps)" in note for note in notes)
    with pytest.raises(FileExistsError, match="never overwritten"):
        write_minari(store, "tests/hopper/mine-v0")


def test_minari_keeps_what_the_environment_was_made_with(minari_home):
    """Seen to fail when only its name is kept: policies would be rolled out in another
    environment."""
    from saformer.data.sources.minari import read_minari, write_minari
    from saformer.envs import allowance

    store = allowance.dataset(episodes=2, dimensions=2)
    write_minari(store, "tests/two-v0")
    found = read_minari("tests/two-v0").hints
    assert found.identifier == allowance.IDENTIFIER
    assert found.arguments == {"dimensions": 2}
    assert len(found.action_low) == 2


def test_minari_medium_expert_is_merged_and_replay_is_not_to_be_had(
    minari_home, tmp_path, monkeypatch
):
    """Seen to fail when only the first part is read."""
    from saformer.data.sources.minari import write_minari

    monkeypatch.setattr(
        minari, "load_dataset", lambda *_, **__: pytest.fail("nothing is to be downloaded")
    )
    store = hopper_store()
    write_minari(store.filter(np.array([0])), "mujoco/hopper/medium-v0")
    write_minari(store.filter(np.array([1, 2])), "mujoco/hopper/expert-v0")
    merged, _ = load(open_source("minari:mujoco/hopper/medium-expert-v0"), tmp_path)
    assert merged.fingerprint == store.fingerprint
    assert merged.provenance["source"] == "mujoco/hopper/medium-v0 and mujoco/hopper/expert-v0"
    with pytest.raises(ValueError, match=r"hosts simple, medium and expert.*saformer data build"):
        open_source("minari:mujoco/hopper/medium-replay-v0")


def test_a_minari_dataset_that_is_not_here_says_where_to_put_it(minari_home, monkeypatch):
    def refuse(*_, **__):
        raise ConnectionError("no route to host")

    monkeypatch.setattr(minari, "load_dataset", refuse)
    with pytest.raises(
        FileNotFoundError,
        match=f"no route to host.*put it at {minari_home}/mujoco/hopper/medium-v0",
    ):
        open_source("minari:mujoco/hopper/medium-v0")


def test_a_damaged_minari_dataset_is_refused(minari_home):
    from saformer.data.sources.minari import write_minari

    folder = write_minari(hopper_store(), "tests/mine-v0")
    metadata = folder / "data" / "metadata.json"
    metadata.write_text(json.dumps({**json.loads(metadata.read_text()), "data_format": "unknown"}))
    with pytest.raises(ValueError, match="damaged or of another version"):
        open_source("minari:tests/mine-v0")


def dsrl_file(folder, *, episodes=3, name="SafetyBallRun-v0-80-940.hdf5"):
    """As DSRL's script writes it: seven arrays, flat, compressed; every episode out of time."""
    rng, rows = np.random.default_rng(0), 100 * episodes
    states = rng.standard_normal((rows + 1, 7)).astype(np.float32)
    arrays = {
        "observations": states[:-1],
        "next_observations": states[1:],
        "actions": rng.uniform(-1, 1, (rows, 2)).astype(np.float32),
        "rewards": rng.standard_normal(rows).astype(np.float32),
        "costs": rng.integers(0, 2, rows).astype(np.float32),
        "terminals": np.zeros(rows, bool),
        "timeouts": np.arange(rows) % 100 == 99,
    }
    folder.mkdir(parents=True, exist_ok=True)
    with h5py.File(folder / name, "w") as file:
        for key, values in arrays.items():
            file.create_dataset(key, data=values, compression="gzip")
    return arrays


def test_dsrl_files_by_name(tmp_path, monkeypatch):
    """From DSRL's own folder: environment, horizon and bounds come from the name of the file, the
    cost from its column. Seen to fail when the file's name is not known.
    """
    arrays = dsrl_file(tmp_path / "theirs")
    monkeypatch.setenv("DSRL_DATASET_DIR", str(tmp_path / "theirs"))
    store = load_data(find_task("dsrl-hdf5:OfflineBallRun-v0"))
    bounds = (-1.0,) * 2, (1.0,) * 2
    assert store.environment == EnvironmentSpec(*bounds, 100, "dsrl:OfflineBallRun-v0")
    assert store.criteria == ("cost",)
    assert store.lengths.tolist() == [100] * 3
    assert store.episodes["truncated"].all()
    assert np.array_equal(store[1].final_state, arrays["next_observations"][199])
    cost = relabel(store, [criterion("cost")]).episode_cost[:, 0]
    assert cost.tolist() == arrays["costs"].reshape(3, 100).sum(1).tolist()
    assert not find_task("dsrl-hdf5:OfflineBallRun-v0").may_end


def test_dsrl_files_that_are_not_there(tmp_path, monkeypatch):
    """Seen to fail when the address is D4RL's, and when a near name is not proposed."""
    monkeypatch.setenv("DSRL_DATASET_DIR", str(tmp_path))
    monkeypatch.setenv("SAFORMER_HOME", str(tmp_path / "home"))

    def refuse(address, **_):
        raise urllib.error.URLError(f"no way to {address}")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    file = "SafetyCarCircle1Gymnasium-v0-250-1271.hdf5"
    with pytest.raises(FileNotFoundError, match=f"huggingface.co/datasets/YYY-45/DSRL.*{file}"):
        open_source("dsrl-hdf5:OfflineCarCircle1Gymnasium-v0")
    with pytest.raises(ValueError, match="did you mean OfflineBallRun-v0"):
        open_source("dsrl-hdf5:OfflineBallRun")
