"""Changes of JSON files on purpose, as somebody makes them who knows of their checksum."""

import json
from pathlib import Path
from typing import Any

from saformer.files import CHECKSUM


def unsigned(path: Path) -> dict[str, Any]:
    """The content without its checksum."""
    content: dict[str, Any] = json.loads(path.read_text())
    content.pop(CHECKSUM, None)
    return content


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**unsigned(path), **changes}))
