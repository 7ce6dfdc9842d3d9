"""The helpers of this suite do what the tests that rely on them believe."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.errors import NodeError
from holdfast.server import Server, ServerBinary, find_servers
from tests.support.proxy import Proxy
from tests.support.topologies import (
    info,
    make_certificates,
    start_cluster,
    start_sentinel_pair,
    tls_binary,
    tls_server,
    wait_until,
)

every_binary = pytest.mark.parametrize("binary", find_servers(), ids=lambda binary: binary.label)


@every_binary
def test_sentinels_agree_on_the_primary_and_replace_it(binary: ServerBinary) -> None:
    with start_sentinel_pair(binary, "orders") as pair:
        assert pair.primary_port() == pair.primary.port
        assert len(pair.sentinels) == 3
        host, port = pair.sentinels[0]
        assert pair.url.startswith(f"redis+sentinel://{host}:{port},")
        assert pair.url.endswith("/orders")
        pair.primary.command("SET", "k", "v")
        assert pair.primary.command("WAIT", 1, 2000) == 1
        pair.primary.kill()
        assert pair.wait_for_failover() is pair.replica
        assert pair.primary_port() == pair.replica.port
        assert pair.replica.command("GET", "k") == "v"
    assert not pair.replica.running
    pair.stop()


@every_binary
def test_a_slot_moves_between_the_nodes_of_a_cluster(binary: ServerBinary) -> None:
    with start_cluster(binary) as cluster:
        assert cluster.url.count(",") == 2
        slot = cluster.slot_of("{k}1")
        source = cluster.owner_of(slot)
        target = (source + 1) % 3
        old, new = cluster.nodes[source], cluster.nodes[target]
        old.command("MSET", "{k}1", "one", "{k}2", "two")
        cluster.begin_move(slot, source, target)
        assert old.command("GET", "{k}1") == "one"
        with pytest.raises(NodeError, match=f"ASK {slot} 127.0.0.1:{new.port}"):
            old.command("GET", "{k}3")
        assert cluster.migrate_keys(slot, source, target) == 2
        with pytest.raises(NodeError, match="ASK"):
            old.command("GET", "{k}1")
        cluster.finish_move(slot, source, target)
        assert cluster.owner_of(slot) == target
        assert new.command("GET", "{k}2") == "two"
        with pytest.raises(NodeError, match="MOVED"):
            old.command("GET", "{k}1")
        cluster.move_slot(slot, target, source)
        assert old.command("GET", "{k}2") == "two"


@every_binary
def test_a_replica_of_a_cluster_takes_over(binary: ServerBinary) -> None:
    with start_cluster(binary, replicas=1) as cluster:
        assert len(cluster.nodes) == 6
        taken_over = cluster.failover(1)
        assert taken_over is cluster.replicas[1]
        assert info(taken_over, "replication")["role"] == "master"


def test_a_tls_server_speaks_tls_and_nothing_else(tmp_path: Path) -> None:
    binary = tls_binary()
    if binary is None:
        pytest.skip("no server here was built with TLS")
    certs = make_certificates(tmp_path)
    context = ssl.create_default_context(cafile=str(certs.ca))
    with tls_server(binary, certs) as server:
        assert server.url == f"rediss://127.0.0.1:{server.port}/0"
        with (
            socket.create_connection(("127.0.0.1", server.port), 5) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as secured,
        ):
            secured.sendall(b"PING\r\n")
            assert secured.recv(100) == b"+PONG\r\n"
        context.load_cert_chain(certs.cert, certs.key)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as started:
        yield started


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy(server.port) as proxy:
        yield proxy


Connect = Callable[[], socket.socket]


@pytest.fixture
def connect(proxy: Proxy) -> Iterator[Connect]:
    opened: list[socket.socket] = []

    def one() -> socket.socket:
        opened.append(socket.create_connection(("127.0.0.1", proxy.port), 5))
        return opened[-1]

    yield one
    for sock in opened:
        sock.close()


def ask(sock: socket.socket, line: str, timeout: float = 5.0) -> bytes:
    sock.settimeout(timeout)
    sock.sendall(line.encode() + b"\r\n")
    return sock.recv(65_536)


def test_the_proxy_forwards_and_counts(proxy: Proxy, connect: Connect) -> None:
    first, second = connect(), connect()
    assert ask(first, "PING") == b"+PONG\r\n"
    assert ask(second, "ECHO hello") == b"$5\r\nhello\r\n"
    assert (proxy.count, proxy.open) == (2, 2)
    first.close()
    wait_until(lambda: proxy.open == 1, "the proxy to see the end")


def test_the_proxy_passes_large_replies_whole(proxy: Proxy, connect: Connect) -> None:
    sock = connect()
    size = 3_000_000
    assert ask(sock, "SETRANGE big 2999999 x") == b":3000000\r\n"
    sock.sendall(b"GET big\r\n")
    received = 0
    while received < size + len(b"$3000000\r\n\r\n"):
        received += len(sock.recv(1 << 20))
    assert received == size + 12


def test_the_proxy_delays(proxy: Proxy, connect: Connect) -> None:
    sock = connect()
    proxy.delay(0.15)
    begun = time.monotonic()
    assert ask(sock, "PING") == b"+PONG\r\n"
    assert time.monotonic() - begun >= 0.3
    proxy.heal()
    begun = time.monotonic()
    ask(sock, "PING")
    assert time.monotonic() - begun < 0.1


def test_the_proxy_holds_and_releases(proxy: Proxy, connect: Connect, server: Server) -> None:
    sock = connect()
    proxy.hold("down")
    with pytest.raises(TimeoutError):
        ask(sock, "SET held 1", 0.2)
    assert server.command("GET", "held") == "1"
    proxy.release()
    sock.settimeout(5)
    assert sock.recv(100) == b"+OK\r\n"
    proxy.hold("up")
    with pytest.raises(TimeoutError):
        ask(sock, "SET held 2", 0.2)
    assert server.command("GET", "held") == "1"
    proxy.release("up")
    sock.settimeout(5)
    assert sock.recv(100) == b"+OK\r\n"


def test_the_proxy_drops_silently(proxy: Proxy, connect: Connect, server: Server) -> None:
    sock = connect()
    proxy.drop("up")
    with pytest.raises(TimeoutError):
        ask(sock, "SET dropped 1", 0.2)
    proxy.heal()
    assert ask(sock, "PING") == b"+PONG\r\n"
    assert server.command("GET", "dropped") is None


def test_the_proxy_loses_one_reply(proxy: Proxy, connect: Connect, server: Server) -> None:
    sock, other = connect(), connect()
    ask(sock, "PING")
    proxy.drop_next_reply()
    assert ask(sock, "SET lost 1") == b""
    assert server.command("GET", "lost") == "1"
    assert ask(other, "PING") == b"+PONG\r\n"


def test_the_proxy_resets(proxy: Proxy, connect: Connect) -> None:
    sock, other = connect(), connect()
    ask(sock, "PING"), ask(other, "PING")
    proxy.reset()
    with pytest.raises(ConnectionResetError):
        sock.recv(1)
    assert proxy.open == 0
    assert ask(connect(), "PING") == b"+PONG\r\n"


def test_the_proxy_refuses_and_accepts_again(proxy: Proxy, connect: Connect) -> None:
    before = connect()
    ask(before, "PING")
    for _ in range(3):
        proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            connect()
        assert ask(before, "PING") == b"+PONG\r\n"
        proxy.accept()
        assert ask(connect(), "PING") == b"+PONG\r\n"


def test_the_proxy_ends_with_its_threads(server: Server) -> None:
    proxy = Proxy(server.port)
    with socket.create_connection(("127.0.0.1", proxy.port), 5) as sock:
        ask(sock, "PING")
        proxy.hold()
        threads = list(proxy._threads)
        proxy.stop()
        assert not any(thread.is_alive() for thread in threads)
        assert sock.recv(1) == b""
    proxy.stop()
