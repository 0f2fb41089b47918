"""Agents by name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Literal, get_args, get_origin, get_type_hints

from torch import Tensor

from saformer.agents.agent import Agent
from saformer.agents.bc_safe import BCSafeAgent, BCSafeConfig, BCSafeOptions
from saformer.agents.bcq_lag import BCQLagAgent, BCQLagConfig, BCQLagOptions
from saformer.agents.cdt import CDTAgent, CDTConfig, CDTOptions
from saformer.agents.coptidice import COptiDICEAgent, COptiDICEConfig, COptiDICEOptions
from saformer.agents.cpq import CPQAgent, CPQConfig
from saformer.agents.dt import DTAgent, DTConfig, DTOptions
from saformer.agents.markov import MarkovConfig, MarkovOptions
from saformer.agents.saformer import SaFormerAgent, SaFormerConfig
from saformer.agents.sequence import SequenceConfig
from saformer.core.batch import Dimensions
from saformer.core.rules import NoCriticOptions, PaperOptions
from saformer.data.relabel import RelabelledStore
from saformer.rules.reserve import ReserveOptions

AgentConfig = SaFormerConfig | SequenceConfig | MarkovConfig


@dataclass(frozen=True)
class Kind:
    """An agent class, its config, and how its policy can act."""

    agent: type[Agent]
    config: type[AgentConfig]
    rules: Mapping[str, type[Any]]
    """the options of each rule by its name, the default first"""
    description: str
    """one line"""
    verifies: bool = False
    """whether a critic forecasts what proposals cost: then it can be judged without rollouts, and
    fine-tuned"""
    ignores_costs: bool = False
    """whether it neither learns from costs nor hears of a limit"""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """options that the config has under another name"""

    def options_of(self, config: Any, rule: str | None = None) -> Any:
        """The options of a rule, by default the first, as the config would have them."""
        rule = rule or next(iter(self.rules))
        if rule not in self.rules:
            raise ValueError(f"unknown rule {rule!r}; known are {', '.join(self.rules)}")
        own_names = {each.name for each in fields(config)}
        names = {each.name: each.name for each in fields(self.rules[rule])} | dict(self.renamed)
        values = {name: getattr(config, own) for name, own in names.items() if own in own_names}
        return self.rules[rule](**values)

    def changed(self, options: Any, changes: Mapping[str, Any]) -> Any:
        """The options with these changes, each checked to be of its field's kind."""
        hints = get_type_hints(type(options))
        unknown = ", ".join(sorted(set(changes) - set(hints)))
        if unknown:
            known = ", ".join(sorted(hints))
            raise ValueError(f"{type(options).__name__} has no option {unknown}; it has {known}")
        checked = {name: _of_kind(name, value, hints[name]) for name, value in changes.items()}
        return replace(options, **checked)

    def rule_of(self, options: Any) -> str:
        """The name of the rule that these options belong to."""
        return next(name for name, rule in self.rules.items() if isinstance(options, rule))

    @property
    def has_one_limit(self) -> bool:
        """Whether it is trained for one limit, rather than told the limit when it acts."""
        return any(each.name == "limit" for each in fields(self.config))


KINDS = {
    "saformer": Kind(
        SaFormerAgent,
        SaFormerConfig,
        {"reserve": ReserveOptions, "paper": PaperOptions, "none": NoCriticOptions},
        "one policy for all limits: proposes returns and actions, rejects forecast overruns",
        verifies=True,
    ),
    "dt": Kind(
        DTAgent,
        DTConfig,
        {"dt": DTOptions},
        "Decision Transformer: asked for a return, heeds no limit",
        ignores_costs=True,
    ),
    "cdt": Kind(
        CDTAgent,
        CDTConfig,
        {"cdt": CDTOptions},
        "Constrained Decision Transformer: asked for a return and a cost, for all limits",
    ),
    "bc_safe": Kind(
        BCSafeAgent,
        BCSafeConfig,
        {"bc_safe": BCSafeOptions},
        "behaviour cloning of the trajectories within one limit",
    ),
    "bcq_lag": Kind(
        BCQLagAgent,
        BCQLagConfig,
        {"bcq_lag": BCQLagOptions},
        "BCQ-Lagrangian: actions like the data's, the best by two critics and a price on cost",
        renamed={"candidates": "acting_candidates"},
    ),
    "cpq": Kind(
        CPQAgent,
        CPQConfig,
        {"cpq": MarkovOptions},
        "Constraints Penalised Q-learning: unfamiliar actions count as costly",
    ),
    "coptidice": Kind(
        COptiDICEAgent,
        COptiDICEConfig,
        {"coptidice": COptiDICEOptions},
        "COptiDICE: imitates the data, each step as often as a cost constraint corrects it",
    ),
}


def find_kind(name: str) -> Kind:
    if name not in KINDS:
        raise ValueError(f"unknown agent {name!r}; known are {', '.join(KINDS)}")
    return KINDS[name]


def name_of(config: AgentConfig) -> str:
    """The agent that this config belongs to."""
    return next(name for name, kind in KINDS.items() if isinstance(config, kind.config))


def check_limit(config: Any, limit: str | float | None) -> None:
    """Before any data is made: whether a limit is needed, and named."""
    name = name_of(config)
    has_one_limit = find_kind(name).has_one_limit
    if limit is not None and not has_one_limit:
        raise ValueError(
            f"{name} is not trained for one limit: leave limit (--limit) out; evaluate under any"
        )
    if limit is None and has_one_limit and not config.limit:
        raise ValueError(
            f"{name} is trained for one limit: say which, by a cost or a percentile (--limit p20)"
        )


def create_agent(data: RelabelledStore, config: AgentConfig, *, seed: int) -> Agent:
    """A fresh agent of the kind that this config belongs to."""
    return KINDS[name_of(config)].agent.create(data, config, seed=seed)


def restore_agent(
    name: str,
    dimensions: Dimensions,
    config: Mapping[str, Any],
    weights: Mapping[str, Tensor],
    *,
    strict: bool = True,
) -> Agent:
    """An agent as it was saved; unless `strict`, settings that exist no more are left out."""
    kind = find_kind(name)
    agent = kind.agent(dimensions, from_plain(kind.config, config, strict=strict))
    agent.model.load_state_dict(dict(weights))
    return agent


def from_plain(cls: type, values: Mapping[str, Any], *, strict: bool = True) -> Any:
    """A (nested) dataclass from the dictionaries that JSON keeps of it."""
    hints, known = get_type_hints(cls), {each.name for each in fields(cls)}
    unknown = ", ".join(sorted(set(values) - known))
    if unknown and strict:
        raise ValueError(f"{cls.__name__} has no {unknown}: was it saved by another version?")
    plain = {name: value for name, value in values.items() if name in known}
    return cls(**{name: _from_plain(hints[name], value, strict) for name, value in plain.items()})


def _of_kind(name: str, value: Any, hint: Any) -> Any:
    if get_origin(hint) is Literal and value not in get_args(hint):
        raise ValueError(f"{name} is one of {', '.join(get_args(hint))}, got {value!r}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{name} must be finite, got {value!r}")
    if hint is int and value != int(value):
        raise ValueError(f"{name} is a whole number, got {value!r}")
    return int(value) if hint is int else value


def _from_plain(hint: Any, value: Any, strict: bool) -> Any:
    if is_dataclass(hint) and isinstance(hint, type):
        return from_plain(hint, value, strict=strict)
    return tuple(value) if get_origin(hint) is tuple else value
