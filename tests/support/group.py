"""What every topology is made of: several servers, and waiting for what they report."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Self

from holdfast.errors import NodeError
from holdfast.server import Reply, Server

HOST = "127.0.0.1"
PROMPT_SYNC = ("--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0")


def wait_until(condition: Callable[[], object], what: str, seconds: float = 20.0) -> None:
    """Return once `condition()` is true; after `seconds`, fail and say `what` was awaited.

    An error reply, or no reply, counts as not yet.
    """
    deadline = time.monotonic() + seconds
    last: Exception | None = None
    while time.monotonic() < deadline:
        try:
            if condition():
                return
        except NodeError as error:
            last = error
        time.sleep(0.02)
    raise AssertionError(f"waited {seconds:g} s for {what}" + (f"; last: {last}" if last else ""))


def info(server: Server, section: str) -> dict[str, str]:
    """The fields of INFO (or, for "cluster", of CLUSTER INFO)."""
    text = server.command("CLUSTER", "INFO") if section == "cluster" else None
    text = text or server.command("INFO", section)
    return dict(line.split(":", 1) for line in str(text).splitlines() if ":" in line)


def words_of(reply: Reply) -> list[str]:
    assert isinstance(reply, list)
    return [str(item) for item in reply]


class Group:
    """Servers that are started one by one and stopped together, also when starting fails."""

    def __init__(self) -> None:
        self._stack = ExitStack()

    def _add(self, server: Server) -> Server:
        self._stack.callback(server.stop)
        return server.start()

    def stop(self) -> None:
        """Stop every server. May be repeated."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
