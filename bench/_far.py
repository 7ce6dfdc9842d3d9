"""Section 4: the servers are some way off, as independent ones are.

On one machine a round trip costs nothing but work, so those that make five of them one after the
other look nearly as quick as those that make one. Here a process between the client and the servers
holds back all that passes, both ways alike.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import _aquorum
import _fan
import _quorum
import _votes
from _report import Section
from _rounds import Figures, over, raw_figures

from holdfast.server import Server

NODES = 5
ONE_WAY_MS = 1.0


class FarNode:
    """A server as it is seen from afar."""

    def __init__(self, server: Server, port: int) -> None:
        self._server = server
        self.port = port
        self.url = f"redis://127.0.0.1:{port}/0"

    def command(self, *words: Any) -> Any:
        """Ask the server itself."""
        return self._server.command(*words)


@contextmanager
def moved_away(nodes: Sequence[Server]) -> Iterator[list[FarNode]]:
    """The same servers behind the process that holds everything back."""
    ports = [str(node.port) for node in nodes]
    process = subprocess.Popen([sys.executable, __file__, *ports], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        found = process.stdout.readline().split()
        yield [FarNode(node, int(port)) for node, port in zip(nodes, found, strict=True)]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


class _End(asyncio.Protocol):
    """One end of a forwarded connection: what it receives goes out at the other, later."""

    def __init__(self, target: int | None) -> None:
        self._target = target
        self.other: asyncio.Transport | None = None
        self._early: list[bytes] = []
        self._opening: asyncio.Task[None] | None = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        if self._target is not None:
            self._opening = asyncio.ensure_future(self._open())

    async def _open(self) -> None:
        loop = asyncio.get_running_loop()
        _, end = await loop.create_connection(lambda: _End(None), "127.0.0.1", self._target)
        end.other, self.other = self.transport, end.transport
        for data in self._early:
            self.data_received(data)

    def data_received(self, data: bytes) -> None:
        if self.other is None:
            self._early.append(data)
        else:
            loop = asyncio.get_running_loop()
            loop.call_later(ONE_WAY_MS / 1000, self.other.write, data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.other is not None:
            self.other.close()


async def _forward(targets: list[int]) -> None:
    loop = asyncio.get_running_loop()
    servers = [
        await loop.create_server(lambda target=target: _End(target), "127.0.0.1", 0)  # type: ignore[misc]
        for target in targets
    ]
    print(*(server.sockets[0].getsockname()[1] for server in servers), flush=True)
    await asyncio.Event().wait()


def far(quick: bool) -> Section:
    """Section 4: nobody else wants the lock, and every round trip takes its time."""
    section = Section(
        "far", f"4. Uncontended pair over {NODES} primaries, {ONE_WAY_MS:g} ms away each way"
    )
    section.columns = ["", "us", "x holdfast"]
    notes: list[str] = []
    tables: dict[str, dict[str, Figures]] = {}
    with _fan.primaries(NODES) as servers, moved_away(servers) as nodes:
        tables[_votes.BLOCKING] = _votes.blocking(nodes, quick, False, notes)
        tables[_votes.ASYNCIO] = _votes.one_task(nodes, quick, False, notes)
    ours = _quorum.Holdfast.title
    for colour, figures in tables.items():
        kinds = _quorum.PEERS if colour == _votes.BLOCKING else _aquorum.ASYNC_PEERS
        for title in (_votes.RAW, *(kind.title for kind in kinds)):
            us = figures[title].us if title in figures else None
            section.rows.append([f"{colour}: {title}", us, over(figures, title, ours)])
        blocking = colour == _votes.BLOCKING
        section.goals += _votes.goals(figures, f"5 nodes far away, {colour}", blocking=blocking)
    section.notes = [
        "A process between client and servers holds back what passes. Its timers add up to another "
        "millisecond, for everybody alike; the raw fan-out shows what two round trips take.",
        *notes,
    ]
    section.raw = {colour: raw_figures(figures) for colour, figures in tables.items()}
    return section


if __name__ == "__main__":
    asyncio.run(_forward([int(port) for port in sys.argv[1:]]))
