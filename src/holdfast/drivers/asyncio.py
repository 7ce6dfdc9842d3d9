"""The asyncio runtime: tasks. One connection per server, one more where WAIT must block.

A client belongs to the loop in which it is used. When that loop has ended it starts anew in the
next one (repeated `asyncio.run`); two running loops at once are refused.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, TypeVar

from ..core.events import Hub, InboxFailed
from ..core.script import Call
from ..errors import HoldfastError, NodeError, UsageError
from ..wire.endpoint import SETTLE_S, Endpoint
from ..wire.pipe import Pipe
from ..wire.replies import Redirect, ReplyError, command, is_noscript, pack, redirect, refusal
from ..wire.topology import MOST_REDIRECTS, Cluster, Deployment
from .common import (
    Common,
    Settings,
    addressed,
    check_replicated,
    connected_replicas,
    epochs,
    passed_over,
    timed_out,
    wait_ms,
)
from .fan_asyncio import Fan
from .tasks import TaskScope, TaskSignal

T = TypeVar("T")
MOST_ABANDONED = 4096
_NO_GUARD: AbstractContextManager[Any] = nullcontext()


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
        self._abandoned: dict[tuple[str, int], Pipe] = {}
        self._mailboxes: dict[str, TaskSignal] = {}
        self._inboxes: dict[int, Pipe] = {}
        self._inboxes_opening: dict[int, asyncio.Future[bool]] = {}
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
        pipe = self._tied(call, endpoint) if call.tied and self._abandoned else None
        if pipe is None:
            pipe = self._pipes.get(endpoint)
            if pipe is None or pipe.closed or pipe.retired:
                pipe = await self._open(endpoint, deployment)
        try:
            reply = await pipe.request(pack(call, pipe), call.timeout)
        except NodeError as error:
            self._gave_up(call, pipe, error)
            raise
        except asyncio.CancelledError:
            if pipe.retired and not call.final:
                self._abandon(call, pipe)
            raise
        if deployment.failures:
            deployment.answered()
        if isinstance(reply, ReplyError):
            reply = await self._insist(deployment, call, reply)
        return call.script.parse(reply)

    def _tied(self, call: Call[Any], endpoint: Endpoint) -> Pipe | None:
        """The connection on which an earlier call tied to the word is still under way."""
        kept = self._abandoned.pop((call.tied, call.node), None)
        return kept if kept is not None and kept.endpoint is endpoint and not kept.closed else None

    def _gave_up(self, call: Call[Any], pipe: Pipe, error: NodeError) -> None:
        """An exchange failed. What is tied to it must follow it while the connection lives."""
        self.deployments[call.node].failed(pipe.endpoint)
        if error.sent and not call.final:
            self._abandon(call, pipe)

    def _abandon(self, call: Call[Any], pipe: Pipe) -> None:
        """What is tied to this call goes out on its connection, if that lives."""
        if call.tied and not pipe.closed:
            for key in list(itertools.islice(self._abandoned, 2)):  # the oldest
                if self._abandoned[key].closed or len(self._abandoned) >= MOST_ABANDONED:
                    del self._abandoned[key]
            self._abandoned[call.tied, call.node] = pipe

    async def fan_out(
        self, calls: Sequence[Call[Any]], enough: Callable[[Any], bool] | None = None
    ) -> Any:
        if self._loop is not asyncio.get_running_loop() or self.closed:
            self._enter()
        if enough is None:
            return list(await asyncio.gather(*map(self._settle, calls)))
        return await Fan(self, calls, enough).run()

    async def _settle(self, call: Call[Any]) -> Any:
        deployment = self.deployments[call.node]
        if deployment.failures and not call.final and not self.admits(deployment):
            return passed_over(deployment)
        return await self._admitted(call)

    async def _admitted(self, call: Call[Any]) -> Any:
        """The answer, or what went wrong."""
        try:
            return await self.call(call)
        except HoldfastError as error:
            found = error
        if call.final and isinstance(found, NodeError) and found.sent and not timed_out(found):
            try:  # the same as in fan_asyncio.py: a last word, once more, and not counted
                await self.call(call)
            except HoldfastError:
                pass
        return found

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
                    pipe.request(pack(call, pipe, whole=whole), call.timeout), allowed
                )
            else:
                reply = await pipe.request(pack(call, pipe, whole=whole), call.timeout)
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
        """The call, then WAIT on a connection of its own: WAIT blocks what follows it.

        Not both at once: an undo that follows the call on its connection would stand behind a WAIT,
        and be dropped with it when the connection is closed.
        """
        ends = asyncio.get_running_loop().time() + call.timeout
        reply: Any = None
        for _ in range(MOST_REDIRECTS):
            endpoint = deployment.endpoint(call.keys) or await self._mapped(call, deployment)
            spare = self._spare.setdefault(endpoint, [])
            while spare and spare[-1].closed:
                spare.pop()
            pipe = spare.pop() if spare else await self._connect(endpoint, deployment)
            try:
                reply = await pipe.request(pack(call, pipe, whole=True), call.timeout)
            except BaseException as error:
                # Whether it acts is not known: the undo follows on this connection, nothing else.
                if isinstance(error, NodeError):
                    deployment.failed(endpoint)
                self._abandon(call, pipe)
                pipe.retire()
                raise
            if not isinstance(reply, ReplyError):
                value = call.script.parse(reply)
                wrote = call.script.wrote(value)
                found = await self._confirmed(pipe, call, ends) if wrote else None
                spare.append(pipe)
                if found is not None:
                    check_replicated(call, *found)
                return value
            spare.append(pipe)
            hint = redirect(reply, endpoint.host)
            if not isinstance(deployment, Cluster) or not isinstance(hint, Redirect):
                break
            deployment.moved(hint)
        raise self._refused(deployment, call, reply)

    @staticmethod
    async def _confirmed(pipe: Pipe, call: Call[Any], ends: float) -> tuple[int, Any]:
        """How many replicas shall have what was written, and what the server says of that."""
        loop = asyncio.get_running_loop()

        async def ask(*words: str) -> Any:
            return await pipe.request(command(*words), max(0.001, ends - loop.time()))

        try:
            wanted, role = call.acks, await ask("ROLE") if call.acks < 0 else None
            if role is not None and not isinstance(role, ReplyError):
                wanted = connected_replicas(role)
            return wanted, role if wanted < 0 else await ask("WAIT", str(wanted), wait_ms(call))
        except BaseException:
            pipe.abort()
            raise

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
            try:
                pipe = await asyncio.shield(opening)
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if opening.cancelled() and (task is None or not task.cancelling()):
                    raise UsageError("this client was closed while it connected") from None
                raise
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
        if self._abandoned and len(self.deployments) == 1:
            self._abandoned.pop((mailbox, 0), None)

    async def wait(self, signal: Any, timeout: float, *, inbox: bool = False) -> bool:
        if inbox and len(self._inboxes) < len(self.deployments) and await self._open_inboxes():
            return True
        woken: bool = await signal.take(timeout)
        return woken

    async def _open_inboxes(self) -> bool:
        """Subscribe, if nobody has. True if that made the inbox live: look again before waiting.

        With several primaries that happens beside the caller, who is woken when one is live.
        """
        if len(self.deployments) > 1:
            for node, deployment in enumerate(self.deployments):
                known = node in self._inboxes or node in self._inboxes_opening
                if not known and not deployment.failures:
                    opening = self._inboxes_opening[node] = self._keep(self._subscribe(node))
                    opening.add_done_callback(partial(self._inbox_opened, node))
            return False
        if 0 not in self._inboxes_opening:
            self._inboxes_opening[0] = self._keep(self._subscribe(0))
        single = self._inboxes_opening[0]
        try:
            opened: bool = await asyncio.shield(single)
            return opened
        finally:
            if single.done() and self._inboxes_opening.get(0) is single:
                del self._inboxes_opening[0]

    def _inbox_opened(self, node: int, opening: asyncio.Future[bool]) -> None:
        self._inboxes_opening.pop(node, None)
        if not opening.cancelled() and opening.exception() is None and opening.result():
            self._wake_all()

    async def _subscribe(self, node: int) -> bool:
        """Subscribe. True if this made the inbox live: look again before waiting."""
        deployment = self.deployments[node]
        endpoint = deployment.any_endpoint()
        try:
            pipe = (
                await self._open(endpoint, deployment)
                if endpoint.resp3
                else await self._connect(endpoint, deployment)
            )
            pipe.on_message, pipe.on_lost = self._message, partial(self._inbox_lost, node)
            await pipe.subscribe(self.inbox, self.settings.timeout)
        except NodeError as error:
            if error.transient:  # a missing right to the channel is no failure of the node
                deployment.failed(endpoint)
            self.emit(InboxFailed(endpoint.name, self.inbox, str(error)))
            return False
        self._inboxes[node] = pipe
        return True

    def _message(self, message: str) -> None:
        mailbox, look_ms = addressed(message)
        signal = self._mailboxes.get(mailbox)
        if signal is not None:
            signal.set(look_ms)

    def _inbox_lost(self, node: int, pipe: Pipe) -> None:
        if self._inboxes.get(node) is pipe:
            del self._inboxes[node]
        self._wake_all()

    def _wake_all(self) -> None:
        # Whoever waits must look again: messages may have been lost without a connection.
        for signal in list(self._mailboxes.values()):
            signal.set()

    # ── flows ──────────────────────────────────────────────────────────────────────────────────

    def me(self) -> object:
        try:
            return asyncio.current_task()
        except RuntimeError:  # a forked child, in a block that its parent's loop has entered
            return None

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
        if self._loop is None:  # nothing was opened, or not in this process
            return
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            for pipe in self._opened_pipes:
                pipe.abort()
            return
        try:
            # Servers that nobody waits for any more shall read what is on its way to them.
            ends = loop.time() + SETTLE_S
            while any(p.owes() for p in self._opened_pipes) and loop.time() < ends:  # noqa: ASYNC110
                await asyncio.sleep(SETTLE_S / 20)
            mine = asyncio.current_task()
            tasks = [task for task in self._tasks if task is not mine and not task.done()]
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks, timeout=1.0)
        finally:
            for pipe in self._opened_pipes:
                pipe.abort()
        # One turn of the loop, in which the transports run their ends.
        await asyncio.sleep(0)
