"""Table 5 and Figure 6: what the datasets cost and earn. Table 6: hyper-parameters of agents."""

from types import SimpleNamespace
from typing import Any

from saformer.data.limits import THRESHOLDS
from saformer.experiments.experiment import Experiment, Results
from saformer.experiments.plan import DATASETS, LIMITS, Needs, Row, Setting
from saformer.experiments.pooling import rows_with
from saformer.experiments.published import TABLE_6, oddities, published_cell
from saformer.report.figure import Panel, line_panels
from saformer.report.page import Part, Picture, Remark, Sheet
from saformer.report.table import numbers
from saformer.training.finetune.config import FinetuneConfig
from saformer.training.loop.presets import Preset

AGENTS = {"saformer": "SaFormer", "dt": "DT", "bcq_lag": "BCQ-L", "cpq": "CPQ"}
WHERE = {
    "subsequence length K": ("agent.window",),
    "attention blocks": ("agent.trunk.layers",),
    "embedding dimension": ("agent.trunk.width",),
    "hidden layer": ("agent.trunk.width", "agent.hidden"),
    "dropout": ("agent.trunk.dropout", "agent.dropout"),
    "batch size": ("fit.batch_size",),
    "learning rate": ("fit.learning_rate",),
    "learning rate decay": ("fit.weight_decay",),
    "proposals N": ("agent.candidates",),
    "penalty factor lambda": ("agent.penalty",),
    "attenuation factor alpha": ("finetune.attenuation",),
    "initial multiplier": ("agent.multiplier",),
    "multiplier's learning rate": ("agent.multiplier_learning_rate",),
    "Polyak averaging factor tau": ("agent.average_rate",),
    "OOD penalty alpha": ("agent.penalty",),
    "VAE penalty beta": ("agent.kl_weight",),
}
"""Fields of a preset; the first that is there."""
ABOUT_THRESHOLDS = (
    "Episode cost (summed torque). The paper's datasets are D4RL's, ours by default rollouts of "
    "the bundled behaviours: they need not agree."
)
ABOUT_PLOTS = (
    "Up to 300 trajectories of each dataset; dashed: its 10, 20, 30 and 50% costs. The paper "
    "prints no numbers."
)


def _table(results: Results) -> list[Part]:
    rows = []
    for dataset in DATASETS:
        for row in rows_with(results.rows["data"], dataset=dataset):
            ours = [numbers([row["thresholds"][name]]) for name in THRESHOLDS]
            count, correlation = str(row["num_trajectories"]), numbers([row["correlation"]])
            rows.append([dataset, "ours", *ours, count, correlation, row["fingerprint"]])
        cells = [published_cell(5, dataset=dataset, limit_name=name) for name in THRESHOLDS]
        papers = [numbers([cell.limit if cell else None]) for cell in cells]
        rows.append([dataset, "paper", *papers, "", "", ""])
    headings = ("dataset", "", *THRESHOLDS, "episodes", "corr(return, cost)", "fingerprint")
    return [Sheet("Thresholds (Table 5)", headings, rows, ABOUT_THRESHOLDS)]


def _figure(results: Results) -> list[Part]:
    panels = []
    for row in results.rows["data"]:
        points, marks = (row["cost"], row["return"]), [row["thresholds"][name] for name in LIMITS]
        labels = ("episode cost", "episode return")
        panels.append(Panel(row["dataset"], (), *labels, points=points, marks=marks))
    if not panels:
        return [Remark(("No dataset could be read.",))]
    figure = line_panels(panels, columns=3)
    return [Picture("Return and cost of the datasets (Figure 6)", figure, ABOUT_PLOTS)]


THRESHOLDS_TABLE = Experiment(
    *("thresholds", "Table 5", "Thresholds of the nine datasets"),
    "Lowest, 10th, 20th, 30th, 50th percentile and highest episode cost of each dataset.",
    lambda setting: Needs(datasets=DATASETS),
    _table,
)
PAIR_PLOTS = Experiment(
    *("pair-plots", "Figure 6", "Return and cost of the nine datasets"),
    "Every stored trajectory's return against its cost, with the limits.",
    lambda setting: Needs(datasets=DATASETS),
    _figure,
)


def _settings(setting: Setting) -> list[Row]:
    presets = {agent: setting.scale.preset(agent) for agent in AGENTS}
    return [
        {"name": name, "agent": agent, "value": _value(presets[agent], name)}
        for name, papers in TABLE_6.items()
        for agent in papers
    ]


def _hyper_parameters(results: Results) -> list[Part]:
    ours = {(row["name"], row["agent"]): row["value"] for row in results.rows["settings"]}
    rows = []
    for name, papers in TABLE_6.items():
        row = [name]
        for agent in AGENTS:
            pair = (ours.get((name, agent)), papers[agent]) if agent in papers else ("/", "/")
            row += map(_text, pair)
        rows.append(row)
    headings = ("", *(f"{label}{who}" for label in AGENTS.values() for who in ("", " (paper)")))
    where = f"Ours as trained at scale {results.made['scale']}"
    note = f"{where}: the presets' defaults at scale paper. /: there is none."
    return [Sheet("Hyper-parameters (Table 6)", headings, rows, note), oddities(6)]


def _value(preset: Preset, name: str) -> Any:
    for path in WHERE[name]:
        value: Any = SimpleNamespace(agent=preset.agent, fit=preset.fit, finetune=FinetuneConfig())
        for part in path.split("."):
            value = getattr(value, part, None)
        if value is not None:
            return list(value) if isinstance(value, tuple) else value
    return None


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, list):
        return f"({', '.join(map(str, value))})"
    return f"{value:g}" if isinstance(value, float) else str(value)


HYPER_PARAMETERS = Experiment(
    *("hyper-parameters", "Table 6", "Hyper-parameters"),
    "What SaFormer, DT, BCQ-L and CPQ are trained with.",
    lambda setting: Needs(),
    _hyper_parameters,
    settings=_settings,
)
