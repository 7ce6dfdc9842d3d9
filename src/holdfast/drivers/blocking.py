"""The blocking runtime: threads. Its coroutines never suspend; see core.runtime.run.

A call is one write and one read on a pooled socket. A fan-out writes to all, then reads from all.
One daemon thread reads the inbox, and only once somebody has had to wait.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Coroutine, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from ..core.events import Hub, InboxFailed
from ..core.runtime import run
from ..core.script import Call
from ..errors import HoldfastError, NodeError, UsageError
from ..wire.endpoint import Endpoint
from ..wire.link import Link, LinkPool
from ..wire.replies import Redirect, ReplyError, command, is_noscript, pack, redirect, refusal
from ..wire.topology import MOST_REDIRECTS, Cluster, Deployment
from .common import Common, Settings, Told, addressed, replicated

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
        self._abandoned: dict[str, Link] = {}
        self._mailboxes: dict[str, ThreadSignal] = {}
        self._mutex = threading.Lock()
        self._inbox_link: Link | None = None
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

    async def fan_out(self, calls: Sequence[Call[T]]) -> list[T | HoldfastError]:
        results: dict[int, T | HoldfastError] = {}
        for first in range(0, len(calls), BATCH):
            self._batch(calls, range(first, min(first + BATCH, len(calls))), results)
        return [results[place] for place in range(len(calls))]

    def _execute(self, call: Call[T], data: bytes | None = None) -> T:
        self._check_open()
        deployment = self.deployments[call.node]
        if call.acks:
            return self._replicated(call, deployment)
        endpoint = deployment.endpoint(call.keys)
        reply = self._exchange(
            deployment, endpoint or self._mapped(call, deployment), call, data or pack(call)
        )
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
            reply = self._exchange(deployment, endpoint, call, pack(call, whole=whole), prefix)
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
        data: bytes,
        prefix: bytes = b"",
    ) -> Any:
        pool = self._pool(endpoint)
        link = self._take(pool, call, deployment)
        try:
            owed = link.owed
            link.send(prefix + data, 2 if prefix else 1, call.timeout)
            for _ in range(owed + (1 if prefix else 0)):
                link.read(call.timeout)  # what an abandoned request, or ASKING, still had to say
            reply = link.read(call.timeout)
        except NodeError as error:
            self._give_up(link, pool, deployment, call, error)
            raise
        except BaseException:
            self._give_up(link, pool, deployment, call, None)
            raise
        pool.give(link)
        return reply

    def _take(self, pool: LinkPool, call: Call[Any], deployment: Deployment) -> Link:
        if call.tied and self._abandoned:
            link = self._abandoned.pop(call.tied, None)
            if link is not None:
                if link.endpoint is pool.endpoint:
                    return link
                link.close()
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
        timed_out = error is None or isinstance(error.__cause__, TimeoutError | BlockingIOError)
        if call.tied and timed_out:
            stale = self._abandoned.pop(call.tied, None)
            if stale is not None:
                stale.close()
            self._abandoned[call.tied] = link
        else:
            link.close()
        if error is not None:
            pool.clear()  # its other links are to the same dead or replaced server
            deployment.failed(pool.endpoint)

    def _replicated(self, call: Call[T], deployment: Deployment) -> T:
        """The call, and WAIT behind it on the same connection: WAIT speaks of that one only."""
        reply: Any = None
        for _ in range(MOST_REDIRECTS):
            endpoint = deployment.endpoint(call.keys) or self._mapped(call, deployment)
            pool = self._pool(endpoint)
            link = self._take(pool, call, deployment)
            try:
                reply, wanted, confirmed = self._write_and_wait(link, call)
            except NodeError as error:
                self._give_up(link, pool, deployment, call, error)
                raise
            except BaseException:
                self._give_up(link, pool, deployment, call, None)
                raise
            pool.give(link)
            if not isinstance(reply, ReplyError):
                return replicated(call, wanted, confirmed, reply)
            hint = redirect(reply, endpoint.host)
            if not isinstance(deployment, Cluster) or not isinstance(hint, Redirect):
                break
            deployment.moved(hint)
        raise self._refused(deployment, call, reply)

    @staticmethod
    def _write_and_wait(link: Link, call: Call[Any]) -> tuple[Any, int, Any]:
        ends = time.monotonic() + call.timeout
        wait_ms = str(max(1, int(call.timeout * 500)))
        wanted = call.acks
        owed = link.owed
        second = command(b"ROLE") if wanted < 0 else command(b"WAIT", str(wanted), wait_ms)
        # EVAL, not EVALSHA: a NOSCRIPT would come back with a WAIT that waited for nothing.
        link.send(pack(call, whole=True) + second, 2, call.timeout)
        for _ in range(owed):
            link.read(call.timeout)
        reply = link.read(call.timeout)
        confirmed = link.read(max(0.001, ends - time.monotonic()))
        if wanted < 0 and not isinstance(confirmed, ReplyError):
            # "all" means every replica connected now, and at least one: none at all is a shortfall.
            wanted = max(1, len(confirmed[2]) if confirmed[0] == b"master" else 1)
            link.send(command(b"WAIT", str(wanted), wait_ms), 1, call.timeout)
            confirmed = link.read(max(0.001, ends - time.monotonic()))
        return reply, wanted, confirmed

    def _batch(
        self, calls: Sequence[Call[T]], places: range, results: dict[int, T | HoldfastError]
    ) -> None:
        """Write to every node, then read from every node; then what needs more than one try."""
        groups: dict[Endpoint, list[int]] = {}
        single: list[int] = []
        for place in places:
            call = calls[place]
            deployment = self.deployments[call.node]
            endpoint = None if call.acks else deployment.endpoint(call.keys)
            if endpoint is None:
                single.append(place)
            else:
                groups.setdefault(endpoint, []).append(place)
        opened: list[tuple[Link, LinkPool, list[int]]] = []
        for endpoint, members in groups.items():
            pool = self._pool(endpoint)
            deployment = self.deployments[calls[members[0]].node]
            try:
                link = self._take(pool, calls[members[0]], deployment)
                data = b"".join(pack(calls[place]) for place in members)
                link.send(data, len(members), calls[members[0]].timeout)
                opened.append((link, pool, members))
            except NodeError as error:
                deployment.failed(endpoint)
                results.update(dict.fromkeys(members, error))
        ends = time.monotonic() + max((calls[place].timeout for place in places), default=0.0)
        for link, pool, members in opened:
            single.extend(self._collect(calls, link, pool, members, ends, results))
        for place in single:
            try:
                results[place] = self._execute(calls[place])
            except HoldfastError as error:
                results[place] = error

    def _collect(
        self,
        calls: Sequence[Call[T]],
        link: Link,
        pool: LinkPool,
        members: list[int],
        ends: float,
        results: dict[int, T | HoldfastError],
    ) -> list[int]:
        """Read the replies of one node; returns the places whose calls must be asked again."""
        again: list[int] = []
        for done, place in enumerate(members):
            try:
                reply = link.read(max(0.001, ends - time.monotonic()))
            except NodeError as error:
                link.close()
                pool.clear()
                self.deployments[calls[place].node].failed(pool.endpoint)
                results.update(dict.fromkeys(members[done:], error))
                return again
            if isinstance(reply, ReplyError):
                again.append(place)
            else:
                results[place] = calls[place].script.parse(reply)
        pool.give(link)
        return again

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
        if self._abandoned:
            link = self._abandoned.pop(mailbox, None)
            if link is not None:
                link.close()

    async def wait(self, signal: Any, timeout: float, *, inbox: bool = False) -> bool:
        if inbox and self._inbox_link is None and self._open_inbox():
            return True
        woken: bool = signal.take(timeout)
        return woken

    def _open_inbox(self) -> bool:
        """Subscribe, if nobody has. True if this made the inbox live: look again before waiting."""
        with self._mutex:
            if self._inbox_link is not None or self.closed:
                return True  # somebody else opened it meanwhile: the same reason to look again
            endpoint = self.deployments[0].any_endpoint()
            try:
                link = self._pool(endpoint).take(self.settings.timeout)
                link.send(command(b"SUBSCRIBE", self.inbox), 1, self.settings.timeout)
                reply = link.read(self.settings.timeout)
                if isinstance(reply, ReplyError):
                    link.close()
                    raise NodeError(f"{endpoint.name} refuses the inbox: {reply}")
            except NodeError as error:
                self.deployments[0].failed(endpoint)
                self.emit(InboxFailed(endpoint.name, self.inbox, str(error)))
                return False
            self._inbox_link = link
            self._start("holdfast-inbox", self._read_inbox, link)
            return True

    def _read_inbox(self, link: Link) -> None:
        """The inbox thread: passes messages on until the connection ends."""
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
            if self._inbox_link is link:
                self._inbox_link = None
            # Whoever waits must look again: messages may have been lost with the connection.
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
        link, self._inbox_link = self._inbox_link, None
        if link is not None:
            link.shutdown()
        for pool in list(self._pools.values()):
            pool.clear()
        ends = time.monotonic() + patience
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, ends - time.monotonic()))
