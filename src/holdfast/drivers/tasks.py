"""Tasks as the port sees them: waking one, and ending the block that it is in."""

from __future__ import annotations

import asyncio

from .common import Told


class TaskSignal(Told):
    """A sticky wake-up for one waiting task."""

    __slots__ = ("_future", "_set")

    def __init__(self) -> None:
        super().__init__()
        self._set = False
        self._future: asyncio.Future[None] | None = None

    def set(self, look_ms: int | None = None) -> None:
        self.tell(look_ms)
        self._set = True
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def take(self, timeout: float) -> bool:
        if not self._set and timeout > 0:
            loop = asyncio.get_running_loop()
            future = self._future = loop.create_future()
            timer = loop.call_later(timeout, _finish, future)
            try:
                await future
            finally:
                timer.cancel()
                self._future = None
        was_set, self._set = self._set, False
        return was_set


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class TaskScope:
    """A block whose task can be cancelled from within the library, as `asyncio.timeout` does."""

    __slots__ = ("_before", "_closed", "_fired", "_task")

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None, "a coroutine that runs in a loop runs in a task"
        self._task = task
        self._before = task.cancelling()
        self._fired = False
        self._closed = False

    def interrupt(self) -> None:
        if not self._fired and not self._closed and not self._task.done():
            self._fired = True
            self._task.cancel("the lock was lost")

    async def close(self, error: BaseException | None) -> bool:
        self._closed = True
        if not self._fired:
            return False
        late: asyncio.CancelledError | None = None
        if not isinstance(error, asyncio.CancelledError):
            # The body ended before the cancellation reached it: take delivery here, or it would
            # surface at some innocent await later on.
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError as delivered:
                late = delivered
        cancelled_by_others = self._task.uncancel() > self._before
        if cancelled_by_others:
            if late is not None:
                raise late
            return False
        return late is not None or isinstance(error, asyncio.CancelledError)
