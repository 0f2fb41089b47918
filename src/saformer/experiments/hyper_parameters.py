"""Table 6: what every agent is trained with."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from saformer.experiments.experiment import Experiment, Result
from saformer.experiments.plan import Needs, Setting
from saformer.experiments.published import HYPER_PARAMETERS, ODDITIES
from saformer.experiments.work import Row
from saformer.report.sheet import Part, Remark, Sheet, plain_cell
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
"""Where each is found in a preset; the first that is there."""


def settings_of(setting: Setting) -> list[Row]:
    """What the agents are trained with at this scale, for the entries that the paper's table
    has."""
    presets = {agent: setting.scale.preset(agent) for agent in AGENTS}
    return [
        {"name": name, "agent": agent, "value": _value(presets[agent], name)}
        for name, theirs in HYPER_PARAMETERS.items()
        for agent in theirs
    ]


def present(result: Result) -> list[Part]:
    """Ours beside theirs, agent by agent."""
    ours = {(row["name"], row["agent"]): row["value"] for row in result.rows["settings"]}
    rows = [
        [
            plain_cell(name),
            *(
                plain_cell(text)
                for agent in AGENTS
                for text in (
                    _text(ours.get((name, agent))) if agent in theirs else "/",
                    _text(theirs.get(agent, "/")),
                )
            ),
        ]
        for name, theirs in HYPER_PARAMETERS.items()
    ]
    headings = ("", *(f"{label}{who}" for label in AGENTS.values() for who in ("", " (paper)")))
    note = f"Ours as trained at scale {result.made['scale']}: the presets' defaults at scale paper. /: there is none."
    return [
        Sheet("Hyper-parameters (Table 6)", headings, rows, note),
        Remark(ODDITIES[6], "What is odd in the paper's"),
    ]


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
    return (
        f"({', '.join(map(str, value))})"
        if isinstance(value, list | tuple)
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )


EXPERIMENT = Experiment(
    name="hyper-parameters",
    shows="Table 6",
    title="Hyper-parameters",
    description="What SaFormer, DT, BCQ-L and CPQ are trained with.",
    needs=lambda setting: Needs(),
    present=present,
    settings=settings_of,
)
