"""Floors over several servers: written to all of them, then read from all of them.

As in _floor.py there are two. *raw*: `SET NX PX`, and a compare-and-delete by EVALSHA. *our
scripts*: what holdfast sends, byte for byte except for the fence, which must grow from one grant to
the next.
"""

from __future__ import annotations

import itertools
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import hiredis
from _floor import NAME, Recorder, raw_requests, words
from _peers import LEASE_S

from holdfast.server import Server

FENCE_DIGITS = 15  # nothing else in a request is a number of so many digits

# One node's acquire and release, in pieces between which the fence of the moment stands.
Pair = tuple[list[bytes], list[bytes]]


@contextmanager
def primaries(count: int) -> Iterator[list[Server]]:
    """So many servers that know nothing of each other, declared to be new."""
    import holdfast

    with ExitStack() as stack:
        nodes = [stack.enter_context(Server()) for _ in range(count)]
        if count > 1:
            with holdfast.connect([node.url for node in nodes]) as hf:
                failed = {name: error for name, error in hf.bootstrap().items() if error}
                assert not failed, failed
        yield nodes


def target(nodes: Sequence[Any]) -> Any:
    """What holdfast.connect() is given for these servers."""
    return nodes[0].url if len(nodes) == 1 else [node.url for node in nodes]


def raw(nodes: Sequence[Server], name: str) -> list[Pair]:
    """The least that a lock can be, for each node."""
    pairs = (raw_requests(node, name, f"{name}:{'0' * 32}") for node in nodes)
    return [([acquire], [release]) for acquire, release in pairs]


def recorded(nodes: Sequence[Server]) -> list[Pair]:
    """What holdfast sends to each node for an uncontended pair."""
    import holdfast

    recorders = [Recorder(node.port) for node in nodes]
    try:
        with holdfast.connect(target(recorders)) as hf:
            lock = hf.lock(NAME, lease=LEASE_S)
            for _ in range(50):
                hold = lock.acquire()
                acquires = _taken(recorders)
                hold.release()
                releases = _taken(recorders)
                if all(map(_is_known, nodes, acquires)):
                    break
    finally:
        for recorder in recorders:
            recorder.close()
    return [
        (_pieces(acquire, acquire), _pieces(release, acquire))
        for acquire, release in zip(acquires, releases, strict=True)
    ]


def _taken(recorders: Sequence[Recorder]) -> list[bytes]:
    time.sleep(0.05)  # a majority is enough for holdfast, not for a recording
    return [recorder.take() for recorder in recorders]


def _is_known(node: Server, request: bytes) -> bool:
    """Whether this is what a node is sent from the second time on, and can do."""
    if not request or hiredis.pack_command(tuple(words(request))) != request:
        return False  # connecting, or more than one command
    verb, digest, *_ = words(request)
    return verb == b"EVALSHA" and node.command("SCRIPT", "EXISTS", digest) == [1]


def _pieces(request: bytes, acquire: bytes) -> list[bytes]:
    """A request without the fence that its acquire proposes; over one server there is none."""
    found = {it for it in words(acquire) if it.isdigit() and len(it) >= FENCE_DIGITS}
    assert len(found) <= 1, f"which of these is the fence? {found}"
    return request.split(found.pop()) if found else [request]


def fences() -> Iterator[bytes]:
    """Larger and larger ones, each of as many digits as a recorded one, and larger than it."""
    return map(b"%d".__mod__, itertools.count(time.time_ns() // 1000 + 10_000_000))


class Fan:
    """One blocking socket for each node. Replies are not looked at, except in check()."""

    title = "raw fan-out: SET, EVALSHA"

    def __init__(self, nodes: Sequence[Server]) -> None:
        pairs = self.requests(nodes)
        self._fences = fences()
        self._sockets = []
        for node in nodes:
            sock = socket.create_connection(("127.0.0.1", node.port))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sockets.append(sock)
        self._acquires = [pieces for pieces, _ in pairs]
        self._releases = [pieces for _, pieces in pairs]

    def requests(self, nodes: Sequence[Server]) -> list[Pair]:
        """What is sent."""
        return raw(nodes, "bench:raw")

    def reused(self, name: str) -> Callable[[int], None]:
        """As that of a peer."""
        return self.pairs

    def pairs(self, count: int) -> None:
        """Acquire and release, so many times."""
        fences = self._fences
        acquires = [
            (sock.sendall, pieces)
            for sock, pieces in zip(self._sockets, self._acquires, strict=True)
        ]
        releases = [
            (sock.sendall, pieces)
            for sock, pieces in zip(self._sockets, self._releases, strict=True)
        ]
        receives = [sock.recv for sock in self._sockets]
        for _ in range(count):
            fence = next(fences)
            for send, pieces in acquires:
                send(fence.join(pieces))
            for receive in receives:
                receive(4096)
            for send, pieces in releases:
                send(fence.join(pieces))
            for receive in receives:
                receive(4096)

    def check(self) -> None:
        """Every node grants, and takes the lock back."""
        fence = next(self._fences)
        for requests in (self._acquires, self._releases):
            for sock, pieces in zip(self._sockets, requests, strict=True):
                sock.sendall(fence.join(pieces))
                reader = hiredis.Reader()
                reader.feed(sock.recv(4096))
                reply = reader.gets()
                assert granted(reply), reply

    def close(self) -> None:
        """Close the sockets."""
        for sock in self._sockets:
            sock.close()


class OurFan(Fan):
    """The same with what holdfast sends."""

    title = "raw fan-out: our scripts"

    def requests(self, nodes: Sequence[Server]) -> list[Pair]:
        return recorded(nodes)


def granted(reply: Any) -> bool:
    """Whether a node did what it was asked to do."""
    return (reply[0] if isinstance(reply, list) else reply) in (b"OK", 1)
