"""Recordings from elsewhere: nothing beside the file is read, and what is damaged is named."""

import json
from pathlib import Path

import numpy as np
import pytest

from saformer.cli.main import main
from saformer.data.sources.source import import_source
from saformer.data.store import TrajectoryStore
from saformer.envs import allowance

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
