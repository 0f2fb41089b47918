"""Names are text: whatever a column or folder is called is shown as it is."""

import json
import re
from pathlib import Path

import pytest

from saformer.cli.main import main
from saformer.report.rollouts import write_report
from saformer.runs.run import Run
from tests.editing import unsigned

SOURCE = Path(__file__).parents[2] / "src" / "saformer"
NAMES = ["rate [/s]", "flow [l/min]", "cost $a_$", "[red]hot[/red]", "mood :smile:", "a<b> & c"]


@pytest.fixture
def log(tmp_path, monkeypatch):
    """A machine's log whose last columns are called as people call them; the first is constant."""
    monkeypatch.chdir(tmp_path)
    rows = [
        [episode, step / 10, 0.1 * episode, 1.0, 5, *[0.1 * episode + step] * (len(NAMES) - 1)]
        for episode in range(12)
        for step in range(10)
    ]
    lines = [",".join(["ep", "s", "a", "r", *NAMES]), *(",".join(map(str, row)) for row in rows)]
    Path("log.csv").write_text("\n".join(lines) + "\n")
    return [
        "data",
        "import",
        "log.csv",
        "--state",
        "s",
        "--action",
        "a",
        "--reward",
        "r",
        "--episode",
        "ep",
    ]


def test_names_go_through_import_and_inspection(log, capsys):
    """Seen to fail: MarkupError after the store was written, and a column shown as "flow "."""
    assert main([*log, "--columns", *NAMES, "--out", "st[/x]"]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "imported 12 trajectories" in said
    assert "to st[/x]" in said
    assert main(["data", "import", "log.csv", *log[3:], "--columns", *NAMES, "--check"]) in {0, 1}
    assert "rate [/s]" in re.sub(r"\s+", " ", capsys.readouterr().out)
    for name in NAMES:
        criterion = f"column({name!r})"
        report = ["--report", "d[/i].html"] if "$" in name else []
        assert main(["data", "inspect", "st[/x]", "--criteria", criterion, *report]) == 0, name
        shown = capsys.readouterr()
        assert name.replace(" ", "") in re.sub(r"\s+", "", shown.out), name
    assert "cost $a_$" in Path("d[/i].html").read_text()


def test_names_are_drawn_as_they_are(log):
    """Seen to fail: Matplotlib reads what is between two dollar signs as a formula."""
    from saformer.report.figure import Line, Panel, line_panels

    panel = Panel(
        "cost $a_$", [Line("x_$1 and $2", [1, 2], [1, 2]), Line("b", [1], [1])], "$\\frac$", "$"
    )
    drawn = line_panels([panel], columns=1)
    for name in ("cost $a_$", "x_$1 and $2", "$\\frac$"):
        assert name in drawn


def test_no_console_reads_markup():
    """One prints, one makes text of tables. Seen to fail at nine of them, and where tables of
    notebooks had emoji for colons."""
    calls = re.compile(r"(?<!\w)Console\(.*")
    found = {
        path.relative_to(SOURCE): call
        for path in SOURCE.rglob("*.py")
        for call in calls.findall(path.read_text())
    }
    assert set(found) == {Path("cli/command.py"), Path("report/table.py")}
    assert all("markup=False, emoji=False" in call for call in found.values())


def test_a_seed_is_text_in_reports(tmp_path):
    """Stored in run.json, it was executed by browsers; no number, it is refused, and names that are
    text are escaped. Seen to fail when templates do not escape by themselves."""
    evil = "0<script>document.title='XSS'</script>"
    command = "train allowance --agent cdt --data-steps 400 --updates 2 --width 16 --layers 1 --device cpu"
    run = Run(tmp_path / "run")
    assert main([*command.split(), "--out", str(run.path)]) == 0
    assert (
        main(["evaluate", str(run.path), "--limits", "p50", "--episodes", "1", "--device", "cpu"])
        == 0
    )
    plain = unsigned(run.spec_path)
    run.spec_path.write_text(json.dumps({**plain, "seed": evil}))
    with pytest.raises(ValueError, match=r"run\.json.*seed"):
        write_report(run, tmp_path / "page.html")
    run.spec_path.write_text(json.dumps({**plain, "task": evil, "criteria": [evil]}))
    page = write_report(run, tmp_path / "page.html").read_text()
    assert "XSS" in page
    assert "<script>document" not in page
