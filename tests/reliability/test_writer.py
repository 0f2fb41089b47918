"""The one writer of files: names of its own, no links, the usual permissions, full disks."""

import errno
import os
import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from saformer.cli.main import main
from saformer.data import folder
from saformer.data.folder import one_maker
from saformer.data.store import TrajectoryStore
from saformer.envs import allowance
from saformer.files import write_atomically
from saformer.runs.lock import alone_in
from saformer.runs.run import Run
from tests.data.test_store import files_may_hold

pytest.importorskip("fcntl")


@pytest.fixture
def victim(tmp_path) -> Path:
    path = tmp_path / "bashrc"
    path.write_text("mine")
    return path


def test_what_is_replaced_is_never_written_through_a_link(tmp_path, victim):
    """Seen to fail: `.evaluation.json.unfinished` was a name that anybody could know."""
    for name in (".evaluation.json.unfinished", "evaluation.json"):
        (tmp_path / name).symlink_to(victim)
    write_atomically(tmp_path / "evaluation.json", "{}")
    assert victim.read_text() == "mine"
    assert (tmp_path / "evaluation.json").read_text() == "{}"
    assert not (tmp_path / "evaluation.json").is_symlink()


def test_what_grows_is_never_written_through_a_link(tmp_path, victim):
    """Locks, rows of metrics, columns. Seen to fail: each was."""
    shared = Run(tmp_path / "run")
    shared.path.mkdir()
    (shared.path / ".lock").symlink_to(victim)
    with pytest.raises(OSError, match=r"lock is a symbolic link.*remove it"), alone_in(shared.path):
        pass
    shared.metrics_path.symlink_to(victim)
    with pytest.raises(OSError, match=r"metrics.jsonl is a symbolic link"):
        shared.append_metrics({"update": 1})
    store = allowance.dataset(episodes=2).save(tmp_path / "store")
    (store.path / "steps" / "reward.bin").rename(tmp_path / "reward.bin")
    (store.path / "steps" / "reward.bin").symlink_to(tmp_path / "reward.bin")
    before = (tmp_path / "reward.bin").read_bytes()
    with pytest.raises(OSError, match=r"reward.bin is a symbolic link"):
        store.extend([store[0]])
    (store.path / "steps").rename(tmp_path / "steps")
    (store.path / "steps").symlink_to(tmp_path / "steps")
    (tmp_path / "steps" / "reward.bin").unlink()
    (tmp_path / "reward.bin").rename(tmp_path / "steps" / "reward.bin")
    with pytest.raises(OSError, match="steps is a symbolic link"):
        store.extend([store[0]])
    assert victim.read_text() == "mine"
    assert (tmp_path / "steps" / "reward.bin").read_bytes() == before


def test_two_writers_of_one_file_are_not_in_each_others_way(tmp_path):
    """Seen to fail: FileNotFoundError, as both wrote to one temporary name."""

    def write(number: int) -> None:
        for _ in range(50):
            write_atomically(tmp_path / "file", str(number) * 1000)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    assert len(set((tmp_path / "file").read_text())) == 1
    assert os.listdir(tmp_path) == ["file"]


