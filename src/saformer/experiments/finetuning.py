"""Table 3 and Figure 4: limits below the data's, before and after fine-tuning online (Algorithm
3)."""

from __future__ import annotations

from collections.abc import Mapping

from saformer.experiments.experiment import Experiment, Result
from saformer.experiments.plan import WITHOUT_CHEAPEST, Judging, Needs, Setting
from saformer.experiments.pooling import (
    INTERVAL_NOTE,
    TALLY,
    Pooled,
    our_cells,
    pooled,
    tally,
    their_cells,
)
from saformer.experiments.published import NOT_STATED, ODDITIES, published
from saformer.report.panels import Line, Panel, line_panels
from saformer.report.sheet import MARK_NOTE, Drawing, Part, Remark, Sheet, plain_cell
from saformer.report.table import numbers

DATASET = "halfcheetah-medium-replay"
OUT_OF_SAMPLE = ("94.2", "95.5", "96.7", "98.0", "99.3")
"""Percents of p10: the paper's 3700, 3750, 3800, 3850 and 3900 of its 3928."""
IN_SAMPLE = ("p10", "p20", "p30", "p50")
VARIANTS = ("offline", "fine-tuned")
HEADINGS = (
    *(
        "limit",
        "",
        "cost, offline",
        "cost, fine-tuned",
        "within, fine-tuned",
        "return, offline",
        "return, fine-tuned",
    ),
    *("paper: offline", "paper: fine-tuned"),
)


def needs(setting: Setting) -> Needs:
    """A model that never saw the cheapest tenth, and what fine-tuning makes of it."""
    below = (f"{float(percent) * setting.scale.below:.1f}" for percent in OUT_OF_SAMPLE)
    limits = (*below, *IN_SAMPLE)
    return Needs(
        judgings=tuple(
            Judging(model, limits, variant, finetuned=variant == "fine-tuned")
            for model in setting.each(DATASET + WITHOUT_CHEAPEST)
            for variant in VARIANTS
        )
    )


def present(result: Result) -> list[Part]:
    """A row for each limit: costs before and after, and what is earned."""
    verdicts = result.rows["verdicts"]
    limits = sorted({(row["limit"], row["limit_name"]) for row in verdicts})
    cells = {
        (name, v): pooled(verdicts, variant=v, limit_name=name)
        for _, name in limits
        for v in VARIANTS
    }
    printed = {
        variant: sorted(published(3, variant=variant), key=lambda cell: cell.limit or 0)
        for variant in VARIANTS
    }
    rows = []
    for place, (limit, name) in enumerate(limits):
        before, after = (our_cells(cells[name, variant]) for variant in VARIANTS)
        theirs = [their_cells(printed[variant][place])[0] for variant in VARIANTS]
        kind = "out of sample" if place < len(OUT_OF_SAMPLE) else "in sample"
        ours = (before[1], after[1], after[2], before[3], after[3])
        rows.append([plain_cell(numbers([limit])), plain_cell(kind), *ours, *theirs])
    levels = [limit for limit, _ in limits]
    costs = [_line(cells, variant, "cost") for variant in VARIANTS]
    returns = [_line(cells, variant, "episode_return") for variant in VARIANTS]
    panels = [
        Panel("cost", [*costs, Line("limit", levels, levels)], "limit", "episode cost"),
        Panel("return", returns, "limit", "episode return"),
    ]
    summary = [
        tally(variant, [cells[name, variant] for _, name in limits], printed[variant])
        for variant in VARIANTS
    ]
    return [
        Sheet("In all", TALLY, summary),
        Sheet("Below the data's costs (Table 3)", HEADINGS, rows, f"{MARK_NOTE} {INTERVAL_NOTE}"),
        Drawing(
            "Cost against limit (Figure 4)",
            line_panels(panels, columns=2),
            "Shaded: 95% intervals.",
        ),
        Remark((*ODDITIES[3], NOT_STATED), "What is odd in the paper's"),
    ]


def _line(cells: Mapping[tuple[str, str], Pooled | None], variant: str, key: str) -> Line:
    found = [cell for (_, v), cell in cells.items() if v == variant and cell is not None]
    seen = [getattr(cell, key) for cell in found]
    return Line(
        variant,
        [c.limit for c in found],
        [e.mean for e in seen],
        [e.low for e in seen],
        [e.high for e in seen],
    )


EXPERIMENT = Experiment(
    name="finetuning",
    shows="Table 3, Figure 4",
    title="Online constraint fine-tuning",
    description=(
        f"SaFormer on {DATASET} without its cheapest trajectories, before and after fine-tuning "
        "for limits below them."
    ),
    needs=needs,
    present=present,
)
