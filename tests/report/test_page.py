"""Parts of a page, as HTML and as Markdown."""

import re

from saformer.report.figure import Line, Panel, line_panels
from saformer.report.page import Caution, Facts, Page, Picture, Remark, Sheet

EVIL = "<script>alert('x')</script> & \"quotes\""


def test_nothing_that_a_run_or_a_column_is_called_becomes_markup(tmp_path):
    """Seen to fail without autoescape."""
    panels = [Panel(EVIL, [Line(EVIL, [1, 2], [1, 2]), Line("b", [1], [1])], EVIL, EVIL)]
    parts = [
        Sheet(EVIL, (EVIL,), [[EVIL], [(EVIL, "met")]], EVIL),
        Picture(EVIL, line_panels(panels, columns=1), EVIL),
        Remark((f"saformer, seed {EVIL}.",), EVIL, "note"),
        Remark((EVIL, EVIL)),
        Caution(EVIL, [EVIL]),
        Facts(EVIL, {EVIL: {EVIL: [EVIL]}, "linked": EVIL}, {"linked": EVIL}),
        Remark((EVIL,), EVIL, "listing"),
    ]
    text = Page(EVIL, parts).write(tmp_path / "deep" / "page.html").read_text()
    assert re.findall(r"<\s*script.*", text) == ["<script>"], "the page's own"
    assert text.count("&lt;script&gt;") >= 20
    assert 'href="&lt;script' in text


def test_markdown_holds_the_same(tmp_path):
    """Seen to fail when the columns of a table run into each other."""
    parts = [
        Remark(("All of it.",), style="lead"),
        Sheet("Costs", ("a|b", "c"), [["1", ("2", "missed")]], "Note."),
        Picture("Drawn", "<svg/>"),
        Facts("How", {"seeds": [0, 1], "versions": {"torch": "2"}}),
    ]
    page = Page("title", parts, index="index.html").write_beside_markdown(tmp_path, "name")
    assert page.name == "name.html"
    assert (tmp_path / "name-1.svg").read_text() == "<svg/>"
    assert (tmp_path / "name.md").read_text() == (
        "# title\n\nAll of it.\n\n## Costs\n\n| a\\|b | c |\n| --- | --- |\n| 1 | 2 ✗ |\n\n"
        "Note.\n\n"
        "## Drawn\n\n![Drawn](name-1.svg)\n\n## How\n\n- seeds: 0, 1\n- versions: torch 2\n"
    )
