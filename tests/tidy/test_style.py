"""Style as tests over src/holdfast: what no linter of ours looks at."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "holdfast"

LONGEST_FILE = 400
LONGEST_FUNCTION = 60
LONGER_FILES = {
    "locks/lock.py": (760, "one feature, top to bottom: scripts, protocol and both faces"),
    "locks/hold.py": (520, "the state machine of a hold with both faces"),
    "drivers/blocking.py": (480, "a whole runtime: connections, fan-out and inbox share state"),
    "drivers/asyncio.py": (490, "a whole runtime, the twin of drivers/blocking.py"),
}
PURE = ("core/", "locks/")
IMPURE_IMPORTS = {"time", "random", "os", "threading", "asyncio"}
PUBLIC_MODULES = (
    "holdfast",
    "holdfast.aio",
    "holdfast.compat",
    "holdfast.events",
    "holdfast.server",
    "holdfast.testing",
)
# Put together here, so that this file does not contain them.
UNWANTED = {
    "a machine's own path": r"(?<![\w.])/(?:" + "|".join(("wo" + "rk", "ro" + "ot")) + r")(?:/|\b)",
    "who wrote it": "|".join(("assis" + "tant", "languag" + "e model", "chat" + "bot")),
    "how it was written": r"\b(?:(?:this|last|next|previous|earlier|our) sess" + r"ion)\b",
}

Problem = tuple[int, str]
Check = Callable[[str, str], Iterator[Problem]]


# ── what is checked in each file: (path within the package, text) -> (line, what is wrong) ─────


def long_file(path: str, text: str) -> Iterator[Problem]:
    most, _ = LONGER_FILES.get(path, (LONGEST_FILE, ""))
    count = text.count("\n")
    if count > most:
        yield count, f"{count} lines; at most {most}"


def long_function(_: str, text: str) -> Iterator[Problem]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            count = (node.end_lineno or node.lineno) - node.lineno + 1
            if count > LONGEST_FUNCTION:
                yield node.lineno, f"{node.name} has {count} lines; at most {LONGEST_FUNCTION}"


def printing(path: str, text: str) -> Iterator[Problem]:
    if path.startswith("cli/"):
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Name) and node.id == "print":
            yield node.lineno, "print: only the command line prints"


def left_over(_: str, text: str) -> Iterator[Problem]:
    for number, line in enumerate(text.splitlines(), 1):
        found = re.search(r"\b(TODO|FIXME|XXX)\b", line)
        if found:
            yield number, f"{found[0]}: finish it, or say in an issue what is missing"


def no_docstring(path: str, text: str) -> Iterator[Problem]:
    private = Path(path).name.startswith("_") and Path(path).name != "__init__.py"
    if not private and not ast.get_docstring(ast.parse(text)):
        yield 1, "a module says what it is for, in a docstring"


def async_generator(path: str, text: str) -> Iterator[Problem]:
    if not path.startswith(PURE):
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.AsyncFunctionDef) and any(map(_yields, node.body)):
            yield node.lineno, f"{node.name} is an async generator: its finalisation has a colour"


def _yields(node: ast.AST) -> bool:
    """Whether the function around `node` yields here; functions within it are their own."""
    if isinstance(node, ast.Yield | ast.YieldFrom):
        return True
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        return False
    return any(map(_yields, ast.iter_child_nodes(node)))


def impure_import(path: str, text: str) -> Iterator[Problem]:
    if not path.startswith(PURE):
        return
    for node in ast.walk(ast.parse(text)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
        for name in names:
            if name.partition(".")[0] in IMPURE_IMPORTS:
                yield node.lineno, f"{name}: protocols reach the world through the runtime only"


def undocumented_script(_: str, text: str) -> Iterator[Problem]:
    lines = text.splitlines()
    for node in ast.parse(text).body:
        value = getattr(node, "value", None)
        if not (isinstance(value, ast.Call) and ast.unparse(value.func) == "Script"):
            continue
        above = []
        while (line := lines[node.lineno - 2 - len(above)]).startswith("#"):
            above.append(line)
        if not any("ARGV" in line for line in above):
            yield node.lineno, "a comment above each script says what its ARGV are, and its reply"


CHECKS: list[Check] = [
    long_file,
    long_function,
    printing,
    left_over,
    no_docstring,
    async_generator,
    impure_import,
    undocumented_script,
]


def by_name(check: Check) -> str:
    return check.__name__


@pytest.mark.parametrize("check", CHECKS, ids=by_name)
def test_every_file_keeps_to_it(check: Check):
    """None of the package's files has anything to report."""
    problems = [
        f"{path}:{line}: {message}"
        for file in sorted(SOURCE.rglob("*.py"))
        for path in [file.relative_to(SOURCE).as_posix()]
        for line, message in check(path, file.read_text())
    ]
    assert not problems, "\n" + "\n".join(problems)


