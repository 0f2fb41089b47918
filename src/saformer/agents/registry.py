"""Agents by name: ours, and those of installed packages (entry points of "saformer.agents")."""

import warnings
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import Any, get_origin, get_type_hints

from torch import Tensor

from saformer.agents.agent import Agent
from saformer.agents.bc_safe import BCSafeAgent
from saformer.agents.bcq_lag import BCQLagAgent
from saformer.agents.bcrl import BCRLAgent
from saformer.agents.caps import CAPSAgent
from saformer.agents.cdt import CDTAgent
from saformer.agents.coptidice import COptiDICEAgent
from saformer.agents.cpq import CPQAgent
from saformer.agents.dt import DTAgent
from saformer.agents.markov import MarkovConfig
from saformer.agents.saformer import SaFormerAgent
from saformer.agents.sequence import SequenceConfig
from saformer.core.batch import Dimensions
from saformer.data.relabel import RelabelledStore

AgentConfig = SequenceConfig | MarkovConfig
Plain = Mapping[str, Any]
Weights = Mapping[str, Tensor]
_SEQUENCES = (SaFormerAgent, DTAgent, CDTAgent, BCSafeAgent)
_STEPS = (BCQLagAgent, CPQAgent, COptiDICEAgent, CAPSAgent, BCRLAgent)
_KINDS: tuple[type[Agent], ...] = (*_SEQUENCES, *_STEPS)
KINDS = {kind.name: kind for kind in _KINDS}


def find_kind(name: str) -> type[Agent]:
    if name not in KINDS and name not in all_kinds():
        raise ValueError(f"unknown agent {name!r}; known are {', '.join(KINDS)}")
    return KINDS[name]


def register_agent(kind: type[Agent]) -> type[Agent]:
    """Make an agent known by its name to this process; none takes the name of another. An entry
    point of the group "saformer.agents" makes it known to all. Decorates a class, too."""
    if not (isinstance(kind, type) and issubclass(kind, Agent)):
        raise ValueError(f"{kind!r} is no agent: a subclass of saformer.agents.agent.Agent is")
    if KINDS.get(kind.name, kind).__qualname__ != kind.__qualname__:
        raise ValueError(f"there is another agent of the name {kind.name!r}: choose another")
    KINDS[kind.name] = kind
    return kind


@cache
def all_kinds() -> dict[str, type[Agent]]:
    """Those of installed packages too; none takes the name of another."""
    for point in entry_points(group="saformer.agents"):
        try:
            register_agent(point.load())
        except Exception as error:  # another's package, which may be broken in any way
            left_out = f"{point.value}, of saformer.agents, is left out"
            warnings.warn(f"{left_out}: {error}", stacklevel=2)
    return KINDS


def name_of(config: AgentConfig) -> str:
    """The agent that this config belongs to."""
    kinds = KINDS if type(config).__module__.startswith("saformer.") else all_kinds()
    return next(name for name, kind in kinds.items() if type(config) is kind.config_type)


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
    return KINDS[name_of(config)].create(data, config, seed=seed)


def restore_agent(
    name: str, dimensions: Dimensions, config: Plain, weights: Weights, *, strict: bool = True
) -> Agent:
    """An agent as it was saved; unless `strict`, settings that exist no more are left out."""
    kind = find_kind(name)
    agent = kind(dimensions, from_plain(kind.config_type, config, strict=strict))
    agent.model.load_state_dict(dict(weights))
    return agent


def from_plain(cls: type, values: Plain, *, strict: bool = True) -> Any:
    """A (nested) dataclass from the dictionaries that JSON keeps of it."""
    hints, known = get_type_hints(cls), {each.name for each in fields(cls)}
    unknown = ", ".join(sorted(set(values) - known))
    if unknown and strict:
        raise ValueError(f"{cls.__name__} has no {unknown}: was it saved by another version?")
    plain = {name: value for name, value in values.items() if name in known}
    return cls(**{name: _from_plain(hints[name], value, strict) for name, value in plain.items()})


def _from_plain(hint: Any, value: Any, strict: bool) -> Any:
    if is_dataclass(hint) and isinstance(hint, type):
        return from_plain(hint, value, strict=strict)
    return tuple(value) if get_origin(hint) is tuple else value
