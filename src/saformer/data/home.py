"""Where built and downloaded data lies, and what the user has settled."""

import os
import sys
from pathlib import Path

from saformer.data.folder import FORMAT


def home() -> Path:
    """$SAFORMER_HOME, or .cache/saformer in the user's home."""
    return Path(os.environ.get("SAFORMER_HOME") or Path.home() / ".cache" / "saformer")


def data_home() -> Path:
    """Folder of the datasets that are built or imported by name; one for each store format."""
    return home() / f"data-{FORMAT}"


def configuration_home() -> Path:
    """The user's own: $XDG_CONFIG_HOME/saformer, or where the system keeps such files."""
    usual = {"darwin": "Library/Application Support", "win32": "AppData/Roaming"}
    named = os.environ.get("XDG_CONFIG_HOME") or os.environ.get("APPDATA")
    return Path(named or Path.home() / usual.get(sys.platform, ".config")) / "saformer"
