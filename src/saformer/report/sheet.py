"""Tables and figures of an experiment, as a page or as Markdown."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from saformer.files import write_atomically
from saformer.report.frame import section, write_page
from saformer.report.table import Cell, html_table

MARKS = {"met": " ✓", "missed": " ✗", "": ""}
"""Seen on a page that was printed without colours."""
MARK_NOTE = "✓ and green: the mean cost is within the limit (tolerance 0); ✗ and red: it is not."


@dataclass(frozen=True)
class Sheet:
    """A table."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""


@dataclass(frozen=True)
class Drawing:
    """A figure."""

    title: str
    svg: str
    note: str = ""


@dataclass(frozen=True)
class Remark:
    """A paragraph; a list of them is shown as one."""

    lines: tuple[str, ...]
    title: str = ""


Part = Sheet | Drawing | Remark


@dataclass(frozen=True)
class Document:
    """All that is said of one experiment."""

    name: str
    title: str
    lead: str
    parts: Sequence[Part]
    failed: Sequence[Mapping[str, str]]
    made: Mapping[str, Any]


def plain_cell(text: str) -> Cell:
    """One that says nothing of limits."""
    return text, ""


def write_document(document: Document, folder: Path) -> Path:
    """NAME.html, NAME.md, and the figures of the latter. Returns the page."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = [
        f"<h1>{html.escape(document.title)}</h1>",
        f'<p class="lead">{html.escape(document.lead)}</p>',
        _failures(document),
        *map(_html, document.parts),
        "<h2>How this was made</h2>",
        _described(document.made),
        '<p class="note"><a href="index.html">All experiments</a></p>',
    ]
    drawings = [part for part in document.parts if isinstance(part, Drawing)]
    for number, drawing in enumerate(drawings, start=1):
        write_atomically(folder / f"{document.name}-{number}.svg", drawing.svg)
    write_atomically(folder / f"{document.name}.md", markdown(document))
    wide = "<style>body { max-width: 84rem; }</style>"
    return write_page(folder / f"{document.name}.html", document.title, [wide, *parts])


def write_index(folder: Path, entries: Sequence[tuple[str, str, str]]) -> Path:
    """A page that leads to the others: (name, what it shows, title) of each."""
    shown = "".join(
        f"<dt><a href='{html.escape(name)}.html'>{html.escape(title)}</a></dt><dd>{html.escape(shows)}</dd>"
        for name, shows, title in entries
    )
    parts = ["<h1>The paper's tables and figures</h1>", f"<dl>{shown}</dl>"]
    return write_page(folder / "index.html", "Experiments", parts)


def markdown(document: Document) -> str:
    """The same without colours."""
    lines = [f"# {document.title}", "", document.lead, ""]
    if document.failed:
        lines += ["What is missing here, because it failed:", ""]
        lines += [f"- {failure['what']}: {failure['why']}" for failure in document.failed] + [""]
    number = 0
    for part in document.parts:
        lines += [f"## {part.title}", ""] if part.title else []
        if isinstance(part, Sheet):
            lines += [_line(part.headings), _line("---" for _ in part.headings)]
            lines += [_line(_marked(cell) for cell in row) for row in part.rows]
            lines += ["", part.note, ""] if part.note else [""]
        elif isinstance(part, Drawing):
            number += 1
            lines += [
                f"![{part.title}]({document.name}-{number}.svg)",
                "",
                *([part.note, ""] if part.note else []),
            ]
        else:
            lines += [*(f"- {line}" if len(part.lines) > 1 else line for line in part.lines), ""]
    lines += [
        "## How this was made",
        "",
        *(f"- {name}: {value}" for name, value in _made(document.made)),
    ]
    return "\n".join(lines) + "\n"


def _html(part: Part) -> str:
    if isinstance(part, Sheet):
        marked = [[(_marked(cell), cell[1]) for cell in row] for row in part.rows]
        return section(part.title, html_table(part.headings, marked), part.note)
    if isinstance(part, Drawing):
        return section(part.title, part.svg, part.note)
    title = f"<h2>{html.escape(part.title)}</h2>" if part.title else ""
    if len(part.lines) == 1:
        return f"{title}<p>{html.escape(part.lines[0])}</p>"
    return (
        title + "<ul>" + "".join(f"<li>{html.escape(line)}</li>" for line in part.lines) + "</ul>"
    )


def _failures(document: Document) -> str:
    if not document.failed:
        return ""
    said = "".join(
        f"<li>{html.escape(one['what'])}: {html.escape(one['why'])}</li>" for one in document.failed
    )
    return f'<div class="caution">What is missing here, because it failed:<ul>{said}</ul></div>'


def _described(made: Mapping[str, Any]) -> str:
    shown = "".join(
        f"<dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd>" for name, value in _made(made)
    )
    return f"<dl>{shown}</dl>"


def _made(made: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(name, _text(value)) for name, value in made.items()]


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {inner}" for name, inner in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _marked(cell: Cell) -> str:
    text, mark = cell
    return text + MARKS[mark]


def _line(cells: Any) -> str:
    return "| " + " | ".join(text.replace("|", "\\|") for text in cells) + " |"
