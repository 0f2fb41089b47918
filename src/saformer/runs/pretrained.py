"""Policies that come with the package: `pretrained:NAME` stands where the path of a run would."""

from importlib import resources
from pathlib import Path

PREFIX = "pretrained:"


def is_pretrained(path: str | Path) -> bool:
    return str(path).startswith(PREFIX)


def pretrained_names() -> list[str]:
    return sorted(folder.name for folder in _bundled().glob("*") if folder.is_dir())


def folder_of(path: str | Path) -> Path:
    """The folder that a path or `pretrained:NAME` stands for, whether it is there or not."""
    return _bundled() / str(path).removeprefix(PREFIX) if is_pretrained(path) else Path(path)


def check_is_there(path: str | Path) -> None:
    """Refuse the name of a pretrained policy that is not, and say which are."""
    name, names = str(path).removeprefix(PREFIX), pretrained_names()
    if is_pretrained(path) and name not in names:
        known = ", ".join(PREFIX + known for known in names)
        hint = f"there are {known}" if known else "this version comes with none"
        raise ValueError(f"there is no pretrained policy {name!r}; {hint}")


def _bundled() -> Path:
    return Path(str(resources.files("saformer") / "assets" / "pretrained"))
