"""Where client and servers run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.server import Server


@contextmanager
def one_core(wanted: bool, *servers: Server) -> Iterator[None]:
    """Client and servers on one core, where the system lets us choose.

    A pair on one server is strictly one after the other, so a second core gains nothing; but waking
    it costs more than the pair, and whether it must be woken differs from round to round.
    """
    if not wanted or not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    core = {min(before)}
    for server in servers:
        for thread in os.listdir(f"/proc/{server.pid}/task"):
            os.sched_setaffinity(int(thread), core)
    os.sched_setaffinity(0, core)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
