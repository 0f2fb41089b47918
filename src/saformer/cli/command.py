"""Commands: frozen dataclasses whose fields are flags. Each command line is parsed once."""

import json
from abc import ABC, abstractmethod
from argparse import ArgumentParser
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from typing import Annotated, Any, Self, TypeVar

import tyro
from rich.console import Console
from rich.text import Text
from tyro.constructors import (
    ConstructorRegistry,
    PrimitiveConstructorSpec,
    PrimitiveTypeInfo,
    StructConstructorSpec,
    StructTypeInfo,
)

SomeCommand = TypeVar("SomeCommand", bound="Command")


@dataclass(frozen=True, kw_only=True)
class Command(ABC):
    """A verb of the command line."""

    @classmethod
    def defaults(cls, arguments: Sequence[str]) -> Self | None:
        """Defaults of all flags, where some flags decide those of others."""
        return None

    @abstractmethod
    def run(self, console: Console) -> int:
        """Do it; returns the exit status. Progress goes to the console, results to stdout."""


def parse_command(cls: type[SomeCommand], arguments: Sequence[str], prog: str) -> SomeCommand:
    """The command of these arguments. Its own flags replace those of the same name in nested
    settings, and those of later settings replace those of earlier ones."""
    default = cls.defaults(arguments)
    nested = [getattr(default, each.name) for each in fields(cls)] if default else []
    specs: dict[type, StructConstructorSpec] = {}
    named = {"options", *(each.name for each in fields(cls))}  # acting has the options
    for settings in reversed([each for each in nested if is_dataclass(each)]):
        specs[type(settings)] = _without(settings, set(named))
        named |= {each.name for each in fields(settings)}
    registry = ConstructorRegistry()
    registry.primitive_rule(_yes_or_no)
    registry.struct_rule(lambda info: specs.get(info.type))
    flags = Annotated[cls, tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff]  # type: ignore[valid-type]
    how: dict[str, Any] = {"default": default} if default else {}
    command: SomeCommand = tyro.cli(flags, args=arguments, prog=prog, registry=registry, **how)
    return command


def _yes_or_no(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[bool | None] | None:
    """How flags of `bool | None` are read: yes, no, or left out."""
    if info.type != bool | None:
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="{yes,no}",
        instance_from_str=lambda words: words[0] == "yes",
        is_instance=lambda value: value is None or isinstance(value, bool),
        str_from_instance=lambda value: ["None" if value is None else "yes" if value else "no"],
        choices=("yes", "no"),
    )


def _without(settings: Any, names: Collection[str]) -> StructConstructorSpec:
    """How tyro makes settings of this class, with no flags for the fields of these names."""
    info = StructTypeInfo.make(type(settings), settings, in_union_context=False)
    spec = ConstructorRegistry.get_struct_spec(info)
    assert isinstance(spec, StructConstructorSpec)
    flags = tuple(each for each in spec.fields if each.name not in names)
    return replace(spec, instantiate=partial(_changed, settings), fields=flags)


def _changed(settings: Any, **values: Any) -> Any:
    try:
        return replace(settings, **values)
    except ValueError as error:  # of which tyro would make a box; ours are said in one line
        raise RuntimeError(str(error)) from None


def show(content: Any, tables: Callable[[Any], Any], *, as_json: bool = False) -> None:
    """Print a result to stdout: as JSON, or as what `tables` makes of it."""
    if as_json:
        print(json.dumps(content, indent=2, allow_nan=False))
        return
    shown = tables(content)
    for each in shown if isinstance(shown, list) else [shown]:
        terminal().print(each, soft_wrap=isinstance(each, Text))


def terminal(*, stderr: bool = False) -> Console:
    """Prints all text as it is: in names, brackets are no markup and colons no emoji."""
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False)


def peek(arguments: Sequence[str], *flags: str, nargs: str = "?") -> dict[str, Any]:
    """The values of flags that decide the defaults of others."""
    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    for flag in flags:
        parser.add_argument(f"--{flag}", nargs=nargs)
    return vars(parser.parse_known_args(list(arguments))[0])
