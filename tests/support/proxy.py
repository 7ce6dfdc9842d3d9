"""A TCP proxy on 127.0.0.1 that can be told to fail in the ways networks do."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Literal, Self

Way = Literal["up", "down"]
"""The direction of bytes: "up" is from client to server, "down" from server to client."""

BOTH: tuple[Way, Way] = ("up", "down")
_LINGER_ZERO = struct.pack("ii", 1, 0)  # closing then sends RST in place of FIN


class _Pair:
    """One client's connection and the proxy's own to the server."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.ends = client, server
        self.threads: list[threading.Thread] = []
        self.closed = False
        self.gone = False

    def close(self, *, reset: bool = False) -> None:
        self.closed = True
        for end in self.ends:
            with suppress(OSError):
                if reset:
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
                else:
                    end.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads from it
            # A socket that another thread is reading from is only really closed, and the RST
            # only sent, once that read has returned: the pumps therefore read with a timeout.
            with suppress(OSError):
                end.close()


class Proxy:
    """Forwards 127.0.0.1:`port` to `target_port`, and misbehaves when told to.

        with Proxy(server.port) as proxy:
            proxy.hold("down")      # requests arrive, replies do not
            proxy.release()

    `ways` is any of "up" (client to server) and "down" (server to client); none given means both.
    What is set, `forget()` apart, applies to existing and to new connections alike, until `heal()`. An end of stream
    travels like data: held or dropped, it does not reach the other side.
    """

    def __init__(self, target_port: int, *, target_host: str = "127.0.0.1") -> None:
        self._target = target_host, target_port
        self._changed = threading.Condition()
        self._delay: dict[Way, float] = {"up": 0.0, "down": 0.0}
        self._held: set[Way] = set()
        self._dropped: set[Way] = set()
        self._swallow_in = 0
        self._pairs: set[_Pair] = set()
        self._threads: set[threading.Thread] = set()
        self._closed = False
        self._listener: socket.socket | None = None
        self.count = 0
        """How many client connections were accepted so far."""
        self._listen(0)

    @property
    def port(self) -> int:
        """The port that clients connect to; it stays the same through `refuse()`."""
        return self._port

    @property
    def url(self) -> str:
        """The proxy's address as a server's: "redis://127.0.0.1:PORT/0"."""
        return f"redis://127.0.0.1:{self._port}/0"

    @property
    def open(self) -> int:
        """How many client connections are open now."""
        with self._changed:
            return len(self._pairs)

    def delay(self, seconds: float, *ways: Way) -> None:
        """Let each chunk of bytes wait for `seconds` before it goes on."""
        with self._changed:
            self._delay.update(dict.fromkeys(ways or BOTH, seconds))

    def hold(self, *ways: Way) -> None:
        """Keep bytes back until `release()`; none are lost."""
        with self._changed:
            self._held.update(ways or BOTH)

    def release(self, *ways: Way) -> None:
        """Let go of what was held, in order."""
        with self._changed:
            self._held.difference_update(ways or BOTH)
            self._changed.notify_all()

    def drop(self, *ways: Way) -> None:
        """Make bytes vanish silently, as behind a broken link; connections stay open."""
        with self._changed:
            self._dropped.update(ways or BOTH)

    def forget(self) -> None:
        """Lose the open connections silently, as a router does that forgets them; new ones work."""
        for pair in self._taken():
            pair.gone = True

    def heal(self) -> None:
        """Forget every delay, hold, drop and `drop_next_reply`. It does not undo `refuse()`."""
        with self._changed:
            self._delay = {"up": 0.0, "down": 0.0}
            self._held.clear()
            self._dropped.clear()
            self._swallow_in = 0
            self._changed.notify_all()

    def drop_next_reply(self, number: int = 1) -> None:
        """Lose the next chunk (or the `number`-th) that the server sends, and close its connection.

        The server has then acted, and the client cannot know.
        """
        with self._changed:
            self._swallow_in = number

    @property
    def dropped_a_reply(self) -> bool:
        """Whether the reply to be lost has come by."""
        return self._swallow_in == 0

    def reset(self) -> None:
        """Break every open connection with a TCP reset; it has been sent on return."""
        pairs = self._taken()
        self._close(pairs, reset=True)
        for pair in pairs:
            for thread in pair.threads:
                thread.join(1)

    def refuse(self) -> None:
        """Refuse new connections, as a host without a server does; open ones are not touched."""
        with self._changed:
            listener, self._listener = self._listener, None
        if listener is not None:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()

    def accept(self) -> None:
        """Take connections again, on the same port."""
        if self._listener is None:
            self._listen(self._port)

    def stop(self) -> None:
        """Close everything and wait for the threads (5 seconds at most). May be repeated."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self.refuse()
        self._close(self._taken())
        deadline = time.monotonic() + 5
        for thread in list(self._threads):
            thread.join(max(0.0, deadline - time.monotonic()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _listen(self, port: int) -> None:
        listener = _listener(port)
        listener.settimeout(0.05)
        self._port: int = listener.getsockname()[1]
        self._listener = listener
        self._run(self._serve, listener)

    def _run(self, body: Callable[..., None], *args: object) -> threading.Thread:
        def guarded() -> None:
            try:
                body(*args)
            finally:
                self._threads.discard(thread)

        thread = threading.Thread(target=guarded, name="fault-proxy", daemon=True)
        self._threads.add(thread)
        thread.start()
        return thread

    def _serve(self, listener: socket.socket) -> None:
        while self._listener is listener:
            try:
                client, _ = listener.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            try:
                server = socket.create_connection(self._target, timeout=5)
            except OSError:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
                client.close()
                continue
            pair = _Pair(client, server)
            for end in pair.ends:
                end.settimeout(0.05)
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._changed:
                self._pairs.add(pair)
                self.count += 1
                closed = self._closed
            if closed:
                self._close([pair])
                return
            pair.threads.append(self._run(self._pump, pair, "up", client, server))
            pair.threads.append(self._run(self._pump, pair, "down", server, client))

    def _pump(self, pair: _Pair, way: Way, source: socket.socket, sink: socket.socket) -> None:
        while not pair.closed:
            try:
                chunk = source.recv(65_536)
            except TimeoutError:
                continue
            except OSError:
                chunk = b""
            if not self._pass(pair, way, at_end=not chunk):
                continue
            if not chunk or not _send(pair, sink, chunk):
                break
        self._close([pair])

    def _pass(self, pair: _Pair, way: Way, *, at_end: bool) -> bool:
        """Wait as told to; True when the chunk (or end of stream) is to be passed on."""
        with self._changed:
            if way == "down" and self._swallow_in and not at_end:
                self._swallow_in -= 1
                if not self._swallow_in:
                    pair.closed = True
                    return False
            if pair.gone:
                return False
            due = time.monotonic() + self._delay[way]
            while not (pair.closed or self._closed):
                dropped = way in self._dropped
                if dropped and not at_end:
                    return False
                left = due - time.monotonic()
                if way not in self._held and not dropped and left <= 0:
                    return True
                self._changed.wait(min(0.05, left) if left > 0 else 0.05)
        return False

    def _taken(self) -> list[_Pair]:
        with self._changed:
            return list(self._pairs)

    def _close(self, pairs: Iterable[_Pair], *, reset: bool = False) -> None:
        for pair in pairs:
            with self._changed:
                if pair not in self._pairs:
                    continue
                self._pairs.discard(pair)
                pair.closed = True
                self._changed.notify_all()
            pair.close(reset=reset)


def _listener(port: int) -> socket.socket:
    # The accepting thread lets go of a refused listener within its 50 ms; until then it is bound.
    for _ in range(20):
        with suppress(OSError):
            return socket.create_server(("127.0.0.1", port), backlog=128)
        time.sleep(0.02)
    return socket.create_server(("127.0.0.1", port), backlog=128)


def _send(pair: _Pair, sink: socket.socket, chunk: bytes) -> bool:
    """Send all of it, however slowly the other side reads; False when that side is gone."""
    view = memoryview(chunk)
    while view and not pair.closed:
        try:
            view = view[sink.send(view) :]
        except TimeoutError:
            continue
        except OSError:
            return False
    return not pair.closed
