"""A server process that cannot outlive the process that started it.

A watcher, a few lines of shell in its own session, reads from a pipe whose other end only the
starting process holds. However that process ends, the pipe ends with it; the watcher then kills
the server and removes the folder. (Linux can signal a child at its parent's death, but means the
thread that started it; macOS cannot at all.)
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

# Each line on the pipe is the pid to kill at the end; an empty line means there is none now.
# `rm` is repeated because a server may be creating a file while it is being killed.
_WATCH = """
while read -r line; do pid=$line; done
[ -z "$pid" ] || kill -9 "$pid" 2>/dev/null
for attempt in 1 2 3 4 5; do rm -rf "$1" && break; sleep 0.2; done
"""

# The server announces itself before it becomes the server, so there is no moment at which it runs
# and the watcher does not know it. Its stdout is the pipe until then, the log from then on.
_LAUNCH = 'echo $$; exec "$@" >&2'

# Held while a pipe is made or closed, and across every fork: a forked child then sees a pipe
# either whole and registered here, or not at all.
_fork_guard = threading.RLock()
_lifelines: weakref.WeakSet[Lifeline] = weakref.WeakSet()


class Lifeline:
    """Ties server processes, one at a time, and the folder `directory` to this process's life."""

    def __init__(self, directory: Path) -> None:
        """Start the watcher. Raises OSError if the system refuses a pipe or a process."""
        self.process: subprocess.Popen[bytes] | None = None
        self._directory = directory
        self._pipe: int | None
        with _fork_guard:
            read_end, self._pipe = os.pipe()
            _lifelines.add(self)
        try:
            self._watcher = subprocess.Popen(
                ["/bin/sh", "-c", _WATCH, "holdfast-watcher", str(directory)],
                stdin=read_end,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                cwd="/",
                env={"PATH": "/usr/bin:/bin"},
            )
        except OSError:
            self.let_go()
            raise
        finally:
            os.close(read_end)

    def launch(self, command: Sequence[str], log: Path, env: Mapping[str, str]) -> None:
        """Start `command` in a session of its own; what it prints is appended to `log`.

        Its environment is this process's, and `env`.

        A command that cannot be run ends with status 126 or 127 and says why in the log.
        """
        assert self._pipe is not None
        with log.open("ab") as stream:
            self.process = subprocess.Popen(
                ["/bin/sh", "-c", _LAUNCH, "sh", *command],
                stdin=subprocess.DEVNULL,
                stdout=self._pipe,
                stderr=stream,
                start_new_session=True,
                env={**os.environ, **env},
            )

    def ended(self) -> bool:
        """True when no server was launched, or the one launched has ended."""
        if self.process is None or self.process.returncode is not None:
            return True
        if self.process.poll() is None:
            return False
        self._forget()
        return True

    def end(self, *, grace: float) -> None:
        """Ask the server to end and give it `grace` seconds; then, or with 0 at once, kill it."""
        if self.process is None or self.ended():
            return
        if grace:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(grace)
        self.process.kill()
        self.process.wait(5)
        self._forget()

    def freeze(self) -> None:
        """Stop the server's process; on return it stands still (or a second has gone by)."""
        if self.process is None or self.ended():
            return
        self.process.send_signal(signal.SIGSTOP)
        deadline = time.monotonic() + 1
        while time.monotonic() < deadline:
            pid, status = os.waitpid(self.process.pid, os.WUNTRACED | os.WNOHANG)
            if pid:
                if not os.WIFSTOPPED(status):
                    self.process.returncode = os.waitstatus_to_exitcode(status)
                    self._forget()
                return
            time.sleep(0.001)

    def _forget(self) -> None:
        # The pid of a server that has been waited for may soon be another process's.
        if self._pipe is not None:
            with suppress(OSError):
                os.write(self._pipe, b"\n")

    def let_go(self) -> None:
        """Close this process's end of the pipe. Where it was the last, that kills the server."""
        with _fork_guard:
            if self._pipe is not None:
                os.close(self._pipe)
                self._pipe = None

    def close(self) -> None:
        """End the watcher; the folder is gone on return. Takes a few seconds at most."""
        self.let_go()
        try:
            self._watcher.wait(timeout=3)
        except subprocess.TimeoutExpired:
            self._watcher.kill()
            self._watcher.wait()
        shutil.rmtree(self._directory, ignore_errors=True)


def _in_forked_child() -> None:
    # A worker that outlives its parent must not keep the parent's servers alive.
    for lifeline in list(_lifelines):
        lifeline.let_go()
    _lifelines.clear()
    _fork_guard.release()


os.register_at_fork(
    before=_fork_guard.acquire,
    after_in_parent=_fork_guard.release,
    after_in_child=_in_forked_child,
)
