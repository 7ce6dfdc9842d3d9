"""`holdfast bootstrap` as its users run it: real servers, an exit status, what is granted then."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

import holdfast
from holdfast.server import Server

COMMAND = [sys.executable, "-m", "holdfast", "bootstrap"]
GUARD = "holdfast:guard"


@pytest.fixture
def servers() -> Iterator[list[Server]]:
    """Three servers that have never been asked for a lock."""
    with ExitStack() as stack:
        yield [stack.enter_context(Server()) for _ in range(3)]


def urls(servers: list[Server]) -> list[str]:
    return [server.url for server in servers]


def node(server: Server) -> str:
    return f"127.0.0.1:{server.port}"


def run(*words: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*COMMAND, *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert "Traceback" not in done.stderr
    return done


def grants(servers: list[Server], **options: float) -> bool:
    """Whether a client gets a lock there. Raises QuorumError where they cannot decide."""
    with holdfast.connect(urls(servers), **options) as hf:
        hold = hf.lock("job", lease=5, wait=0).try_acquire()
        if hold is not None:
            hold.release()
        return hold is not None


def at_terminal(answer: bytes, *words: str) -> tuple[int, str]:
    """The exit status, and all that a terminal showed, where somebody typed this answer."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    process = subprocess.Popen(
        [*COMMAND, *words], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    )
    os.close(theirs)
    os.write(ours, answer)
    shown = b""
    try:
        while data := os.read(ours, 65_536):
            shown += data
    except OSError:
        pass  # how a terminal says on Linux that nobody is left at its other end
    os.close(ours)
    return process.wait(10), shown.decode()


def test_a_new_deployment_grants_nothing_before_and_grants_after(servers: list[Server]) -> None:
    """New servers quarantine themselves, though they were asked already; declared, they grant."""
    with pytest.raises(holdfast.QuorumError, match="holdfast bootstrap"):
        grants(servers)
    done = run(*urls(servers), "--yes")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "".join(f"{node(server)}  declared\n" for server in servers)
    assert grants(servers)


def test_the_sum_of_its_options_is_what_clients_have_to_give(servers: list[Server]) -> None:
    """Declared with max_lease 7 and clock_step 2, they grant to such clients, and to no others."""
    done = run(*urls(servers), "--yes", "--max-lease", "7", "--clock-step", "2")
    assert done.returncode == 0
    assert grants(servers, max_lease=7, clock_step=2)
    with pytest.raises(holdfast.QuorumError, match=r"max_lease \+ clock_step = 9 s"):
        grants(servers)


def test_a_server_that_is_down_is_named_and_the_others_are_declared(servers: list[Server]) -> None:
    """Status 1, its line says what went wrong; a majority is declared, and grants."""
    servers[1].kill()
    done = run(*urls(servers), "--yes")
    assert done.returncode == 1
    first, second, third = done.stdout.splitlines()
    assert first == f"{node(servers[0])}  declared"
    assert second.startswith(f"{node(servers[1])}  NOT declared: ")
    assert "cannot be reached" in second
    assert third == f"{node(servers[2])}  declared"
    assert "--help" in done.stderr
    assert grants(servers)


def test_it_tells_machines(servers: list[Server]) -> None:
    """One line of JSON, with the same facts and the same exit status."""
    done = run(*urls(servers), "--yes", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    declared = [{"node": node(s), "declared": True, "error": None} for s in servers]
    assert json.loads(done.stdout) == {"ok": True, "nodes": declared}
    servers[2].kill()
    done = run(*urls(servers), "--yes", "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["ok"]) == (1, False)
    assert found["nodes"][:2] == declared[:2]
    assert (found["nodes"][2]["node"], found["nodes"][2]["declared"]) == (node(servers[2]), False)
    assert "cannot be reached" in found["nodes"][2]["error"]


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_without_yes_it_explains_and_changes_nothing(
    servers: list[Server], options: list[str]
) -> None:
    """It says what it would do and when that is safe, exits with 2, and wrote no key anywhere."""
    done = run(*urls(servers), "--max-lease", "90", *options)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "3 servers" in done.stderr
    assert "nobody holds a lock" in done.stderr
    assert "max_lease=90" in done.stderr
    assert "--yes" in done.stderr
    assert [server.command("DBSIZE") for server in servers] == [0, 0, 0]


@pytest.mark.parametrize(("answer", "status"), [(b"y\n", 0), (b"n\n", 2), (b"\n", 2)])
def test_on_a_terminal_it_asks(servers: list[Server], answer: bytes, status: int) -> None:
    """Only a clear yes declares them, and then there is a table; anything else changes nothing."""
    found, shown = at_terminal(answer, *urls(servers))
    assert found == status
    assert "nobody holds a lock" in shown
    assert ("nothing was changed" in shown) is (status == 2)
    rows = re.findall(r"127\.0\.0\.1:\d+ .*declared", shown)
    assert len(rows) == (3 if status == 0 else 0)
    written = [server.command("GET", GUARD) is not None for server in servers]
    assert written == [status == 0] * 3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "URL"),
        (["redis://127.0.0.1:1"], "give the URLs of several"),
        (["redis://127.0.0.1:1", "redis://127.0.0.1:1"], "cannot vote twice"),
        (["redis://127.0.0.1:1", "redis+cluster://127.0.0.1:2"], "cluster"),
        (["redis://127.0.0.1:1", "127.0.0.1:2"], "is not a server URL"),
        (["redis://127.0.0.1:1", "redis://127.0.0.1:2", "--max-lease", "0"], "max_lease"),
        (["redis://127.0.0.1:1", "redis://127.0.0.1:2", "--clock-step", "-1"], "clock_step"),
    ],
)
def test_what_cannot_be_right_is_refused_with_a_reason(words: list[str], said: str) -> None:
    """Status 2, nothing on stdout, and the reason: among them a single primary."""
    done = run(*words, "--yes")
    assert done.returncode == 2
    assert done.stdout == ""
    assert said in done.stderr
