"""The audit log: a line of JSON for every decision, written before its answer leaves."""

import json
import logging
from collections.abc import Iterable
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any


class AuditLog(RotatingFileHandler):
    """Begins a new file at a size, and keeps some of the old ones: audit.jsonl.1 is the latest."""

    def __init__(self, path: Path, size: int, files: int) -> None:
        super().__init__(path, maxBytes=size, backupCount=files, encoding="utf-8")

    def add(self, entries: Iterable[dict[str, Any]]) -> None:
        """Write them at once. What cannot be written raises."""
        text = "\n".join(json.dumps(entry, separators=(",", ":")) for entry in entries)
        if text:
            self.emit(logging.makeLogRecord({"msg": text}))

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (logging's name)
        raise  # noqa: PLE0704 (called while an exception is handled)
