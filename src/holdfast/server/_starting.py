"""What a start needs around the process: a folder, a log, and to know when the server answers."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from holdfast.server._resp import RefusedError, ask

_LONGEST_SOCKET = 100  # bytes; the systems allow 103 (macOS) and 107 (Linux)


def short_folder() -> Path:
    """A new temporary folder, in which the path of a socket stays within the systems' limits."""
    base = tempfile.gettempdir()
    if len(os.fsencode(base)) + len("/hf-12345678/s.sock") > _LONGEST_SOCKET:
        base = "/tmp"
    return Path(tempfile.mkdtemp(prefix="hf-", dir=base))


class Log:
    """A server's log file, which may not exist (any more)."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def size(self) -> int:
        """Its length in bytes; 0 if it does not exist."""
        try:
            return self.path.stat().st_size
        except OSError:
            return 0

    def text(self, offset: int = 0) -> str:
        """What was written at `offset` and after; empty if it cannot be read."""
        try:
            with self.path.open("rb") as stream:
                stream.seek(offset)
                return stream.read().decode(errors="replace")
        except OSError:
            return ""


def wait_until_alive(socket: Path, ended: Callable[[], bool], seconds: float) -> str | None:
    """Return None once the server answers on `socket`, else what went wrong, for a message.

    Loading its data is not alive; refusing us for want of a password is.
    """
    deadline = time.monotonic() + seconds
    pause = 0.002
    while time.monotonic() < deadline:
        if ended():
            return "did not start"
        try:
            ask(socket, ("PING",), 1.0)
        except RefusedError as error:
            if not str(error).startswith("LOADING"):
                return None
        except OSError:
            pass
        else:
            return None
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)
    return f"did not answer within {seconds:g} seconds"
