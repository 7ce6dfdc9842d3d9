"""A wall clock of its own for a server, jumped and bent while it runs.

    with NodeClock() as clock, Server(binary, env=clock.env) as server:
        clock.jump(5)

The server is started with a small library preloaded (clockshim.c), which the system's C compiler
builds once per checkout of its source. `reason()` says why that is not possible here.
"""

from __future__ import annotations

import functools
import hashlib
import mmap
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Self

SOURCE = Path(__file__).with_name("clockshim.c")
_FORMAT = struct.Struct("=qqqd")
# Valkey from 9.1 on reads the clock once a millisecond, and its cycle counter in between.
SEEN_S = 0.002


@functools.cache
def reason() -> str | None:
    """Why clocks cannot be moved on this machine, or None if they can."""
    if not sys.platform.startswith("linux"):
        return "preloading a clock is done on Linux only"
    if _compiler() is None:
        return "there is no C compiler (cc or gcc) to build lab/clockshim.c with"
    return None


def _compiler() -> str | None:
    return shutil.which("cc") or shutil.which("gcc")


@functools.cache
def shim() -> Path:
    """The library, built if this source was not built on this machine before."""
    compiler = _compiler()
    assert compiler is not None, reason()
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    built = Path(tempfile.gettempdir()) / f"holdfast-clockshim-{os.getuid()}-{digest}.so"
    if not built.exists():
        # Under another name first: somebody else may be building it at the same time.
        part = built.with_suffix(f".{os.getpid()}")
        flags = ["-O2", "-shared", "-fPIC"]
        subprocess.run([compiler, *flags, "-o", str(part), str(SOURCE)], check=True)
        part.rename(built)
    return built


class NodeClock:
    """The wall clock of the processes that are started with `env`."""

    def __init__(self) -> None:
        descriptor, path = tempfile.mkstemp(prefix="holdfast-clock-")
        os.ftruncate(descriptor, _FORMAT.size)
        self._memory = mmap.mmap(descriptor, _FORMAT.size)
        os.close(descriptor)
        self._path = Path(path)
        self._turn = 0
        now = time.time_ns()
        self._set(now, now, 1.0)

    @property
    def env(self) -> dict[str, str]:
        """What the environment of a server must contain."""
        return {"LD_PRELOAD": str(shim()), "HOLDFAST_CLOCK": str(self._path)}

    def jump(self, seconds: float) -> None:
        """Step the clock, forward or back; on return a server sees it."""
        now = time.time_ns()
        self._set(now, self._shown(now) + int(seconds * 1e9), self._rate)
        time.sleep(SEEN_S)

    def run(self, rate: float) -> None:
        """Have the clock run `rate` times as fast from now on; 0 stands still."""
        now = time.time_ns()
        self._set(now, self._shown(now), rate)
        time.sleep(SEEN_S)

    def ahead(self) -> float:
        """By how many seconds it is ahead of the machine's."""
        now = time.time_ns()
        return (self._shown(now) - now) / 1e9

    def _shown(self, now: int) -> int:
        return self._base + int((now - self._real) * self._rate)

    def _set(self, real: int, shown: int, rate: float) -> None:
        self._real, self._base, self._rate = real, shown, rate
        self._turn += 2
        _FORMAT.pack_into(self._memory, 0, self._turn - 1, real, shown, rate)
        struct.pack_into("=q", self._memory, 0, self._turn)

    def close(self) -> None:
        """Forget the clock; a server that still runs keeps it as it was."""
        self._memory.close()
        self._path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
