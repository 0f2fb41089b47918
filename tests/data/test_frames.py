"""Logs in memory say the same as files, and results come back as frames. Neither pandas nor polars
is needed; where they are installed, they are tried."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from saformer.api.data import import_data
from saformer.data import shown
from saformer.data.logs.frames import as_frame
from saformer.data.shown import frame_of

pyarrow = pytest.importorskip("pyarrow")

COLUMNS = {
    "when": ["2024-01-01T00:00", "2024-01-01T00:15", "2024-01-02T00:00", "2024-01-02T00:15"],
    "room [°C]": [18.5, 19.5, None, 21.0],
    "power": [1, 0, 2, 1],
    "heater": ["on", "off", "on", "off"],
}
HOW = {
    "state": ["room [°C]"],
    "action": ["power", "heater"],
    "reward": "-abs(`room [°C]` - 20)",
    "cost": "power",
    "time": "when",
    "episode": "day",
    "fill": "forward",
}


class Foreign:
    """A frame of a library that speaks Arrow and nothing else."""

    def __init__(self, table):
        self._table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self._table.__arrow_c_stream__(requested_schema)


def frames_of(columns):
    table = pyarrow.table(columns)
    dates = table.set_column(0, "when", table["when"].cast(pyarrow.timestamp("us")))
    yield "arrow", table
    yield "dates", dates
    yield "protocol", Foreign(dates)
    yield "dictionary", {name: np.array(values) for name, values in columns.items()}
    for library in ("pandas", "polars"):
        if library in sys.modules or shown.find_spec(library):
            yield library, pytest.importorskip(library).DataFrame(columns)


def test_frames_say_what_files_say(tmp_path):
    """Seen to fail when Arrow's protocol is not spoken, and when polars' text is no text."""
    rows = zip(*COLUMNS.values(), strict=True)
    text = "\n".join(",".join("" if cell is None else str(cell) for cell in row) for row in rows)
    (tmp_path / "log.csv").write_text(",".join(COLUMNS) + "\n" + text)
    expected = import_data(tmp_path / "log.csv", tmp_path / "file", mapping=HOW).store
    assert expected[1].state.tolist() == [[19.5], [21.0]]
    assert expected.criteria == ("action[0]",)
    for name, frame in frames_of(COLUMNS):
        store = import_data(frame, tmp_path / name, mapping=HOW).store
        assert store.fingerprint == expected.fingerprint, name
        assert store.provenance["source"] == "frame"


def test_arrays_with_columns_become_columns(tmp_path):
    """Seen to fail when an array [n, k] is refused."""
    arrays = {"state": np.arange(8.0).reshape(4, 2), "action": [1, 2, 3, 4], "reward": np.ones(4)}
    store = import_data(arrays, tmp_path / "store").store
    assert store[0].state.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    with pytest.raises(ValueError, match=r"differ in length: .*'action': 3"):
        as_frame({"state": [1, 2], "action": [1, 2, 3]})
    problem = "the frame: there is no column 'reward' for reward"
    with pytest.raises(ValueError, match=problem):
        import_data({"state": [1], "action": [2]}, tmp_path / "none")


def test_results_come_back_as_frames(monkeypatch):
    """Seen to fail when a limit of two constraints is one cell."""
    rows = [{"limit": (3.0, 4.0), "cost": [1.0], "near": {"bias": 0.5}}]
    made = SimpleNamespace(DataFrame=lambda rows: rows)
    monkeypatch.setattr(shown, "find_spec", lambda name: name == "polars")
    monkeypatch.setattr(shown, "import_module", lambda name: made)
    assert frame_of(rows) == [{"limit.0": 3.0, "limit.1": 4.0, "cost": 1.0, "near.bias": 0.5}]
    monkeypatch.setattr(shown, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="pip install pandas"):
        frame_of(rows)
