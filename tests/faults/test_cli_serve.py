"""`holdfast serve` as its users run it: a process, its output, its signals."""

from __future__ import annotations

import importlib.util
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from holdfast.server import Server, find_servers, free_port

COMMAND = [sys.executable, "-m", "holdfast"]


def answers(url: str) -> bool:
    address = urllib.parse.urlsplit(url)
    try:
        with socket.create_connection((address.hostname or "", address.port or 0), 2) as sock:
            sock.sendall(b"PING\r\n")
            return sock.recv(100) == b"+PONG\r\n"
    except OSError:
        return False


@contextmanager
def serving(*options: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*COMMAND, "serve", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def refused(*words: str) -> str:
    done = subprocess.run([*COMMAND, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    return done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_it_prints_urls_that_answer_until_it_is_told_to_end(number: signal.Signals) -> None:
    with serving("--count", "2") as process:
        assert process.stdout is not None
        urls = [process.stdout.readline().strip() for _ in range(2)]
        assert all(re.fullmatch(r"redis://127\.0\.0\.1:\d+/0", url) for url in urls)
        assert len(set(urls)) == 2
        assert all(answers(url) for url in urls)
        process.send_signal(number)
        assert process.wait(10) == 0
        assert not any(answers(url) for url in urls)
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_it_serves_on_the_ports_asked_for_and_tells_machines() -> None:
    port = next(p for p in iter(free_port, None) if p % 2 == 0)
    with serving("--port", str(port), "--count=2", "--json", "--server", "redis") as process:
        assert process.stdout is not None
        facts = json.loads(process.stdout.readline())
        assert [item["port"] for item in facts] == [port, port + 1]
        for item in facts:
            assert item["server"].startswith("redis-")
            assert answers(item["url"])
            assert item["unix_url"].startswith("unix:///")
        process.terminate()
        assert process.wait(10) == 0
        with pytest.raises(ProcessLookupError):
            os.kill(facts[0]["pid"], 0)


def test_it_takes_the_path_of_a_binary() -> None:
    oldest = find_servers()[-1]
    with serving("--server", str(oldest.path), "--json") as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())[0]["server"] == oldest.label


def test_on_a_terminal_it_draws_a_table() -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, "serve"], stdout=theirs, env={**os.environ, "COLUMNS": "150"}
    )
    os.close(theirs)
    shown = ""
    while "Ctrl-C" not in shown:
        shown += os.read(ours, 65_536).decode()
    process.terminate()
    assert process.wait(10) == 0
    os.close(ours)
    assert "unix socket" in shown
    assert re.search(r"redis://127\.0\.0\.1:\d+/0", shown)


def test_a_server_that_ends_by_itself_ends_it() -> None:
    with serving("--json") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        (facts,) = json.loads(process.stdout.readline())
        os.kill(facts["pid"], signal.SIGKILL)
        assert process.wait(10) == 1
        assert "has ended" in process.stderr.read()


def test_a_port_in_use_is_an_error_that_says_so() -> None:
    with Server() as other, serving("--port", str(other.port)) as process:
        assert process.wait(10) == 1
        assert process.stderr is not None
        message = process.stderr.read()
        assert "Address already in use" in message
        assert "Traceback" not in message


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--count", "0"], "--count"),
        (["--port", "70000"], "--port"),
        (["--port", "65535", "--count", "2"], "65535"),
        (["--server", "/bin/sh"], "/bin/sh"),
        (["--server", "mysql"], "mysql"),
        (["--colour"], "--colour"),
    ],
)
def test_bad_values_are_refused_with_a_reason(options: list[str], words: str) -> None:
    assert words in refused("serve", *options)


def test_without_the_extra_it_names_the_fix(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from holdfast.cli import main

    monkeypatch.setitem(sys.modules, "typer", None)
    with pytest.raises(SystemExit) as exit:
        main()
    assert exit.value.code == 2
    assert "pip install 'holdfast[cli]'" in capsys.readouterr().err


def test_every_listed_command_exists() -> None:
    from holdfast.cli import COMMANDS

    for name in COMMANDS:
        assert importlib.util.find_spec(f"holdfast.cli.{name}") is not None
