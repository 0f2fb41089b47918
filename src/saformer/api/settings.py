"""What was asked for, checked before anything is made."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any, Literal, get_args, get_origin, get_type_hints

from saformer.agents.agent import Agent
from saformer.agents.registry import find_kind, name_of, rule_options
from saformer.data.limits import parse_limit
from saformer.data.relabel import RelabelledStore
from saformer.training.loop.presets import PRESETS, Preset


def preset_for(preset: str | Preset, agent: str | None) -> Preset:
    """The preset, of this agent where it is named."""
    if isinstance(preset, str):
        if preset not in PRESETS:
            raise ValueError(f"unknown preset {preset!r}; known are {', '.join(PRESETS)}")
        return PRESETS[preset](agent or "saformer")
    if agent not in {None, name_of(preset.agent)}:
        raise ValueError(
            f"the preset is for {name_of(preset.agent)}, not for {agent}: leave one of them out"
        )
    return preset


def check_limit(config: Any, limit: str | float | None) -> None:
    """Before any data is made: whether a limit is needed, and given."""
    name = name_of(config)
    if not find_kind(name).has_one_limit:
        if limit is not None:
            raise ValueError(
                f"{name} is not trained for one limit: leave limit (--limit) out, and evaluate "
                "under any"
            )
    elif limit is None and not config.limit:
        raise ValueError(
            f"{name} is trained for one limit: say which, by a cost or a percentile (--limit p20)"
        )


def for_limit(
    config: Any, limit: str | float | None, data: RelabelledStore
) -> tuple[Any, str | None]:
    """The config with its limit in the cost's own units, and what the limit was asked for by."""
    if limit is not None:
        return replace(config, limit=parse_limit(str(limit), data).values), str(limit)
    if find_kind(name_of(config)).has_one_limit:
        return config, ",".join(f"{value:g}" for value in config.limit)
    return config, None


def options_of(agent: Agent, execution: Mapping[str, Any], *, shielded: bool = False) -> Any:
    """The options of the rule that is named, by default the usual one, with these changes."""
    changes = dict(execution)
    rule = changes.pop("rule", None)
    options = agent.options(shielded=shielded and rule is None)
    if rule not in {None, find_kind(agent.name).rule_of(options)}:
        options = rule_options(agent.name, agent.config, rule)
    hints = get_type_hints(type(options))
    unknown = sorted(set(changes) - set(hints))
    if unknown:
        raise ValueError(
            f"{agent.name} has no option {', '.join(unknown)} by this rule; it has "
            f"{', '.join(sorted(hints))}"
        )
    return replace(
        options, **{name: _of_kind(name, value, hints[name]) for name, value in changes.items()}
    )


def plain_options(agent: Agent, options: Any) -> dict[str, Any]:
    """Options as JSON keeps them: with the name of their rule."""
    return {"rule": find_kind(agent.name).rule_of(options), **asdict(options)}


def _of_kind(name: str, value: Any, hint: Any) -> Any:
    """An option's value, as a number or word of the kind that it takes."""
    if get_origin(hint) is Literal and value not in get_args(hint):
        raise ValueError(f"{name} is one of {', '.join(get_args(hint))}, got {value!r}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{name} must be finite, got {value!r}")
    if hint is int:
        if value != int(value):
            raise ValueError(f"{name} is a whole number, got {value!r}")
        return int(value)
    return value
