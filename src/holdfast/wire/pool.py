"""Pools of blocking connections: idle ones, those that owe replies, those that are given up."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from ..core.script import Call
from ..errors import NodeError
from .endpoint import RETIREMENT_S, Endpoint
from .link import Link

IDLE_MOST = 64
RETIRED_MOST = 8
MOST_OPENING = 8
MOST_OVERDUE = 1024
FAR_BEHIND_S = 0.05
MOST_OWED = 64  # replies, to requests of 2 kB at most: less than what fills a connection's buffers


class LinkPool:
    """Idle links to one server, last used first. Safe to share between threads."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.opening = threading.Semaphore(MOST_OPENING)
        # What must reach the server, and waits for somebody who connects to it.
        self.overdue: deque[Call[Any]] = deque(maxlen=MOST_OVERDUE)
        self._idle: deque[Link] = deque()
        self._mutex = threading.Lock()
        self._parked: dict[str, Link] = {}
        self._retired: deque[tuple[float, Link]] = deque()

    def take(self, timeout: float) -> Link:
        """An idle link that is still alive and owes nothing, or a new one."""
        owing: list[Link] = []
        while (link := self.ready(timeout)) is not None and link.owed:
            owing.append(link)
        self._idle.extendleft(owing)  # not closed: what was sent on them may not have arrived yet
        return link or Link(self.endpoint, timeout)

    def ready(self, timeout: float, on_silent: Callable[[], None] = lambda: None) -> Link | None:
        """An idle link that is still alive, or None. `on_silent` is told of one that is not."""
        behind: list[Link] = []
        try:
            while True:
                try:
                    link = self._idle.pop()
                except IndexError:
                    return None
                if link.owed:
                    if not self._in_order(link, timeout, on_silent):
                        self.give_up(link)
                    elif link.owed < MOST_OWED:
                        return link
                    else:
                        behind.append(link)  # alive, but slower than we ask: another one
                elif not link.is_stale():
                    return link
                else:
                    link.close()
        finally:
            self._idle.extendleft(behind)

    def _in_order(self, link: Link, timeout: float, on_silent: Callable[[], None]) -> bool:
        """Read what came since from a link that owes; False if it is broken or silent.

        A server that owes much and has said nothing for a moment is silent: more would only fill
        the buffers.
        """
        try:
            link.read_ready()
        except NodeError:
            link.close()
            return False
        patience = timeout if link.owed < MOST_OWED else min(timeout, FAR_BEHIND_S)
        if link.owed and time.monotonic() - link.owes_since > patience:
            on_silent()
            return False
        return True

    def give(self, link: Link) -> None:
        """Put a link back, unless it is in the middle of something."""
        if link.owed or len(self._idle) >= IDLE_MOST:
            link.close()
            return
        link.used_at = time.monotonic()
        self._idle.append(link)

    def give_owing(self, link: Link) -> None:
        """Put a link back that still owes replies, which nobody waits for."""
        if len(self._idle) < IDLE_MOST:
            self._idle.append(link)
        else:
            self.give_up(link)

    def give_up(self, link: Link) -> None:
        """Never use a link again. One that owes replies is closed a little later."""
        if not link.owed or link.closed:
            link.close()
            return
        now = time.monotonic()
        over = []
        with self._mutex:
            self._retired.append((now, link))
            while len(self._retired) > RETIRED_MOST or now - self._retired[0][0] > RETIREMENT_S:
                over.append(self._retired.popleft()[1])
        for each in over:
            each.abort()

    # ── links whose last request has not been answered, and that an undo may have to follow ────

    def park(self, word: str, link: Link) -> None:
        """Keep a link aside for what is tied to the same word."""
        given_up: list[Link] = []
        with self._mutex:
            for other in list(self._parked)[:2]:  # the oldest: have they been answered meanwhile?
                kept = self._parked[other]
                try:
                    kept.read_ready()
                except NodeError:
                    kept.close()
                if not kept.owed and not kept.closed:
                    self.give(kept)
                elif kept.closed or len(self._parked) >= IDLE_MOST:
                    given_up.append(kept)
                else:
                    continue
                del self._parked[other]
            stale, self._parked[word] = self._parked.get(word), link
        if stale is not None and stale is not link:
            given_up.append(stale)
        for each in given_up:
            self.give_up(each)

    def parked(self, word: str) -> Link | None:
        """Take the link that was kept aside for this word, if it is still alive."""
        if not self._parked:
            return None
        with self._mutex:
            link = self._parked.pop(word, None)
        if link is None:
            return None
        try:
            link.read_ready()
        except NodeError:
            link.close()
            return None
        if link.owed and time.monotonic() - link.owes_since > RETIREMENT_S:
            self.give_up(link)  # it may be dead: what follows shall not be lost with it
            return None
        return link

    def unpark(self, word: str) -> None:
        """Close the link that was kept aside for this word: nothing follows on it any more."""
        if self._parked:
            with self._mutex:
                link = self._parked.pop(word, None)
            if link is not None:
                self.give_up(link)

    def take_overdue(self) -> list[Call[Any]]:
        """What waits for a connection; whoever takes it brings it along."""
        taken: list[Call[Any]] = []
        try:
            while True:
                taken.append(self.overdue.popleft())
        except IndexError:
            return taken

    def clear(self) -> None:
        """Close every idle link: the server behind them has changed or is gone."""
        while self._idle:
            try:
                self.give_up(self._idle.pop())
            except IndexError:
                return

    def owing(self) -> list[Link]:
        """The links whose last requests may not have been read by the server yet."""
        kept = (*self._idle, *self._parked.values(), *(link for _, link in self._retired))
        return [link for link in kept if link.owed and not link.closed]

    def close(self) -> None:
        """Close everything."""
        self.clear()
        while self._retired:
            try:
                self._retired.pop()[1].abort()
            except IndexError:
                break
        while self._parked:
            try:
                self._parked.popitem()[1].close()
            except KeyError:
                return
