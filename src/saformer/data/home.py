"""Where built and downloaded data lies."""

import os
from pathlib import Path

from saformer.data.folder import FORMAT


def home() -> Path:
    """$SAFORMER_HOME, or .cache/saformer in the user's home."""
    return Path(os.environ.get("SAFORMER_HOME") or Path.home() / ".cache" / "saformer")


def data_home() -> Path:
    """Folder of the datasets that are built or imported by name; one for each store format."""
    return home() / f"data-{FORMAT}"
