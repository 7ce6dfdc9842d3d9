"""Two faces, one library: `holdfast` and `holdfast.aio` differ in `await` and in nothing else."""

from __future__ import annotations

import inspect
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

import holdfast
import holdfast.aio
from holdfast.client import AsyncClient, Client, aconnect, connect
from holdfast.locks.hold import AsyncHold, AsyncLost, Hold, Lost
from holdfast.locks.lock import AsyncLock, Lock

ROOT = Path(__file__).parents[2]
api = runpy.run_path(str(ROOT / "tools" / "public_api.py"))
SNAPSHOT = Path(__file__).with_name("public_api.txt")

PAIRS = [(Lock, AsyncLock), (Hold, AsyncHold), (Client, AsyncClient), (Lost, AsyncLost)]
COLOURED = {
    "__enter__": "__aenter__",
    "__exit__": "__aexit__",
}
# Docstrings that say which face they are of.
OWN_WORDS = {"Client", "connect"}
WHERE = "python tools/public_api.py > tests/tidy/public_api.txt"


def surface(kind: type) -> set[str]:
    """The public methods, properties and attributes, and the special ones, under one spelling."""
    special = {name for name in ("__call__", *COLOURED.values(), *COLOURED) if hasattr(kind, name)}
    names = {name for name in dir(kind) if not name.startswith("_")}
    attributes = {name for name in api["attributes"](kind) if not name.startswith("_")}
    blocking = {twin: name for name, twin in COLOURED.items()}
    return {blocking.get(name, name) for name in special | names | attributes} - api["INTERNAL"]


def in_blocking_words(text: str) -> str:
    """An annotation or docstring of the asyncio face, as the blocking face would have it."""
    text = re.sub(r"\bCoroutine\[Any, Any, (\w+)\]", r"\1", text)
    text = re.sub(r"\bAsync(?=[A-Z])", "", text)
    return text.replace("await ", "").replace("coroutine function", "function")


def in_one_colour(function: Any) -> str:
    return in_blocking_words(api["signature"](function))


def functions(pair: tuple[type, type]) -> list[tuple[str, Any, Any]]:
    """The methods and properties of a pair that have code, with their twins."""
    found = []
    for name in sorted(surface(pair[0])):
        blocking = inspect.getattr_static(pair[0], name)
        twin = inspect.getattr_static(pair[1], COLOURED.get(name, name), None)
        if isinstance(twin, property) or inspect.isfunction(twin):
            found.append((name, _code(blocking), _code(twin)))
    return found


def _code(member: Any) -> Any:
    return member.fget if isinstance(member, property) else member


def pairs_of_functions() -> list[Any]:
    each = [(pair[0].__name__, *entry) for pair in PAIRS for entry in functions(pair)]
    each.append(("", "connect", connect, aconnect))
    return [pytest.param(*entry[1:], id=f"{entry[0]}.{entry[1]}".strip(".")) for entry in each]


def test_both_modules_export_the_same_names():
    """`holdfast.aio` has every name of `holdfast`, sorted, and each exists."""
    assert holdfast.__all__ == holdfast.aio.__all__ == sorted(holdfast.__all__)
    for face in (holdfast, holdfast.aio):
        assert [name for name in face.__all__ if not hasattr(face, name)] == []


def test_the_names_are_twins_or_the_same():
    """A name of both modules is one shared object, or a pair that is compared here."""
    compared = {*PAIRS, (connect, aconnect)}
    for name in holdfast.__all__:
        pair = getattr(holdfast, name), getattr(holdfast.aio, name)
        assert pair[0] is pair[1] or pair in compared, name


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair[0].__name__)
def test_both_classes_have_the_same_public_names(pair: tuple[type, type]):
    """Same methods, properties and attributes; `with` here is `async with` there."""
    assert surface(pair[0]) == surface(pair[1])


@pytest.mark.parametrize(("name", "blocking", "twin"), pairs_of_functions())
def test_both_have_the_same_signature(name: str, blocking: Any, twin: Any):
    """Parameters, kinds, defaults and annotations, but for Async and Coroutine."""
    assert in_one_colour(blocking) == in_one_colour(twin)


@pytest.mark.parametrize(("name", "blocking", "twin"), pairs_of_functions())
def test_both_say_the_same(name: str, blocking: Any, twin: Any):
    """Docstrings are equal, but for `await`; those in OWN_WORDS exist."""
    if name in OWN_WORDS:
        assert blocking.__doc__
        assert twin.__doc__
    else:
        assert blocking.__doc__ == (twin.__doc__ and in_blocking_words(twin.__doc__))


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair[0].__name__)
def test_both_classes_are_introduced_alike(pair: tuple[type, type]):
    """The docstrings of the classes are equal, but for clients: which differ in what they share."""
    if pair[0].__name__ in OWN_WORDS:
        assert pair[0].__doc__
        assert pair[1].__doc__
    else:
        assert pair[0].__doc__ == pair[1].__doc__


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair[0].__name__)
def test_only_the_asyncio_face_is_awaited(pair: tuple[type, type]):
    """No coroutine function in the blocking face, and the asyncio face has what does I/O as one."""
    awaited = {name for name, _, twin in functions(pair) if inspect.iscoroutinefunction(twin)}
    assert [name for name, code, _ in functions(pair) if inspect.iscoroutinefunction(code)] == []
    assert (
        awaited
        == {
            "Lock": {"acquire", "try_acquire", "info", "force_release", "__enter__", "__exit__"},
            "Hold": {"extend", "release"},
            "Client": {"bootstrap", "close", "__enter__", "__exit__"},
            "Lost": {"wait"},
        }[pair[0].__name__]
    )


def test_the_internal_names_exist():
    """The list of what AsyncHold keeps to itself has no entry that is out of date."""
    assert {name for name in api["INTERNAL"] if not hasattr(AsyncHold, name)} == set()


def test_the_public_surface_is_the_one_that_was_agreed():
    """No public name or signature changes without a change of tests/tidy/public_api.txt."""
    now = "\n".join(api["lines"]())
    assert now == SNAPSHOT.read_text(), f"if this change is meant: {WHERE}"


class OneFace:
    """A pair that differs in everything that is compared."""

    def same(self, wait: float = 1.0) -> Hold:
        """Said."""
        raise NotImplementedError

    def more(self) -> None:
        """Only here."""


class AsyncOneFace:
    def __init__(self) -> None:
        self.extra = 1

    async def same(self, wait: float = 2.0) -> AsyncHold:
        """Said otherwise."""
        raise NotImplementedError


def test_differences_are_seen():
    """A missing method, an extra attribute, another default, another docstring."""
    assert surface(OneFace) - surface(AsyncOneFace) == {"more"}
    assert surface(AsyncOneFace) - surface(OneFace) == {"extra"}
    ((name, blocking, twin),) = functions((OneFace, AsyncOneFace))
    assert name == "same"
    assert in_one_colour(blocking) == "(self, wait: float = 1.0) -> Hold"
    assert in_one_colour(twin) == "(self, wait: float = 2.0) -> Hold"
    assert blocking.__doc__ != in_blocking_words(twin.__doc__)


def test_words_of_the_asyncio_face():
    """What counts as the same, and what does not."""
    assert in_blocking_words("Callable[P, Coroutine[Any, Any, R]]") == "Callable[P, R]"
    assert in_blocking_words("AsyncHold | None") == "Hold | None"
    assert in_blocking_words("`await wait()`") == "`wait()`"
    assert in_blocking_words("Asynchronous") == "Asynchronous"
