"""People's own logs: what is found in them, what is refused, and that CSV and Parquet say the
same."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from saformer.data.logs import files
from saformer.data.logs.frames import is_log
from saformer.data.logs.logs import open_logs
from saformer.data.logs.mapping import LogMapping
from saformer.data.sources.source import import_source
from saformer.data.store import TrajectoryStore

pyarrow = pytest.importorskip("pyarrow")
from pyarrow import csv as arrow_csv  # noqa: E402
from pyarrow import parquet  # noqa: E402

TWO_EPISODES = """\
run,t,height,speed,torque,gain,energy,fell
a,0.0,1.0,0.1,0.5,1,0.25,0
a,0.1,1.1,0.2,-0.5,2,0.5,0
a,0.2,1.2,0.3,0.25,3,0.75,1
b,0.0,2.0,0.4,1.0,4,1.0,0
b,0.1,2.1,0.5,0.0,5,1.25,0
"""
NAMES = LogMapping(
    state=("height", "speed"),
    action=("torque",),
    reward="gain",
    cost="energy",
    episode="run",
    terminated="fell",
)


def write(tmp_path: Path, text: str, name: str = "log.csv") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def load(
    tmp_path: Path, patterns, mapping=None, **options
) -> tuple[TrajectoryStore, tuple[str, ...]]:
    found = import_source(open_logs(patterns, mapping).source(**options), tmp_path / "store")
    return found.store, found.notes


def test_a_log_becomes_trajectories(tmp_path):
    """Seen to fail when episodes are told apart by their marked ends alone."""
    store, notes = load(tmp_path, [write(tmp_path, TWO_EPISODES)], NAMES)
    assert store.lengths.tolist() == [3, 2]
    assert store[0].state.tolist() == np.float32([[1.0, 0.1], [1.1, 0.2], [1.2, 0.3]]).tolist()
    assert store[1].action.tolist() == [[1.0], [0.0]]
    assert store[1].reward.tolist() == [4, 5]
    assert store[0].columns["energy"].tolist() == [0.25, 0.5, 0.75]
    assert store.criteria == ("column('energy')",), "energy alone is the criterion of that name"
    assert store.episodes["terminated"].tolist() == [True, False]
    assert store.finished.tolist() == [True, False], "the second has no mark at its end"
    assert store.environment.action_low == (-0.5,)
    for part in (
        "1 episode has no mark",
        "no end is recorded of 1 trajectory (2 steps)",
        "action bounds are those",
    ):
        assert any(part in note for note in notes), part


def test_without_marks_every_episode_counts_as_whole(tmp_path):
    """Seen to fail when they count as unfinished: nothing could be learnt from such logs."""
    mapping = LogMapping(
        state=("height", "speed"), action=("torque",), reward="gain", episode="run"
    )
    store, notes = load(tmp_path, [write(tmp_path, TWO_EPISODES)], mapping)
    assert store.episodes["truncated"].tolist() == [True, True]
    assert any("nothing marks the end" in note for note in notes)


def test_the_same_by_gaps_in_time_by_files_and_by_dates(tmp_path):
    """Seen to fail when a pause is measured across the wrong rows."""
    rows = TWO_EPISODES.splitlines()[1:]
    plain = LogMapping(state=("height", "speed"), action=("torque",), reward="gain")
    expected, _ = load(
        tmp_path, [write(tmp_path, TWO_EPISODES)], LogMapping(**{**vars(plain), "episode": "run"})
    )
    header = "t,height,speed,torque,gain\n"

    def cells(row: str, time: str) -> str:
        return ",".join([time, *row.split(",")[2:6]])

    def gaps(name: str, times: list[str]) -> TrajectoryStore:
        text = header + "\n".join(cells(row, time) for row, time in zip(rows, times, strict=True))
        mapping = LogMapping(**{**vars(plain), "time": "t", "gap": 0.5})
        return load(tmp_path / name, [write(tmp_path, text, f"{name}.csv")], mapping)[0]

    for name, start in (("one", rows[:3]), ("two", rows[3:])):
        write(tmp_path, header + "\n".join(cells(row, "0") for row in start), f"part-{name}.csv")
    by_file, _ = load(tmp_path / "files", [str(tmp_path / "part-*.csv")], plain)
    dates = [f"2026-01-01T00:00:0{second}" for second in ("0.0", "0.1", "0.2", "1.0", "1.1")]
    stores = [
        gaps("pause", ["0", "0.1", "0.2", "1.0", "1.1"]),
        gaps("back", ["5", "5.1", "5.2", "0", "0.1"]),
    ]
    for store in (by_file, *stores, gaps("dates", dates)):
        assert store.fingerprint == expected.fingerprint


@pytest.mark.parametrize("zone", ["", "Z", "+01:00", "-0530"])
@pytest.mark.parametrize("fraction", ["", ".123456", ".123456789"])
def test_dates_as_loggers_write_them(tmp_path, zone, fraction):
    """Seen to fail when a date may have no time zone, and none finer than a microsecond is read."""
    stamps = [f"2026-01-01 00:0{minute}:00{fraction}{zone}" for minute in (0, 1, 9)]
    text = "t,state,action,reward\n" + "".join(
        f"{stamp},{i},{i},1\n" for i, stamp in enumerate(stamps)
    )
    log, mapping = write(tmp_path, text), LogMapping(time="t", gap=90)
    assert open_logs([log], mapping).survey.lengths == [2, 1]
    parquet.write_table(arrow_csv.read_csv(log), tmp_path / "log.parquet")
    assert open_logs([tmp_path / "log.parquet"], mapping).survey.lengths == [2, 1]


def test_an_episode_may_go_on_in_the_next_file(tmp_path):
    """Unless numbers begin anew in each. Seen to fail when a file always begins an episode."""
    lines = TWO_EPISODES.splitlines()
    write(tmp_path, "\n".join(lines[:3]), "1.csv")
    write(tmp_path, "\n".join([lines[0], *lines[3:]]), "2.csv")
    assert load(tmp_path / "a", [tmp_path], NAMES)[0].lengths.tolist() == [3, 2]
    anew = LogMapping(**{**vars(NAMES), "episodes_per_file": True})
    assert load(tmp_path / "b", [tmp_path], anew)[0].lengths.tolist() == [2, 1, 2]


def test_files_are_read_in_the_order_of_their_numbers(tmp_path):
    """Seen to fail when log-10 comes before log-9."""
    header, *rows = TWO_EPISODES.splitlines()
    for number, row in zip((9, 10, 11), rows[:3], strict=True):
        write(tmp_path, f"{header}\n{row}\n", f"log-{number}.csv")
    for patterns in ([tmp_path], [str(tmp_path / "*.csv")]):
        names = [path.name for path in files.find_files(patterns)]
        assert names == ["log-9.csv", "log-10.csv", "log-11.csv"]
    assert load(tmp_path / "a", [tmp_path], NAMES)[0][0].reward.tolist() == [1, 2, 3]


def test_usual_names_need_no_mapping(tmp_path):
    header = "episode,state_0,state_1,action_0,reward,cost,truncated\n"
    text = header + "1,0,0,0.5,1,2,false\n1,0,1,0.5,1,2,true\n"
    store, _ = load(tmp_path, [write(tmp_path, text)])
    assert store[0].state.shape == (2, 2)
    assert store.criteria == ("cost",)
    assert store.episodes["truncated"].tolist() == [True]


def test_a_mapping_file(tmp_path):
    path = write(
        tmp_path,
        'state = ["height", "sp*"]\naction = "torque"\nreward = "gain"\nepisode = "run"\n'
        'action_low = -2\naction_high = [2.0]\nhorizon = 50\nenvironment = "Machine-v1"\n',
        "mapping.toml",
    )
    store, _ = load(tmp_path, [write(tmp_path, TWO_EPISODES)], LogMapping.from_toml(path))
    assert store.environment.action_low == (-2,)
    assert store.environment.horizon == 50
    assert store.environment.identifier == "Machine-v1"
    assert store.steps["state"].shape == (5, 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("state = ", "not a TOML file"),
        ('actoin = "a"', "unknown entry 'actoin'; did you mean action?"),
        ("state = 3", r"state is 3, expected a list of column names"),
        ('horizon = "long"', "expected a number"),
        ("gap = 1.0", "time column"),
        ('time = "t"\ngap = 0', "must be above 0"),
    ],
)
def test_bad_mappings_teach(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        LogMapping.from_toml(write(tmp_path, text, "mapping.toml"))


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        (LogMapping(), "no column is named as state: the header is run, t, height"),
        (LogMapping(state=("hight",)), "no column 'hight' for state; did you mean 'height'?"),
        (LogMapping(state=("joint_*",)), "no column matches 'joint_.' for state"),
        (LogMapping(state=("height",), action=("torque",)), "no column 'reward' for reward"),
        (
            LogMapping(**{**vars(NAMES), "next_state": ("height",)}),
            "1 next_state columns for 2 state columns",
        ),
    ],
)
def test_columns_that_are_not_there(tmp_path, mapping, message):
    with pytest.raises(ValueError, match=message):
        open_logs([write(tmp_path, TWO_EPISODES)], mapping)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "1.1,0.2",
            ",0.2",
            r"column 'height' has 1 value that is missing.*the first in .*log.csv, row 2",
        ),
        ("1.1,0.2", "nan,0.2", "column 'height' has 1 value that is missing"),
        (
            "1.1,0.2",
            "1e39,0.2",
            "column 'height' has 1 value that is missing, infinite or too large",
        ),
        ("a,0.1,", "a,0.0,", "1 step is recorded twice"),
        ("a,0.2,", "a,0.05,", "time runs backwards at 1 step"),
        ("a,0.1,", "a,,", r"time column 't' lacks 1 value, the first in .*log.csv, row 2"),
        ("b,0.1,", "a,0.3,", "rows of 1 episode lie apart, those of 'a' for example"),
        ("b,0.1,", ",0.1,", "the episode column 'run' is empty in 1 place"),
        ("0.5,2,0.5,0", "0.5,2,0.5,1", "1 episode goes on after a marked end, episode 0"),
    ],
)
def test_problems_are_found_before_anything_is_written(tmp_path, old, new, message):
    """And the episodes that they lie in may be left out. Seen to fail when faulty episodes are kept
    all the same."""
    mapping = LogMapping(**{**vars(NAMES), "time": "t"})
    good = TWO_EPISODES.replace("b,0.1,2.1,0.5,0.0,5,1.25,0", "b,0.1,2.1,0.5,0.0,5,1.25,1")
    text = good.replace(old, new, 1) + "c,0.0,9,9,0.1,9,9,0\nc,0.1,8,9,0.2,9,9,1\n"
    logs = open_logs([write(tmp_path, text)], mapping)
    with pytest.raises(ValueError, match=message):
        logs.source()
    found = import_source(logs.source(drop_faulty=True), tmp_path / "store")
    assert any("faulty episode" in note for note in found.notes)
    assert found.store[len(found.store) - 1].reward.tolist() == [9, 9], (
        "the last episode is a good one"
    )
    assert len(found.store) == len(logs.survey.lengths) - len(logs.survey.faulty)
    assert json.dumps(logs.survey.plain(), allow_nan=False)


def test_a_missing_time_hides_no_pause(tmp_path):
    """Seen to fail when time may be missing: no gap is seen beside it, and two episodes would
    become one."""
    text = "t,state,action,reward\n0,1,1,1\n1,2,1,1\n,3,1,1\n500,4,1,1\n501,5,1,1\n"
    found = open_logs([write(tmp_path, text)], LogMapping(time="t", gap=60)).survey
    assert any("time column 't' lacks 1 value" in problem for problem in found.problems)
    restarted = open_logs(
        [write(tmp_path, text.replace("\n,", "\n0.5,"))], LogMapping(time="t", gap=60)
    ).survey
    assert restarted.problems == []
    assert restarted.lengths == [2, 1, 2]
    assert any(
        "time runs backwards 1 time: each time another episode" in note
        for note in restarted.warnings
    )


def test_a_machine_at_rest_is_told_from_a_double(tmp_path):
    """By a clock, which the message asks for. Seen to fail when it does not say what a double
    is."""
    log = write(tmp_path, "t,state,action,reward\n0,1,0,0\n1,1,0,0\n2,2,0,0\n")
    assert "where a machine at rest looks so" in " ".join(open_logs([log]).survey.problems)
    assert open_logs([log], LogMapping(time="t")).survey.problems == []


def test_what_may_be_lived_with_is_reported(tmp_path):
    text = TWO_EPISODES.replace("a,0.2,", "a,0.9,").replace("0.75,1", ",1")
    mapping = LogMapping(
        **{
            **vars(NAMES),
            "time": "t",
            "cost": None,
            "columns": ("energy",),
            "state": ("height", "speed", "fell"),
        }
    )
    found = open_logs([write(tmp_path, text)], mapping).survey
    assert found.problems == []
    assert any(
        "1 step took more than 1.5 times the usual 0.1 s" in warning for warning in found.warnings
    )
    assert any(
        "column 'energy' has 1 value that is missing" in warning for warning in found.warnings
    )
    plain = found.plain()
    assert plain["columns"]["torque"] == {"role": "action", "min": -0.5, "max": 1.0, "missing": 0}
    assert plain["episode_lengths"] == {"min": 2, "median": 2.5, "max": 3}
    constant = open_logs(
        [write(tmp_path, TWO_EPISODES.replace("0.4", "7").replace("0.5,0.0", "7,0.0"))], NAMES
    ).survey
    assert not any("never change" in warning for warning in constant.warnings)
    same = "episode,state_0,state_1,action,reward\n1,5,1,0.1,1\n1,5,2,0.2,2\n"
    assert any(
        "teach nothing: state_0" in w for w in open_logs([write(tmp_path, same)]).survey.warnings
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty: it has no header"),
        (b"state,action,reward\n", "no rows|cannot be read"),
        (b"state,action,reward\n1,2\n", "cannot be read"),
        (b"state,action,reward,reward\n1,2,3,4\n", "several columns called reward"),
        (b"\xff\xfe\x00state", "not a text file"),
        (
            b"state,action,reward,terminated\n1,2,3,perhaps\n",
            "'terminated' holds 'perhaps', expected 0 or 1",
        ),
    ],
)
def test_files_that_cannot_be_read(tmp_path, content, message):
    (tmp_path / "log.csv").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        open_logs([tmp_path / "log.csv"])


def test_damaged_parquet_and_wrong_names(tmp_path):
    (tmp_path / "log.parquet").write_bytes(b"PAR1 and then nothing")
    with pytest.raises(ValueError, match="truncated or damaged"):
        open_logs([tmp_path / "log.parquet"])
    parquet.write_table(
        pyarrow.table({"state": ["a"], "action": [1.0], "reward": [1.0]}), tmp_path / "text.parquet"
    )
    with pytest.raises(ValueError, match=r"text.parquet, row 1; 'a' in .*, row 1, is no number"):
        open_logs([tmp_path / "text.parquet"]).source()
    with pytest.raises(FileNotFoundError, match="there is no log"):
        open_logs([tmp_path / "absent.csv"])
    assert is_log("logs/*.csv")
    assert not is_log("hopper-medium")


def test_numbers_of_any_kind_are_numbers(tmp_path):
    """Seen to fail when databases' decimals are not."""
    numbers = pyarrow.array([1, 2, 3])
    for kind in (
        pyarrow.decimal128(10, 2),
        pyarrow.uint8(),
        pyarrow.float16(),
        pyarrow.float32(),
        pyarrow.int64(),
    ):
        columns = {
            "state": numbers.cast(pyarrow.float32()).cast(kind),
            "action": [1.0, 2.0, 3.0],
            "reward": [0, 1, 2],
        }
        parquet.write_table(pyarrow.table(columns), tmp_path / "log.parquet")
        store, _ = load(tmp_path / str(kind), [tmp_path / "log.parquet"])
        assert store[0].state[:, 0].tolist() == [1, 2, 3], kind


