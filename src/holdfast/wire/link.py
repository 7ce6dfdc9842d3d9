"""Blocking connections: a pool of sockets per server, one exchange at a time on each.

A link that was left in the middle of an exchange still owes replies; it never returns to the pool.
"""

from __future__ import annotations

import socket
import struct
import time
from collections import deque
from typing import Any

import hiredis

from ..errors import NodeError
from .endpoint import Endpoint
from .replies import command

IDLE_MOST = 64
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
        "endpoint",
        "owed",
        "used_at",
    )

    def __init__(self, endpoint: Endpoint, timeout: float) -> None:
        self.endpoint = endpoint
        self.owed = 0
        self.used_at = time.monotonic()
        self._timeout = timeout
        # Kept: the connection closes its socket when it is collected.
        self._connection = endpoint.connection(timeout)
        try:
            self._connection.connect()
        except Exception as error:
            raise NodeError(
                f"{endpoint.name} cannot be reached: {error}", node=endpoint.name, sent=False
            ) from error
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

    def close(self) -> None:
        """Close the socket. In a forked child only its copy is closed."""
        try:
            self._connection.disconnect()
        except Exception:
            pass


class LinkPool:
    """Idle links to one server, last used first. Safe to share between threads."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._idle: deque[Link] = deque()

    def take(self, timeout: float) -> Link:
        """An idle link that is still alive, or a new one."""
        while True:
            try:
                link = self._idle.pop()
            except IndexError:
                return Link(self.endpoint, timeout)
            if not link.is_stale():
                return link
            link.close()

    def give(self, link: Link) -> None:
        """Put a link back, unless it is in the middle of something."""
        if link.owed or len(self._idle) >= IDLE_MOST:
            link.close()
            return
        link.used_at = time.monotonic()
        self._idle.append(link)

    def clear(self) -> None:
        """Close every idle link: the server behind them has changed or is gone."""
        while self._idle:
            try:
                self._idle.pop().close()
            except IndexError:
                return
