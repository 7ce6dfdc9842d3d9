"""The development server never outlives its process, and belongs to it alone, forks or not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import holdfast.server._server as server_module
from holdfast.errors import UsageError
from holdfast.server import (
    Server,
    acquire_shared,
    release_shared,
)


def eventually(condition: Callable[[], bool], seconds: float = 5.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.01)
    return condition()


def gone(pid: int) -> bool:
    """No such process, or one that has ended and that nobody has waited for."""
    shown = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return shown.stdout.strip() in ("", "Z", "Z+", "Zs")


def in_child(body: Callable[[], None]) -> int:
    """Run `body` in a forked child; return the child's exit status (0 when nothing was raised)."""
    pid = os.fork()
    if pid == 0:
        try:
            body()
        except BaseException as error:
            os.write(2, f"in the forked child: {error!r}\n".encode())
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as started:
        yield started


PARENT = """
import sys, time
from holdfast.server import Server
server = Server().start()
{more}
print(server.pid, server.socket.parent, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize(
    "more",
    [
        "",
        "server.restart()",
        "server.kill(); server.start(); server.pause()",
        "import os\nif os.fork() == 0: time.sleep(15); os._exit(0)",
        "import threading\nt = threading.Thread(target=server.restart); t.start(); t.join()",
    ],
    ids=["plain", "restarted", "paused", "with a forked child", "started by a thread"],
)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_it_dies_with_its_parent(more: str, number: signal.Signals) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT.format(more=more)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with parent:
        assert parent.stdout is not None
        pid, folder = parent.stdout.readline().split()
        assert not gone(int(pid))
        assert Path(folder).is_dir()
        parent.send_signal(number)
    assert eventually(lambda: gone(int(pid)))
    assert eventually(lambda: not Path(folder).exists())


def test_a_killed_server_whose_parent_dies_leaves_no_folder() -> None:
    script = "server.kill()"
    done = subprocess.run(
        [sys.executable, "-c", PARENT.format(more=script).replace("time.sleep(60)", "sys.exit()")],
        capture_output=True,
        text=True,
        check=True,
    )
    folder = Path(done.stdout.split()[1])
    assert eventually(lambda: not folder.exists())


def test_a_forked_child_uses_it_and_cannot_end_it(server: Server) -> None:
    def body() -> None:
        assert server.command("PING") == "PONG"
        assert server.running
        server.stop()
        server.__del__()
        server_module._stop_all()
        for change in (server.kill, server.restart, server.pause, server.start):
            with pytest.raises(UsageError, match="fork"):
                change()

    assert in_child(body) == 0
    assert server.running
    assert server.command("PING") == "PONG"


def test_an_abandoned_server_is_stopped() -> None:
    server = Server().start()
    pid, folder = server.pid, server.socket.parent
    del server
    assert eventually(lambda: gone(pid) and not folder.exists())


def test_the_shared_server_lives_as_long_as_its_users() -> None:
    first = acquire_shared()
    try:
        assert acquire_shared() is first
        release_shared(first)
        assert first.running
        first.kill()
        assert acquire_shared() is first  # revived, for it was found dead
        assert first.command("PING") == "PONG"
        release_shared()
    finally:
        release_shared(first)
    assert not first.running
    release_shared()  # one too many is no harm
    second = acquire_shared()
    release_shared(first)
    assert second is not first
    assert second.running
    release_shared(second)
    assert not second.running


def test_a_forked_child_gets_a_shared_server_of_its_own() -> None:
    ours = acquire_shared()
    try:

        def body() -> None:
            theirs = acquire_shared()
            assert theirs is not ours
            assert theirs.port != ours.port
            release_shared(ours)
            assert theirs.running
            release_shared(theirs)
            assert not theirs.running

        assert in_child(body) == 0
        assert ours.running
    finally:
        release_shared(ours)
