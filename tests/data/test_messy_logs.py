"""Logs as plants write them: expressions, formats, episodes by the clock, faulty cells."""

from pathlib import Path

import numpy as np
import pytest

from saformer.api.data import import_data
from saformer.data.logs import files
from saformer.data.logs.logs import open_logs
from saformer.data.logs.mapping import LogMapping
from saformer.data.relabel import relabelled
from saformer.data.sources.source import import_source

pytest.importorskip("pyarrow")

GERMAN = """\
Zeit;Raum [°C];Leistung, kW;Preis €/kWh;Modus
01.11.2024 00:00;18,5;1,5;0,2;EIN
01.11.2024 00:15;19,5;0;0,2;AUS
02.11.2024 00:00;20,0;2,0;0,4;EIN
02.11.2024 00:15;21,0;1,0;0,4;AUS
"""
PLANT = LogMapping(
    state=("Raum [°C]", "Preis*"),
    action=("Leistung, kW",),
    reward="-abs(`Raum [°C]` - 20)",
    cost="0.25 * `Preis €/kWh` * `Leistung, kW`",
    time="Zeit",
    episode="day",
)


def write(folder: Path, text: str, name: str = "log.csv", encoding: str = "utf-8") -> Path:
    path = folder / name
    path.write_bytes(text.encode(encoding))
    return path


def load(folder: Path, text: str, mapping: LogMapping, *, drop_faulty: bool = False):
    logs = open_logs([write(folder, text)], mapping)
    imported = import_source(
        logs.source(drop_faulty=drop_faulty), folder / "store", criteria=logs.criteria
    )
    return imported.store, imported.notes


def clock(*minutes: float) -> list[str]:
    """ISO dates, so many minutes after midnight."""
    start = np.datetime64("2024-01-01T00:00:00")
    return [str(start + np.timedelta64(round(60 * minute), "s")) for minute in minutes]


def log_of(times: list[str], **columns: list[object]) -> str:
    rows = zip(times, *columns.values(), strict=True)
    return "\n".join([",".join(["t", *columns]), *(",".join(map(str, row)) for row in rows)]) + "\n"


def test_semicolons_decimal_commas_dates_and_units_need_no_flag(tmp_path):
    """Seen to fail when the comma is always the delimiter, when decimals have points alone, and
    when only ISO dates are read."""
    store, _ = load(tmp_path, GERMAN, PLANT)
    assert store.lengths.tolist() == [2, 2]
    assert store[0].state.tolist() == np.float32([[18.5, 0.2], [19.5, 0.2]]).tolist()
    assert store[0].reward.tolist() == [-1.5, -0.5]
    assert store[1].reward.tolist() == [0, -1]
    assert store.provenance["action_names"] == ["Leistung, kW"], "for pages to show"


def test_a_cost_over_columns_reads_state_and_action(tmp_path):
    """So that a shield or a simulator can reckon it. Seen to fail when it reads the columns as they
    were logged, whatever action is chosen."""
    store, _ = load(tmp_path, GERMAN, PLANT)
    assert store.criteria == ("0.25 * state[1] * action[0]",)
    data = relabelled(store, ())
    assert data.episode_cost[:, 0] == pytest.approx([0.25 * 0.3, 0.25 * 1.2])
    assert data.criteria[0].reads == {"state", "action"}


def test_a_column_goes_by_its_name_whatever_it_holds(tmp_path):
    """Also as a criterion, now and later. Seen to fail at '€': invalid character."""
    text = "state,action,reward,energy cost €\n1,1,1,2\n2,1,1,3\n"
    out = tmp_path / "own"
    store = import_data(write(tmp_path, text), out, criteria=["energy cost €"]).store
    assert store.criteria == ("`energy cost €`",)
    for name in ("energy cost €", "`energy cost €`", "column('energy cost €')"):
        assert relabelled(store, [name]).episode_cost.tolist() == [[5]]
    assert relabelled(store, ["`energy cost €` / 2"]).episode_cost.tolist() == [[2.5]]


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        ("-abs(level - 2)", "no column 'level' for reward"),
        ("next_state[0]", "no column 'next_state' for reward"),
        ("state", "reward 'state': it gives 2 values per step"),
        ("1 +", "log.csv: reward '1 .' is not understood"),
    ],
)
def test_rewards_that_cannot_be_reckoned(tmp_path, reward, message):
    """Seen to fail when the refusal speaks of a cost criterion."""
    mapping = LogMapping(state=("a", "b"), action=("b",), reward=reward)
    with pytest.raises(ValueError, match=message):
        open_logs([write(tmp_path, "a,b\n1,2\n2,3\n")], mapping)