def test_what_a_killed_writer_left_is_removed_by_the_next_and_nothing_else(tmp_path):
    """Also by one that writes another file there, as every evaluation has a name of its own. A file
    that is still being written stays, and so does one that only looks like it. Seen to fail when
    only the same file's next writer looks for it."""
    code = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from saformer.files import replacing\n"
        "with replacing(Path(sys.argv[1])):\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(60)\n"
    )
    path, notes = tmp_path / "file", tmp_path / ".file.notes.unfinished"
    notes.write_text("mine")
    with subprocess.Popen([sys.executable, "-c", code, path], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ready\n"
        write_atomically(path, "ours")
        assert len(os.listdir(tmp_path)) == 3, "its writer is still alive"
        process.kill()
    write_atomically(tmp_path / "other", "ours")
    assert {each.name for each in tmp_path.iterdir()} == {"file", "other", notes.name}


def test_saving_a_store_deletes_nothing_beside_it(tmp_path):
    """Seen to fail: `.plant-NAME` with a file `lock` in it was taken for what a writer left."""
    store = allowance.dataset(episodes=2)
    other = store.save(tmp_path / ".plant-2024")
    other.extend([store[0]])
    (tmp_path / ".plant-notes").mkdir()
    for name in ("lock", "thesis.txt"):
        (tmp_path / ".plant-notes" / name).write_text("mine")
    store.save(tmp_path / "plant")
    assert (tmp_path / ".plant-notes" / "thesis.txt").exists()
    assert len(TrajectoryStore.open(other.path)) == 3


def test_files_and_folders_have_the_permissions_of_the_users_others(trained, tmp_path):
    """Seen to fail: stores were 0700 and checkpoints 0600."""
    before = os.umask(0o022)
    try:
        store = allowance.dataset(episodes=2).save(tmp_path / "store")
        assert main(["export", str(trained), str(tmp_path / "exported")]) == 0
        Run(tmp_path / "exported").save(Run(trained).load())
    finally:
        os.umask(before)
    for path in (store.path, tmp_path / "exported"):
        for each in (path, *path.rglob("*")):
            assert each.stat().st_mode & 0o777 == (0o755 if each.is_dir() else 0o644), each


def test_a_maker_that_failed_does_not_let_two_others_in(tmp_path):
    """Seen to fail: it removed the lock that others waited on, and the next made another."""
    inside, most = [], []

    def make(seconds: float = 0.2) -> None:
        with one_maker(tmp_path / "data"):
            inside.append(1)
            most.append(len(inside))
            time.sleep(seconds)
            inside.pop()

    with warnings.catch_warnings(action="ignore"), ThreadPoolExecutor() as pool:
        first = pool.submit(make)
        time.sleep(0.1)
        second = pool.submit(make)  # waits for the first
        first.result()
        time.sleep(0.05)
        pool.submit(make).result()  # beside the second
        second.result()
    assert most == [1] * 3
    assert os.listdir(tmp_path) == []


def test_a_second_export_to_one_folder_says_so(trained, tmp_path, capsys):
    """Begun before the first was there. Seen to fail: [Errno 39] Directory not empty."""
    from saformer.runs import export

    saved = export.save_checkpoint

    def slowly(*content) -> None:
        saved(*content)
        (tmp_path / "out").mkdir(exist_ok=True)
        (tmp_path / "out" / "run.json").write_text("the other's")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export, "save_checkpoint", slowly)
        assert main(["export", str(trained), str(tmp_path / "out")]) == 1
    assert "exports are never overwritten" in " ".join(capsys.readouterr().err.split())
    assert os.listdir(tmp_path) == ["out"]


def one_line(text: str) -> str:
    (line,) = [line for line in text.splitlines() if line.startswith("saformer ")]
    return line


@pytest.mark.parametrize(
    "verb", ["train", "evaluate", "export", "finetune", "import", "build", "to Minari"]
)
def test_a_full_disk_is_said_in_one_line(verb, trained, tmp_path, capsys, monkeypatch):
    """Files may not grow beyond a few bytes. Seen to fail for train, export and finetune:
    SafetensorError's traceback; and to Minari: HDF5 brought the process down."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    allowance.dataset(episodes=20).save("store")
    command = {
        "train": "train store --updates 2 --width 16 --layers 1 --out new",
        "evaluate": f"evaluate {trained} --limits p50 --episodes 2 --workers 0 --out new",
        "export": f"export {trained} new",
        "finetune": f"finetune {trained} --limit 0.1 --episodes 2 --lanes 2 --out new --workers 0",
        "build": "data build allowance --steps 20000 --out new",
        "to Minari": "data export store new-v0",
    }
    if verb == "import":
        (tmp_path / "log.csv").write_text(
            "s,a,r,ep\n" + "".join(f"{i},1,1,1\n" for i in range(500))
        )
        named = "--state s --action a --reward r --episode ep"
        command["import"] = f"data import log.csv {named} --out new"
    with files_may_hold(1000):
        assert main(command[verb].split()) == 1
    line = one_line(capsys.readouterr().err)
    assert "files may not grow so large here" in line
    assert str(Path("new")) in line
    assert "environment" not in line
    left = [path for path in tmp_path.rglob("*") if "unfinished" in path.name]
    assert not left


def test_a_full_disk_is_not_the_environments_fault(trained, tmp_path, monkeypatch, capsys):
    """Full after exploration has begun. Seen to fail: "the environment failed ...; mend it"."""

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    extend = TrajectoryStore.extend

    def extend_on_a_full_disk(store, parts):
        monkeypatch.setattr(folder, "_flush", full)
        return extend(store, parts)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(TrajectoryStore, "extend", extend_on_a_full_disk)
    command = f"finetune {trained} --limit 0.1 --episodes 2 --lanes 2 --out new --workers 0"
    assert main(command.split()) == 1
    line = one_line(capsys.readouterr().err)
    assert "the disk is full (No space left on device)" in line
    assert "environment failed" not in line
