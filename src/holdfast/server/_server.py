"""`Server`: one real server process, started, broken and mended from Python."""

from __future__ import annotations

import atexit
import os
import signal
import threading
import urllib.parse
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from holdfast.errors import NodeError, UsageError
from holdfast.server._find import ServerBinary, newest
from holdfast.server._ports import free_port
from holdfast.server._process import Lifeline
from holdfast.server._resp import Reply, ask
from holdfast.server._starting import Log, short_folder, wait_until_alive

_START_SECONDS = 10.0
_STOP_SECONDS = 5.0
_PORT_ATTEMPTS = 5
_PORT_TAKEN = "Address already in use"

_running: weakref.WeakSet[Server] = weakref.WeakSet()


class Server:
    """A server for development and tests, on 127.0.0.1 and a unix socket.

    `binary` defaults to the newest at hand, `port` to a free one. `args` are appended to the
    server's command line and win over what is set here; if the first does not begin with "-", it
    is a configuration file. `directory` is where the server keeps its files, and is left in place;
    by default that is a temporary folder that vanishes at `stop()`, or with this process.
    `persistent` keeps an append-only file, so that data survives `kill()` and `restart()`. `env` is
    added to the environment of the server's process.

    Guarantees: the server never outlives the process that started it, even one killed by SIGKILL.
    After a fork it still belongs to the parent; in the child `stop()` does nothing and the other
    methods that change its state raise `UsageError`. Its methods may be called from any thread.

    Raises `ServerNotFound` if no binary is given or found, `UsageError` for a bad argument.
    """

    def __init__(
        self,
        binary: ServerBinary | None = None,
        *,
        port: int | None = None,
        args: Sequence[str] = (),
        directory: Path | None = None,
        persistent: bool = False,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._lifeline: Lifeline | None = None
        if port is not None and not 0 < port < 65_536:
            raise UsageError(f"port must be from 1 to 65535, got {port!r}")
        if isinstance(args, str):
            raise UsageError('args must be a sequence of words: ("--maxclients", "10")')
        self.binary = newest() if binary is None else binary
        self._fixed_port = port
        self._port = port
        self._args = [str(word) for word in args]
        self._data = None if directory is None else directory.absolute()
        self._persistent = persistent
        self._env = dict(env or {})
        self._owner = os.getpid()
        self._lock = threading.RLock()
        self._folder: Path | None = None
        self._last_log = ""

    def start(self) -> Self:
        """Start the server, and return once it answers. Does nothing if it is running.

        After `kill()`, or a crash, it starts again on the same port and socket. Raises `NodeError`
        with the end of the server's log if it ends, or does not answer within 10 seconds.
        """
        if self._lifeline is None:
            self._owner = os.getpid()
        self._own("start")
        with self._lock:
            if self.running:
                return self
            if self._lifeline is None:
                self._folder = short_folder()
                self._lifeline = Lifeline(self._folder)
            try:
                self._launch(self._lifeline, choose=self._port is None)
            except BaseException:
                self.stop()
                raise
            _running.add(self)
        return self

    def stop(self) -> None:
        """End the server and remove its temporary folder. May be repeated; takes seconds at most.

        A server that keeps data is asked to end and given 5 seconds; any other is killed at once.
        In a forked child, and on a server that is not running, it does nothing.
        """
        if self._owner != os.getpid():
            return
        with self._lock:
            self._last_log = self.log()
            lifeline, self._lifeline = self._lifeline, None
            if lifeline is not None:
                try:
                    lifeline.end(grace=self._grace)
                finally:
                    lifeline.close()
            self._folder = None
            self._port = self._fixed_port
            _running.discard(self)

    def kill(self) -> None:
        """End the server with SIGKILL and wait for its end; `start()` or `restart()` revives it.

        The port, the socket's path and the folder stay its own. Raises `UsageError` in a forked
        child.
        """
        self._own("kill")
        with self._lock:
            if self._lifeline is not None:
                self._lifeline.end(grace=0)

    def restart(self) -> Self:
        """End the server and start it again on the same port and socket.

        Its data is gone unless it is persistent. Raises as `start()` does.
        """
        self._own("restart")
        with self._lock:
            if self._lifeline is not None:
                self._lifeline.end(grace=self._grace)
            return self.start()

    def pause(self) -> None:
        """Freeze the server (SIGSTOP): connections stay open and nothing is answered.

        It is frozen on return. Raises `UsageError` if it is not running, and in a forked child.
        """
        with self._lock:
            self._alive("pause").freeze()

    def resume(self) -> None:
        """Let a paused server go on (SIGCONT); harmless on one that is not paused.

        Raises `UsageError` if it is not running, and in a forked child.
        """
        with self._lock:
            self._alive("resume")
            os.kill(self.pid, signal.SIGCONT)

    def command(self, *words: str | bytes | int | float, timeout: float = 5.0) -> Reply:
        """Send one command over the unix socket, on a connection of its own; return the reply.

        Raises `NodeError` if the server answers with an error, cannot be reached, or is silent for
        `timeout` seconds.
        """
        try:
            return ask(self.socket, words, timeout)
        except NodeError as error:
            error.node = str(self.socket)
            raise
        except OSError as error:
            raise NodeError(
                f"{self!r} did not answer {words[0]!r}: {error}", node=str(self.socket), sent=True
            ) from error

    def log(self) -> str:
        """The last few thousand characters of the server's log; after `stop()`, as it was then."""
        return self._last_log if self._folder is None else Log(self._log_path).text()[-4000:]

    @property
    def port(self) -> int:
        """Its TCP port. Raises `UsageError` before `start()`, unless it was given."""
        if self._port is None:
            raise UsageError("the server is not started: it has no port yet")
        return self._port

    @property
    def socket(self) -> Path:
        """The path of its unix socket. Raises `UsageError` when it is not started."""
        if self._folder is None:
            raise UsageError("the server is not started: it has no socket")
        return self._folder / "s.sock"

    @property
    def pid(self) -> int:
        """The pid of its process, also after `kill()`. Raises `UsageError` when not started."""
        if self._lifeline is None or self._lifeline.process is None:
            raise UsageError("the server is not started: it has no pid")
        return self._lifeline.process.pid

    @property
    def url(self) -> str:
        """Its address over TCP, as "redis://127.0.0.1:PORT/0". Raises as `port` does."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def unix_url(self) -> str:
        """Its address over the unix socket, as "unix:///PATH?db=0". Raises as `socket` does."""
        return f"unix://{urllib.parse.quote(str(self.socket))}?db=0"

    @property
    def running(self) -> bool:
        """True while its process lives, also when paused."""
        if self._lifeline is None:
            return False
        if self._owner == os.getpid():
            return not self._lifeline.ended()
        try:
            os.kill(self.pid, 0)  # a forked child cannot wait for it
        except ProcessLookupError:
            return False
        return True

    def __enter__(self) -> Self:
        """Start the server, as `start()` does."""
        return self.start()

    def __exit__(self, *_: object) -> None:
        """Stop the server, as `stop()` does."""
        self.stop()

    def __repr__(self) -> str:
        where = f"127.0.0.1:{self._port}" if self._port else "not started"
        return f"<Server {self.binary.label} {where}>"

    def __del__(self) -> None:
        if getattr(self, "_lifeline", None) is not None:
            with suppress(Exception):
                self.stop()

    @property
    def _log_path(self) -> Path:
        return self.socket.with_name("server.log")

    @property
    def _grace(self) -> float:
        keeps_data = self._persistent or "--save" in self._args or "--appendonly" in self._args
        return _STOP_SECONDS if keeps_data else 0

    def _own(self, verb: str) -> None:
        if self._owner == os.getpid():
            return
        raise UsageError(f"this server belongs to process {self._owner}; a fork cannot {verb} it")

    def _alive(self, verb: str) -> Lifeline:
        self._own(verb)
        if self._lifeline is None or self._lifeline.ended():
            raise UsageError(f"cannot {verb} a server that is not running")
        return self._lifeline

    def _command_line(self) -> list[str]:
        args = list(self._args)
        config = [args.pop(0)] if args and not args[0].startswith("-") else []
        return [
            *(str(self.binary.path.absolute()), *config),
            *("--port", str(self.port), "--bind", "127.0.0.1"),
            *("--unixsocket", str(self.socket)),
            *("--dir", str(self._data or self._folder)),
            *("--save", "", "--appendonly", "yes" if self._persistent else "no"),
            *args,
        ]

    def _launch(self, lifeline: Lifeline, *, choose: bool) -> None:
        log = Log(self._log_path)
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            if choose:
                self._port = free_port()
            offset = log.size()
            lifeline.launch(self._command_line(), log.path, self._env)
            problem = wait_until_alive(self.socket, lifeline.ended, _START_SECONDS)
            if problem is None:
                return
            text = log.text(offset)
            if not choose or _PORT_TAKEN not in text or attempt == _PORT_ATTEMPTS:
                raise NodeError(
                    f"{self.binary.label} ({self.binary.path}) {problem} on port {self._port}"
                    f"; its log ends with:\n{text[-2000:]}",
                    node=f"127.0.0.1:{self._port}",
                )


@atexit.register
def _stop_all() -> None:
    # The watchers would do it a moment later; this way the folders are gone when we are.
    for server in list(_running):
        with suppress(Exception):
            server.stop()