@pytest.mark.parametrize(
    ("first", "style"),
    [
        ("15-Jul-2021 22:00:00", "%d-%b-%Y %H:%M:%S"),
        ("25/12/2024 10:30", "%d/%m/%Y %H:%M"),
        ("12/25/2024 10:30 PM", "%m/%d/%Y %I:%M %p"),
        ("2024/12/25 10:30:00", "%Y/%m/%d %H:%M:%S"),
        ("20241225103000", "s"),
        ("2024-12-25T10:30:00+01:00", "ISO 8601"),
    ],
)
def test_how_dates_are_written_is_guessed(tmp_path, first, style):
    """Seen to fail when a year of 12 is taken for a year."""
    text = f"t,state,action,reward\n{first},1,2,3\n"
    columns = open_logs([write(tmp_path, text)], LogMapping(time="t")).columns
    assert columns.how.time_format == style


def test_a_date_that_may_be_either_is_asked_for(tmp_path):
    """Seen to fail when the day comes first without a word."""
    text = "t,state,action,reward\n03/04/2024 00:00,1,2,3\n03/04/2024 01:00,2,2,3\n"
    log = write(tmp_path, text)
    with pytest.raises(ValueError, match=r"the day or with the month; say --time-format '%d/%m/%Y"):
        open_logs([log], LogMapping(time="t"))
    told = open_logs([log], LogMapping(time="t", time_format="%m/%d/%Y %H:%M")).survey
    assert told.usual_step == 3600
    with pytest.raises(ValueError, match=r"'soon' is no date that can be guessed; .*--time-format"):
        open_logs([write(tmp_path, text.replace("03/04/2024 00:00", "soon"))], LogMapping(time="t"))


def test_rows_that_follow_each_other_tell_days_from_months(tmp_path):
    """As a wind farm writes them. Seen to fail when the sample's order is not looked at."""
    rows = [f"{day:02} 01 2018 {hour:02}:00,1,2,3" for day in (1, 2, 3) for hour in range(24)]
    text = "\n".join(["t,state,action,reward", *rows])
    mapping = LogMapping(time="t", episode="day")
    logs = open_logs([write(tmp_path, text)], mapping)
    assert logs.columns.how.time_format == "%d %m %Y %H:%M"
    assert logs.survey.lengths == [24, 24, 24]
    monthly = "t,state,action,reward\n01/01/2018,1,2,3\n02/01/2018,2,2,3\n03/01/2018,2,3,3\n"
    with pytest.raises(ValueError, match="the day or with the month"):
        open_logs([write(tmp_path, monthly)], LogMapping(time="t"))


def test_dates_and_hours_may_lie_in_two_columns(tmp_path):
    """Seen to fail when the date alone is the time: every step but the first is recorded twice."""
    rows = [f"16/12/2006;{hour:02}:24:00;{hour}.5;1;2" for hour in (17, 18, 19)]
    text = "\n".join(["Date;Time;state;action;reward", *rows])
    mapping = LogMapping(time="Date", time_of_day="Time")
    survey = open_logs([write(tmp_path, text)], mapping).survey
    assert (survey.problems, survey.usual_step) == ([], 3600)
    more = [f"17/12/2006;{hour:02}:24:00;{hour}.5;1;2" for hour in range(20)]
    text = "\n".join([text.replace("18:24", "later"), *more])
    bad = open_logs([write(tmp_path, text)], mapping).survey
    assert "'16/12/2006 later:00' in" in bad.problems[0], "one bad cell keeps nothing from guessing"
    with pytest.raises(ValueError, match=r"needs the column with its date: name it with --time"):
        LogMapping(time_of_day="Time")


def test_a_state_that_is_the_action_is_noted(tmp_path):
    """Seen to fail without the note: a policy would copy what was done."""
    log = write(tmp_path, "a,b,reward\n1,2,3\n2,3,4\n")
    told = open_logs([log], LogMapping(state=("a", "b"), action=("b",))).survey
    assert any("both state and action: b" in warning for warning in told.warnings)


