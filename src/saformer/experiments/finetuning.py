"""Table 3 and Figure 4: limits below the data's, before and after fine-tuning online (Algorithm 3)."""

from __future__ import annotations

from saformer import api
from saformer.experiments.experiment import Experiment, Result
from saformer.experiments.plan import Needs
from saformer.experiments.pooling import INTERVAL_NOTE, OURS, our_cells, pooled, their_cells
from saformer.experiments.published import ODDITIES, published
from saformer.report.panels import Line, Panel, line_panels
from saformer.report.sheet import MARK_NOTE, Drawing, Part, Remark, Sheet, plain_cell

DATASET = "halfcheetah-medium-replay"
VARIANTS = ("offline", "fine-tuned")


def missing() -> str | None:
    """Until `saformer.finetune` exists."""
    return None if hasattr(api, "finetune") else "it needs saformer.finetune (Algorithm 3), which is not there yet"


def present(result: Result) -> list[Part]:
    """Mean costs under every limit, before and after; rows are verdicts of variant "offline" and "fine-tuned"."""
    verdicts = result.rows["verdicts"]
    names = list(dict.fromkeys(row["limit_name"] for row in verdicts))
    cells = {(v, n): pooled(verdicts, variant=v, limit_name=n) for v in VARIANTS for n in names}
    rows = [[plain_cell(variant), *our_cells(cell)] for (variant, _), cell in cells.items()]
    printed = [
        [plain_cell(cell.variant), their_cells(cell)[0]]
        for variant in VARIANTS
        for cell in published(3, variant=variant)
    ]
    lines = []
    for variant in VARIANTS:
        found = sorted((c.limit, c.cost.mean) for (v, _), c in cells.items() if v == variant and c is not None)
        lines.append(Line(variant, [limit for limit, _ in found], [cost for _, cost in found]))
    limits = sorted({cell.limit for cell in cells.values() if cell is not None})
    panel = Panel("mean cost", [*lines, Line("limit", limits, limits)], "limit", "episode cost")
    return [
        Sheet("Below the data's costs (Table 3)", ("", *OURS), rows, f"{MARK_NOTE} {INTERVAL_NOTE}"),
        Sheet("As published", ("", "cost / limit"), printed),
        Drawing("Cost against limit (Figure 4)", line_panels([panel], columns=1)),
        Remark(ODDITIES[3], "What is odd in the paper's"),
    ]


EXPERIMENT = Experiment(
    name="finetuning",
    shows="Table 3, Figure 4",
    title="Online constraint fine-tuning",
    description=(
        f"SaFormer on {DATASET} without its cheapest trajectories, before and after fine-tuning for limits below them."
    ),
    needs=lambda setting: Needs(),
    present=present,
    missing=missing,
)
