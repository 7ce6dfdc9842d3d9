"""Timers that are nearly always cancelled before they are due: buckets of ids by rounded time.

A heap would keep every cancelled entry until its time comes: at 60,000 locks a second with leases
of 30 s that is memory without bound. Here adding and discarding are one dict operation each.
"""

from __future__ import annotations

import heapq
from typing import Generic, TypeVar

T = TypeVar("T")


class Timers(Generic[T]):
    """Not synchronised: the caller guards it."""

    __slots__ = ("_buckets", "_order")

    def __init__(self) -> None:
        self._buckets: dict[int, dict[int, T]] = {}
        self._order: list[int] = []

    def add(self, when: int, grain: int, ident: int, item: T) -> int:
        """Have `item` due at `when`, or up to `grain` earlier. Returns the key to discard it by."""
        key = when - when % grain
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = {}
            heapq.heappush(self._order, key)
        bucket[ident] = item
        return key

    def discard(self, key: int, ident: int) -> None:
        """Forget an item; nothing happens if it is gone already."""
        bucket = self._buckets.get(key)
        if bucket is not None:
            bucket.pop(ident, None)

    def pop_due(self, now: int) -> list[T]:
        """Take out everything whose time has come."""
        due: list[T] = []
        while self._order and self._order[0] <= now:
            due.extend(self._buckets.pop(heapq.heappop(self._order)).values())
        return due

    def next_due(self) -> int | None:
        """When to look again, or None if there is nothing."""
        while self._order and not self._buckets[self._order[0]]:
            del self._buckets[heapq.heappop(self._order)]
        return self._order[0] if self._order else None

    def __len__(self) -> int:
        return sum(map(len, self._buckets.values()))
