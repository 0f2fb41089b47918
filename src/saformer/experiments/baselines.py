"""Table 1, Figures 2 and 3: SaFormer beside BCQ-L, CPQ and DT, with costs discounted and not."""

from saformer.experiments import pooling
from saformer.experiments.experiment import Experiment, Results
from saformer.experiments.plan import CHEETAHS, LIMITS, Judging, Needs, Row, Setting, table_1_limit
from saformer.experiments.published import oddities, published_cell
from saformer.report.figure import Line, Panel, line_panels
from saformer.report.page import Part, Picture, Remark, Sheet
from saformer.report.table import Cell

AGENTS = {"saformer": "SaFormer", "bcq_lag": "BCQ-L", "cpq": "CPQ", "dt": "DT"}
FIGURES = {0.99: 2, 1.0: 3}
"""By discount."""
WATCHED_NOTE = "Three episodes at a time, mean over the seeds; dashed: the limit."
DT_NOTE = (
    "DT was watched by undiscounted costs: under this discount its cost is in the table alone."
)


def _needs(setting: Setting) -> Needs:
    """Each agent under each discount; DT is trained once, for it learns nothing from costs."""
    judgings, curves = [], []
    for discount in FIGURES:
        for agent in AGENTS:
            trained_on = 1.0 if agent == "dt" else discount
            for model in setting.each(*CHEETAHS, agent=agent, cost_discount=trained_on):
                limits: tuple[str, ...] = (table_1_limit(setting.source, model.dataset, discount),)
                if agent == "saformer" and discount == 1 and limits[0] in LIMITS:
                    limits = LIMITS  # shared with Tables 2 and 7
                limits = LIMITS[:1] if agent == "dt" else limits  # DT heeds none
                judgings.append(Judging(model, limits, cost_discount=discount))
                curves.append(model)
    return Needs(judgings=tuple(judgings), curves=tuple(dict.fromkeys(curves)))


def _present(results: Results) -> list[Part]:
    parts, summary = list[Part](), list[list[Cell]]()
    keys = [(dataset, agent) for dataset in CHEETAHS for agent in AGENTS]
    for discount in FIGURES:
        rows, cells, printed = list[list[Cell]](), {}, {}
        for dataset, agent in keys:
            key: Row = {"dataset": dataset, "agent": agent, "cost_discount": discount}
            paper = published_cell(1, **key)
            if agent != "dt":
                key["limit_name"] = table_1_limit(results.made["data"], dataset, discount)
            cell = pooling.pooled(results.rows["verdicts"], **key)
            cells[dataset, agent], printed[dataset, agent] = cell, paper
            both = pooling.both_cells(cell, paper, judged=agent != "dt")
            rows.append([dataset, AGENTS[agent], *both])
        title = f"Baseline comparison, cost discount {discount:g} (Table 1)"
        headings, note = ("dataset", "agent", *pooling.BOTH), f"{pooling.NOTE} DT heeds no limit."
        parts += [Sheet(title, headings, rows, note), _figure(results, discount)]
        for agent in ("saformer", "bcq_lag", "cpq"):
            own = [key for key in keys if key[1] == agent]
            name, papers = f"{AGENTS[agent]}, cost discount {discount:g}", [printed[k] for k in own]
            summary.append(pooling.tally(name, [cells[key] for key in own], papers))
        verdicts = pooling.rows_with(results.rows["verdicts"], cost_discount=discount)
        limits = [table_1_limit(results.made["data"], dataset, discount) for dataset in CHEETAHS]
        pairs = zip(CHEETAHS, limits, strict=True)
        idle = [{"dataset": dataset, "limit_name": name} for dataset, name in pairs]
        summary += pooling.nothing_tally(verdicts, idle, f", cost discount {discount:g}")
    return [Sheet("In all", pooling.TALLY, summary), *parts, oddities(1)]


def _figure(results: Results, discount: float) -> Part:
    title = f"Evaluations while training, cost discount {discount:g} (Figure {FIGURES[discount]})"
    panels = []
    for key in ("return", "cost"):
        for dataset in CHEETAHS:
            curves = pooling.rows_with(results.rows["curves"], dataset=dataset)
            own = pooling.rows_with(curves, cost_discount=discount)
            if key == "return" and discount != 1:  # DT earns the same, however costs are counted
                own += pooling.rows_with(curves, agent="dt")
            lines = [_line(agent, pooling.rows_with(own, agent=agent), key) for agent in AGENTS]
            limits = [row["limit"] for row in own if row["agent"] != "dt"]
            level = limits[0] if limits and key == "cost" else None
            panels.append(Panel(dataset, [line for line in lines if line.x], "update", key, level))
    if not any(panel.lines for panel in panels):
        return Remark(("There are no evaluations while training to draw.",), title)
    note = WATCHED_NOTE if discount == 1 else f"{WATCHED_NOTE} {DT_NOTE}"
    return Picture(title, line_panels(panels, columns=3), note)


def _line(agent: str, rows: list[Row], key: str) -> Line:
    updates = sorted({row["update"] for row in rows})
    means = [[row[key] for row in rows if row["update"] == update] for update in updates]
    return Line(AGENTS[agent], updates, [sum(values) / len(values) for values in means])


BASELINES = Experiment(
    *("baselines", "Table 1, Figures 2 and 3", "Baseline comparison"),
    "SaFormer, BCQ-L, CPQ and DT on the three HalfCheetah datasets, with costs discounted by 0.99 "
    "and undiscounted. BCQ-L and CPQ are trained for the limit; discounted costs have a SaFormer "
    "of their own.",
    _needs,
    _present,
)