def test_tabs_separate_the_columns_of_a_tsv(tmp_path):
    """Seen to fail when it needs --delimiter: it was taken for a log, and then had a single
    column."""
    tabs = TWO_EPISODES.replace(",", "\t")
    store, _ = load(tmp_path, [write(tmp_path, tabs, "log.tsv")], NAMES)
    assert store.lengths.tolist() == [3, 2]
    assert open_logs(
        [write(tmp_path, TWO_EPISODES.replace(",", ";"), "odd.tsv")], replace(NAMES, delimiter=";")
    )


def test_blank_lines_are_passed_over(tmp_path):
    """Seen to fail when the first line is the header even if it is blank, or the one after it
    decides of the time."""
    text = "\nt,state,action,reward\n\n0,1,1,1\n1,2,1,1\n\n\n"
    store, _ = load(tmp_path, [write(tmp_path, text)], LogMapping(time="t"))
    assert store[0].state[:, 0].tolist() == [1, 2]


def test_files_must_have_the_same_columns(tmp_path):
    write(tmp_path, TWO_EPISODES, "1.csv")
    write(tmp_path, TWO_EPISODES.replace("speed", "velocity"), "2.csv")
    with pytest.raises(ValueError, match=r"2.csv has no column speed, which .*1.csv has"):
        open_logs([tmp_path], NAMES)


