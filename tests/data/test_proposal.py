"""A mapping is proposed for a log that comes without one, and can be used as it is."""

import tomllib

import pytest

from saformer.cli.main import main
from saformer.data.logs.logs import open_logs
from saformer.data.logs.mapping import LogMapping
from saformer.data.logs.proposal import propose_mapping

pytest.importorskip("pyarrow")

HEADER = "Zeit;Log-ID;Operator;Raum [°C];Leistung, kW;Preis €/kWh;Sollwert;Ventil\n"
ROWS = [
    f"{day:02}.11.2024 {hour:02}:00;{10 * day + hour};Anna;1{hour},5;{0.5 - hour:g};0,2;2{hour};AUF\n"
    for day in (1, 2)
    for hour in range(4)
]
PLANT = (HEADER + "".join(ROWS)).replace("0.5;", "0,5;").replace(".5;0", ",5;0")


def test_a_proposal_can_be_imported(tmp_path, monkeypatch, capsys):
    """By the command line, from a header and ten rows. Seen to fail when the cost may be negative,
    and when a second call writes over what was edited."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plant.csv").write_text(PLANT)
    assert main(["data", "import", "plant.csv"]) == 1
    said = capsys.readouterr().out
    assert "saformer data import plant.csv --mapping plant-mapping.toml --check" in said
    mapping = tomllib.loads((tmp_path / "plant-mapping.toml").read_text())
    assert mapping == {
        "time": "Zeit",
        "episode": "day",
        "state": ["Raum [°C]", "Preis €/kWh"],
        "action": ["Sollwert"],
        "reward": "-abs(`Raum [°C]` - 12)",
        "cost": "abs(`Leistung, kW`)",
    }
    assert "# left out: Log-ID, Operator, Ventil" in said
    assert '# Ventil may be an action: say what its words are, words = ["AUF=0"]' in said
    assert main(["data", "import", "plant.csv", "--mapping", "plant-mapping.toml"]) == 0
    assert main(["data", "import", "plant.csv"]) == 1
    assert "plant-mapping.toml exists: use it with --mapping" in capsys.readouterr().err


def test_usual_names_need_no_proposal(tmp_path):
    """Seen to fail when every log gets one."""
    (tmp_path / "plain.csv").write_text("state,action,reward\n1,2,3\n")
    assert propose_mapping([str(tmp_path / "plain.csv")]) is None
    assert propose_mapping(["d4rl:hopper-medium-v2"]) is None


def test_how_a_log_is_written_goes_into_its_proposal(tmp_path, monkeypatch, capsys):
    """Seen to fail when --encoding keeps the proposal away, when it is not in the file, when two
    columns of a time are one, and when a date that may be either is left out."""
    monkeypatch.chdir(tmp_path)
    log = tmp_path / "log.csv"
    log.write_text(
        "Date;Time;room °C;valve\n03/04/2024;10:00;20;1\n03/04/2024;10:05;21;0\n", "cp1252"
    )
    assert main(["data", "import", "log.csv"]) == 1
    assert "--encoding cp1252" in capsys.readouterr().err
    assert main(["data", "import", "log.csv", "--encoding", "cp1252"]) == 1
    said = capsys.readouterr().out
    mapping = tomllib.loads((tmp_path / "log-mapping.toml").read_text())
    assert (mapping["encoding"], mapping["state"]) == ("cp1252", ["room °C"])
    assert (mapping["time"], mapping["time_of_day"]) == ("Date", "Time")
    assert "may begin with the day or with the month; say --time-format" in said
    assert main(["data", "import", "log.csv", "--encoding", "cp1252", "--state", "rom"]) == 1
    assert "no column 'rom' for state" in capsys.readouterr().err


def test_what_columns_are_by_their_names(tmp_path):
    """Seen to fail when a second clock is a state, when return_temp is a reward, when one word among
    numbers makes a column one of words, and when a price per kWh is the cost."""
    path = tmp_path / "log.csv"
    path.write_text(
        "run,timestamp,elapsed time,return_temp,profit,valve_cmd,price €/kWh,energy [kWh],tripped\n"
        "1,0,0,20,5,0.1,1,3,0\n1,1,1,ERR,6,0.2,1,4,0\n1,2,2,21,6,0.2,2,4,0\n"
    )
    lines = propose_mapping([str(path)]).lines
    text = "\n".join(lines)
    mapping = LogMapping.of(tomllib.loads(text))
    assert (mapping.time, mapping.episode, mapping.terminated) == ("timestamp", "run", "tripped")
    assert mapping.state == ("return_temp", "price €/kWh")
    assert mapping.action == ("valve_cmd",)
    assert (mapping.reward, mapping.cost) == ("profit", "`energy [kWh]`")
    assert mapping.fill == "forward"
    assert open_logs([path], mapping).survey.problems == []
    assert all("#" in line for line in lines), "each line says why"


def test_a_log_as_spreadsheets_write_it(tmp_path):
    """Index and trailing marks have no name, and -200 stands for what is missing. Seen to fail when
    columns without a name count, when 18.00.00 is no time of day, when rows of nothing but commas
    are steps, and when nothing is said of -200."""
    path = tmp_path / "log.csv"
    rows = [
        f"{n},13/03/2004,{n:02}.00.00,{t},{t},2{n % 5},,\n" for n, t in enumerate([-200, *"9" * 23])
    ]
    path.write_text(",Date,Time,T,RH,valve,,\n" + "".join(rows) + 3 * ",,,,,,,\n")
    mapping = LogMapping.of(tomllib.loads("\n".join(propose_mapping([str(path)]).lines)))
    assert (mapping.time, mapping.time_of_day) == ("Date", "Time")
    assert (mapping.state, mapping.action) == (("T", "RH"), ("valve",))
    survey = open_logs([path], mapping).survey
    assert (survey.problems, survey.num_rows) == ([], 24)
    assert survey.usual_step == 3600
    assert "-200 is the least of 2 columns: if it stands for a missing value, say --na -200" in (
        survey.warnings
    )
