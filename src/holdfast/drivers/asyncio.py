"""The asyncio runtime: tasks. One connection per server, one more where WAIT must block.

A client belongs to the loop in which it is used. When that loop has ended it starts anew in the
next one (repeated `asyncio.run`); two running loops at once are refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, TypeVar

from ..core.events import Hub, InboxFailed
from ..core.script import Call
from ..errors import HoldfastError, NodeError, UsageError
from ..wire.endpoint import Endpoint
from ..wire.pipe import Pipe
from ..wire.replies import Redirect, ReplyError, command, is_noscript, pack, redirect, refusal
from ..wire.topology import MOST_REDIRECTS, Cluster, Deployment
from .common import Common, Settings, Told, addressed, epochs, replicated

T = TypeVar("T")
_NO_GUARD: AbstractContextManager[Any] = nullcontext()


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


class AsyncioRuntime(Common):
    """Implements core.runtime.Runtime for asyncio."""

    def __init__(self, deployments: list[Deployment], settings: Settings, hub: Hub) -> None:
        super().__init__(deployments, settings, hub)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reset()

    def _reset(self) -> None:
        self._pipes: dict[Endpoint, Pipe] = {}
        self._opened_pipes: set[Pipe] = set()
        self._opening: dict[Endpoint, asyncio.Future[Pipe]] = {}
        self._spare: dict[Endpoint, list[Pipe]] = {}
        self._abandoned: dict[str, Pipe] = {}
        self._mailboxes: dict[str, TaskSignal] = {}
        self._inbox_pipe: Pipe | None = None
        self._inbox_opening: asyncio.Future[bool] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self.closed = False

    def after_fork(self) -> None:
        super().after_fork()
        self._loop = None
        closed = self.closed
        self._reset()
        self.closed = closed

    def _enter(self) -> None:
        """Make sure that we live in the loop that runs now."""
        loop = asyncio.get_running_loop()
        if loop is self._loop:
            if self.closed:
                raise UsageError("this client is closed; connect() makes a new one")
            return
        if self._loop is not None:
            if self._loop.is_running():
                raise UsageError(
                    "this asyncio client is in use in another running event loop; "
                    "make one client per loop"
                )
            if self.closed:
                raise UsageError("this client is closed; connect() makes a new one")
            # Holds, tasks and connections of the old loop ended with it.
            for pipe in self._opened_pipes:
                pipe.on_lost = None
                pipe.abort()
            self._reset()
            self.epoch = next(epochs)
        self._loop = loop

    # ── calls ──────────────────────────────────────────────────────────────────────────────────

    async def call(self, call: Call[T]) -> T:
        if self._loop is not asyncio.get_running_loop() or self.closed:
            self._enter()
        deployment = self.deployments[call.node]
        if call.acks:
            return await self._replicated(call, deployment)
        endpoint = deployment.endpoint(call.keys) or await self._mapped(call, deployment)
        pipe = self._pipes.get(endpoint)
        if call.tied and self._abandoned:
            pipe = self._tied(call.tied, endpoint, pipe)
        if pipe is None or pipe.closed or (pipe.retired and not call.tied):
            pipe = await self._open(endpoint, deployment)
        try:
            reply = await pipe.request(pack(call), call.timeout)
        except NodeError:
            if call.tied and not pipe.closed:
                self._abandoned[call.tied] = pipe
            deployment.failed(endpoint)
            raise
        if isinstance(reply, ReplyError):
            reply = await self._insist(deployment, call, reply)
        return call.script.parse(reply)

    def _tied(self, word: str, endpoint: Endpoint, pipe: Pipe | None) -> Pipe | None:
        """The connection on which an earlier call tied to the word is still under way."""
        kept = self._abandoned.pop(word, None)
        return kept if kept is not None and kept.endpoint is endpoint else pipe

    async def fan_out(self, calls: Sequence[Call[T]]) -> list[T | HoldfastError]:
        return list(await asyncio.gather(*map(self._settle, calls)))

    async def _settle(self, call: Call[T]) -> T | HoldfastError:
        try:
            return await self.call(call)
        except HoldfastError as error:
            return error

    async def _insist(self, deployment: Deployment, call: Call[Any], reply: Any) -> Any:
        """Follow what error replies ask for. None of them means that the node acted."""
        whole = False
        for _ in range(MOST_REDIRECTS):
            endpoint = deployment.endpoint(call.keys) or await self._mapped(call, deployment)
            asking = False
            if is_noscript(reply):
                whole = True
            elif isinstance(deployment, Cluster) and (hint := redirect(reply, endpoint.host)):
                if isinstance(hint, Redirect):
                    endpoint = deployment.moved(hint)
                    asking = hint.asking
                    # The new owner may not know the script: one exchange instead of two.
                    whole = whole or asking
                else:
                    await asyncio.sleep(hint.pause)
            else:
                break
            pipe = await self._open(endpoint, deployment)
            if asking:
                # Issued in the same tick, so that nothing comes between it and the call.
                allowed = pipe.request(command(b"ASKING"), call.timeout)
                reply, _ = await asyncio.gather(
                    pipe.request(pack(call, whole=whole), call.timeout), allowed
                )
            else:
                reply = await pipe.request(pack(call, whole=whole), call.timeout)
            if not isinstance(reply, ReplyError):
                return reply
        raise self._refused(deployment, call, reply)

    def _refused(self, deployment: Deployment, call: Call[Any], reply: Exception) -> Exception:
        endpoint = deployment.endpoint(call.keys) or deployment.any_endpoint()
        if "READONLY" in str(reply):  # demoted: the next call shall look for the new primary
            pipe = self._pipes.pop(endpoint, None)
            if pipe is not None:
                pipe.abort()
            deployment.failed(endpoint)
        return refusal(call, endpoint.name, reply)

    async def _replicated(self, call: Call[T], deployment: Deployment) -> T:
        """The call, and WAIT behind it on a connection of its own: WAIT blocks what follows it."""
        reply: Any = None
        for _ in range(MOST_REDIRECTS):
            endpoint = deployment.endpoint(call.keys) or await self._mapped(call, deployment)
            spare = self._spare.setdefault(endpoint, [])
            while spare and spare[-1].closed:
                spare.pop()
            pipe = spare.pop() if spare else await self._connect(endpoint, deployment)
            try:
                reply, wanted, confirmed = await self._write_and_wait(pipe, call)
            except BaseException:
                pipe.abort()
                raise
            spare.append(pipe)
            if not isinstance(reply, ReplyError):
                return replicated(call, wanted, confirmed, reply)
            hint = redirect(reply, endpoint.host)
            if not isinstance(deployment, Cluster) or not isinstance(hint, Redirect):
                break
            deployment.moved(hint)
        raise self._refused(deployment, call, reply)

    @staticmethod
    async def _write_and_wait(pipe: Pipe, call: Call[Any]) -> tuple[Any, int, Any]:
        wait_ms = str(max(1, int(call.timeout * 500)))
        wanted = call.acks
        second = command(b"ROLE") if wanted < 0 else command(b"WAIT", str(wanted), wait_ms)
        # EVAL, not EVALSHA: a NOSCRIPT would come back with a WAIT that waited for nothing.
        reply, confirmed = await asyncio.gather(
            pipe.request(pack(call, whole=True), call.timeout),
            pipe.request(second, call.timeout),
        )
        if wanted < 0 and not isinstance(confirmed, ReplyError):
            # "all" means every replica connected now, and at least one: none at all is a shortfall.
            wanted = max(1, len(confirmed[2]) if confirmed[0] == b"master" else 1)
            confirmed = await pipe.request(command(b"WAIT", str(wanted), wait_ms), call.timeout)
        return reply, wanted, confirmed

    # ── connections and topology ───────────────────────────────────────────────────────────────

    async def _open(self, endpoint: Endpoint, deployment: Deployment) -> Pipe:
        """The shared connection to a server; who comes while it is being opened waits for it."""
        while True:
            pipe = self._pipes.get(endpoint)
            if pipe is not None and not pipe.closed and not pipe.retired:
                return pipe
            opening = self._opening.get(endpoint)
            if opening is None:
                opening = self._opening[endpoint] = self._keep(self._connect(endpoint, deployment))
                opening.add_done_callback(partial(self._opened, endpoint))
            # Shielded: the first caller's cancellation must not fail the others.
            pipe = await asyncio.shield(opening)
            if not pipe.closed:
                return pipe

    def _opened(self, endpoint: Endpoint, opening: asyncio.Future[Pipe]) -> None:
        # Here and not in _open: every caller may have been cancelled meanwhile.
        self._opening.pop(endpoint, None)
        if not opening.cancelled() and opening.exception() is None:
            self._pipes[endpoint] = opening.result()

    async def _connect(self, endpoint: Endpoint, deployment: Deployment) -> Pipe:
        try:
            pipe = await Pipe.open(endpoint, self.settings.timeout)
        except NodeError:
            deployment.failed(endpoint)
            raise
        if self.closed:
            pipe.abort()
            raise UsageError("this client was closed while it connected")
        # All of them, for close(): a retired one is in no other table.
        self._opened_pipes = {p for p in self._opened_pipes if not p.closed} | {pipe}
        return pipe

    async def _mapped(self, call: Call[Any], deployment: Deployment) -> Endpoint:
        """Fetch the cluster's slot map from whoever answers first."""
        assert isinstance(deployment, Cluster), "only a cluster has keys that nobody serves"
        error: Exception | None = None
        for candidate in deployment.candidates():
            try:
                pipe = await self._open(candidate, deployment)
                reply = await pipe.request(command(b"CLUSTER", b"SLOTS"), call.timeout)
            except NodeError as failure:
                error = failure
                continue
            if not isinstance(reply, ReplyError):
                deployment.learn(reply, candidate)
                found = deployment.endpoint(call.keys)
                if found is not None:
                    return found
        raise NodeError(
            f"{deployment.name}: no node answers who serves {call.keys[0]!r}"
            + (f"; last: {error}" if error else ""),
            node=deployment.name,
            sent=False,
        ) from error

    # ── signals and the inbox ──────────────────────────────────────────────────────────────────

    def signal(self) -> TaskSignal:
        return TaskSignal()

    def listen(self, mailbox: str) -> TaskSignal:
        if self._loop is not asyncio.get_running_loop():
            self._enter()
        signal = self._mailboxes[mailbox] = TaskSignal()
        return signal

    def unlisten(self, mailbox: str) -> None:
        self._mailboxes.pop(mailbox, None)
        if self._abandoned:
            self._abandoned.pop(mailbox, None)

    async def wait(self, signal: Any, timeout: float, *, inbox: bool = False) -> bool:
        if inbox and self._inbox_pipe is None and await self._open_inbox():
            return True
        woken: bool = await signal.take(timeout)
        return woken

    async def _open_inbox(self) -> bool:
        if self._inbox_opening is None:
            self._inbox_opening = self._keep(self._subscribe())
        opening = self._inbox_opening
        try:
            opened: bool = await asyncio.shield(opening)
            return opened
        finally:
            if opening.done() and self._inbox_opening is opening:
                self._inbox_opening = None

    async def _subscribe(self) -> bool:
        """Subscribe. True if this made the inbox live: look again before waiting."""
        deployment = self.deployments[0]
        endpoint = deployment.any_endpoint()
        try:
            pipe = (
                await self._open(endpoint, deployment)
                if endpoint.resp3
                else await self._connect(endpoint, deployment)
            )
            pipe.on_message, pipe.on_lost = self._message, self._inbox_lost
            await pipe.subscribe(self.inbox, self.settings.timeout)
        except NodeError as error:
            deployment.failed(endpoint)
            self.emit(InboxFailed(endpoint.name, self.inbox, str(error)))
            return False
        self._inbox_pipe = pipe
        return True

    def _message(self, message: str) -> None:
        mailbox, look_ms = addressed(message)
        signal = self._mailboxes.get(mailbox)
        if signal is not None:
            signal.set(look_ms)

    def _inbox_lost(self, pipe: Pipe) -> None:
        if self._inbox_pipe is pipe:
            self._inbox_pipe = None
        # Whoever waits must look again: messages may have been lost with the connection.
        for signal in list(self._mailboxes.values()):
            signal.set()

    # ── flows ──────────────────────────────────────────────────────────────────────────────────

    def me(self) -> object:
        return asyncio.current_task()

    def _keep(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        # The loop keeps weak references only: a task that nobody holds may vanish in mid-air.
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._kept)
        return task

    def _kept(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved: whoever waited has it, and nobody else needs it

    def spawn(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        self._keep(work).set_name(name)

    async def shield(self, work: Coroutine[Any, Any, T]) -> T:
        task = self._keep(work)
        cancelled: asyncio.CancelledError | None = None
        while not task.done():
            try:
                await asyncio.shield(task)
            except asyncio.CancelledError as error:
                if task.cancelled():
                    raise
                cancelled = error  # noted; the work is bounded, so this ends
            except BaseException:
                break
        if cancelled is not None:
            raise cancelled
        return task.result()

    def guard(self) -> AbstractContextManager[Any]:
        return _NO_GUARD

    def scope(self) -> TaskScope:
        return TaskScope()

    # ── the end ────────────────────────────────────────────────────────────────────────────────

    async def close(self) -> None:
        """Close every connection and end the tasks. Bounded; a second call does nothing."""
        if self.closed:
            return
        self.closed = True
        if self._loop is not None and self._loop is not asyncio.get_running_loop():
            for pipe in self._opened_pipes:
                pipe.abort()
            return
        mine = asyncio.current_task()
        tasks = [task for task in self._tasks if task is not mine and not task.done()]
        for task in tasks:
            task.cancel()
        try:
            if tasks:
                await asyncio.wait(tasks, timeout=1.0)
        finally:
            for pipe in self._opened_pipes:
                pipe.abort()
        # One turn of the loop, in which the transports run their ends.
        await asyncio.sleep(0)
