"""Table 6: the hyper-parameters of every agent."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from saformer.experiments.experiment import Experiment, Results
from saformer.experiments.jobs import Row
from saformer.experiments.plan import Needs, Setting
from saformer.experiments.published import TABLE_6, oddities
from saformer.report.page import Part, Sheet
from saformer.training.finetune_config import FinetuneConfig
from saformer.training.presets import Preset

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


def _settings(setting: Setting) -> list[Row]:
    """Ours at this scale, for the entries of the paper's table."""
    presets = {agent: setting.scale.preset(agent) for agent in AGENTS}
    return [
        {"name": name, "agent": agent, "value": _value(presets[agent], name)}
        for name, papers in TABLE_6.items()
        for agent in papers
    ]


def _present(results: Results) -> list[Part]:
    """Ours beside the paper's, agent by agent."""
    ours = {(row["name"], row["agent"]): row["value"] for row in results.rows["settings"]}
    rows = []
    for name, papers in TABLE_6.items():
        row = [name]
        for agent in AGENTS:
            pair = (ours.get((name, agent)), papers[agent]) if agent in papers else ("/", "/")
            row += map(_text, pair)
        rows.append(row)
    headings = ("", *(f"{label}{who}" for label in AGENTS.values() for who in ("", " (paper)")))
    note = (
        f"Ours as trained at scale {results.made['scale']}: the presets' defaults at scale paper. "
        "/: there is none."
    )
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
    name="hyper-parameters",
    shows="Table 6",
    title="Hyper-parameters",
    description="What SaFormer, DT, BCQ-L and CPQ are trained with.",
    needs=lambda setting: Needs(),
    present=_present,
    settings=_settings,
)
