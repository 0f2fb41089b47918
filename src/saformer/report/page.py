"""A page of tables, figures and remarks: one self-contained HTML file, or Markdown."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from saformer.files import write_atomically
from saformer.report.table import Cell, text_and_mark

MARKS = {"safe": " ✓", "met": " ~", "missed": " ✗", "": ""}  # where there are no colours
MARK_NOTE = (
    "✓ and green: the mean cost is within the limit (tolerance 0), and so are at least 95% of "
    "episodes; ~ and amber: the mean is; ✗ and red: neither."
)


@dataclass(frozen=True)
class Sheet:
    """A table; marked cells are coloured, and ticked unless `ticked` is off."""

    template: ClassVar[str] = "sheet.html"
    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""
    ticked: bool = True

    @property
    def cells(self) -> list[list[tuple[str, str]]]:
        pairs = [map(text_and_mark, row) for row in self.rows]
        ticks = MARKS if self.ticked else dict.fromkeys(MARKS, "")
        return [[(text + ticks[mark], mark) for text, mark in row] for row in pairs]

    def markdown(self) -> list[str]:
        rows = [self.headings, ["---" for _ in self.headings]]
        rows += [[text for text, _ in row] for row in self.cells]
        lines = [" | ".join(text.replace("|", "\\|") for text in row) for row in rows]
        return [*(f"| {line} |" for line in lines), "", *_note(self.note)]


@dataclass(frozen=True)
class Tiles:
    """Figures to be seen first: text, what it is, and its mark."""

    template: ClassVar[str] = "tiles.html"
    title: ClassVar[str] = ""
    tiles: Sequence[tuple[str, str, str]]

    def markdown(self) -> list[str]:
        return [*(f"- {text}{MARKS[mark]}: {label}" for text, label, mark in self.tiles), ""]


@dataclass(frozen=True)
class Picture:
    template: ClassVar[str] = "picture.html"
    title: str
    svg: str
    note: str = ""


@dataclass(frozen=True)
class Remark:
    """A paragraph; several lines are a list."""

    template: ClassVar[str] = "remark.html"
    lines: tuple[str, ...]
    title: str = ""
    style: Literal["", "lead", "note", "listing"] = ""

    def markdown(self) -> list[str]:
        return [*(f"- {line}" if len(self.lines) > 1 else line for line in self.lines), ""]


@dataclass(frozen=True)
class Caution:
    """A warning that nobody overlooks."""

    template: ClassVar[str] = "caution.html"
    title: ClassVar[str] = ""
    about: str
    lines: Sequence[str] = ()

    def markdown(self) -> list[str]:
        return [self.about, "", *(f"- {line}" for line in self.lines), ""]


@dataclass(frozen=True)
class Facts:
    template: ClassVar[str] = "facts.html"
    title: str
    values: Mapping[str, Any]
    links: Mapping[str, str] = field(default_factory=dict)  # files of names, on pages alone

    @property
    def entries(self) -> list[tuple[str, str]]:
        return [(name, _text(value)) for name, value in self.values.items()]

    def markdown(self) -> list[str]:
        return [*(f"- {name}: {text}" for name, text in self.entries), ""]


Part = Tiles | Sheet | Picture | Remark | Caution | Facts


@dataclass(frozen=True)
class Page:
    """Parts under one heading."""

    title: str
    parts: Sequence[Part]
    heading: str = ""  # by default the title
    broad: bool = False  # room for tables of many columns
    index: str = ""  # the file of a page that lists this one

    def write(self, path: str | Path) -> Path:
        """One self-contained HTML file, whole or not at all."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, _template().render(page=self))
        return path

    def write_beside_markdown(self, folder: Path, name: str) -> Path:
        """NAME.html, NAME.md, and the figures of the latter. Returns the page."""
        folder.mkdir(parents=True, exist_ok=True)
        lines, num_pictures = [f"# {self.heading or self.title}", ""], 0
        for part in self.parts:
            lines += [f"## {part.title}", ""] if part.title else []
            if isinstance(part, Picture):
                num_pictures += 1
                file = f"{name}-{num_pictures}.svg"
                write_atomically(folder / file, part.svg)
                lines += [f"![{part.title}]({file})", "", *_note(part.note)]
            else:
                lines += part.markdown()
        write_atomically(folder / f"{name}.md", "\n".join(lines))
        return self.write(folder / f"{name}.html")


@cache
def _template() -> Template:
    layout: Any = {"trim_blocks": True, "lstrip_blocks": True}
    loader = PackageLoader("saformer.report")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, **layout)
    return environment.get_template("page.html")


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {inner}" for name, inner in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _note(note: str) -> list[str]:
    return [note, ""] if note else []
