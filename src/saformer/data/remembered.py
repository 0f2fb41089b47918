"""What was typed on this machine when a store or run was made, in the user's own configuration.

A store or run names code (a criterion, an environment), but cannot vouch for it: it may come from
elsewhere. What its maker typed is kept beside neither, by its path and fingerprint.
"""

import hashlib
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from saformer.criteria import CostCriterion, code, criterion
from saformer.data.home import configuration_home
from saformer.files import read_json, validated, write_json


@dataclass(frozen=True)
class Typed:
    """What is kept of it."""

    path: str
    fingerprint: str
    names: dict[str, str]
    environment: str | None


def remember(
    path: Path, fingerprint: str, names: Iterable[str], environment: str | None = None
) -> None:
    """Keep what the vouched names of what was made stand for, and the environment attached to it;
    those that no other process could import are left out."""
    known = {name: code.importable(name) for name in (*names, environment) if name}
    typed = {name: target for name, target in known.items() if target}
    if environment not in typed and code.is_code(environment or ""):
        environment = None
    if not typed and not environment:
        return
    content = Typed(str(path.resolve()), fingerprint, typed, environment)
    file = _file_of(path)
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_json(file, asdict(content))
    except OSError as error:
        again = "later commands need to be told again (--criteria, --environment)"
        warnings.warn(f"what was typed cannot be remembered ({error}): {again}", stacklevel=2)


def criteria_of(
    path: Path, fingerprint: str, names: Sequence[str], typed: Sequence[Any] = ()
) -> list[CostCriterion]:
    """The criteria that a run names. Those that are code were typed when it was made on this
    machine, or are now, by what they are called here: it may come from elsewhere."""
    recall(path, fingerprint.__eq__)
    if typed and len(typed) != len(names):
        raise ValueError(f"{path} has {len(names)} criteria ({', '.join(names)}): name as many")
    for own, here in zip(names, typed, strict=False):
        if code.is_code(own):
            code.typed(here, stands_for=own)
        elif own != here:
            raise ValueError(f"{path} was trained with the criterion {own!r}, not {here!r}")
    try:
        return [criterion(name, trusted=False) for name in names]
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error.__cause__


def recall(path: Path, is_same: Callable[[str], bool]) -> str | None:
    """Vouch for what was typed when this was made, if its fingerprint is the same; returns the
    environment that was attached to it."""
    try:
        plain = read_json(_file_of(path), dict[str, Any], "name it again")
        content: Typed = validated(Typed, plain, _file_of(path), "name it again")
        if content.path != str(path.resolve()) or not is_same(content.fingerprint):
            return None
        for name, target in content.names.items():
            code.typed(target, stands_for=name)
    except (OSError, ValueError):
        return None  # nothing is remembered, or it cannot be read: it has to be typed again
    return content.environment


def _file_of(path: Path) -> Path:
    digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()
    return configuration_home() / "typed" / f"{digest[:32]}.json"
