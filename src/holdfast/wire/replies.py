"""What an error reply means for the exchange: try elsewhere, load the script, or give up."""

from __future__ import annotations

import re
from typing import Any, Protocol

import hiredis
import msgspec

from ..core.script import Argument, Call
from ..errors import NodeError, UsageError

ReplyError: type[Exception] = hiredis.ReplyError


class Redirect(msgspec.Struct, frozen=True):
    """A cluster node that does not serve the slot: it did nothing, and says who does."""

    host: str
    port: int
    asking: bool
    slot: int


class Again(msgspec.Struct, frozen=True):
    """The node did nothing, and the same call may succeed there in a moment."""

    pause: float


def command(*words: Argument) -> bytes:
    """The bytes of one command."""
    packed: bytes = hiredis.pack_command(words)  # type: ignore[arg-type]
    return packed


class Peer(Protocol):
    """The server on the other end of a connection, as far as a request must know it."""

    run_id: str
    known: set[str]
    """The digests of the scripts that were sent whole on this connection."""


def pack(call: Call[Any], peer: Peer, *, whole: bool = False) -> bytes:
    """The bytes of a call: EVALSHA, or the whole script where the server may not know it.

    The first time on a connection it is sent whole: that saves a NOSCRIPT and a second exchange,
    and teaches a node of a quorum whose answers always come when nobody waits for them any more.
    """
    script, keys = call.script, call.keys
    args = (*call.args, peer.run_id) if call.identified else call.args
    if whole or script.whole or script.sha not in peer.known:
        peer.known.add(script.sha)
        return command(b"EVAL", script.lua, str(len(keys)), *keys, *args)
    # Not through command(): this is the hottest line of the wire, and would build its tuple twice.
    packed: bytes = hiredis.pack_command(
        (b"EVALSHA", script.sha, str(len(keys)), *keys, *args)  # type: ignore[arg-type]
    )
    return packed


def run_id(info: object) -> str:
    """The run id in a reply to INFO: it changes with every start of the server."""
    found = re.search(r"run_id:(\w+)", info.decode() if isinstance(info, bytes) else str(info))
    if found is None:
        raise ValueError("INFO does not tell its run_id, which the guard of a quorum needs")
    return found[1]


def is_noscript(reply: object) -> bool:
    """Whether the server has forgotten the script (restart, SCRIPT FLUSH, another node)."""
    return isinstance(reply, ReplyError) and str(reply).startswith("NOSCRIPT")


def redirect(reply: object, host: str) -> Redirect | Again | None:
    """What a cluster wants us to do instead, or None where it is no such answer."""
    message = str(reply)
    if message.startswith(("MOVED ", "ASK ")):
        kind, number, address = message.split(" ")[:3]
        where, _, port = address.rpartition(":")
        return Redirect(where or host, int(port), kind == "ASK", int(number))
    if message.startswith("TRYAGAIN"):
        return Again(0.02)
    return None


# The server did nothing, and may do it later; or it did nothing, and never will.
_PASSING = "LOADING|MOVED|ASK|TRYAGAIN|READONLY|MASTERDOWN|CLUSTERDOWN|OOM|MISCONF|NOREPLICAS|BUSY"
_LASTING = "NOAUTH|NOPERM|WRONGPASS"
_REFUSALS = re.compile(rf"\b(?:({_PASSING})|({_LASTING}))\b")


def refusal(call: Call[Any], node: str, reply: Exception) -> Exception:
    """The error to raise for an error reply that nothing can be done about."""
    name = call.keys[0] if call.keys else ""
    message = str(reply)
    if "WRONGTYPE" in message:
        return UsageError(
            f"{name!r} or one of its helper keys holds another kind of value on {node}: "
            f"give the lock a name of its own ({message})",
            name=name,
        )
    found = _REFUSALS.search(message)
    what = f"refuses ({found.group()})" if found else "answered with an error"
    return NodeError(
        f"{node} {what}: {message}",
        node=node,
        sent=not found,
        transient=found is not None and found.group(1) is not None,
        name=name,
    )
