"""Fixtures for the whole suite: real servers, started once, and a fresh name for each test."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import redis
import redis.sentinel

import holdfast
from holdfast.server import Server, ServerBinary, find_servers

from .support.kit import COLOURS, Deployment, Everywhere, Kit, plain
from .support.topologies import start_cluster, start_sentinel_pair

BINARIES = find_servers()
_names = itertools.count(1)


def pytest_report_header() -> str:
    found = ", ".join(binary.label for binary in BINARIES) or "none"
    return f"servers at hand: {found}"


class Fleet:
    """Starts each deployment when a test first asks for it; all end with the session."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._made: dict[str, Deployment] = {}

    def get(self, label: str) -> Deployment:
        if label not in self._made:
            self._made[label] = self._make(label)
        return self._made[label]

    def server(self, binary: ServerBinary) -> Server:
        label = f"{binary.label}-tcp"
        return self.get(label).server

    def _make(self, label: str) -> Deployment:
        if label == "sentinel":
            pair = self._stack.enter_context(start_sentinel_pair(BINARIES[0]))
            service = redis.sentinel.Sentinel(pair.sentinels)
            return Deployment(label, pair.url, lambda: service.master_for(pair.name), sentinel=pair)
        if label == "cluster":
            nodes = self._stack.enter_context(start_cluster(BINARIES[0]))
            host, port = "127.0.0.1", nodes.nodes[0].port
            return Deployment(
                label, nodes.url, lambda: redis.RedisCluster(host=host, port=port), cluster=nodes
            )
        if label.startswith("quorum"):
            members = tuple(
                self._stack.enter_context(Server(BINARIES[number % len(BINARIES)]))
                for number in range(int(label.removeprefix("quorum-")))
            )
            urls = [server.url for server in members]
            options = {"max_lease": 3600}  # as it is with one primary
            with holdfast.connect(urls, **options) as new:
                assert set(new.bootstrap().values()) == {None}
            return Deployment(
                label,
                urls,
                lambda: Everywhere([plain(url) for url in urls]),
                members=members,
                options=options,
            )
        name, _, transport = label.rpartition("-")
        other = self._made.get(f"{name}-{'unix' if transport == 'tcp' else 'tcp'}")
        if other is not None:
            server = other.server
        else:
            binary = next(b for b in BINARIES if b.label == name)
            server = self._stack.enter_context(Server(binary))
        url = server.url if transport == "tcp" else server.unix_url
        return Deployment(label, url, lambda: plain(server.url), server=server)


DEPLOYMENTS = [
    *(f"{binary.label}-{transport}" for binary in BINARIES for transport in ("tcp", "unix")),
    "sentinel",
    "cluster",
]
# Several primaries: of as many kinds of server as there are, one after the other. Tests of what
# every lock does run there as well; those that look into the fair lock's own keys do not.
QUORUMS = ["quorum-3"]


@pytest.fixture(scope="session")
def fleet() -> Iterator[Fleet]:
    with ExitStack() as stack:
        yield Fleet(stack)


@pytest.fixture
def name() -> str:
    """A lock name that no other test uses."""
    return f"lock-{next(_names)}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "kit" in metafunc.fixturenames and not getattr(metafunc.module, "OWN_KIT", False):
        only = metafunc.definition.get_closest_marker("deployments")
        labels = [
            label for label in [*DEPLOYMENTS, *QUORUMS] if only is None or only.args[0](label)
        ]
        grid = [(colour, label) for label in labels for colour in COLOURS]
        metafunc.parametrize("kit", grid, indirect=True, ids=[f"{c}-{d}" for c, d in grid])
    marks = metafunc.definition.iter_markers("parametrize")
    own = {name for mark in marks for name in str(mark.args[0]).replace(" ", "").split(",")}
    if "binary" in metafunc.fixturenames and "binary" not in own:
        metafunc.parametrize("binary", BINARIES, ids=[b.label for b in BINARIES])


@pytest.fixture
def kit(request: pytest.FixtureRequest, fleet: Fleet, name: str) -> Iterator[Kit]:
    """A colour and a deployment for a conformance test."""
    colour, label = request.param
    made = COLOURS[colour](fleet.get(label), name, colour)
    yield made
    made.raw.close()


@pytest.fixture
def server(fleet: Fleet) -> Server:
    """The newest server, shared by all tests of the session: leave it running and unchanged."""
    return fleet.server(BINARIES[0])


@pytest.fixture
def raw(server: Server) -> Iterator[redis.Redis]:
    """A plain client on the shared server."""
    with plain(server.url) as client:
        yield client


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Conformance tests are coroutines; the kit of their colour runs them."""
    test: Callable[..., Any] = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    wanted = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    wanted["kit"].execute(lambda: test(**wanted))
    return True
