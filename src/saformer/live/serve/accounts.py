"""Accounts on disk: what each session has spent, knows and was last answered.

One transaction for all that were decided together, synchronised before any answer leaves: SQLite
with a write-ahead log (one synchronisation for each transaction).
"""

import json
import sqlite3
import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

FORMAT = 2
_TABLES = """
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS sessions (
    name TEXT PRIMARY KEY, owner TEXT NOT NULL, step INTEGER NOT NULL, digest TEXT NOT NULL,
    answer TEXT NOT NULL, memory BLOB NOT NULL, ended INTEGER NOT NULL, changed REAL NOT NULL
);
CREATE INDEX IF NOT EXISTS by_age ON sessions (ended, changed);
"""


@dataclass(frozen=True)
class Account:
    """A session after its latest answer."""

    name: str
    owner: str
    step: int  # that was answered last
    digest: str  # of the request that was
    answer: str  # JSON
    memory: bytes  # what the policy knows of it
    ended: int  # 0 or 1
    changed: float  # seconds since 1970

    @property
    def content(self) -> dict[str, Any]:
        """The stored answer."""
        answer: dict[str, Any] = json.loads(self.answer)
        return answer


class Accounts:
    """The accounts of one policy, in one file."""

    def __init__(self, path: Path, policy: str) -> None:
        """`policy` identifies weights, rule and options: what others knew is of no use to it."""
        self._database = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        try:
            self._database.execute("PRAGMA journal_mode=WAL")
            self._database.execute("PRAGMA synchronous=FULL")
            self._database.executescript(_TABLES)
            known = dict(self._database.execute("SELECT name, value FROM facts"))
        except sqlite3.DatabaseError as error:
            raise ValueError(f"{path} holds no accounts that can be read ({error})") from None
        facts = {"format": str(FORMAT), "policy": policy}
        if known and known != facts:
            raise ValueError(
                f"the accounts in {path} are of another policy, rule or version, and its sessions "
                "cannot go on with this one: choose another folder with --accounts"
            )
        self._database.executemany("INSERT OR IGNORE INTO facts VALUES (?, ?)", facts.items())

    def read(self, name: str) -> Account | None:
        row = self._database.execute("SELECT * FROM sessions WHERE name = ?", (name,)).fetchone()
        return None if row is None else Account(*row)

    def write(self, accounts: Sequence[Account]) -> None:
        """All of them, safely on disk, or none."""
        database = self._database
        database.execute("BEGIN IMMEDIATE")
        try:
            places = ", ".join("?" * 8)
            rows = map(astuple, accounts)
            database.executemany(f"INSERT OR REPLACE INTO sessions VALUES ({places})", rows)
            database.execute("COMMIT")
        except BaseException:
            database.rollback()
            raise

    def count(self, *, ended: bool) -> int:
        query = "SELECT COUNT(*) FROM sessions WHERE ended = ?"
        return int(self._database.execute(query, (ended,)).fetchone()[0])

    def forget(self, keep_days: float, most: int) -> int:
        """Drop what nobody touched for so long and, beyond so many, the oldest that have ended;
        returns how many."""
        before = time.time() - 86_400 * keep_days
        query = "DELETE FROM sessions WHERE changed < ?"
        dropped = self._database.execute(query, (before,)).rowcount
        beyond = self.count(ended=True) + self.count(ended=False) - most
        if beyond > 0:
            oldest = "SELECT name FROM sessions WHERE ended = 1 ORDER BY changed LIMIT ?"
            query = f"DELETE FROM sessions WHERE name IN ({oldest})"
            dropped += self._database.execute(query, (beyond,)).rowcount
        return dropped

    def close(self) -> None:
        self._database.close()
