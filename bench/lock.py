"""Locks measured: `python bench/lock.py [--quick] [--only SECTION] [--json FILE]`.

Starts its own servers, measures holdfast and its peers in interleaved rounds, and says for every
goal whether the numbers of this run meet it. Everything is a ratio within one run, or a count.
"""

from __future__ import annotations

from collections.abc import Callable

import _command
import _contended
import _idle
import _imports
import _pairs
from _report import Section

PEERS = (
    "redis",
    "hiredis",
    "msgspec",
    "python-redis-lock",
    "pottery",
    "py-redis-semaphore",
    "portalocker",
    "valkey-glide",
)
SECTIONS: dict[str, Callable[[bool], Section]] = {
    "blocking": _pairs.blocking,
    "asyncio": _pairs.asynchronous,
    "contended": _contended.contended,
    "waiting": _idle.waiting,
    "renewal": _idle.renewing,
    "import": _imports.imports,
}


if __name__ == "__main__":
    _command.run("Locks measured.", SECTIONS, PEERS, "lock.json")
