"""Agents' own settings as flags."""

from __future__ import annotations

from dataclasses import fields, make_dataclass
from typing import Annotated, Any

import tyro


def without_flags(cls: type[Any], *names: str) -> type[Any]:
    """The same dataclass, with no flags for these fields: the command has flags of its own that
    decide them.

    It checks nothing: that is left to the class itself, whose errors are said in one line.
    """
    hidden = [
        (field.name, Annotated[Any, tyro.conf.Suppress, tyro.conf.Fixed], field)
        for field in fields(cls)
        if field.name in names
    ]
    return make_dataclass(
        cls.__name__, hidden, bases=(cls,), frozen=True, namespace={"__post_init__": lambda _: None}
    )


def dressed(value: Any, cls: type[Any]) -> Any:
    """A dataclass as one of another class that has the same fields."""
    return cls(**{field.name: getattr(value, field.name) for field in fields(value)})
