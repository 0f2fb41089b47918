"""`saformer experiment all --scale smoke`: every table and figure, from real runs of tiny
models."""

import html
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from saformer.api.judge import REFERENCE
from saformer.cli.main import main
from saformer.experiments.catalogue import EXPERIMENTS, render
from saformer.experiments.plan import DATASETS, LIMITS
from saformer.experiments.ways import SHIELDED
from saformer.report.table import mark_of, numbers, rounded
from tests.editing import unsigned

PARTS = {
    "thresholds": ["Table 5"],
    "hyper-parameters": ["Table 6"],
    "pair-plots": ["Figure 6"],
    "baselines": ["Table 1", "Figure 2", "Figure 3"],
    "adaptation": ["Tables 2 and 7", "Ten limits", "DT, for reference"],
    "ablation": ["Tables 4 and 8"],
    "sensitivity": ["Figure 5"],
    "finetuning": ["Table 3", "Figure 4"],
    "effort": ["Every limit", "Figure 5"],
    "exploration": ["Below the dearer half", "share of the whole"],
    "safety": ["past the paper", "Every limit"],
    "speed": ["past the paper", "Every limit", "above(next_state[8], 4)"],
}
FIGURES = {"pair-plots": 1, "baselines": 2, "sensitivity": 1, "finetuning": 1, "effort": 1}


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("experiments")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SAFORMER_HOME", str(tmp_path_factory.getbasetemp() / "home"))
        patch.chdir(folder)
        assert (
            main(["experiment", "all", "--scale", "smoke", "--device", "cpu", "--processes", "0"])
            == 0
        )
    return folder / "results" / "smoke"


def rows_of(smoke: Path, name: str) -> dict:
    return json.loads((smoke / f"{name}.json").read_text())["rows"]


def table_of(page: str, title: str) -> list[list[str]]:
    """The text of a table's cells under a heading of a page."""
    body = page.split(f"<h2>{html.escape(title)}</h2>")[1].split("</table>", maxsplit=1)[0]
    lines = re.findall(r"<tr>(.*?)</tr>", body)
    return [
        [
            html.unescape(re.sub("<.*?>", "", cell))
            for cell in re.findall(r"<t[hd].*?</t[hd]>", line)
        ]
        for line in lines
    ]


@pytest.mark.parametrize("name", PARTS)
def test_every_table_and_figure_is_made(smoke, name):
    page, text = (smoke / f"{name}.html").read_text(), (smoke / f"{name}.md").read_text()
    for part in PARTS[name]:
        assert part in page
        assert part in text
    drawings = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(drawings) == FIGURES.get(name, 0)
    for number, drawing in enumerate(drawings, start=1):
        ElementTree.fromstring(drawing)
        assert f"({name}-{number}.svg)" in text
        assert (smoke / f"{name}-{number}.svg").exists()
    assert "missing" not in page
    assert not re.search(r'(src|href)="?http', page.replace("http://www.w3.org", "")), (
        "pages are self-contained"
    )


def test_the_index_leads_to_every_page(smoke):
    """And says what came out, and that smoke's numbers mean nothing."""
    index = (smoke / "index.html").read_text()
    assert "its numbers mean nothing" in index
    assert all(f"{name}.html" in index for name in PARTS)
    assert re.search(r"Tables 4 and 8. Limits met by critic: \d+ of \d+; no critic", index)


def test_every_page_says_how_it_was_made(smoke):
    for name in PARTS:
        page = (smoke / f"{name}.html").read_text()
        assert "saformer experiment all --scale smoke --device cpu" in page
        for fact in ("commit", "seeds", "hardware", "this command", "CPU cores"):
            assert fact in page


def test_numbers_on_a_page_are_those_of_its_rows(smoke):
    """Seen to fail when costs of another limit are shown."""
    rows = rows_of(smoke, "adaptation")["verdicts"]
    shown = table_of(
        (smoke / "adaptation.html").read_text(), "Constraint adaptation (Tables 2 and 7)"
    )[1:]
    assert [line[0] for line in shown] == [dataset for dataset in DATASETS for _ in LIMITS]
    for line, (dataset, name) in zip(
        shown, [(d, n) for d in DATASETS for n in LIMITS], strict=True
    ):
        (row,) = (
            r
            for r in rows
            if (r["dataset"], r["agent"], r["variant"], r["limit_name"])
            == (dataset, "saformer", "", name)
        )
        assert np.mean(row["costs"]) == pytest.approx(row["mean_cost"])
        assert line[1] == f"{name} = {numbers([row['limit']])}"
        assert line[2].startswith(f"{numbers([np.mean(row['costs'])])} [")
        mark = mark_of(row["met"], row["within"])
        assert line[2][-1] == {"safe": "✓", "met": "~", "missed": "✗"}[mark]
        assert line[3].startswith(f"{row['within']:.0%} [")
        assert line[4] == f"{np.mean(row['ended_early']):.0%} ({row['data_ended_early']:.0%})"
        assert line[5].startswith(f"{numbers([np.mean(row['returns'])])} [")
        assert line[6] == rounded(row["frontier_share"])


