"""Blocking connections: a pool of sockets per server, one exchange at a time on each.

A link that was left in the middle of an exchange still owes replies; it never returns to the pool.
"""

from __future__ import annotations

import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import hiredis

from ..core.script import Call
from ..errors import NodeError
from .endpoint import RETIREMENT_S, Endpoint
from .replies import command, is_noscript, run_id

IDLE_MOST = 64
RETIRED_MOST = 8
MOST_OPENING = 8
MOST_OVERDUE = 1024
MOST_OWED = 64  # replies, to requests of 2 kB at most: less than what fills a connection's buffers
IDLE_CHECK_S = 1.0
PING_S = 20.0


class Link:
    """One connection. redis-py opened it; from here on its bytes are ours."""

    __slots__ = (
        "_connection",
        "_kernel",
        "_reader",
        "_sock",
        "_timeout",
        "closed",
        "endpoint",
        "known",
        "owed",
        "owes_since",
        "run_id",
        "used_at",
    )

    def __init__(self, endpoint: Endpoint, timeout: float) -> None:
        self.endpoint = endpoint
        self.closed = False
        self.owed = 0
        self.owes_since = 0.0
        self.run_id = ""
        self.known: set[str] = set()
        self.used_at = time.monotonic()
        self._timeout = timeout
        # Kept: the connection closes its socket when it is collected.
        self._connection = endpoint.connection(timeout)
        try:
            self._connection.connect()
            if endpoint.identified:
                self._connection.send_command("INFO", "server")
                self.run_id = run_id(self._connection.read_response())
                endpoint.met(self.run_id)
        except Exception as error:
            self._connection.disconnect()
            raise endpoint.unreachable(error) from error
        finally:
            for sentinel in endpoint.sentinels:
                sentinel.connection_pool.disconnect()
        self._sock: socket.socket = self._connection._sock
        # Timeouts by the kernel: a Python socket with a timeout polls before every call. TLS needs
        # the latter, its reads and writes are several calls.
        self._kernel = not hasattr(self._sock, "getpeercert") and hasattr(socket, "SO_RCVTIMEO")
        self._set_timeout(timeout)
        self._reader = hiredis.Reader(notEnoughData=Ellipsis)

    def _set_timeout(self, timeout: float) -> None:
        self._timeout = timeout
        if self._kernel:
            # 0 would mean "never".
            whole, part = divmod(max(1, int(timeout * 1_000_000)), 1_000_000)
            value = struct.pack("@ll", whole, part)
            self._sock.settimeout(None)
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)
        else:
            self._sock.settimeout(timeout)

    def send(self, data: bytes, replies: int, timeout: float) -> None:
        """Write a request that will be answered by `replies` replies."""
        if timeout != self._timeout:
            self._set_timeout(timeout)
        self.owed += replies  # before the write: interrupted half-way, it must not be reused
        try:
            self._sock.sendall(data)
        except OSError as error:
            raise self._broken(error) from error

    def write(self, data: bytes, replies: int) -> None:
        """Write a request as `send` does, with whatever timeout was used last.

        A link that owes replies may lead to a server that reads nothing. That is not waited for:
        where it takes no more, it did not answer in time.
        """
        behind = self.owed > 0
        if not behind:
            self.owes_since = time.monotonic()
        self.owed += replies
        try:
            if not (behind and self._kernel):
                self._sock.sendall(data)
            elif self._sock.send(data, socket.MSG_DONTWAIT) < len(data):
                raise BlockingIOError
        except OSError as error:
            raise self._broken(error) from error

    def read_ready(self) -> list[Any]:
        """The replies that are there, without waiting for more."""
        try:
            kernel, sock = self._kernel, self._sock
            data = sock.recv(65536, socket.MSG_DONTWAIT) if kernel else self._read_tls()
        except (BlockingIOError, InterruptedError):
            return []
        except OSError as error:
            raise self._broken(error) from error
        if not data:
            raise self._broken(None)
        self._reader.feed(data)
        replies = []
        while (reply := self._reader.gets()) is not Ellipsis:
            replies.append(reply)
            if is_noscript(reply):  # whoever asked may be gone: the next one teaches it again
                self.known.clear()
        self.owed -= len(replies)
        return replies

    def _read_tls(self) -> bytes:
        # All of it: what the TLS layer has decrypted already is not seen by poll().
        found = b""
        self._sock.settimeout(0)
        try:
            while data := self._sock.recv(65536):
                found += data
        except OSError as error:
            if type(error).__name__ not in {"SSLWantReadError", "SSLWantWriteError"}:
                raise
            if not found:
                raise BlockingIOError from error
        finally:
            self._sock.settimeout(self._timeout)
        return found

    def silent(self) -> NodeError:
        """The error to raise for a link that has not answered in time."""
        return self._broken(TimeoutError())

    def read(self, timeout: float) -> Any:
        """The next reply, within `timeout` seconds in all."""
        reply = self._reader.gets()
        if reply is not Ellipsis:
            self.owed -= 1
            return reply
        if timeout < self._timeout:  # one deadline for several links: less is left for this one
            self._set_timeout(timeout)
        ends = time.monotonic() + timeout
        while True:
            try:
                data = self._sock.recv(65536)
            except OSError as error:
                raise self._broken(error) from error
            if not data:
                raise self._broken(None)
            self._reader.feed(data)
            reply = self._reader.gets()
            if reply is not Ellipsis:
                self.owed -= 1
                return reply
            left = ends - time.monotonic()
            if left <= 0:
                raise self._broken(TimeoutError()) from TimeoutError()
            self._set_timeout(left)

    def read_message(self) -> str | None:
        """The next message of a subscribed link, or None for anything else that was said.

        A connection that died silently is found by PING: twice nothing, and it is broken.
        """
        self._set_timeout(PING_S)
        pinged = False
        while True:
            reply = self._reader.gets()
            if reply is not Ellipsis:
                is_message = isinstance(reply, list) and reply[0] == b"message"
                return reply[2].decode("utf-8", "backslashreplace") if is_message else None
            try:
                data = self._sock.recv(65536)
            except (TimeoutError, BlockingIOError) as error:
                if pinged:
                    raise self._broken(error) from error
                pinged = True
                self._sock.sendall(command(b"PING"))
                continue
            except OSError as error:
                raise self._broken(error) from error
            if not data:
                raise self._broken(None)
            self._reader.feed(data)

    def shutdown(self) -> None:
        """End a read that another thread is blocked in."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def _broken(self, error: OSError | None) -> NodeError:
        if isinstance(error, TimeoutError | BlockingIOError):
            what = "did not answer in time"
        else:
            what = f"broke the connection{f' ({error})' if error else ''}"
        name = self.endpoint.name
        return NodeError(f"{name} {what}; it may or may not have acted", node=name, sent=True)

    def is_stale(self) -> bool:
        """Whether an idle connection was closed, or spoken to, by the other side meanwhile."""
        if time.monotonic() - self.used_at < IDLE_CHECK_S:
            return False
        try:
            self._sock.settimeout(0)
            try:
                return self._sock.recv(1, *self._peek_flags()) is not None
            finally:
                self._set_timeout(self._timeout)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            # A TLS socket has no peek: "would block" comes in its own class.
            return type(error).__name__ not in {"SSLWantReadError", "SSLWantWriteError"}

    def _peek_flags(self) -> tuple[int, ...]:
        return () if hasattr(self._sock, "getpeercert") else (socket.MSG_PEEK,)

    def fileno(self) -> int:
        return self._sock.fileno()

    def abort(self) -> None:
        """Close the socket in a way that has the server drop all that it has not read yet."""
        try:
            linger = struct.pack("ii", 1, 0)
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        except OSError:
            pass
        self.close()

    def close(self) -> None:
        """Close the socket. In a forked child only its copy is closed."""
        self.closed = True
        try:
            self._connection.disconnect()
        except Exception:
            pass


def settle(links: Iterable[Link], within: float) -> None:
    """Let servers answer what they owe, for so many seconds: what was sent shall be read."""
    ends = time.monotonic() + within
    poll = select.poll()
    waiting = {link.fileno(): link for link in links}
    for fileno in waiting:
        poll.register(fileno, select.POLLIN)
    while waiting and (left := ends - time.monotonic()) > 0:
        for fileno, _ in poll.poll(left * 1000):
            link = waiting[fileno]
            try:
                link.read_ready()
            except NodeError:
                link.close()
            if link.closed or not link.owed:
                poll.unregister(fileno)
                del waiting[fileno]


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
        while True:
            try:
                link = self._idle.pop()
            except IndexError:
                return None
            if link.owed:
                if self._in_order(link, timeout, on_silent):
                    return link
            elif not link.is_stale():
                return link
            self.give_up(link)

    def _in_order(self, link: Link, timeout: float, on_silent: Callable[[], None]) -> bool:
        """Read what came since from a link that owes; whether it may be used (again) now.

        It may not if it owes for too long, or too much: the server is silent, or far behind.
        """
        try:
            link.read_ready()
        except NodeError:
            link.close()
            return False
        late = link.owed and time.monotonic() - link.owes_since > timeout
        if late or link.owed >= MOST_OWED:
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
        return link

    def unpark(self, word: str) -> None:
        """Close the link that was kept aside for this word: nothing follows on it any more."""
        if self._parked:
            with self._mutex:
                link = self._parked.pop(word, None)
            if link is not None:
                link.close()

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