def test_the_exceptions_are_needed():
    """A file that may be longer than others is, and says why."""
    for path, (most, reason) in LONGER_FILES.items():
        count = (SOURCE / path).read_text().count("\n")
        assert most > LONGEST_FILE, path
        assert count > LONGEST_FILE, f"{path} has {count} lines: no exception needed any more"
        assert reason


_SCRIPT = "S: Final = Script('s', '', bool)\n"


@pytest.mark.parametrize(
    ("check", "path", "text"),
    [
        (long_file, "wire/link.py", "\n" * 401),
        (long_file, "locks/lock.py", "\n" * 821),
        (long_function, "wire/link.py", "def f():\n" + "    pass\n" * 60),
        (long_function, "wire/link.py", "class C:\n  async def f():\n" + "    pass\n" * 60),
        (printing, "wire/link.py", "print('x')\n"),
        (left_over, "wire/link.py", "x = 1  # TODO: more\n"),
        (left_over, "wire/link.py", '"""FIXME"""\n'),
        (no_docstring, "wire/link.py", "x = 1\n"),
        (no_docstring, "wire/__init__.py", "x = 1\n"),
        (async_generator, "core/keeper.py", "async def f():\n    for x in y:\n        yield x\n"),
        (async_generator, "locks/lock.py", "class C:\n    async def f():\n        x = yield\n"),
        (impure_import, "core/keeper.py", "import time\n"),
        (impure_import, "locks/lock.py", "def f():\n    from os import path\n"),
        (impure_import, "locks/lock.py", "import asyncio.locks as x\n"),
        (undocumented_script, "locks/lock.py", _SCRIPT),
        (undocumented_script, "locks/lock.py", f"\n# Does something.\n{_SCRIPT}"),
        (undocumented_script, "locks/lock.py", f"\n# ARGV: one\n\n{_SCRIPT}"),
        (undocumented_script, "locks/lock.py", _SCRIPT.replace(": Final", "")),
    ],
)
def test_each_check_finds_a_planted_mistake(check: Check, path: str, text: str):
    """One mistake, one report."""
    assert len(list(check(path, text))) == 1


@pytest.mark.parametrize(
    ("check", "path", "text"),
    [
        (long_file, "wire/link.py", "\n" * 400),
        (long_function, "wire/link.py", "def f():\n" + "    pass\n" * 59),
        (printing, "cli/demo.py", "print('x')\n"),
        (printing, "wire/link.py", "console.print('x')  # print('x')\n"),
        (left_over, "wire/link.py", "x = 'TODOS'\n"),
        (no_docstring, "server/_find.py", "x = 1\n"),
        (async_generator, "wire/link.py", "async def f():\n    yield 1\n"),
        (async_generator, "core/keeper.py", "async def f():\n    def g():\n        yield 1\n"),
        (impure_import, "wire/link.py", "import time\n"),
        (impure_import, "core/keeper.py", "from .time import x\nimport timeit\n"),
        (undocumented_script, "locks/lock.py", f"\n# ARGV: one\n# -> nothing\n{_SCRIPT}"),
    ],
)
def test_no_check_complains_without_reason(check: Check, path: str, text: str):
    """At the limit, elsewhere, or only alike: no report."""
    assert list(check(path, text)) == []


# ── public names are documented ────────────────────────────────────────────────────────────────