def test_experiments_that_share_runs_show_the_same_numbers(smoke):
    """Table 8's column with the critic is Table 7."""
    mine = [
        r
        for r in rows_of(smoke, "adaptation")["verdicts"]
        if r["agent"] == "saformer" and r["variant"] == ""
    ]
    theirs = [r for r in rows_of(smoke, "ablation")["verdicts"] if r["variant"] == "critic"]
    assert [r["costs"] for r in mine] == [r["costs"] for r in theirs]
    assert {r["run"] for r in mine} == {r["run"] for r in theirs}


def test_discounted_costs_are_judged_discounted(smoke):
    """DT is one run, judged by both. Seen to fail when its costs are not counted anew."""
    rows = [
        r
        for r in rows_of(smoke, "baselines")["verdicts"]
        if r["agent"] == "dt" and r["limit_name"] == "p10"
    ]
    by_run = {
        run: {r["cost_discount"]: r for r in rows if r["run"] == run}
        for run in {r["run"] for r in rows}
    }
    assert len(by_run) == 3
    for found in by_run.values():
        assert found[0.99]["returns"] == pytest.approx(found[1.0]["returns"], rel=1e-4)
        assert all(
            less < more
            for less, more in zip(found[0.99]["costs"], found[1.0]["costs"], strict=True)
        )
    trained = {
        (r["dataset"], r["cost_discount"]): r["run"]
        for r in rows_of(smoke, "baselines")["verdicts"]
        if r["agent"] == "saformer"
    }
    assert len(set(trained.values())) == 6, "each discount has a SaFormer of its own"


def test_learning_curves_are_of_the_tables_limits(smoke):
    rows = rows_of(smoke, "baselines")["curves"]
    asked = {(r["dataset"], r["limit_name"]) for r in rows if r["cost_discount"] == 1}
    assert asked == {
        ("halfcheetah-medium", "p10"),
        ("halfcheetah-medium-replay", "p20"),
        ("halfcheetah-medium-expert", "p50"),
    }
    assert {r["agent"] for r in rows} == {"saformer", "dt", "bcq_lag", "cpq"}
    assert {r["update"] for r in rows} == {10, 20}


def test_pages_are_made_again_from_rows_alone(smoke, capsys):
    """Seen to fail when a page depends on anything but its rows."""
    before = {path.name: path.read_bytes() for path in smoke.iterdir()}
    for path in (path for path in smoke.iterdir() if path.suffix != ".json"):
        path.unlink()
    assert main(["experiment", "all", "--render", str(smoke)]) == 0
    assert {path.name: path.read_bytes() for path in smoke.iterdir()} == before


def test_what_failed_is_said_on_the_page(smoke, tmp_path):
    """Seen to fail when failures are left out."""
    result = unsigned(smoke / "ablation.json")
    lost = result["rows"]["verdicts"][0]["dataset"]
    result["rows"]["verdicts"] = [
        row for row in result["rows"]["verdicts"] if row["dataset"] != lost
    ]
    result["failed"] = [
        {"what": "a run", "why": "it <diverged>", "dataset": lost, "agent": "saformer"}
    ]
    (tmp_path / "ablation.json").write_text(json.dumps(result))
    page = render(tmp_path, "ablation").read_text()
    assert "a run: it &lt;diverged&gt;" in page
    assert page.count("<td>missing</td>") == 3 * len(LIMITS)


def test_all_experiments_are_listed(capsys):
    assert main(["experiment"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in EXPERIMENTS)


def test_wrong_names_are_refused_in_one_line(capsys):
    assert main(["experiment", "tabel-1"]) == 1
    assert "there are thresholds" in " ".join(capsys.readouterr().err.split())
    assert main(["experiment", "ablation", "--render", "nowhere"]) == 1
    assert "there are no rows" in " ".join(capsys.readouterr().err.split())


def test_fine_tuning_explores_below_what_holds(smoke):
    """Seen to fail when the limits are those that a tiny model keeps untaught."""
    (run,) = (smoke.parents[1] / "runs").glob("*medium-replay*-finetuned")
    explored = (run / "episodes.jsonl").read_text().splitlines()
    assert len(explored) == 10
    for row in map(json.loads, explored):
        assert row["prompt"][0] < row["limit"][0], "asked for less than the limit"


def test_nobody_in_a_shield_passes_a_limit(smoke):
    """Seen to fail when the shield is not asked for."""
    rows = rows_of(smoke, "safety")["verdicts"]
    for variant in (SHIELDED, REFERENCE):
        found = [row for row in rows if row["variant"] == variant]
        assert len(found) == len(LIMITS)
        assert all(cost <= row["limit"] for row in found for cost in row["costs"])
