"""A database that refuses whoever comes too late: the fence is stamped before anything is read."""

import os
import sqlite3

import holdfast

ENTER = """
INSERT INTO fence (name, token) VALUES (?, ?)
ON CONFLICT (name) DO UPDATE SET token = excluded.token WHERE fence.token <= excluded.token
"""


class TooLate(Exception):
    """Somebody with a larger fence has been here."""


def enter(db: sqlite3.Connection, hold: holdfast.Hold) -> None:
    """Begin a transaction under the lock. Everything that the holder reads comes after this."""
    db.execute("BEGIN IMMEDIATE")
    if db.execute(ENTER, (hold.name, hold.fence)).rowcount == 0:
        db.execute("ROLLBACK")
        raise TooLate


db = sqlite3.connect(":memory:", isolation_level=None)
db.execute("CREATE TABLE fence (name TEXT PRIMARY KEY, token INTEGER NOT NULL)")
with holdfast.connect(os.environ.get("HOLDFAST_URL", "embedded:")) as hf:
    lock = hf.lock("account:7", on_lost="ignore")
    with lock as slow:
        lock.force_release()  # as if its process had been frozen for longer than its lease
        with lock as quick:
            enter(db, quick)
            db.execute("COMMIT")
            print("the new holder was here")
        try:
            enter(db, slow)
        except TooLate:
            print("the old one is refused")

# Output:
# the new holder was here
# the old one is refused
