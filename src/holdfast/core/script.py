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

# Text and bytes only. hiredis makes text of numbers with PyObject_Repr, which runs pending signal
# handlers, and does not look whether that failed: a Ctrl-C at that moment would end the interpreter
# with a segmentation fault (seen with hiredis 3.5.0).
Argument = str | bytes


class Script(Generic[T]):
    """One atomic step on the server. Safe to run twice, declares all its keys, sets TTLs.

    It is sent by its digest, and whole where the server does not know it. `whole` has it sent whole
    always: an undo must take effect even if no answer ever comes back to say NOSCRIPT. `wrote`
    tells from an answer whether there is anything that replicas could confirm.
    """

    __slots__ = ("lua", "name", "parse", "sha", "whole", "wrote")

    def __init__(
        self,
        name: str,
        lua: str,
        parse: Callable[[Any], T],
        *,
        whole: bool = False,
        wrote: Callable[[T], bool] = lambda _: True,
    ) -> None:
        self.name = name
        self.lua = lua
        self.sha = hashlib.sha1(lua.encode(), usedforsecurity=False).hexdigest()
        self.parse = parse
        self.whole = whole
        self.wrote = wrote

    def __repr__(self) -> str:
        return f"Script({self.name!r})"


class Call(msgspec.Struct, Generic[T], frozen=True, gc=False):
    """One run of a script on the deployment number `node` (0 unless there are several primaries).

    `acks` replicas must confirm the write (0: none asked, -1: every replica that is connected).
    `tied` asks for order: should this exchange be abandoned half-way, the next call tied to the
    same word follows it on the same connection, so an undo can never overtake what it undoes.
    `final` marks the last one of its word: it must reach the node, even one that seems dead, and
    may do so after the caller has gone on. `identified` has the run id of the server, as it was
    when the connection was opened, sent as one more argument: a restart always breaks connections.
    """

    script: Script[T]
    keys: tuple[str, ...]
    args: tuple[Argument, ...]
    timeout: float
    node: int = 0
    acks: int = 0
    tied: str = ""
    final: bool = False
    identified: bool = False


def text(reply: bytes | str) -> str:
    """A reply as text. Foreign holders may have written anything, so nothing is refused."""
    return reply if isinstance(reply, str) else reply.decode("utf-8", "backslashreplace")