@st.composite
def tables(draw):
    """Episodes of random lengths and values, spread over files anyhow."""
    lengths = draw(st.lists(st.integers(1, 7), min_size=1, max_size=8))
    rows = sum(lengths)
    numbers = st.floats(-1e6, 1e6, width=32)
    column = st.lists(numbers, min_size=rows, max_size=rows)
    table = {name: draw(column) for name in ("state_a", "state_b", "action", "reward", "wear")}
    table["clock"] = [0.25 * step for length in lengths for step in range(length)]
    table["episode"] = [
        f"run {number}" for number, length in enumerate(lengths) for _ in range(length)
    ]
    table["truncated"] = [step == length - 1 for length in lengths for step in range(length)]
    stops = sorted(draw(st.sets(st.integers(1, rows), max_size=3)) | {rows})
    return lengths, table, stops


@settings(max_examples=40, deadline=None)
@given(tables())
def test_csv_and_parquet_say_the_same_and_lose_no_row(tmp_path_factory, case):
    """However rows are spread over files and blocks. Seen to fail when a block's first row always
    begins an episode."""
    lengths, columns, stops = case
    whole = pyarrow.table(columns)
    mapping = LogMapping(time="clock", columns=("wear",))
    fingerprints = set()
    folder = tmp_path_factory.mktemp("tables")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "CSV_BLOCK_BYTES", 400)
        patch.setattr(files, "PARQUET_BATCH_ROWS", 3)
        for kind in ("csv", "parquet"):
            for number, (start, stop) in enumerate(zip([0, *stops[:-1]], stops, strict=True)):
                part = whole.slice(start, stop - start)
                writer = arrow_csv.write_csv if kind == "csv" else parquet.write_table
                writer(part, folder / f"{number}.{kind}")
            store = import_source(
                open_logs([str(folder / f"*.{kind}")], mapping).source(), folder / kind / "store"
            ).store
            assert store.lengths.tolist() == lengths
            assert store.steps["wear"].tolist() == columns["wear"]
            assert store.steps["action"][:, 0].tolist() == columns["action"]
            assert store.finished.all()
            fingerprints.add(store.fingerprint)
    assert len(fingerprints) == 1
