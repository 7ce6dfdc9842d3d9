"""Several primaries of a test's own, which it may kill, freeze, cut off and lie to about the time."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from typing import Any, Self

import redis
from lab.clock import NodeClock

import holdfast
from holdfast.core.keys import aux
from holdfast.errors import UsageError
from holdfast.server import Server, find_servers
from tests.support.kit import Deployment, Everywhere, plain
from tests.support.proxy import Proxy


class Quorum:
    """N independent servers, of as many kinds as are at hand; nobody has voted there yet.

    `clocks` gives every node a wall clock of its own. `new` leaves them undeclared: with a guard
    they grant nothing for `max_lease`, and `bootstrap()` ends that. `debug` allows DEBUG.
    """

    def __init__(
        self,
        count: int,
        *,
        clocks: bool = False,
        new: bool = False,
        persistent: bool = False,
        debug: bool = False,
        args: tuple[str, ...] = (),
        **options: Any,
    ) -> None:
        self._stack = ExitStack()
        self.options = options
        self.clocks: list[NodeClock] = []
        self.nodes: list[Server] = []
        self.proxies: list[Proxy] = []
        binaries = find_servers()
        try:
            for number in range(count):
                env = None
                if clocks:
                    clock = self._stack.enter_context(NodeClock())
                    self.clocks.append(clock)
                    env = clock.env
                binary = binaries[number % len(binaries)]
                words = args
                if debug and binary.version >= (7,):  # older ones always allow it
                    words = (*args, "--enable-debug-command", "yes")
                server = Server(binary, env=env, persistent=persistent, args=words)
                self.nodes.append(self._stack.enter_context(server))
            self.raws = [plain(node.url) for node in self.nodes]
            for raw in self.raws:
                self._stack.callback(raw.close)
            if not new and options.get("guard", True):
                self.bootstrap()
        except BaseException:
            self.stop()
            raise

    @property
    def urls(self) -> list[str]:
        """Where clients connect: through the proxies, if there are any."""
        return [each.url for each in (self.proxies or self.nodes)]

    def bootstrap(self) -> None:
        """Declare all nodes new."""
        with holdfast.connect([node.url for node in self.nodes], **self.options) as hf:
            assert set(hf.bootstrap().values()) == {None}

    def through_proxies(self) -> Self:
        """From now on `urls` lead through proxies, one for each node."""
        self.proxies = [self._stack.enter_context(Proxy(node.port)) for node in self.nodes]
        return self

    def side(self, *reachable: int) -> list[str]:
        """The URLs of a client that reaches these nodes only: the others refuse it."""
        urls = [node.url for node in self.nodes]
        for number, node in enumerate(self.nodes):
            if number not in reachable:
                cut = self._stack.enter_context(Proxy(node.port))
                cut.refuse()
                urls[number] = cut.url
        return urls

    def deployment(self) -> Deployment:
        """The same, for a kit."""
        return Deployment(
            f"own-quorum-{len(self.nodes)}",
            self.urls,
            lambda: Everywhere([plain(node.url) for node in self.nodes]),
            members=tuple(self.nodes),
            options=self.options,
        )

    def owners(self, name: str, *numbers: int) -> list[str | None]:
        """Who has the key, on these nodes (or on all); "?" where nobody says.

        Leave out those that are silent: they would hold the test up.
        """
        found: list[str | None] = []
        for raw in [self.raws[number] for number in numbers] or self.raws:
            try:
                value = raw.get(name)
            except redis.RedisError:
                found.append("?")
            else:
                found.append(value.decode() if isinstance(value, bytes) else None)
        return found

    def left(self, name: str) -> list[list[str]]:
        """What still stands in somebody's way, on each node: the lock, or a place in the queue."""
        return [
            ([name] if raw.exists(name) else [])
            + [str(owner) for owner in raw.zrange(aux(name, "queue"), 0, -1)]
            for raw in self.raws
        ]

    def without_ttl(self) -> list[bytes]:
        """Keys that would stay for ever, on any node."""
        return [key for raw in self.raws for key in raw.scan_iter("*") if raw.pttl(key) == -1]

    def stop(self) -> None:
        """Stop everything. May be repeated."""
        for node in self.nodes:
            with suppress(UsageError):
                node.resume()
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
