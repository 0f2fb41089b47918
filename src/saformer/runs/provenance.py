"""Which state of the code made something."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1]


@cache
def commit() -> str:
    """Of the checkout that this package lies in; where it lies in none, what $SAFORMER_COMMIT
    says."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(PACKAGE), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        git(
            "ls-files", "--error-unmatch", "__init__.py"
        )  # else another project's checkout would be named
        return git("rev-parse", "--short", "HEAD") + (
            " with changes" if git("status", "--porcelain", ".") else ""
        )
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get("SAFORMER_COMMIT", "unknown")
