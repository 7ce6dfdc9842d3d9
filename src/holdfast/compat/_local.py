"""Where a lock object keeps what was acquired through it: redis-py's `lock.local`."""

from __future__ import annotations

import asyncio
import os
import threading

from ..locks.hold import AsyncHold

FORGOTTEN_MOST = 64


class Grip:
    """One acquired lock: the owner id that stands in the key, and who may give it back."""

    __slots__ = ("hold", "owner", "pid", "sent", "token", "word")

    def __init__(self, token: bytes, owner: str, word: str, hold: AsyncHold | None) -> None:
        self.token = token
        self.owner = owner
        self.word = word
        """Unique for this grant, as a token need not be: what its calls are tied to."""
        self.hold = hold
        """The renewed hold; None where the server alone says how long the lock is ours."""
        self.sent = False
        """Whether a release may have been executed already."""
        self.pid = os.getpid()

    def is_ours(self) -> bool:
        """Whether this process acquired it: a forked child owns nothing."""
        return self.pid == os.getpid()

    def is_over(self) -> bool:
        """Whether it is known without asking that the lock is not ours any more."""
        return not self.is_ours() or (self.hold is not None and self.hold.is_lost())


class Place:
    """Room for one acquired lock; used as it is where `thread_local=False`."""

    token: bytes | str | None = None
    """What stands in the key. Assigning it by hand takes the lock with that token over."""
    grip: Grip | None = None

    def place(self) -> Place:
        """Where the calling flow finds what it acquired."""
        return self

    def put(self, grip: Grip) -> None:
        """The calling flow has acquired: what was here before is lost, or it would not have."""
        old = self.grip
        self.token, self.grip = grip.token, grip
        if old is not None and old.hold is not None:
            old.hold._lose(f"taken by {grip.owner}")

    def enter(self) -> None:
        """The calling flow is about to acquire."""

    def vacate(self, place: Place, grip: Grip) -> None:
        """That lock was given back. Somebody may have acquired through `place` meanwhile."""
        if place.grip is grip:
            place.token = place.grip = None


class ThreadPlace(threading.local, Place):
    """Room for one acquired lock in each thread."""


class TaskPlaces(threading.local):
    """Room for one acquired lock in each task, and in each thread: tasks do not share.

    A task that never tried to acquire finds what a finished one left (`asyncio.wait_for` acquires
    in a task of its own), or what another one has, if it is the only one that has anything.
    """

    def __init__(self) -> None:
        self._places: dict[object, Place] = {}
        self._tidy_at = FORGOTTEN_MOST

    @property
    def token(self) -> bytes | str | None:
        """What stands in the key. Assigning it by hand takes the lock with that token over."""
        return self.place().token

    @token.setter
    def token(self, token: bytes | str | None) -> None:
        place = self.place()
        place.token = token
        self._places.setdefault(_task(), place)

    def place(self) -> Place:
        """Where the calling flow finds what it acquired."""
        mine = self._places.get(_task())
        if mine is not None:
            return mine
        taken = [(task, place) for task, place in self._places.items() if place.token is not None]
        for task, place in taken:
            if _is_done(task):
                return place
        return taken[0][1] if len(taken) == 1 else Place()

    def enter(self) -> None:
        """The calling task is about to acquire: from now on it finds only what is its own."""
        if len(self._places) >= self._tidy_at:
            self._tidy()
        self._places.setdefault(_task(), Place())

    def put(self, grip: Grip) -> None:
        """The calling task has acquired. What others of this object had is lost; they find out."""
        self._places.setdefault(_task(), Place()).put(grip)

    def vacate(self, place: Place, grip: Grip) -> None:
        """That lock was given back. Somebody may have acquired through `place` meanwhile."""
        place.vacate(place, grip)

    def _tidy(self) -> None:
        # A lock that is left to end by itself again and again must not collect its tasks for ever.
        done = [task for task in self._places if _is_done(task)]
        empty = {task for task in done if self._places[task].token is None}
        for task in {*empty, *[task for task in done if task not in empty][:-FORGOTTEN_MOST]}:
            del self._places[task]
        self._tidy_at = 2 * len(self._places) + FORGOTTEN_MOST


def _is_done(task: object) -> bool:
    return isinstance(task, asyncio.Task) and task.done()


def _task() -> object:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None  # no loop runs: somebody looks at the token from outside