def test_a_clock_that_counts_has_a_unit(tmp_path):
    """Seen to fail when milliseconds and days count as seconds."""
    text = "t,state,action,reward\n0,1,2,3\n10,2,2,3\n"
    for unit, step in (("s", 10), ("ms", 0.01), ("days", 864_000)):
        mapping = LogMapping(time="t", time_format=unit)
        assert open_logs([write(tmp_path, text)], mapping).survey.usual_step == pytest.approx(step)


@pytest.mark.parametrize("encoding", ["cp1252", "utf-16"])
def test_other_encodings_are_named_in_the_error(tmp_path, encoding):
    """Seen to fail when a bare UnicodeDecodeError comes up, and far into the file when pyarrow's
    does."""
    log = write(tmp_path, GERMAN, encoding=encoding)
    with pytest.raises(ValueError, match=f"log.csv is not a text file.*--encoding {encoding}"):
        open_logs([log], PLANT)
    mapping = LogMapping(**{**vars(PLANT), "encoding": encoding})
    assert open_logs([log], mapping).survey.num_rows == 4
    with pytest.raises(ValueError, match="encoding 'klingon' is not known"):
        open_logs([log], LogMapping(encoding="klingon"))
    late = "state,action,reward,note\n" + "1,2,3,x\n" * 2000 + "1,2,3,é\n"
    log = write(tmp_path, late, encoding="cp1252")
    with pytest.raises(ValueError, match=r"log.csv is not a text file.*--encoding cp1252"):
        open_logs([log], LogMapping(columns=("note",)))


MESSY = log_of(
    clock(*range(6)),
    state=[1, 2, "ERR", 4, 5, -999],
    action=["on", "OFF", "On", "n/a", "off", "on"],
    reward=[1] * 6,
)


def test_a_word_costs_its_cell_not_the_file(tmp_path):
    """Seen to fail when a cell that is no number is an error of the whole file."""
    logs = open_logs([write(tmp_path, MESSY)], LogMapping(time="t", episode_length=2))
    with pytest.raises(ValueError, match=r"'ERR' in .*log.csv, row 3, is no number") as error:
        logs.source()
    assert "--fill forward" in str(error.value)
    assert "1 faulty episode of 3" in str(error.value)
    store, notes = load(tmp_path, MESSY, LogMapping(time="t", episode_length=2), drop_faulty=True)
    assert store.steps["action"][:, 0].tolist() == [1, 0, 0, 1]
    assert any("1 faulty episode (2 steps), 1 because 'state' is missing" in note for note in notes)


def test_missing_values_are_filled_forward(tmp_path):
    """Within a recording, and no further than the limit. Seen to fail when they are filled across
    files, and when the limit is forgotten."""
    how = {"time": "t", "fill": "forward", "na": ("-999",)}
    store, notes = load(tmp_path, MESSY, LogMapping(**how))
    assert store[0].state[:, 0].tolist() == [1, 2, 2, 4, 5, 5]
    assert store[0].action[:, 0].tolist() == [1, 0, 1, 1, 0, 1]
    assert "2 of 'state', 1 of 'action'" in " ".join(notes)
    gaps = log_of(clock(*range(6)), state=[1, "", "", "", 5, 6], action=[1] * 6, reward=[1] * 6)
    short = open_logs([write(tmp_path, gaps)], LogMapping(time="t", fill="forward", fill_limit=2))
    assert short.survey.columns["state"].num_missing == 1
    (tmp_path / "many").mkdir()
    for name, text in (("1", gaps), ("2", gaps.replace(",1,1,1\n", ",,1,1\n"))):
        write(tmp_path / "many", text, f"{name}.csv")
    first_is_gone = open_logs([tmp_path / "many"], LogMapping(time="t", fill="forward")).survey
    assert first_is_gone.columns["state"].num_missing == 4


def test_blocks_change_nothing(tmp_path, monkeypatch):
    """Fill, cuts and resampling carry over from block to block. Seen to fail when the first row of
    a block is never filled, and when a stretch ends with its block."""
    rng = np.random.default_rng(0)
    count = 400
    cells = [f"{x:.3f}" if rng.random() > 0.2 else "" for x in rng.normal(size=count)]
    minutes = np.sort(rng.choice(3000, count, replace=False))
    text = log_of(clock(*minutes), state=cells, action=cells[::-1], reward=range(count))
    how = {"time": "t", "fill": "forward"}
    for index, more in enumerate(
        ({"episode": "hour"}, {"episode_length": 7}, {"resample": "15min", "episode": "hour"})
    ):
        stores = []
        for size in (2 << 20, 700):
            monkeypatch.setattr(files, "CSV_BLOCK_BYTES", size)
            folder = tmp_path / f"{index}-{size}"
            folder.mkdir()
            stores.append(load(folder, text, LogMapping(**how, **more), drop_faulty=True)[0])
        assert stores[0].fingerprint == stores[1].fingerprint
        assert len(stores[0]) > 1


