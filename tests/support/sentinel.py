"""A primary, its replica, and three sentinels."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from holdfast.server import Server, ServerBinary
from tests.support.group import HOST, PROMPT_SYNC, Group, info, wait_until, words_of


class SentinelPair(Group):
    """`primary` and `replica` as they were at the start, and three sentinels that watch them."""

    def __init__(self, binary: ServerBinary, name: str) -> None:
        super().__init__()
        self.name = name
        try:
            self.primary = self._add(Server(binary, args=PROMPT_SYNC))
            self.replica = self._add(
                Server(binary, args=(*PROMPT_SYNC, "--replicaof", HOST, str(self.primary.port)))
            )
            wait_until(
                lambda: info(self.replica, "replication")["master_link_status"] == "up",
                "the replica's link",
            )
            self.sentinel_servers = [self._add(self._sentinel(binary)) for _ in range(3)]
            wait_until(self._complete, "the sentinels to know each other and the replica")
        except BaseException:
            self.stop()
            raise

    def _sentinel(self, binary: ServerBinary) -> Server:
        folder = Path(tempfile.mkdtemp(prefix="hf-sentinel-"))
        self._stack.callback(shutil.rmtree, folder, ignore_errors=True)
        config = folder / "sentinel.conf"  # a sentinel insists on a file, which it then rewrites
        config.write_text(
            f"sentinel monitor {self.name} {HOST} {self.primary.port} 2\n"
            f"sentinel down-after-milliseconds {self.name} 500\n"
            f"sentinel failover-timeout {self.name} 2000\n"
            f"sentinel parallel-syncs {self.name} 1\n"
        )
        return Server(binary, args=(str(config), "--sentinel"))

    def _complete(self) -> bool:
        for server in self.sentinel_servers:
            words = words_of(server.command("SENTINEL", "MASTER", self.name))
            facts = dict(zip(words[::2], words[1::2], strict=True))
            counts = facts["num-slaves"], facts["num-other-sentinels"]
            if counts != ("1", "2") or facts["flags"] != "master":
                return False
        return True

    @property
    def sentinels(self) -> list[tuple[str, int]]:
        """The addresses of the sentinels."""
        return [(HOST, server.port) for server in self.sentinel_servers]

    @property
    def url(self) -> str:
        """The address of the whole: "redis+sentinel://h:p,h:p,h:p/name"."""
        where = ",".join(f"{host}:{port}" for host, port in self.sentinels)
        return f"redis+sentinel://{where}/{self.name}"

    def primary_port(self) -> int:
        """The port of the primary as the first sentinel that answers sees it now."""
        for server in self.sentinel_servers:
            if server.running:
                reply = server.command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.name)
                return int(words_of(reply)[1])
        raise AssertionError("no sentinel is running")

    def wait_for_failover(self, seconds: float = 20.0) -> Server:
        """Wait until all sentinels name the replica, and it is a primary; return it."""

        def done() -> bool:
            named = [
                words_of(server.command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.name))[1]
                for server in self.sentinel_servers
                if server.running
            ]
            return set(named) == {str(self.replica.port)} and (
                info(self.replica, "replication")["role"] == "master"
            )

        wait_until(done, "the failover", seconds)
        return self.replica


def start_sentinel_pair(binary: ServerBinary, name: str = "mymaster") -> SentinelPair:
    """Start a primary, a replica and three sentinels (quorum 2); takes a few seconds."""
    return SentinelPair(binary, name)
