"""The documents: links lead somewhere, names exist, and docs/keys.md knows every key and command."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import ModuleType

import pytest

from holdfast.compat import _protocol
from holdfast.core.script import Script
from holdfast.drivers.common import INBOX_PREFIX
from holdfast.locks import lock
from holdfast.locks.redlock import node

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    path
    for path in ROOT.rglob("*.md")
    if not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
)
FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
NAME = re.compile(r"`(holdfast(?:\.\w+)+)[^`]*`")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)

each_document = pytest.mark.parametrize(
    "path", DOCUMENTS, ids=[str(path.relative_to(ROOT)) for path in DOCUMENTS]
)


def prose(path: Path) -> str:
    """A document without its blocks of code."""
    return FENCED.sub("", path.read_text())


def anchors(path: Path) -> set[str]:
    """What its headings can be linked by."""
    headings = (re.sub(r"[^\w\- ]", "", title.lower()) for title in HEADING.findall(prose(path)))
    return {heading.strip().replace(" ", "-") for heading in headings}


def exists(name: str) -> bool:
    """Whether a dotted name is a module, or can be reached from one."""
    parts = name.split(".")
    found: object = importlib.import_module(parts[0])
    for place, part in enumerate(parts[1:], start=2):
        if not hasattr(found, part) and isinstance(found, ModuleType):
            try:
                importlib.import_module(".".join(parts[:place]))
            except ModuleNotFoundError:
                return False
        if not hasattr(found, part):
            return False
        found = getattr(found, part)
    return True


def test_the_documents_are_found() -> None:
    """A search that finds nothing would pass every test below."""
    names = {str(path.relative_to(ROOT)) for path in DOCUMENTS}
    assert {"README.md", "ARCHITECTURE.md", "docs/guarantees.md", "docs/keys.md"} <= names
    assert not exists("holdfast.no_such_name")
    assert exists("holdfast.aio.Lock.acquire")


@each_document
def test_relative_links_resolve(path: Path) -> None:
    """Files and folders exist, and a heading stands where an anchor points."""
    broken = []
    for link in LINK.findall(prose(path)):
        if re.match(r"\w+:", link):
            continue
        where, _, anchor = link.partition("#")
        target = (path.parent / where).resolve() if where else path
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


@each_document
def test_names_of_the_package_exist(path: Path) -> None:
    """`holdfast.x` in a document can be imported."""
    assert [name for name in NAME.findall(path.read_text()) if not exists(name)] == []


@each_document
def test_lines_fit(path: Path) -> None:
    """A hundred columns, but for tables; bench/ shows what a program prints."""
    if path.is_relative_to(ROOT / "bench"):
        return
    lines = path.read_text().splitlines()
    assert [line for line in lines if len(line) > 100 and not line.startswith("|")] == []


def test_every_key_is_documented() -> None:
    """docs/keys.md names each helper key that the lock makes, and the channel."""
    text = (ROOT / "docs" / "keys.md").read_text()
    parts = set(re.findall(r'aux\(name, "(\w+)"\)', Path(lock.__file__).read_text()))
    assert {"fence", "queue", "waiters"} <= parts
    assert [part for part in sorted(parts) if f"{{name}}:{part}" not in text] == []
    assert INBOX_PREFIX in text


@pytest.mark.parametrize(
    ("page", "modules"), [("keys.md", (lock, _protocol)), ("redlock.md", (node,))]
)
def test_every_command_of_the_scripts_is_documented(
    page: str, modules: tuple[ModuleType, ...]
) -> None:
    """Each page with an ACL rule names each command of its scripts, so that the rule is complete."""
    text = (ROOT / "docs" / page).read_text().upper()
    scripts = [
        value for module in modules for value in vars(module).values() if isinstance(value, Script)
    ]
    assert len(scripts) > 5
    commands = {
        command
        for script in scripts
        for command in re.findall(r"redis\.p?call\('(\w+)'", script.lua)
    }
    assert [name for name in sorted(commands) if not re.search(rf"\b{name}\b", text)] == []
