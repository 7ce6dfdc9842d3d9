"""The resource of `holdfast demo`: a counter in a SQLite file that checks fences."""

from __future__ import annotations

import sqlite3
from pathlib import Path


class RefusedError(Exception):
    """The account has seen a higher fence. `value` and `fence` are what stands in it."""

    def __init__(self, value: int, fence: int) -> None:
        super().__init__(f"the account has seen fence {fence}")
        self.value = value
        self.fence = fence


class Account:
    """A counter that refuses whoever comes with a fence lower than the highest it has seen.

    With `fenced=False` it takes every write, as a resource does that knows nothing of fences.
    """

    def __init__(self, path: Path, *, fenced: bool = True) -> None:
        self._fenced = fenced
        self._db = sqlite3.connect(path, timeout=10, isolation_level=None)
        # Only the host's crash could cost data; a killed process does not.
        self._db.execute("PRAGMA synchronous = OFF")

    def create(self) -> None:
        """Make the counter, at 0."""
        self._db.execute("CREATE TABLE account (value INTEGER NOT NULL, fence INTEGER NOT NULL)")
        self._db.execute("INSERT INTO account VALUES (0, 0)")

    def enter(self, fence: int) -> int:
        """Show the fence, then read the counter. Raises RefusedError.

        In this order: a holder that read first could still be overwritten by an older one, whose
        fence would be the highest that the account had seen.
        """
        if self._fenced:
            self._guarded("UPDATE account SET fence = ? WHERE fence <= ?", fence, fence)
        return self.read()[0]

    def write(self, fence: int, value: int) -> None:
        """Set the counter. Raises RefusedError if a higher fence has been shown since."""
        if self._fenced:
            self._guarded("UPDATE account SET value = ? WHERE fence <= ?", value, fence)
        else:
            self._db.execute("UPDATE account SET value = ?", (value,))

    def read(self) -> tuple[int, int]:
        """The counter, and the highest fence seen."""
        value, fence = self._db.execute("SELECT value, fence FROM account").fetchone()
        return int(value), int(fence)

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def _guarded(self, update: str, *words: int) -> None:
        if self._db.execute(update, words).rowcount == 0:
            raise RefusedError(*self.read())
