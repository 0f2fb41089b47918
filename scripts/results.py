"""docs/results.md and its figure, from the rows that results/ keeps.

python -m scripts.results             writes both
python -m scripts.results --check     fails where the page is not what its rows say
"""

import argparse
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from saformer.experiments.catalogue import EXPERIMENTS
from saformer.experiments.experiment import Results
from saformer.experiments.plan import LIMITS, Row
from saformer.experiments.pooling import Pooled, nothing_rows, pooled, tally
from saformer.files import write_atomically
from saformer.report.figure import ACCEPTED, REJECTED, canvas, styled, svg
from saformer.report.page import Sheet
from saformer.report.table import SAFE_SHARE, Cell, mark_of

ROOT = Path(__file__).parents[1]
KEPT, PAGE, FIGURE = ROOT / "results/paper", ROOT / "docs/results.md", "figures/results.svg"
HEADLINE = ("effort", "safety")  # those that judge today's ways of acting under p10 to p50
SHADE = "#c98a1b"  # the mean is within, too few episodes are
HEADINGS = ("data", "policy", "limits met", "episodes within", "ended early (data)", "safe share")
LEAD = """Written by `python -m scripts.results` from the rows under `results/`. What *met*,
*within* and *safe share* mean: [how we measure](measure.md)."""
DATASETS = {"effort": "robots from standing to running", "safety": "robots that may fall"}
EVERY = """The foot of each page has its command. Rows called *by reserve* or *told* are of a rule
that was deleted since ([log](log.md))."""
CAVEATS = (
    "**Few seeds.** {seeds}; {episodes} episodes for each limit. A seed trained twice differs "
    "as two seeds do: fused kernels do not repeat to the digit on a GPU.",
    "**Other data than the paper's.** Ours is made by the bundled behaviours; the paper's is "
    "D4RL's. The published numbers stand beside ours on every page and are not to be subtracted.",
    "**A fall is cheap.** Where episodes may end early, a robot that falls keeps its limit. Read "
    "*ended early* beside *limits met*; robots from standing to running may not fall.",
)


def read(folder: Path) -> dict[str, Results]:
    """Every experiment that has rows in the folder, in the catalogue's order."""
    names = (name for name in EXPERIMENTS if (folder / f"{name}.json").exists())
    return {name: Results.read(folder, name) for name in names}


def cells_of(results: Results) -> dict[str, list[Pooled]]:
    """By policy: one cell for each dataset and limit, all seeds pooled; without Figure 5's."""
    verdicts = [row for row in results.rows["verdicts"] if row["limit_name"] in LIMITS]
    verdicts = [row for row in verdicts if not row["variant"].startswith("N = ")]
    verdicts += nothing_rows(verdicts)
    keys = dict.fromkeys((row["dataset"], row["limit_name"]) for row in verdicts)
    policies = dict.fromkeys(row["variant"] for row in verdicts)
    return {policy: list(_cells(verdicts, policy, keys)) for policy in policies}


def _cells(verdicts: Sequence[Row], policy: str, keys: Any) -> Iterator[Pooled]:
    for dataset, name in keys:
        cell = pooled(verdicts, variant=policy, dataset=dataset, limit_name=name)
        if cell is not None:
            yield cell


def table(shown: dict[str, Results]) -> list[str]:
    rows: list[list[Cell]] = []
    for name, results in shown.items():
        known = all("ended_early" in row for row in results.rows["verdicts"])
        for index, (policy, cells) in enumerate(cells_of(results).items()):
            _, met, _, within, ended, _, _, safe = tally(policy, cells)
            data = "" if index else DATASETS[name]
            rows.append([data, policy, met, within, ended if known else "-", safe])
    return Sheet("", HEADINGS, rows).markdown()


@styled
def figure(shown: dict[str, Results]) -> str:
    """Cost as a share of the limit: a dot for each dataset and limit, a panel for each kind."""
    drawing, axes = canvas(len(shown), columns=1)
    for axis, (name, results) in zip(axes, shown.items(), strict=True):
        cells = cells_of(results)
        width = 16 if len(cells) < 8 else 10
        for column, own in enumerate(cells.values()):
            shift = np.linspace(-0.25, 0.25, len(own))
            colours = [_colour(cell) for cell in own]
            ratios = [min(cell.cost.mean / cell.limit, 2) for cell in own]
            axis.scatter(column + shift, ratios, s=11, c=colours, linewidths=0)
        axis.axhline(1, color="k", lw=0.9, ls="--")
        axis.set_xticks(range(len(cells)), [textwrap.fill(policy, width) for policy in cells])
        axis.set(title=DATASETS[name], ylabel="mean cost / limit")
    return svg(drawing)


def _colour(cell: Pooled) -> str:
    return {"safe": ACCEPTED, "met": SHADE, "missed": REJECTED}[mark_of(cell.met, cell.within)]


def page(kept: dict[str, Results]) -> str:
    shown = {name: kept[name] for name in HEADLINE if name in kept}
    rows = [row for results in shown.values() for row in results.rows["verdicts"]]
    seeds = sorted({row["seed"] for row in rows})
    episodes = " or ".join(map(str, sorted({len(row["costs"]) for row in rows})))
    counted = {"seeds": f"Seeds {' and '.join(map(str, seeds))}", "episodes": episodes}
    colours = f"""Every dot is one dataset and one limit: green where at least {SAFE_SHARE:.0%} of
    episodes are within, amber where the mean is, red where the limit is missed. Costs above twice
    the limit are drawn at 2."""
    pages = [f"- {_link(name)}: {_made(results)}" for name, results in kept.items()]
    lines = [
        *("# Results", "", *_wrapped(LEAD), ""),
        *("## In one table", "", *table(shown)),
        *("## In one figure", "", f"![Cost as a share of the limit]({FIGURE})", ""),
        *(*_wrapped(colours), "", "## Three caveats", ""),
        *(line for text in CAVEATS for line in _wrapped(f"- {text.format(**counted)}", "  ")),
        *("", "## Every cell", "", *_wrapped(EVERY), ""),
        *(line for text in pages for line in _wrapped(text, "  ")),
        *("- [Tables whose rows were not kept](../results/earlier.md), from before.", ""),
    ]
    return "\n".join(lines)


def _link(name: str) -> str:
    title = f"{EXPERIMENTS[name].title} ({EXPERIMENTS[name].shows})"
    return f"[{title}](../results/paper/{name}.md)"


def _made(results: Results) -> str:
    made, rows = results.made, results.rows["verdicts"]
    count = f"{len(rows)} verdicts, " if rows else ""
    return f"{count}commit {made['commit']}."


def _wrapped(text: str, indent: str = "") -> list[str]:
    joined = " ".join(text.split())
    options: Any = {"break_long_words": False, "break_on_hyphens": False}
    return textwrap.wrap(joined, 100, subsequent_indent=indent, **options)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    kept = read(KEPT)
    text = page(kept)
    if parser.parse_args().check:
        return 0 if PAGE.read_text() == text else 1
    shown = {name: kept[name] for name in HEADLINE if name in kept}
    write_atomically(PAGE, text)
    write_atomically(PAGE.parent / FIGURE, figure(shown))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
