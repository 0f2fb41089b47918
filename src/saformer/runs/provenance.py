"""Which state of the code made something."""

import os
import subprocess
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1]


@cache
def commit() -> str:
    """Of the checkout that this package lies in; else $SAFORMER_COMMIT."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(PACKAGE), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        # else another project's checkout would be named
        git("ls-files", "--error-unmatch", "__init__.py")
        changes = " with changes" if git("status", "--porcelain", ".") else ""
        return git("rev-parse", "--short", "HEAD") + changes
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get("SAFORMER_COMMIT", "unknown")
