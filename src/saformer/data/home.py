"""Where built and downloaded data is kept."""

from __future__ import annotations

import os
from pathlib import Path

from saformer.data.folder import FORMAT


def home() -> Path:
    """$SAFORMER_HOME, or .cache/saformer in the user's home."""
    return Path(os.environ.get("SAFORMER_HOME") or Path.home() / ".cache" / "saformer")


def data_home() -> Path:
    """Where datasets that were built or imported by name are kept; another store format has another
    place."""
    return home() / f"data-{FORMAT}"
