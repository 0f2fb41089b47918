"""Recordings from elsewhere: nothing beside the file is read, and what is damaged is named."""

import json
from pathlib import Path

import numpy as np
import pytest

from saformer.cli.main import main
from saformer.data.sources.source import import_source
from saformer.data.store import TrajectoryStore
from saformer.envs import allowance
from saformer.files import unfinished_path

h5py = pytest.importorskip("h5py")


@pytest.mark.parametrize("kind", ["external", "virtual"])
def test_hdf5_never_reads_another_file(kind, tmp_path, capsys):
    """Seen to fail: the bytes of secret.txt became states."""
    secret = tmp_path / "secret.txt"
    secret.write_bytes(b"my password" * 100)
    with h5py.File(tmp_path / "log.hdf5", "w") as file:
        for name, shape in (("actions", (20, 1)), ("rewards", (20,)), ("terminals", (20,))):
            file[name] = np.zeros(shape, np.float32)
        if kind == "external":
            stored = [(str(secret), 0, 160)]
            file.create_dataset("observations", (20, 2), np.float32, external=stored)
        else:
            with h5py.File(tmp_path / "other.hdf5", "w") as other:
                other["secret"] = np.ones((20, 2), np.float32)
            layout = h5py.VirtualLayout((20, 2), np.float32)
            layout[:] = h5py.VirtualSource(tmp_path / "other.hdf5", "secret", (20, 2))
            file.create_virtual_dataset("observations", layout)
    out = tmp_path / "store"
    assert main(["data", "import", str(tmp_path / "log.hdf5"), "--out", str(out)]) == 1
    assert "log.hdf5: observations lies in another file" in _said(capsys)
    assert not out.exists()


def _said(capsys) -> str:
    return " ".join(capsys.readouterr().err.split())


@pytest.fixture
def minari_dataset(tmp_path, monkeypatch) -> Path:
    pytest.importorskip("minari")
    from saformer.data.sources.minari import write_minari

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    return write_minari(allowance.dataset(episodes=3), "test/attack-v0")


def _spoil_episode(file) -> None:
    del file["episode_1"]["actions"]


def _point_elsewhere(file) -> None:
    elsewhere = Path(file.filename).with_name("secret.txt")
    elsewhere.write_bytes(b"my password" * 1000)
    shape = file["episode_1"]["actions"].shape
    del file["episode_1"]["actions"]
    stored = [(str(elsewhere), 0, 4 * shape[0])]
    file["episode_1"].create_dataset("actions", shape, np.float32, external=stored)


@pytest.mark.parametrize("spoil", [_spoil_episode, _point_elsewhere])
def test_a_spoilt_minari_dataset_is_named(spoil, minari_dataset, tmp_path, capsys):
    """Seen to fail: h5py's KeyError, 29 tracebacks of all."""
    with h5py.File(minari_dataset / "data" / "main_data.hdf5", "r+") as file:
        spoil(file)
    out = tmp_path / "store"
    assert main(["data", "import", str(minari_dataset), "--out", str(out)]) == 1
    assert "attack-v0" in _said(capsys)
    assert not out.exists()


def test_metadata_of_minari_is_checked(minari_dataset, tmp_path):
    """Any entry missing or of another type is refused in words, or does not matter."""
    from saformer.data.sources.minari import read_minari

    file = minari_dataset / "data" / "metadata.json"
    content = json.loads(file.read_text())
    refusals = []
    for count, (name, value) in enumerate(
        (name, value) for name in content for value in (None, "x", -1, [], {})
    ):
        file.write_text(json.dumps({**content, name: value}))
        try:
            import_source(read_minari(minari_dataset), tmp_path / str(count))
            TrajectoryStore.open(tmp_path / str(count))
        except (ValueError, OSError) as error:
            refusals.append(str(error))
    assert refusals
    assert all("\n" not in each for each in refusals)


def test_a_minari_dataset_brings_no_code(minari_dataset, tmp_path, monkeypatch):
    """Without spaces in its metadata Minari makes the environment to see them. Seen to fail: the
    code that env_spec names ran."""
    from gymnasium.envs.registration import EnvSpec

    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "evil_maker.py").write_text("open('ran', 'w').close()\nEnv = None\n")
    monkeypatch.chdir(tmp_path)
    file = minari_dataset / "data" / "metadata.json"
    content = json.loads(file.read_text())
    del content["observation_space"]
    content["env_spec"] = EnvSpec("Evil-v0", entry_point="evil_maker:Env").to_json()
    file.write_text(json.dumps(content))
    assert main(["data", "import", str(minari_dataset), "--out", "store"]) == 1
    assert not Path("ran").exists()


def test_half_an_export_to_minari_is_none(tmp_path, monkeypatch):
    """As of one that finds no room. Seen to fail: what was left counted as a dataset, so that the
    next export was refused, and HDF5 spoke of a full disk in many lines."""
    minari_package = pytest.importorskip("minari")
    from saformer.data.sources import minari

    home, store = tmp_path / "minari", allowance.dataset(episodes=3)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(home))

    def half(dataset_id: str, *_: object, **__: object) -> None:
        (Path(minari.os.environ[minari.HOME]) / dataset_id / "data").mkdir(parents=True)
        raise RuntimeError("file write failed:\nerrno = 28, error message = 'No space left'")

    with monkeypatch.context() as patch:
        patch.setattr(minari_package, "create_dataset_from_buffers", half)
        with pytest.raises(OSError, match="log-v0: the disk is full"):
            minari.write_minari(store, "new/log-v0")
    path = minari.write_minari(store, "new/log-v0")
    abandoned = unfinished_path(path)  # by one that was killed as soon as it had a name
    abandoned.mkdir()
    with pytest.raises(FileExistsError, match="datasets are never overwritten"):
        minari.write_minari(store, "new/log-v0")
    assert len(import_source(minari.read_minari(path), tmp_path / "again").store) == 3
    names = sorted(file.name for file in path.parent.iterdir())
    assert names == ["log-v0", "namespace_metadata.json"]


def test_a_damaged_page_of_parquet_is_named_in_one_line(tmp_path):
    """Also where only a sample is read, whose footer is whole. Seen to fail: two lines of thrift,
    and no file."""
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    from saformer.data.logs.files import sample_of
    from saformer.data.logs.mapping import LogMapping

    file = tmp_path / "log.parquet"
    parquet.write_table(pyarrow.table({"a": np.random.default_rng(0).random(5000)}), file)
    content = file.read_bytes()
    file.write_bytes(content[:4] + bytes(60) + content[64:])
    with pytest.raises(ValueError, match=r"log\.parquet") as refusal:
        sample_of(file, LogMapping())
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("entry", ['fill = "forwArd"', 'resample = "15"', 'words = ["LOW"]'])
def test_a_mapping_that_makes_no_sense_is_named(tmp_path, entry):
    """Seen to fail: nobody said which file."""
    from saformer.data.logs.mapping import LogMapping

    (tmp_path / "mapping.toml").write_text(f'state = ["s"]\n{entry}\n')
    with pytest.raises(ValueError, match=r"mapping\.toml: \w+ (is|are) "):
        LogMapping.from_toml(tmp_path / "mapping.toml")
