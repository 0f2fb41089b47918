"""Table 1, Figures 2 and 3: SaFormer beside BCQ-L, CPQ and DT, with costs discounted and not."""

from __future__ import annotations

from collections.abc import Mapping

from saformer.experiments.experiment import Experiment, Result
from saformer.experiments.plan import (
    CHEETAHS,
    LIMITS,
    UNHEEDED,
    Judging,
    Needs,
    Setting,
    table_1_limit,
)
from saformer.experiments.pooling import (
    INTERVAL_NOTE,
    OURS,
    TALLY,
    THEIRS,
    Pooled,
    our_cells,
    pooled,
    select,
    tally,
    their_cells,
)
from saformer.experiments.published import NOT_STATED, ODDITIES, Published, published_cell
from saformer.experiments.work import Row
from saformer.report.panels import Line, Panel, line_panels
from saformer.report.sheet import MARK_NOTE, Drawing, Part, Remark, Sheet, plain_cell

AGENTS = {"saformer": "SaFormer", "bcq_lag": "BCQ-L", "cpq": "CPQ", "dt": "DT"}
DISCOUNTS = (0.99, 1.0)
FIGURES = {0.99: 2, 1.0: 3}


def needs(setting: Setting) -> Needs:
    """Each agent under each discount; DT is trained once, for it learns nothing from costs."""
    judgings, curves = [], []
    for discount in DISCOUNTS:
        for agent in AGENTS:
            trained_on = 1.0 if agent == "dt" else discount
            for model in setting.each(*CHEETAHS, agent=agent, cost_discount=trained_on):
                limits: tuple[str, ...] = (table_1_limit(setting.source, model.dataset, discount),)
                if agent == "saformer" and discount == 1 and limits[0] in LIMITS:
                    limits = LIMITS  # shared with Tables 2 and 7
                limits = UNHEEDED if agent == "dt" else limits
                judgings.append(Judging(model, limits, cost_discount=discount))
                curves.append(model)
    return Needs(judgings=tuple(judgings), curves=tuple(dict.fromkeys(curves)))


def present(result: Result) -> list[Part]:
    """A table and a figure for each discount."""
    parts: list[Part] = []
    summary = []
    for discount in DISCOUNTS:
        ours = {
            (dataset, agent): _cell(result, dataset, agent, discount)
            for dataset in CHEETAHS
            for agent in AGENTS
        }
        theirs = {
            (dataset, agent): published_cell(
                1, dataset=dataset, agent=agent, cost_discount=discount
            )
            for dataset, agent in ours
        }
        parts += [_table(ours, theirs, discount), _figure(result, discount)]
        for judged in (agent for agent in AGENTS if agent != "dt"):
            cells, printed = (
                [of[dataset, judged] for dataset in CHEETAHS] for of in (ours, theirs)
            )
            summary.append(tally(f"{AGENTS[judged]}, cost discount {discount:g}", cells, printed))  # type: ignore[arg-type]
    odd = Remark((*ODDITIES[1], NOT_STATED), "What is odd in the paper's")
    return [Sheet("In all", TALLY, summary), *parts, odd]


def _cell(result: Result, dataset: str, agent: str, discount: float) -> Pooled | None:
    verdicts = select(result.rows["verdicts"], dataset=dataset, agent=agent, cost_discount=discount)
    if agent == "dt":
        return pooled(verdicts)
    return pooled(verdicts, limit_name=table_1_limit(result.made["data"], dataset, discount))


def _table(
    ours: Mapping[tuple[str, str], Pooled | None],
    theirs: Mapping[tuple[str, str], Published | None],
    discount: float,
) -> Sheet:
    rows = [
        [
            plain_cell(key[0]),
            plain_cell(AGENTS[key[1]]),
            *our_cells(cell, judged=key[1] != "dt"),
            *their_cells(theirs[key]),
        ]
        for key, cell in ours.items()
    ]
    note = f"{MARK_NOTE} {INTERVAL_NOTE} DT heeds no limit."
    title = f"Baseline comparison, cost discount {discount:g} (Table 1)"
    return Sheet(title, ("dataset", "agent", *OURS, *THEIRS), rows, note)


def _figure(result: Result, discount: float) -> Part:
    title = f"Evaluations while training, cost discount {discount:g} (Figure {FIGURES[discount]})"
    panels = []
    for key in ("return", "cost"):
        for dataset in CHEETAHS:
            own = select(result.rows["curves"], dataset=dataset, cost_discount=discount)
            if key == "return" and discount != 1:  # DT earns the same, however costs are counted
                own += select(result.rows["curves"], dataset=dataset, agent="dt")
            lines = [_line(label, select(own, agent=agent), key) for agent, label in AGENTS.items()]
            limits = [row["limit"] for row in own if row["agent"] != "dt"]
            level = limits[0] if limits and key == "cost" else None
            panels.append(Panel(dataset, [line for line in lines if line.x], "update", key, level))
    if not any(panel.lines for panel in panels):
        return Remark(("There are no evaluations while training to draw.",), title)
    note = "Three episodes at a time, mean over the seeds; dashed: the limit."
    if discount != 1:
        note += " DT was watched by undiscounted costs: under this discount its cost is in the table alone."
    return Drawing(title, line_panels(panels, columns=3), note)


def _line(label: str, rows: list[Row], key: str) -> Line:
    updates = sorted({row["update"] for row in rows})
    means = [[row[key] for row in rows if row["update"] == update] for update in updates]
    return Line(label, updates, [sum(values) / len(values) for values in means])


EXPERIMENT = Experiment(
    name="baselines",
    shows="Table 1, Figures 2 and 3",
    title="Baseline comparison",
    description=(
        "SaFormer, BCQ-L, CPQ and DT on the three HalfCheetah datasets, with costs discounted by "
        "0.99 and "
        "undiscounted. BCQ-L and CPQ are trained for the limit; discounted costs have a SaFormer "
        "of their own."
    ),
    needs=needs,
    present=present,
)
