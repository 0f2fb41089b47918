"""Python code by name: "module:Name", or "./file.py:Name", which loads that one file.

A file may come from anywhere, so a name that only stands in one is never imported. What a user
types, or passes as an object, is vouched for: in this process, under that very name.
"""

import hashlib
import importlib
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

MODULE = re.compile(r"[A-Za-z_][\w.]*:[\w./-]+")
FILE = re.compile(r"(.*[/\\].*\.py):([\w./-]+)")
_vouched: dict[str, Any] = {}
"""What each name stands for: an object that was passed, or a name that was typed."""


def is_code(text: str) -> bool:
    """Whether a text names code, rather than a cost or an environment that is known without."""
    return text in _vouched or bool(MODULE.fullmatch(text) or FILE.fullmatch(text))


def from_anywhere(name: str) -> str:
    """The name as it leads to the same file from any folder."""
    file, name = FILE.fullmatch(name.strip()), name.strip()
    return f"{Path(file[1]).expanduser().resolve()}:{file[2]}" if file else name


def typed(name: Any, *, stands_for: str | None = None) -> str:
    """The name from anywhere, or one for an object that was passed. From now on it is vouched for:
    by itself, or as what another name is called here."""
    is_text = isinstance(name, str)
    known: str = from_anywhere(name) if is_text else _name_of(name)
    if is_code(known) or not is_text:
        _vouched[known] = _vouched.get(known, known) if is_text else name
        _vouched[stands_for or known] = _vouched[known]
    return known


def _name_of(thing: Any) -> str:
    kind = type(thing)
    module = getattr(thing, "__module__", kind.__module__)
    name = f"{module}:{getattr(thing, '__qualname__', kind.__name__)}"
    is_one_of_many = not MODULE.fullmatch(name) or not hasattr(thing, "__qualname__")
    return f"{name}-{id(thing):x}" if is_one_of_many else name


def importable(name: str) -> str | None:
    """Where another process finds what a vouched name stands for; None where it cannot."""
    target = _vouched.get(name)
    if isinstance(target, str):
        return None if target.startswith("__main__:") else target
    is_there = target is not None and not name.startswith("__main__:") and MODULE.fullmatch(name)
    return name if is_there and _import(name) is target else None


def is_here(name: str) -> bool:
    """Whether a name was typed, or its module is imported already: others may import it too."""
    is_imported = name not in _vouched and name.rpartition(":")[0] in sys.modules
    return is_imported or importable(name) is not None


def load(name: str, option: str) -> Any:
    """What a vouched name stands for; None if there is nothing of that name in its module."""
    if name not in _vouched:
        raise ValueError(
            f"{name!r} would run Python code that a file from elsewhere names, so it is not "
            f"imported. If you know that code, type --{option} {name} ({option}=... in Python)"
        )
    target = _vouched[name]
    return _import(target) if isinstance(target, str) else target


def _import(name: str) -> Any:
    home, _, attribute = name.rpartition(":")
    try:
        value: Any = _load_file(Path(home)) if FILE.fullmatch(name) else _module(home)
    except (ImportError, SyntaxError, OSError) as error:
        raise ValueError(f"{home!r} cannot be imported: {error}") from error
    for part in attribute.split("."):
        value = getattr(value, part, None)
    return value


def _module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        file = Path(f"{name.removesuffix('.py')}.py")
        hint = f"; the file of that name is ./{file}:..." if file.is_file() else ""
        raise ImportError(f"{error}{hint}") from error


def _load_file(path: Path) -> ModuleType:
    """As a module of its own, once as long as it is the same; nothing beside it is on the path."""
    content = f"{path}\n".encode() + path.read_bytes()
    name = f"_saformer_{hashlib.sha256(content).hexdigest()[:16]}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None, "its name ends in .py"
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(sys.modules[name])
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]
