"""Undoing what may have happened.

Once a request has left, every exit is "unknown": a lost reply, a timeout, a cancellation, Ctrl-C.
The undo is a script that compares the owner, so it is harmless where nothing happened; it is
shielded and bounded; and where it cannot reach the server, the TTL of the key is the backstop.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from ..errors import HoldfastError
from .runtime import Runtime


async def compensate(
    rt: Runtime, error: BaseException, undo: Callable[[], Coroutine[Any, Any, object]]
) -> None:
    """Run `undo` because of `error`, which the caller raises again afterwards."""
    if isinstance(error, GeneratorExit):
        return  # the coroutine is being collected: it must not await again
    try:
        await rt.shield(undo())
    except HoldfastError:
        pass
