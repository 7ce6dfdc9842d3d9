"""The blocking runtime: threads. Its coroutines never suspend; see core.runtime.run.

A call is one write and one read on a pooled socket. A fan-out writes to all, then reads from all.
One daemon thread reads the inbox, and only once somebody has had to wait.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from ..core.events import Hub, InboxFailed
from ..core.runtime import run
from ..core.script import Call
from ..errors import HoldfastError, NodeError, UsageError
from ..wire.endpoint import SETTLE_S, Endpoint
from ..wire.link import Link, settle
from ..wire.pool import LinkPool
from ..wire.replies import Redirect, ReplyError, command, is_noscript, pack, redirect, refusal
from ..wire.topology import MOST_REDIRECTS, Cluster, Deployment
from .common import (
    Common,
    Settings,
    Told,
    addressed,
    check_replicated,
    connected_replicas,
    timed_out,
    wait_ms,
)
from .fan_blocking import Fan

T = TypeVar("T")
BATCH = 128
# A lock made by the system's own primitive cannot wait longer than this; waits are loops anyway.
LONGEST_WAIT_S = min(threading.TIMEOUT_MAX, 3600.0)


class ThreadSignal(Told):
    """A sticky wake-up for one waiting thread: a lock that is free when the signal is set."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._lock.acquire()

    def set(self, look_ms: int | None = None) -> None:
        self.tell(look_ms)
        try:
            self._lock.release()
        except RuntimeError:
            pass  # set already

    def take(self, timeout: float) -> bool:
        return self._lock.acquire(timeout=max(0.0, min(timeout, LONGEST_WAIT_S)))


class ThreadScope:
    """A thread cannot be interrupted, so nothing ever is: the body asks `hold.lost` itself."""

    __slots__ = ()

    def interrupt(self) -> None:
        return None

    async def close(self, error: BaseException | None) -> bool:
        return False


_SCOPE = ThreadScope()


