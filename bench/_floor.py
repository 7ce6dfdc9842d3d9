"""Floors: what one round trip costs when nothing but bytes is moved.

Two kinds. *raw* is the least that a lock on one primary can be: `SET NX PX`, and a compare-and-
delete by EVALSHA. *our scripts* sends what holdfast sends, byte for byte, without holdfast: a
recorder between client and server writes the bytes down. What holdfast adds to the second is
Python; what the second adds to the first is Lua on the server.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import deque
from typing import Any

import hiredis

from holdfast.server import Server

RELEASE_LUA = (
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0"
)
NAME = "bench:recorded"


class Recorder:
    """Stands between one client and the server, and keeps what the client sends."""

    def __init__(self, port: int) -> None:
        self._server_port = port
        self._sent = bytearray()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}/0"
        threading.Thread(target=self._accept, daemon=True).start()

    def take(self) -> bytes:
        """What was sent since the last time."""
        sent = bytes(self._sent)
        self._sent.clear()
        return sent

    def close(self) -> None:
        """Accept nobody any more."""
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._server_port))
            for source, sink, keep in ((client, server, True), (server, client, False)):
                threading.Thread(target=self._pump, args=(source, sink, keep), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, keep: bool) -> None:
        try:
            while data := source.recv(65536):
                if keep:
                    self._sent += data
                sink.sendall(data)
        except OSError:
            pass
        finally:
            sink.close()


def recorded(server: Server) -> tuple[bytes, bytes]:
    """The request of an uncontended acquire, and that of its release, as holdfast sends them."""
    import holdfast

    recorder = Recorder(server.port)
    try:
        with holdfast.connect(recorder.url) as hf:
            lock = hf.lock(NAME)
            lock.acquire().release()  # connects, and teaches the server both scripts
            recorder.take()
            hold = lock.acquire()
            acquire = recorder.take()
            hold.release()
            return acquire, recorder.take()
    finally:
        recorder.close()


def words(request: bytes) -> list[bytes]:
    """The words of one recorded command."""
    reader = hiredis.Reader()
    reader.feed(request)
    found: list[bytes] = reader.gets()
    return found


def renamed(request: bytes, name: str, owner: bytes) -> bytes:
    """A recorded request for another lock name and another owner id of the same length."""
    old_owner = next(word for word in words(request) if word.count(b":") == 3)
    return hiredis.pack_command(
        tuple(
            word.replace(NAME.encode(), name.encode()).replace(old_owner, owner)
            for word in words(request)
        )
    )


def raw_requests(server: Server, name: str, owner: str) -> tuple[bytes, bytes]:
    """SET NX PX, and a compare-and-delete by EVALSHA."""
    sha = server.command("SCRIPT", "LOAD", RELEASE_LUA)
    assert isinstance(sha, bytes | str)
    return (
        hiredis.pack_command(("SET", name, owner, "NX", "PX", "10000")),
        hiredis.pack_command(("EVALSHA", sha, "1", name, owner)),
    )


class Wire:
    """One blocking TCP socket, one request at a time, replies not looked at."""

    def __init__(self, server: Server, requests: tuple[bytes, bytes]) -> None:
        self._acquire, self._release = requests
        self._socket = socket.create_connection(("127.0.0.1", server.port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def pairs(self, count: int) -> None:
        """Acquire and release, so many times."""
        sendall, recv = self._socket.sendall, self._socket.recv
        acquire, release = self._acquire, self._release
        for _ in range(count):
            sendall(acquire)
            recv(4096)
            sendall(release)
            recv(4096)

    def check(self) -> None:
        """The pair takes the lock and gives it back."""
        replies = []
        for request in (self._acquire, self._release):
            self._socket.sendall(request)
            replies.append(self._socket.recv(4096))
        assert not any(reply.startswith((b"-", b"$-1", b"_", b":0")) for reply in replies), replies

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


class Pipe(asyncio.Protocol):
    """One multiplexed connection with nothing on top: futures in order, one write per tick."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader(notEnoughData=Ellipsis)
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self._out: list[bytes] = []
        self._transport: Any = None

    def connection_made(self, transport: Any) -> None:
        """Keep the transport."""
        self._transport = transport

    def ask(self, request: bytes) -> asyncio.Future[Any]:
        """Queue a request; the future gets the reply."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self._waiting.append(future)
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(request)
        return future

    def _flush(self) -> None:
        self._transport.write(b"".join(self._out))
        self._out.clear()

    def data_received(self, data: bytes) -> None:
        """Hand out replies."""
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not Ellipsis:
            self._waiting.popleft().set_result(reply)

    def close(self) -> None:
        """Close the connection."""
        self._transport.close()