def undocumented(module: ModuleType) -> list[str]:
    """The public classes, functions, methods and properties of a module that say nothing."""
    found = [] if module.__doc__ else [module.__name__]
    own = [n for n, v in vars(module).items() if getattr(v, "__module__", "") == module.__name__]
    for name in getattr(module, "__all__", [n for n in own if not n.startswith("_")]):
        value = getattr(module, name)
        if inspect.isclass(value):
            found += [f"{module.__name__}.{name}{rest}" for rest in undocumented_members(value)]
        elif (inspect.isfunction(value) or hasattr(value, "_get_wrapped_function")) and not (
            value.__doc__
        ):
            found.append(f"{module.__name__}.{name}")
    return found


def undocumented_members(kind: type) -> list[str]:
    """ "" for the class itself, ".name" for each of its members."""
    found = [] if vars(kind).get("__doc__") else [""]
    for base in kind.__mro__:
        if base.__module__.startswith(("holdfast", "planted")):
            for name, value in vars(base).items():
                code: Any = getattr(value, "__func__", value)
                has_code = inspect.isfunction(code) or isinstance(code, property)
                if has_code and not name.startswith("_") and not code.__doc__:
                    found.append(f".{name}")
    return found


@pytest.mark.parametrize("name", PUBLIC_MODULES)
def test_every_public_name_is_documented(name: str):
    """Modules, classes, functions, methods and properties: each has a docstring of its own."""
    assert undocumented(importlib.import_module(name)) == []


def test_a_public_name_without_docstring_is_found():
    """Each kind of it."""
    planted = ModuleType("planted")
    exec(
        "class Bare:\n"
        "    def method(self): pass\n"
        "    @property\n"
        "    def value(self): return 1\n"
        "    @classmethod\n"
        "    def make(cls): pass\n"
        "    def _own(self): pass\n"
        "class Child(Bare):\n    'Documented, but not what it inherits.'\n"
        "def function(): pass\n"
        "def _own(): pass\n",
        planted.__dict__,
    )
    members = ["method", "value", "make"]
    assert undocumented(planted) == [
        "planted",
        "planted.Bare",
        *(f"planted.Bare.{name}" for name in members),
        *(f"planted.Child.{name}" for name in members),
        "planted.function",
    ]


# ── every file of the repository ───────────────────────────────────────────────────────────────


def tracked() -> list[Path]:
    """The files that git has, or would have after `git add .`"""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout
    paths = [ROOT / name for name in listed.decode().split("\0") if name]
    return [path for path in paths if path.is_file()]


def unwanted(text: str) -> list[str]:
    """Which kinds of unwanted words are in a text, with the line of each."""
    return [
        f"{number}: {kind}: {found[0]}"
        for number, line in enumerate(text.splitlines(), 1)
        for kind, pattern in UNWANTED.items()
        if (found := re.search(pattern, line, re.IGNORECASE))
    ]


def test_no_file_says_where_or_how_it_was_made():
    """Neither paths of some machine, nor words of some workplace, in any file that is tracked."""
    problems = [
        f"{path.relative_to(ROOT)}:{problem}"
        for path in tracked()
        for problem in unwanted(path.read_text(errors="replace"))
    ]
    assert not problems, "\n" + "\n".join(problems)


@pytest.mark.parametrize(
    "text",
    [
        "see /wo" + "rk/main/x.py",
        "'/ro" + "ot'",
        "cd /ro" + "ot/.cache",
        "an Assis" + "tant wrote it",
        "as found in the last sess" + "ion",
    ],
)
def test_unwanted_words_are_found(text: str):
    """Each of them, wherever it stands in a line."""
    assert len(unwanted(f"first line\n{text}\n")) == 1
    assert unwanted(text)[0].startswith("1: ")


@pytest.mark.parametrize(
    "text",
    [
        "a session of pytest",
        'scope="session"',
        "frame/work",
        "the work",
        "/rooted",
        "a/root",
        "/workers",
    ],
)
def test_ordinary_words_are_not(text: str):
    """Sessions of pytest and of processes, and words that are only alike."""
    assert unwanted(text) == []
