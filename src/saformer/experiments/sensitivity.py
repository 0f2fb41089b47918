"""Figure 5: how many proposals a decision needs."""

from __future__ import annotations

from saformer.experiments.experiment import Experiment, Results
from saformer.experiments.plan import Judging, Needs, Setting
from saformer.experiments.pooling import NOTE, OURS, interval_line, our_cells, pooled, rows_with
from saformer.experiments.ways import proposals
from saformer.report.figure import Line, Panel, line_panels
from saformer.report.page import Part, Picture, Remark, Sheet

DATASET = "hopper-medium-expert"
SHOWN_LIMITS = ("p20", "p30", "p50")
ABOUT = (
    "Shaded: 95% intervals. The paper's curves have no printed numbers; its limits are 683, 742 "
    "and 856 on D4RL's data."
)


def _needs(setting: Setting) -> Needs:
    """One model, acting with N = 1, 2, 4, ... proposals."""
    judgings = [
        Judging(model, SHOWN_LIMITS, f"N = {count}", proposals(count))
        for model in setting.each(DATASET)
        for count in setting.scale.candidates
    ]
    return Needs(judgings=tuple(judgings))


def _present(results: Results) -> list[Part]:
    """Cost and return over N, a line for each limit."""
    verdicts = results.rows["verdicts"]
    counts = sorted({int(row["variant"].removeprefix("N = ")) for row in verdicts})
    if not counts:
        return [Remark(("Nothing was measured.",))]
    rows, costs, returns = list[list[object]](), list[Line](), list[Line]()
    for name in SHOWN_LIMITS:
        cells = {
            count: pooled(verdicts, variant=f"N = {count}", limit_name=name) for count in counts
        }
        rows += [[str(count), *our_cells(cell)] for count, cell in cells.items()]
        measured = {float(count): cell for count, cell in cells.items() if cell is not None}
        x, own = list(measured), list(measured.values())
        limit = own[0].limit if own else None
        costs.append(interval_line(name, x, [cell.cost for cell in own], limit))
        returns.append(interval_line(name, x, [cell.episode_return for cell in own]))
    panels = [
        Panel("cost (dashed: the limits)", costs, "N", "episode cost"),
        Panel("return", returns, "N", "episode return"),
    ]
    figure = line_panels(panels, columns=2, log_x=True)
    shares = []
    for count in counts:
        own_rows = rows_with(verdicts, variant=f"N = {count}")
        totals = (sum(row[key] for row in own_rows) for key in ("resampled", "fell_back"))
        shares.append([str(count), *(f"{total / len(own_rows):.0%}" for total in totals)])
    title = "Steps that took more than one round, and steps that the fallback decided"
    return [
        Picture(f"Sensitivity to N on {DATASET} (Figure 5)", figure, ABOUT),
        Sheet("The same in numbers", ("N", *OURS), rows, NOTE),
        Sheet(title, ("N", "redrawn", "fallback"), shares),
    ]


EXPERIMENT = Experiment(
    name="sensitivity",
    shows="Figure 5",
    title="Sensitivity to the number of proposals",
    description=f"One SaFormer on {DATASET} acts with N = 1, 2, 4, ..., 512 proposals under three "
    "limits.",
    needs=_needs,
    present=_present,
)
