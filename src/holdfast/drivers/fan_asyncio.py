"""One fan-out of the asyncio runtime that ends with enough answers.

Nobody is waited for who is not needed. What has left goes on: its reply is taken in when it comes,
and what must reach a node although the caller has gone on (`final`) reaches it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ..core.script import Call
from ..errors import HoldfastError, NodeError
from ..wire.pipe import Pipe
from ..wire.replies import ReplyError, is_noscript, pack
from .common import passed_over, timed_out

if TYPE_CHECKING:
    from .asyncio import AsyncioRuntime


class _Place:
    """Where the answer of one node goes: an awaiter that costs no turn of the loop."""

    __slots__ = ("_fan", "_pipe", "_place", "_told")

    def __init__(self, fan: Fan, place: int, pipe: Pipe) -> None:
        self._fan = fan
        self._place = place
        self._pipe = pipe
        self._told = False

    def done(self) -> bool:
        return self._told

    def set_result(self, reply: Any, /) -> None:
        self._told = True
        self._fan._replied(self._place, self._pipe, reply)

    def set_exception(self, error: NodeError, /) -> None:
        self._told = True
        self._fan._failed(self._place, self._pipe, error)


class Fan:
    """Runs some calls at once, until `enough` of them have answered."""

    __slots__ = ("_answers", "_calls", "_decided", "_enough", "_left", "_rt", "_tasks")

    def __init__(
        self, rt: AsyncioRuntime, calls: Sequence[Call[Any]], enough: Callable[[Any], bool]
    ) -> None:
        self._rt = rt
        self._calls = calls
        self._enough = enough
        self._answers: list[Any] = [None] * len(calls)
        self._left = len(calls)
        self._decided: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tasks: list[asyncio.Task[Any]] = []

    async def run(self) -> list[Any]:
        """Send everything, and return what had answered when it was enough."""
        rt = self._rt
        for place, call in enumerate(self._calls):
            deployment = rt.deployments[call.node]
            if deployment.failures and not call.final and not rt.admits(deployment):
                self._take(place, passed_over(deployment))
                continue
            endpoint = deployment.endpoint(call.keys)
            pipe = None if endpoint is None else rt._pipes.get(endpoint)
            ready = pipe is not None and not pipe.closed and not pipe.retired
            if not ready or deployment.failures or (call.tied, call.node) in rt._abandoned:
                self._beside(place, rt._admitted(call))
                continue
            assert pipe is not None, "it is ready"
            pipe.submit(pack(call, pipe), call.timeout, _Place(self, place, pipe))
        try:
            await self._decided
        finally:
            # Enough, or cancelled. What has not left yet does not leave any more.
            self._decided.cancel()
            for task in self._tasks:
                task.cancel()
        return list(self._answers)

    def _beside(self, place: int, work: Any) -> None:
        task = self._rt._keep(work)
        task.add_done_callback(partial(self._settled, place))
        if not self._calls[place].final:
            self._tasks.append(task)

    def _settled(self, place: int, task: asyncio.Task[Any]) -> None:
        if task.cancelled():  # by us, when it was decided; or because the client is closed
            name = self._rt.deployments[self._calls[place].node].name
            gone = NodeError(
                f"{name} was not waited for: the client is closed", node=name, sent=True
            )
            self._take(place, gone)
            return
        error = task.exception()
        if error is None:
            self._take(place, task.result())
        elif not self._decided.done():
            self._decided.set_exception(error)

    def _failed(self, place: int, pipe: Pipe, error: NodeError) -> None:
        call = self._calls[place]
        self._rt._gave_up(call, pipe, error)
        self._take(place, error)
        if call.final and error.sent and not timed_out(error):
            # The last word went down with its connection: once more on another, beside the caller.
            # What it answers is not counted: if it had been executed, it finds nothing any more.
            _ = self._rt._keep(self._rt._admitted(call))

    def _replied(self, place: int, pipe: Pipe, reply: Any) -> None:
        rt, call = self._rt, self._calls[place]
        if rt.deployments[call.node].failures:
            rt.deployments[call.node].answered()
        if not isinstance(reply, ReplyError):
            try:
                self._take(place, call.script.parse(reply))
            except Exception as defect:  # it must not leave the caller waiting for ever
                if not self._decided.done():
                    self._decided.set_exception(defect)
        elif is_noscript(reply) and self._decided.done():
            pipe.known.clear()  # nobody waits any more: the next call teaches it again
        elif not self._decided.done() or call.final:
            # Not later: what is asked for again then would follow the undo.
            self._beside(place, self._repeat(call, reply))

    async def _repeat(self, call: Call[Any], reply: Any) -> Any:
        try:
            deployment = self._rt.deployments[call.node]
            return call.script.parse(await self._rt._insist(deployment, call, reply))
        except HoldfastError as error:
            return error

    def _take(self, place: int, answer: Any) -> None:
        if self._decided.done():
            return
        self._answers[place] = answer
        self._left -= 1
        if self._enough(answer) or not self._left:
            self._decided.set_result(None)
