"""Policies that come with the package: `pretrained:NAME` stands where the path of a run would."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

PREFIX = "pretrained:"


def is_pretrained(path: str | Path) -> bool:
    """Whether this names a policy of the package rather than a folder."""
    return str(path).startswith(PREFIX)


def pretrained_names() -> list[str]:
    """What there is: pretrained:NAME for each."""
    bundled = _bundled()
    return (
        sorted(folder.name for folder in bundled.iterdir() if folder.is_dir())
        if bundled.is_dir()
        else []
    )


def folder_of(path: str | Path) -> Path:
    """The folder that a path or `pretrained:NAME` stands for, whether it is there or not."""
    return _bundled() / str(path).removeprefix(PREFIX) if is_pretrained(path) else Path(path)


def check_is_there(path: str | Path) -> None:
    """Say which there are if this names a pretrained policy that is not."""
    name, names = str(path).removeprefix(PREFIX), pretrained_names()
    if is_pretrained(path) and name not in names:
        there = (
            f"there are {', '.join(PREFIX + one for one in names)}"
            if names
            else "this version comes with none"
        )
        raise ValueError(f"there is no pretrained policy {name!r}; {there}")


def _bundled() -> Path:
    return Path(str(resources.files("saformer") / "assets" / "pretrained"))
