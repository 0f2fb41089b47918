"""JSON files know what was written to them; many stores can be open at once."""

import json
import resource
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from saformer.files import read_json, write_json

PLAIN = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text()
PLAIN |= st.floats(allow_nan=False, allow_infinity=False)
CONTENT = st.dictionaries(
    st.text(), st.recursive(PLAIN, lambda part: st.lists(part) | st.dictionaries(st.text(), part))
)


@settings(max_examples=30, deadline=None)
@given(CONTENT, st.data())
def test_json_is_read_as_it_was_written_or_refused(content, data):
    """Whatever it holds, and whichever byte is changed. Seen to fail without the checksum, and when
    it is compared with another order of entries."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "file.json"
        write_json(file, content)
        assert read_json(file, dict[str, Any], "") == content
        changed = bytearray(file.read_bytes())
        changed[data.draw(st.integers(0, len(changed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        file.write_bytes(bytes(changed))
        said, read = "", content
        try:
            read = read_json(file, dict[str, Any], "")
        except ValueError as error:
            said = str(error)
        assert not said or ("file.json" in said and "\n" not in said)
        assert json.dumps(read) == json.dumps(content)


@pytest.mark.parametrize(
    "lost", ["6_of", 't": "3d613d2",\n  "sh', '613d2",\n  "sha256_of_all_else": "']
)
def test_a_checksum_that_lost_its_name_still_counts(tmp_path, lost):
    """Alone, with part of the entry before it, or with its own first digits. Seen to fail: it was
    read as an entry, and shown in reports."""
    file = tmp_path / "done.json"
    write_json(file, {"updates": 4, "commit": "3d613d2"})
    whole = file.read_text()
    file.write_text(whole.replace(lost, ""))
    assert file.read_text() != whole
    with pytest.raises(ValueError, match=r"done\.json was damaged or changed"):
        read_json(file, dict[str, Any], "")


def test_what_was_changed_on_purpose_can_be_read(tmp_path):
    """Without its checksum, as the message says."""
    file = tmp_path / "file.json"
    write_json(file, {"margin": 0.5})
    content = json.loads(file.read_text())
    file.write_text(json.dumps({**content, "margin": 0.1}))
    with pytest.raises(
        ValueError, match=r"file\.json was damaged or changed .* or remove its (\w+)"
    ):
        read_json(file, dict[str, Any], "restore it")
    file.write_text(json.dumps({"margin": 0.1}))
    assert read_json(file, dict[str, Any], "") == {"margin": 0.1}


MANY = """
import resource
import numpy as np
from saformer.data.store import EnvironmentSpec, TrajectoryStore
from saformer.data.trajectory import Trajectory

steps = 17_000
columns = {f"sensor {i}": np.ones(steps) for i in range(300)}
part = Trajectory.of(np.ones((steps, 2)), np.ones((steps, 1)), np.ones(steps), np.ones(2),
                     truncated=True, terminated=False, columns=columns)
TrajectoryStore.of([part], EnvironmentSpec((-1.0,), (1.0,), steps)).save("wide")
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
stores = [TrajectoryStore.open("wide") for _ in range(40)]
assert stores[39].check()
"""


def test_many_stores_of_many_columns_are_open_at_once(tmp_path):
    """With 64 descriptors. Seen to fail when columns are mapped by NumPy: each holds one."""
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] >= 64
    program = [sys.executable, "-c", MANY]
    ended = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
