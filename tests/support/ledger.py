"""A resource that checks fences: an account in SQLite, whose transfers name the fence they held."""

from __future__ import annotations

import sqlite3
from pathlib import Path


class Ledger:
    """Refuses whoever comes with a smaller fence than one that it has seen."""

    def __init__(self, path: Path | str) -> None:
        self._db = sqlite3.connect(path, isolation_level=None, timeout=10, check_same_thread=False)
        self._db.execute("CREATE TABLE IF NOT EXISTS account (fence INTEGER, by TEXT)")
        self._db.execute(
            "INSERT INTO account SELECT 0, 'nobody' WHERE NOT EXISTS (SELECT * FROM account)"
        )

    def write(self, by: str, fence: int) -> bool:
        """Whether the write was accepted."""
        done = self._db.execute(
            "UPDATE account SET fence = ?, by = ? WHERE fence <= ?", (fence, by, fence)
        )
        return done.rowcount == 1

    def last(self) -> str:
        """Whose write stands."""
        return str(self._db.execute("SELECT by FROM account").fetchone()[0])
