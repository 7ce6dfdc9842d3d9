"""The worker processes of `holdfast demo`, seen from the demo."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from holdfast.cli._demo_messages import Ended, Report, Terms

# A stopped process does not notice that its stdin has ended, so somebody else has to.
_GUARD = 'read -r word || kill -9 "$1"'


class Crew:
    """Starts workers, hears them, gives them orders and signals, and ends them.

    None outlives this process: the end of its stdin ends a worker. Each is in a session of its
    own, so that Ctrl-C reaches the demo alone, which then ends them.
    """

    def __init__(self, terms: Sequence[Terms], errors: Path) -> None:
        self._decoder = msgspec.json.Decoder(Report)
        self._selector = selectors.DefaultSelector()
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._partial: dict[int, bytes] = {}
        self._guards: dict[int, subprocess.Popen[bytes]] = {}
        for each in terms:
            self._start(each, errors)

    def _start(self, terms: Terms, errors: Path) -> None:
        words = ["-m", "holdfast.cli._demo_worker", msgspec.json.encode(terms).decode()]
        with errors.open("ab") as stream:
            process = subprocess.Popen(
                [sys.executable, *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                start_new_session=True,
                bufsize=0,
            )
        self._processes[terms.worker] = process
        self._partial[terms.worker] = b""
        assert process.stdout is not None
        self._selector.register(process.stdout, selectors.EVENT_READ, terms.worker)

    def pid(self, worker: int) -> int:
        """The worker's process id."""
        return self._processes[worker].pid

    def hear(self, timeout: float) -> list[tuple[int, Report]]:
        """What the workers have reported, waiting up to `timeout` seconds for the first."""
        heard: list[tuple[int, Report]] = []
        for key, _ in self._selector.select(timeout):
            worker: int = key.data
            data = os.read(key.fd, 65_536)
            *lines, self._partial[worker] = (self._partial[worker] + data).split(b"\n")
            heard += [(worker, self._decoder.decode(line)) for line in lines]
            if not data:
                self._selector.unregister(key.fileobj)
                heard.append((worker, Ended()))
        return heard

    def tell(self, order: bytes, *workers: int) -> None:
        """Give these workers an order, or all of them. One that has ended misses it."""
        for worker in workers or self._processes:
            stdin = self._processes[worker].stdin
            assert stdin is not None
            with suppress(OSError):
                stdin.write(order)

    def kill(self, worker: int) -> int:
        """End it with SIGKILL; returns the instant."""
        self._processes[worker].kill()
        return time.monotonic_ns()

    def freeze(self, worker: int) -> int:
        """Stop it with SIGSTOP; returns the instant. It dies if the demo dies meanwhile."""
        process = self._processes[worker]
        self._guards[worker] = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD, "holdfast-guard", str(process.pid)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        process.send_signal(signal.SIGSTOP)
        return time.monotonic_ns()

    def thaw(self, worker: int) -> int:
        """Let it go on with SIGCONT; returns the instant."""
        self._processes[worker].send_signal(signal.SIGCONT)
        at = time.monotonic_ns()
        self._guards.pop(worker).communicate(b"\n")
        return at

    def close(self) -> None:
        """Kill those that are left, and wait for their end."""
        for process in self._processes.values():
            process.kill()
        for guard in self._guards.values():
            guard.communicate(b"\n")
        self._guards.clear()
        for process in self._processes.values():
            process.wait(5)
            for stream in (process.stdin, process.stdout):
                assert stream is not None
                stream.close()
        self._selector.close()
