"""Choosing a TCP port that nobody uses."""

from __future__ import annotations

import random
import socket
from collections.abc import Sequence

# Below the range from which Linux (32768) and macOS (49152) take the ports of outgoing
# connections. A port inside that range can be taken while its server is down, even by a client
# that tries to reconnect to it and so connects to itself.
_QUIET = range(20_000, 30_000)


def is_free(port: int) -> bool:
    """True when `port` can be bound on 127.0.0.1 now. It says nothing about a moment later."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: connections of a former owner that are in TIME_WAIT do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def free_port(candidates: range = _QUIET, *, also: Sequence[int] = ()) -> int:
    """A port of 127.0.0.1 that is free now, picked at random from `candidates`.

    Each number in `also` is an offset that must be free too (a cluster node needs port + 10000).
    When no candidate is found in a hundred tries, the system is asked for any free port.
    """
    for _ in range(100):
        port = random.choice(candidates)
        if all(is_free(port + offset) for offset in (0, *also)):
            return port
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