class BlockingRuntime(Common):
    """Implements core.runtime.Runtime for threads."""

    def __init__(self, deployments: list[Deployment], settings: Settings, hub: Hub) -> None:
        super().__init__(deployments, settings, hub)
        self._reset()

    def _reset(self) -> None:
        self._pools: dict[Endpoint, LinkPool] = {}
        self._mailboxes: dict[str, ThreadSignal] = {}
        self._mutex = threading.Lock()
        self._inboxes: dict[int, Link] = {}
        self._inboxes_opening: set[int] = set()
        self._threads: list[threading.Thread] = []
        self.closed = False

    def after_fork(self) -> None:
        # The parent's sockets are closed here (only this copy) when the old pools are collected;
        # its threads do not exist in the child; its mutexes may be locked for ever.
        closed = self.closed
        super().after_fork()
        self._reset()
        self.closed = closed

    # ── calls ──────────────────────────────────────────────────────────────────────────────────

    async def call(self, call: Call[T]) -> T:
        return self._execute(call)

    async def fan_out(
        self, calls: Sequence[Call[Any]], enough: Callable[[Any], bool] | None = None
    ) -> Any:
        self._check_open()
        answers: list[Any] = []
        # In parts: neither side may have to wait for the other to read what it has written.
        for first in range(0, len(calls), BATCH):
            part = calls[first : first + BATCH]
            fan = Fan(self, part, enough)
            fan.run()
            for place in fan.again:
                try:
                    fan.answers[place] = self._execute(part[place])
                except HoldfastError as error:
                    fan.answers[place] = error
            answers += fan.answers
        return answers

    def _execute(self, call: Call[T]) -> T:
        self._check_open()
        deployment = self.deployments[call.node]
        if call.acks:
            return self._replicated(call, deployment)
        endpoint = deployment.endpoint(call.keys)
        reply = self._exchange(deployment, endpoint or self._mapped(call, deployment), call)
        if isinstance(reply, ReplyError):
            reply = self._insist(deployment, call, reply)
        return call.script.parse(reply)

    def _insist(self, deployment: Deployment, call: Call[Any], reply: Any) -> Any:
        """Follow what error replies ask for. None of them means that the node acted."""
        whole = False
        for _ in range(MOST_REDIRECTS):
            endpoint = deployment.endpoint(call.keys) or self._mapped(call, deployment)
            prefix = b""
            if is_noscript(reply):
                whole = True
            elif isinstance(deployment, Cluster) and (hint := redirect(reply, endpoint.host)):
                if isinstance(hint, Redirect):
                    endpoint = deployment.moved(hint)
                    prefix = command(b"ASKING") if hint.asking else b""
                    # The new owner may not know the script: one exchange instead of two.
                    whole = whole or hint.asking
                else:
                    time.sleep(hint.pause)
            else:
                break
            reply = self._exchange(deployment, endpoint, call, whole, prefix)
            if not isinstance(reply, ReplyError):
                return reply
        raise self._refused(deployment, call, reply)

    def _refused(self, deployment: Deployment, call: Call[Any], reply: Exception) -> Exception:
        endpoint = deployment.endpoint(call.keys) or deployment.any_endpoint()
        if "READONLY" in str(reply):  # demoted: the next call shall look for the new primary
            self._pool(endpoint).clear()
            deployment.failed(endpoint)
        return refusal(call, endpoint.name, reply)

    def _exchange(
        self,
        deployment: Deployment,
        endpoint: Endpoint,
        call: Call[Any],
        whole: bool = False,
        prefix: bytes = b"",
    ) -> Any:
        pool = self._pool(endpoint)
        link = self._take(pool, call, deployment)
        data = prefix + pack(call, link, whole=whole)
        reply = self._ask(link, pool, deployment, call, data, 1 if prefix else 0)
        pool.give(link)
        return reply

    def _ask(
        self,
        link: Link,
        pool: LinkPool,
        deployment: Deployment,
        call: Call[Any],
        data: bytes,
        skip: int = 0,
    ) -> Any:
        """Send, and read the reply behind those that are still owed, and behind `skip` more."""
        owed = link.owed
        try:
            link.send(data, skip + 1, call.timeout)
            for _ in range(owed + skip):
                link.read(call.timeout)  # what an abandoned request, or ASKING, still had to say
            return link.read(call.timeout)
        except NodeError as error:
            self._give_up(link, pool, deployment, call, error)
            raise
        except BaseException:
            self._give_up(link, pool, deployment, call, None)
            raise

    def _take(self, pool: LinkPool, call: Call[Any], deployment: Deployment) -> Link:
        link = pool.parked(call.tied) if call.tied else None
        if link is not None:
            return link
        try:
            return pool.take(min(self.settings.timeout, max(call.timeout, 0.05)))
        except NodeError:
            deployment.failed(pool.endpoint)
            raise

    def _give_up(
        self,
        link: Link,
        pool: LinkPool,
        deployment: Deployment,
        call: Call[Any],
        error: NodeError | None,
    ) -> None:
        """The exchange broke. The link is dropped, or kept aside for the undo that must follow."""
        if call.tied and (error is None or timed_out(error)):
            pool.park(call.tied, link)
        else:
            link.close()
        if error is not None:
            pool.clear()  # its other links are to the same dead or replaced server
            deployment.failed(pool.endpoint)

    def _replicated(self, call: Call[T], deployment: Deployment) -> T:
        """The call, then WAIT on the same connection: WAIT speaks of that one only.

        Not both at once: an undo that follows the call on its connection would stand behind a WAIT,
        and be dropped with it when the connection is closed.
        """
        ends = time.monotonic() + call.timeout
        reply: Any = None
        for _ in range(MOST_REDIRECTS):
            endpoint = deployment.endpoint(call.keys) or self._mapped(call, deployment)
            pool = self._pool(endpoint)
            link = self._take(pool, call, deployment)
            reply = self._ask(link, pool, deployment, call, pack(call, link, whole=True))
            if not isinstance(reply, ReplyError):
                value = call.script.parse(reply)
                found = self._confirmed(link, call, ends) if call.script.wrote(value) else None
                pool.give(link)
                if found is not None:
                    check_replicated(call, *found)
                return value
            pool.give(link)
            hint = redirect(reply, endpoint.host)
            if not isinstance(deployment, Cluster) or not isinstance(hint, Redirect):
                break
            deployment.moved(hint)
        raise self._refused(deployment, call, reply)

    @staticmethod
    def _confirmed(link: Link, call: Call[Any], ends: float) -> tuple[int, Any]:
        """How many replicas shall have what was written, and what the server says of that."""

        def ask(*words: str) -> Any:
            link.send(command(*words), 1, call.timeout)
            return link.read(max(0.001, ends - time.monotonic()))

        try:
            wanted, role = call.acks, ask("ROLE") if call.acks < 0 else None
            if role is not None and not isinstance(role, ReplyError):
                wanted = connected_replicas(role)
            return wanted, role if wanted < 0 else ask("WAIT", str(wanted), wait_ms(call))
        except BaseException:
            link.close()
            raise

    # ── topology ───────────────────────────────────────────────────────────────────────────────

    def _pool(self, endpoint: Endpoint) -> LinkPool:
        pool = self._pools.get(endpoint)
        if pool is None:
            pool = self._pools.setdefault(endpoint, LinkPool(endpoint))
        return pool

    def _mapped(self, call: Call[Any], deployment: Deployment) -> Endpoint:
        """Fetch the cluster's slot map from whoever answers first."""
        assert isinstance(deployment, Cluster), "only a cluster has keys that nobody serves"
        error: Exception | None = None
        for candidate in deployment.candidates():
            pool = self._pool(candidate)
            try:
                link = pool.take(self.settings.timeout)
                try:
                    link.send(command(b"CLUSTER", b"SLOTS"), 1, call.timeout)
                    reply = link.read(call.timeout)
                finally:
                    pool.give(link)
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

    def signal(self) -> ThreadSignal:
        return ThreadSignal()

    def listen(self, mailbox: str) -> ThreadSignal:
        signal = self._mailboxes[mailbox] = ThreadSignal()
        return signal

    def unlisten(self, mailbox: str) -> None:
        self._mailboxes.pop(mailbox, None)
        if len(self.deployments) == 1:  # of several, some may not have answered yet
            for pool in list(self._pools.values()):
                pool.unpark(mailbox)

    async def wait(self, signal: Any, timeout: float, *, inbox: bool = False) -> bool:
        if inbox and len(self._inboxes) < len(self.deployments) and self._open_inboxes():
            return True
        woken: bool = signal.take(timeout)
        return woken

    def _open_inboxes(self) -> bool:
        """Subscribe, if nobody has. True if that made the inbox live: look again before waiting.

        With several primaries that happens beside the caller, who is woken when one is live.
        """
        if len(self.deployments) == 1:
            with self._mutex:
                if self._inboxes or self.closed:
                    return True  # somebody else opened it meanwhile: the same reason to look again
                link = self._subscribe(0)
                if link is not None:
                    self._start("holdfast-inbox", self._read_inbox, 0, link)
                return link is not None
        with self._mutex:
            for node, deployment in enumerate(self.deployments):
                known = node in self._inboxes or node in self._inboxes_opening
                if not known and not deployment.failures and not self.closed:
                    self._inboxes_opening.add(node)
                    self._start("holdfast-inbox", self._open_and_read_inbox, node)
        return False

    def _subscribe(self, node: int) -> Link | None:
        deployment = self.deployments[node]
        endpoint = deployment.any_endpoint()
        try:
            link = self._pool(endpoint).take(self.settings.timeout)
            for _ in range(link.owed):
                link.read(self.settings.timeout)
            link.send(command(b"SUBSCRIBE", self.inbox), 1, self.settings.timeout)
            reply = link.read(self.settings.timeout)
            if isinstance(reply, ReplyError):
                link.close()
                raise NodeError(f"{endpoint.name} refuses the inbox: {reply}", transient=False)
        except NodeError as error:
            if error.transient:  # a missing right to the channel is no failure of the node
                deployment.failed(endpoint)
            self.emit(InboxFailed(endpoint.name, self.inbox, str(error)))
            return None
        self._inboxes[node] = link
        return link

    def _open_and_read_inbox(self, node: int) -> None:
        try:
            link = self._subscribe(node)
        finally:
            self._inboxes_opening.discard(node)
        if link is not None:
            self._wake_all()
            self._read_inbox(node, link)

    def _read_inbox(self, node: int, link: Link) -> None:
        """An inbox thread: passes messages on until the connection ends."""
        try:
            while not self.closed:
                message = link.read_message()
                if message is None:
                    continue
                mailbox, look_ms = addressed(message)
                signal = self._mailboxes.get(mailbox)
                if signal is not None:
                    signal.set(look_ms)
        except NodeError:
            pass
        finally:
            link.close()
            if self._inboxes.get(node) is link:
                del self._inboxes[node]
            self._wake_all()

    def _wake_all(self) -> None:
        # Whoever waits must look again: messages may have been lost without a connection.
        for signal in list(self._mailboxes.values()):
            signal.set()

    # ── flows ──────────────────────────────────────────────────────────────────────────────────

    def me(self) -> object:
        return threading.get_ident()

    def spawn(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        self._start(name, run, work)

    def _start(self, name: str, target: Any, *args: Any) -> None:
        thread = threading.Thread(target=target, args=args, name=name, daemon=True)
        self._threads = [t for t in self._threads if t.is_alive()]
        self._threads.append(thread)
        thread.start()

    async def shield(self, work: Coroutine[Any, Any, T]) -> T:
        return await work

    def guard(self) -> AbstractContextManager[Any]:
        return threading.Lock()

    def scope(self) -> ThreadScope:
        return _SCOPE

    # ── the end ────────────────────────────────────────────────────────────────────────────────

    def _check_open(self) -> None:
        if self.closed:
            raise UsageError("this client is closed; connect() makes a new one")

    def close(self, patience: float = 1.0) -> None:
        """Close every connection and end the threads. Bounded; a second call does nothing."""
        if self.closed:
            return
        self.closed = True
        for link in list(self._inboxes.values()):
            link.shutdown()
        pools = list(self._pools.values())
        settle([link for pool in pools for link in pool.owing()], min(patience, SETTLE_S))
        for pool in pools:
            pool.close()
        ends = time.monotonic() + patience
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, ends - time.monotonic()))
