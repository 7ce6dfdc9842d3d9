"""Blocking connections: one exchange at a time on each, and what it still owes afterwards.

A link that was left in the middle of an exchange owes replies. They are read before anything else.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Iterable
from typing import Any

import hiredis

from ..errors import NodeError
from .endpoint import Endpoint
from .replies import command, is_noscript, run_id

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
        "heard",
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
        # Whether replies came that nobody waited for: the server is alive, and nobody was told.
        self.heard = False
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
        if not self.owed:
            self.owes_since = time.monotonic()
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
        if replies:  # a server that is always a little behind is not silent
            self.heard, self.owes_since = True, time.monotonic()
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
                self.send(command(b"PING"), 0, PING_S)
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
