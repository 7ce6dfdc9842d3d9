"""Scripts and calls: what a protocol sends to a server, and how it reads the answer.

A `Script[T]` carries its Lua, its digest (computed, never written down) and the function that turns
the raw reply into a `T`: no raw reply is seen above this layer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

T = TypeVar("T")

Argument = str | bytes | int


class Script(Generic[T]):
    """One atomic step on the server. Safe to run twice, declares all its keys, sets TTLs."""

    __slots__ = ("lua", "name", "parse", "sha")

    def __init__(self, name: str, lua: str, parse: Callable[[Any], T]) -> None:
        self.name = name
        self.lua = lua
        self.sha = hashlib.sha1(lua.encode(), usedforsecurity=False).hexdigest()
        self.parse = parse

    def __repr__(self) -> str:
        return f"Script({self.name!r})"


class Call(msgspec.Struct, Generic[T], frozen=True, gc=False):
    """One run of a script on the deployment number `node` (0 unless there are several primaries).

    `acks` replicas must confirm the write (0: none asked, -1: every replica that is connected).
    `tied` asks for order: should this exchange be abandoned half-way, the next tied call of the
    same flow follows it on the same connection, so an undo can never overtake what it undoes.
    """

    script: Script[T]
    keys: tuple[str, ...]
    args: tuple[Argument, ...]
    timeout: float
    node: int = 0
    acks: int = 0
    tied: bool = False


def text(reply: bytes | str) -> str:
    """A reply as text. Foreign holders may have written anything, so nothing is refused."""
    return reply if isinstance(reply, str) else reply.decode("utf-8", "backslashreplace")
