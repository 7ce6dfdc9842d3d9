"""Ways in which a node of a quorum is of no use, each done to a real server."""

from __future__ import annotations

import time
from collections.abc import Callable

import redis

from holdfast.server import Server
from tests.support.kit import plain
from tests.support.proxy import Proxy

Trouble = Callable[[Server, Proxy], None]


def _down(server: Server, _: Proxy) -> None:
    server.kill()


def _silent(server: Server, _: Proxy) -> None:
    server.pause()


def _refusing(_: Server, proxy: Proxy) -> None:
    proxy.refuse()
    proxy.reset()


def _slow(_: Server, proxy: Proxy) -> None:
    proxy.delay(1.5, "down")


def _configured(*words: str) -> Trouble:
    def cause(server: Server, _: Proxy) -> None:
        server.command(*words)

    return cause


def _no_auth(server: Server, proxy: Proxy) -> None:
    server.command("CONFIG", "SET", "requirepass", "secret")
    proxy.reset()  # connections that are open stay authenticated


def _misconf(server: Server, _: Proxy) -> None:
    # A snapshot that cannot be written: its file's name is taken by a folder.
    (server.socket.parent / "dump.rdb" / "in the way").mkdir(parents=True)
    server.command("CONFIG", "SET", "save", "3600 1000000")
    with plain(server.url) as raw:
        raw.set("unsaved", "1", px=60_000)
        raw.bgsave()
        for _ in range(500):
            if raw.info("persistence")["rdb_last_bgsave_status"] == "err":
                return
            time.sleep(0.01)
    raise AssertionError("the snapshot was written")


def _loading(server: Server, _: Proxy) -> None:
    # Told to load its own snapshot again, slowly enough to be seen at it.
    with plain(server.url) as raw:
        raw.mset({f"load:{number}": "x" * 4096 for number in range(400)})
        raw.config_set("key-load-delay", 20_000)
        raw.config_set("loading-process-events-interval-bytes", 2048)
    connection = redis.Connection(host="127.0.0.1", port=server.port)
    connection.connect()
    connection.send_command("DEBUG", "RELOAD")
    with plain(server.url) as raw:
        for _ in range(500):
            try:
                raw.get("x")
            except redis.exceptions.BusyLoadingError:
                return
            time.sleep(0.01)
    raise AssertionError("the server does not load")


TROUBLES: dict[str, tuple[Trouble, str]] = {
    "down": (_down, "cannot be reached|broke the connection|passed over"),
    "silent": (_silent, "did not answer in time|could not be connected|passed over|reached"),
    "refusing": (_refusing, "cannot be reached|broke the connection|passed over"),
    "slow": (_slow, "did not answer in time|could not be connected|passed over|reached"),
    "oom": (_configured("CONFIG", "SET", "maxmemory", "1"), "OOM"),
    "readonly": (_configured("REPLICAOF", "127.0.0.1", "1"), "READONLY|MASTERDOWN|passed over"),
    "misconf": (_misconf, "MISCONF"),
    "noauth": (_no_auth, "refuses the user|passed over|broke the connection"),
    "loading": (_loading, "LOADING|loading|did not answer in time|passed over|reached"),
}
"""What is done to a node, and what is said of it then in the votes."""
