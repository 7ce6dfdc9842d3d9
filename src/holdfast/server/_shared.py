"""The one embedded server of a process, behind `connect("embedded:")`."""

from __future__ import annotations

import os
import threading

from holdfast.server._server import Server


class _Shared:
    def __init__(self) -> None:
        # Re-entrant: a client collected while we hold it releases its share in this thread.
        self.lock = threading.RLock()
        self.server: Server | None = None
        self.users = 0


_shared = _Shared()


def acquire_shared() -> Server:
    """This process's embedded server, started on first use, with one more user counted.

    Every call is to be matched by one `release_shared(server)`. A server found dead is started
    again on the same port, empty. A forked child that asks gets a server of its own. Raises
    `ServerNotFound` or `NodeError`, as `Server.start` does, and then counts nothing.
    """
    shared = _shared
    with shared.lock:
        server = shared.server = shared.server or Server()
        shared.users += 1
        try:
            return server.start()
        except BaseException:
            release_shared(server)
            raise


def release_shared(server: Server | None = None) -> None:
    """Count one user less; the last one stops the server. Never raises on a surplus call.

    Pass the `server` that was acquired: then a release of what was inherited over a fork does not
    count against the child's own server.
    """
    shared = _shared
    with shared.lock:
        current = shared.server
        if current is None or (server is not None and server is not current):
            return
        shared.users -= 1
        if shared.users <= 0:
            shared.server = None
            shared.users = 0
            current.stop()


def _in_forked_child() -> None:
    global _shared
    _shared = _Shared()  # with a lock that no thread of the parent can have left locked


os.register_at_fork(after_in_child=_in_forked_child)
