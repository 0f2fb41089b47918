"""Figure 5: how many proposals a decision needs."""

from __future__ import annotations

from saformer.experiments.experiment import Experiment, Result
from saformer.experiments.plan import Judging, Needs, Setting
from saformer.experiments.pooling import INTERVAL_NOTE, OURS, our_cells, pooled, select
from saformer.report.panels import Line, Panel, line_panels
from saformer.report.sheet import MARK_NOTE, Drawing, Part, Remark, Sheet, plain_cell

DATASET = "hopper-medium-expert"
SHOWN_LIMITS = ("p20", "p30", "p50")


def needs(setting: Setting) -> Needs:
    """One model, acting with N = 1, 2, 4, ... proposals."""
    return Needs(
        judgings=tuple(
            Judging(model, SHOWN_LIMITS, f"N = {count}", (("candidates", count),))
            for model in setting.each(DATASET)
            for count in setting.scale.candidates
        )
    )


def present(result: Result) -> list[Part]:
    """Cost and return over N, a line for each limit."""
    verdicts = result.rows["verdicts"]
    counts = sorted({int(row["variant"].removeprefix("N = ")) for row in verdicts})
    if not counts:
        return [Remark(("Nothing was measured.",))]
    cells = {
        (name, count): pooled(verdicts, variant=f"N = {count}", limit_name=name)
        for name in SHOWN_LIMITS
        for count in counts
    }
    costs, returns = list[Line](), list[Line]()
    for name in SHOWN_LIMITS:
        found = [(count, cell) for count in counts if (cell := cells[name, count]) is not None]
        x = [float(count) for count, _ in found]
        for lines, key in ((costs, "cost"), (returns, "episode_return")):
            seen = [getattr(cell, key) for _, cell in found]
            level = found[0][1].limit if key == "cost" and found else None
            lines.append(
                Line(
                    name,
                    x,
                    [e.mean for e in seen],
                    [e.low for e in seen],
                    [e.high for e in seen],
                    level,
                )
            )
    panels = [
        Panel("cost (dashed: the limits)", costs, "N", "episode cost"),
        Panel("return", returns, "N", "episode return"),
    ]
    rows = [
        [plain_cell(str(count)), *our_cells(cells[name, count])]
        for name in SHOWN_LIMITS
        for count in counts
    ]
    note = (
        "Shaded: 95% intervals. The paper's curves have no printed numbers; its limits are 683, "
        "742 and 856 on D4RL's "
        "data."
    )
    return [
        Drawing(
            f"Sensitivity to N on {DATASET} (Figure 5)",
            line_panels(panels, columns=2, log_x=True),
            note,
        ),
        Sheet("The same in numbers", ("N", *OURS), rows, f"{MARK_NOTE} {INTERVAL_NOTE}"),
        *_fallbacks(result, counts),
    ]


def _fallbacks(result: Result, counts: list[int]) -> list[Part]:
    """How often no proposal was found to be safe."""
    rows = []
    for count in counts:
        own = select(result.rows["verdicts"], variant=f"N = {count}")
        shares = [[row[key] for row in own] for key in ("resampled", "fell_back")]
        rows.append(
            [
                plain_cell(str(count)),
                *(plain_cell(f"{sum(share) / len(share):.0%}") for share in shares),
            ]
        )
    return [
        Sheet(
            "Steps that took more than one round, and steps that the fallback decided",
            ("N", "redrawn", "fallback"),
            rows,
        )
    ]


EXPERIMENT = Experiment(
    name="sensitivity",
    shows="Figure 5",
    title="Sensitivity to the number of proposals",
    description=f"One SaFormer on {DATASET} acts with N = 1, 2, 4, ..., 512 proposals under three limits.",
    needs=needs,
    present=present,
)