def test_episodes_by_the_clock(tmp_path):
    """Those that the log cut short are left out, and counted. Seen to fail when a first day of two
    hours is the cheapest of all episodes."""
    hours = np.arange(22, 24 * 16)
    text = log_of(clock(*60 * hours), state=hours, action=[1] * len(hours), reward=hours)
    store, notes = load(tmp_path, text, LogMapping(time="t", episode="day"))
    assert store.lengths.tolist() == [24] * 15
    assert store[0].state[0, 0] == 24
    assert any("left out: 1 day (2 steps) with fewer than 90% of the usual 24" in n for n in notes)
    weeks = open_logs([tmp_path / "log.csv"], LogMapping(time="t", episode="week")).survey
    assert weeks.lengths == [6 * 24 + 2, 168, 48], "2024 began with a Monday"
    with pytest.raises(ValueError, match="no column 'day' for episode"):
        open_logs([tmp_path / "log.csv"], LogMapping(episode="day"))


def test_the_clock_ends_what_is_not_marked(tmp_path):
    """A trip in the middle of a day ends an episode; what is left of that day is cut short. Seen to
    fail when days without a mark are unfinished, and when a tripped one is cut short."""
    hours = np.arange(24 * 4)
    how = LogMapping(time="t", episode="day", terminated="trip")
    text = log_of(
        clock(*60 * hours), state=hours, action=hours, reward=hours, trip=(hours == 30).astype(int)
    )
    store, notes = load(tmp_path, text, how)
    assert store.lengths.tolist() == [24, 7, 24, 24]
    assert store.episodes["terminated"].tolist() == [False, True, False, False]
    assert store.finished.all()
    assert any("left out: 1 day (17 steps)" in note for note in notes)


def test_resampling_takes_means_and_fills_short_gaps(tmp_path):
    """Seen to fail when the first row stands for all, and when nothing is put where nothing was
    logged."""
    minutes = [0, 5, 10, 15, 25, 60, 70, 300]
    text = log_of(
        clock(*minutes),
        state=[1, 2, 3, 4, 6, 10, 20, 30],
        action=[0, 1, 1] + [0] * 5,
        reward=[1] * 8,
    )
    mapping = {"time": "t", "resample": "15min", "discrete": ()}
    store, _ = load(tmp_path, text, LogMapping(**mapping))
    assert store[0].state[:, 0].tolist() == [2, 5, 15, 30]
    assert store[0].action[0, 0] == pytest.approx(2 / 3)
    (tmp_path / "filled").mkdir()
    filled, notes = load(tmp_path / "filled", text, LogMapping(**mapping, fill="forward"))
    assert filled[0].state[:, 0].tolist() == [2, 5, 5, 5, 15, 30], "hours are not made up"
    assert any("2 steps that nothing was logged for" in note for note in notes)
    with pytest.raises(ValueError, match="resample is '15 parsecs', expected a number of s, min"):
        LogMapping(time="t", resample="15 parsecs")


def test_a_torn_row_costs_its_row(tmp_path):
    """Seen to fail when the whole file is refused."""
    text = "state,action,reward\n1,1,1\n2,1\n3,x,1\n4,1,1\n"
    logs = open_logs([write(tmp_path, text)])
    assert "'x' in" in logs.survey.problems[0]
    assert "row 3, is no number" in logs.survey.problems[0], "rows are counted as they stand"
    assert any("1 row has more or fewer cells" in note for note in logs.survey.warnings)


def test_words_stand_for_numbers(tmp_path):
    """Seen to fail when words other than on and off cannot be read."""
    text = "state,action,reward\n1,LOW,1\n2,high,1\n3,MID,1\n"
    store, _ = load(tmp_path, text, LogMapping(words=("LOW=0", "MID=0.5", "HIGH=1")))
    assert store[0].action[:, 0].tolist() == [0, 1, 0.5]
    with pytest.raises(ValueError, match="expected WORD=NUMBER"):
        LogMapping(words=("LOW",))
