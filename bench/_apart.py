"""Peers that cannot stand beside the others: `python bench/_apart.py` installs them.

Three packages call their module `redlock`, and one of these asks for a redis-py that is too old for
everybody else. Each gets a folder of its own in the environment, without what it depends on (all
of them: redis-py, and pydantic for one), and is imported from there.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

FOLDER = Path(sys.prefix) / "apart"
PACKAGES = {"redlock-ng": "redlock", "redlock-py": "redlock", "redlock": "redlock"}


def install() -> None:
    """The newest release of each. One that does not install is told, and left out by the bench."""
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
    for package in PACKAGES:
        where = str(FOLDER / package)
        command = (*pip, "install", "--no-deps", "--upgrade", "--target", where, package)
        if subprocess.run(command, check=False).returncode:
            print(f"{package} was not installed", file=sys.stderr)


@cache
def module(package: str) -> ModuleType:
    """The module of such a package, which hides none of the same name."""
    folder, name = str(FOLDER / package), PACKAGES[package]
    if not Path(folder).is_dir():
        raise ImportError(f"{package} is not installed: python bench/_apart.py")
    _forget(name)
    sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(folder)
        _forget(name)


def _forget(name: str) -> None:
    for known in list(sys.modules):
        if known == name or known.startswith(f"{name}."):
            del sys.modules[known]


def version(package: str) -> str | None:
    """The release of such a package, or None."""
    found = importlib.metadata.distributions(name=package, path=[str(FOLDER / package)])
    return next((each.version for each in found), None)


if __name__ == "__main__":
    install()
