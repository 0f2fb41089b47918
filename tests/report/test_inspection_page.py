"""The inspection as tables and as a page."""

import io
import re

import pytest
from rich.console import Console

from saformer.data.inspection import inspect
from saformer.report.inspection import ALL_WELL, inspection_tables, write_inspection
from tests.data.made import made

MANY = [float(k) for k in range(1, 402)]


def printed(inspection) -> str:
    console = Console(file=io.StringIO(), width=80)
    for part in inspection_tables(inspection):
        console.print(part)
    return console.file.getvalue()


def test_the_tables_hold_the_figures():
    """Seen to fail when the table leaves out the frontier."""
    shown = printed(inspect(made(MANY, [3 * cost for cost in MANY])).plain())
    assert re.search(r"torque +1 +41 +81 +121 +201 +401 +201\n", shown)
    assert re.search(r"return +3 +123 +243 +363 +603 +1203 +603\n", shown)
    assert re.search(r"p10 = 41 +41 +10\.2% +117 +63\n", shown)
    assert ALL_WELL in " ".join(shown.split())


def test_unknown_figures_are_dashes():
    shown = printed(inspect(made([5.0] * 60, [1.0] * 60)).plain())
    assert re.search(r"torque +- +- +0\.00 +0\.00 +-\n", shown)
    assert shown.count("warning: ") == 3  # constant return, small spread, close limits


@pytest.mark.parametrize("name", ["data", "two_cost_data"])
def test_the_page_stands_alone(tmp_path, request, name):
    """Two figures a constraint, warnings on top, nothing to be fetched. Seen to fail when a style
    is linked."""
    inspection = inspect(request.getfixturevalue(name)).plain()
    path = write_inspection(inspection, tmp_path / "deep" / "page.html", title="my <logs>")
    page = path.read_text()
    assert page.count("<svg") == 2 * len(inspection["constraints"])
    assert "<title>my &lt;logs&gt;</title>" in page
    assert (
        page.index('class="caution"')
        < page.index("<h2>Return and cost (torque")
        < page.index("<h2>Thresholds")
    )
    for warning in inspection["warnings"]:
        assert warning["text"] in page
    assert not re.search(
        r"<(link|script\s|img|iframe)\b|@import|url\(\s*['\"]?http|(src|xlink:href|href)=['\"]http",
        page,
    )


@pytest.mark.parametrize(
    "data",
    [made([0.0] * 3, [1.0] * 3), made([7.0], [-1.0]), made([1.0, 2.0], [2.0, 1.0])],
    ids=["all costs zero", "one trajectory", "two trajectories"],
)
def test_poor_data_has_a_page_too(tmp_path, data):
    page = write_inspection(inspect(data).plain(), tmp_path / "page.html").read_text()
    assert "nan" not in re.sub(r"<svg.*?</svg>", "", page, flags=re.DOTALL)
    assert page.count("<svg") == 2
