"""Agents by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, get_origin, get_type_hints

from torch import Tensor

from saformer.agents.agent import Agent
from saformer.agents.bc_safe import BCSafeAgent, BCSafeConfig, BCSafeOptions
from saformer.agents.bcq_lag import BCQLagAgent, BCQLagConfig, BCQLagOptions
from saformer.agents.cdt import CDTAgent, CDTConfig, CDTOptions
from saformer.agents.coptidice import COptiDICEAgent, COptiDICEConfig, COptiDICEOptions
from saformer.agents.cpq import CPQAgent, CPQConfig
from saformer.agents.dt import DTAgent, DTConfig, DTOptions
from saformer.agents.markov import MarkovConfig, MarkovOptions
from saformer.agents.saformer import SaFormerAgent, SaFormerConfig, options_for
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

    def rule_of(self, options: Any) -> str:
        """The name of the rule that these options belong to."""
        return next(name for name, rule in self.rules.items() if isinstance(options, rule))

    @property
    def has_one_limit(self) -> bool:
        """Whether it is trained for one limit, rather than told the limit when it acts."""
        return any(field.name == "limit" for field in fields(self.config))


KINDS = {
    "saformer": Kind(
        SaFormerAgent,
        SaFormerConfig,
        {"reserve": ReserveOptions, "paper": PaperOptions, "none": NoCriticOptions},
        "one policy for all limits: proposes returns and actions, rejects forecast overruns",
    ),
    "dt": Kind(
        DTAgent,
        DTConfig,
        {"dt": DTOptions},
        "Decision Transformer: asked for a return, heeds no limit",
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


def create_agent(data: RelabelledStore, config: AgentConfig, *, seed: int) -> Agent:
    """A fresh agent of the kind that this config belongs to."""
    return KINDS[name_of(config)].agent.create(data, config, seed=seed)


def restore_agent(
    name: str, dimensions: Dimensions, config: Mapping[str, Any], weights: Mapping[str, Tensor]
) -> Agent:
    """An agent as it was saved."""
    kind = find_kind(name)
    agent = kind.agent(dimensions, from_plain(kind.config, config))
    agent.model.load_state_dict(dict(weights))
    return agent


def rule_options(name: str, config: Any, rule: str) -> Any:
    """The options of an agent's rule, as its config would have them."""
    rules = find_kind(name).rules
    if rule not in rules:
        raise ValueError(f"{name} knows no rule {rule!r}; it acts by {', '.join(rules)}")
    return options_for(config, rules[rule])


def from_plain(cls: type, values: Mapping[str, Any]) -> Any:
    """A (nested) dataclass from the dictionaries that JSON keeps of it."""
    hints, known = get_type_hints(cls), {field.name for field in fields(cls)}
    unknown = ", ".join(sorted(set(values) - known))
    if unknown:
        raise ValueError(f"{cls.__name__} has no {unknown}: was it saved by another version?")
    return cls(**{name: _from_plain(hints[name], value) for name, value in values.items()})


def _from_plain(hint: Any, value: Any) -> Any:
    if is_dataclass(hint) and isinstance(hint, type):
        return from_plain(hint, value)
    return tuple(value) if get_origin(hint) is tuple else value
