"""One fan-out of the blocking runtime: written to every node, read from whoever answers first.

Nobody is waited for who is not needed. A node to which no connection is open is connected to by a
thread beside the caller; one that was silent lately is passed over while the others can decide.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..core.script import Call
from ..errors import HoldfastError, NodeError
from ..wire.endpoint import Endpoint
from ..wire.link import Link
from ..wire.pool import LinkPool
from ..wire.replies import ReplyError, is_noscript, pack
from ..wire.topology import Cluster, Deployment
from .common import passed_over, timed_out

if TYPE_CHECKING:
    from .blocking import BlockingRuntime


class _Group:
    """The calls for one endpoint: one write, and as many replies."""

    __slots__ = ("deployment", "due", "link", "places", "pool", "skip")

    def __init__(self, deployment: Deployment, pool: LinkPool) -> None:
        self.deployment = deployment
        self.pool = pool
        self.places: list[int] = []
        self.link: Link | None = None
        self.skip = 0  # replies to earlier requests that come first on this link
        self.due: deque[int] = deque()


class Fan:
    """Runs some calls at once, once. Those at the places in `again` must be repeated after."""

    def __init__(
        self,
        rt: BlockingRuntime,
        calls: Sequence[Call[Any]],
        enough: Callable[[Any], bool] | None,
    ) -> None:
        self._rt = rt
        self._calls = calls
        self._enough = enough
        self._over = False
        self._settled = False  # by `enough`, not by time
        self._guard = threading.Lock()
        self._arrived: deque[tuple[_Group, Link | NodeError]] = deque()
        self._opening: list[_Group] = []
        self._bell: tuple[socket.socket, socket.socket] | None = None
        self._poll = select.poll()
        self._reading: dict[int, _Group] = {}
        self._sent: list[_Group] = []
        self.answers: list[Any] = [None] * len(calls)
        self.again: list[int] = []

    def run(self) -> None:
        """Send the calls, and take in answers until they are enough."""
        self._ends = time.monotonic() + max(call.timeout for call in self._calls)
        groups = self._grouped()
        try:
            later = [group for group in groups if not self._begin(group)]
            self._take_in()
            for group in later:
                # As many connections as are allowed are being opened: this one by ourselves, but
                # only now, when the others have not decided.
                if not self._over and time.monotonic() < self._ends:
                    self._open_here(group)
                    self._take_in()
                elif not self._over:
                    self._fail(group, _not_connected(group))
        finally:
            self._finish()

    def _grouped(self) -> list[_Group]:
        groups: dict[Endpoint, _Group] = {}
        for place, call in enumerate(self._calls):
            deployment = self._rt.deployments[call.node]
            endpoint = None if call.acks else deployment.endpoint(call.keys)
            if endpoint is None:
                self.again.append(place)
                continue
            group = groups.get(endpoint)
            if group is None:
                group = groups[endpoint] = _Group(deployment, self._rt._pool(endpoint))
            group.places.append(place)
        return list(groups.values())

    # ── sending ────────────────────────────────────────────────────────────────────────────────

    def _begin(self, group: _Group) -> bool:
        """Send to a node, if it can be done now. False if that must wait for the others."""
        rt, first = self._rt, self._calls[group.places[0]]
        pool = group.pool
        alone = len(group.places) == 1
        link = pool.parked(first.tied) if first.tied and alone else None
        if link is None and not rt.admits(group.deployment):
            if not first.final:
                self._fail(group, passed_over(group.deployment))
                return True
        elif link is None:
            link = pool.ready(first.timeout, lambda: group.deployment.failed(pool.endpoint))
        if link is not None:
            if link.heard:
                link.heard = False
                group.deployment.answered()
            self._send(group, link)
            return True
        if len(rt.deployments) == 1:
            self._open_here(group)
            return True
        return self._open_beside(group)

    def _send(self, group: _Group, link: Link) -> None:
        group.link, group.skip = link, link.owed
        group.due = deque(group.places)
        self._sent.append(group)
        calls = [self._calls[place] for place in group.places]
        data = pack(calls[0], link) if len(calls) == 1 else b"".join(pack(c, link) for c in calls)
        try:
            link.write(data, len(group.places))
        except NodeError as error:
            self._broke(group, error)
            return
        fileno = link.fileno()
        self._reading[fileno] = group
        self._poll.register(fileno, select.POLLIN)

    def _open_here(self, group: _Group) -> None:
        try:
            link = Link(group.pool.endpoint, max(0.05, self._ends - time.monotonic()))
        except NodeError as error:
            group.deployment.failed(group.pool.endpoint)
            self._fail(group, error)
        else:
            self._send(group, link)

    def _open_beside(self, group: _Group) -> bool:
        if not group.pool.opening.acquire(blocking=False):
            calls = [self._calls[place] for place in group.places]
            if not calls[0].final:
                return False
            group.pool.overdue.extend(calls)  # whoever connects next brings them along
            self._fail(group, _not_connected(group))
            return True
        if self._bell is None:
            self._bell = socket.socketpair()
            self._poll.register(self._bell[0].fileno(), select.POLLIN)
        self._opening.append(group)
        self._rt._start("holdfast-opener", self._opener, group)
        return True

    def _opener(self, group: _Group) -> None:
        """A thread: connect, and give the connection to the caller, or to who comes next."""
        found: Link | NodeError
        try:
            found = self._connected(group)
        except NodeError as error:
            group.deployment.failed(group.pool.endpoint)
            found = error
        finally:
            group.pool.opening.release()
        self._bring_overdue(group)
        with self._guard:
            if not self._over:
                self._arrived.append((group, found))
                assert self._bell is not None, "made before the first opener"
                self._bell[1].send(b"!")
                return
        if isinstance(found, Link):
            self._deliver_late(group, found)

    def _bring_again(self, group: _Group) -> None:
        """The last word went down with its connection: once more on another, beside the caller.

        What it answers is not counted. A release that had been executed, and only its reply was
        lost, finds nothing of its owner any more, and that is no denial.
        """
        if group.pool.opening.acquire(blocking=False):
            self._rt._start("holdfast-opener", self._bring, group)
        else:
            group.pool.overdue.extend(self._calls[place] for place in group.places)

    def _bring(self, group: _Group) -> None:
        try:
            self._deliver_late(group, self._connected(group))
        except NodeError:
            group.deployment.failed(group.pool.endpoint)
        finally:
            group.pool.opening.release()
        self._bring_overdue(group)

    def _connected(self, group: _Group) -> Link:
        """A new connection, over which what waited for one has been brought already."""
        link = Link(group.pool.endpoint, self._rt.settings.timeout)
        _deliver(link, group.pool.take_overdue())
        return link

    def _bring_overdue(self, group: _Group) -> None:
        """Something may have come to wait for a connection after the last opener had looked."""
        pool = group.pool
        if pool.overdue and not self._rt.closed and pool.opening.acquire(blocking=False):
            nothing_of_its_own = _Group(group.deployment, pool)
            self._rt._start("holdfast-opener", self._bring, nothing_of_its_own)

    def _deliver_late(self, group: _Group, link: Link) -> None:
        """The caller has gone on. What must reach the node reaches it now."""
        try:
            _deliver(link, [self._calls[place] for place in group.places])
            group.deployment.answered()
        except NodeError:
            link.close()
            return
        if self._rt.closed:
            link.close()
        else:
            group.pool.give(link)

    # ── receiving ──────────────────────────────────────────────────────────────────────────────

    def _take_in(self) -> None:
        while (self._reading or self._opening) and not self._over:
            left = self._ends - time.monotonic()
            for fileno, _ in self._poll.poll(max(0.0, left * 1000)):
                group = self._reading.get(fileno)
                if group is not None:
                    self._read(fileno, group)
                elif self._bell is not None and fileno == self._bell[0].fileno():
                    self._admit()
                if self._settled:
                    return
            if left <= 0:
                self._time_is_over()
                return

    def _admit(self) -> None:
        """Connections that were opened beside us."""
        assert self._bell is not None, "it rang"
        self._bell[0].recv(64)
        while self._arrived:
            group, found = self._arrived.popleft()
            self._opening.remove(group)
            if isinstance(found, Link):
                self._send(group, found)
            else:
                self._fail(group, found)

    def _read(self, fileno: int, group: _Group) -> None:
        link = group.link
        assert link is not None, "only groups that were sent are read"
        try:
            replies = link.read_ready()
        except NodeError as error:
            self._poll.unregister(fileno)
            del self._reading[fileno]
            self._broke(group, error)
            return
        try:
            for reply in replies:
                if group.skip:
                    group.skip -= 1
                    continue
                self._answer(group, link, group.due.popleft(), reply)
        except NodeError as error:  # what it asked for again could not be sent
            self._poll.unregister(fileno)
            del self._reading[fileno]
            self._broke(group, error)
            return
        if not group.due:
            self._poll.unregister(fileno)
            del self._reading[fileno]
            group.deployment.answered()
            group.pool.give(link)

    def _answer(self, group: _Group, link: Link, place: int, reply: Any) -> None:
        call = self._calls[place]
        if not isinstance(reply, ReplyError):
            self._settle(place, call.script.parse(reply))
        elif isinstance(group.deployment, Cluster):
            self.again.append(place)
        elif is_noscript(reply) and not self._over:
            group.due.append(place)
            link.write(pack(call, link), 1)  # whole, the first of them: the link forgot it
        else:
            error = self._rt._refused(group.deployment, call, reply)
            assert isinstance(error, HoldfastError)
            self._settle(place, error)

    def _settle(self, place: int, answer: Any) -> None:
        if self._over:
            return  # as if it had come later
        self.answers[place] = answer
        if self._enough is not None and self._enough(answer):
            self._over = self._settled = True

    # ── what goes wrong, and the end ───────────────────────────────────────────────────────────

    def _fail(self, group: _Group, error: NodeError) -> None:
        for place in group.places:
            if self.answers[place] is None and place not in self.again:
                self._settle(place, error)

    def _broke(self, group: _Group, error: NodeError) -> None:
        assert group.link is not None
        group.link.close()
        group.pool.clear()  # its other links are to the same dead or replaced server
        group.deployment.failed(group.pool.endpoint)
        self._fail(group, error)
        if self._calls[group.places[0]].final and not timed_out(error):
            self._bring_again(group)

    def _time_is_over(self) -> None:
        for group in list(self._reading.values()):
            assert group.link is not None
            group.deployment.failed(group.pool.endpoint)
            group.pool.clear()
            self._fail(group, group.link.silent())
        for group in self._opening:
            self._fail(group, _not_connected(group))

    def _finish(self) -> None:
        """Nobody reads here any more: links that owe replies wait for what follows on them."""
        with self._guard:
            self._over = True
        for group in self._sent:
            if group.due and group.link is not None and not group.link.closed:
                self._set_aside(group, group.link)
        while self._arrived:
            group, found = self._arrived.popleft()
            if isinstance(found, Link):
                self._rt._start("holdfast-opener", self._deliver_late, group, found)
        if self._bell is not None:
            for end in self._bell:
                end.close()

    def _set_aside(self, group: _Group, link: Link) -> None:
        call = self._calls[group.places[0]]
        if call.tied and not call.final and len(group.places) == 1:
            group.pool.park(call.tied, link)
        elif self._settled:
            group.pool.give_owing(link)
        else:  # silent for as long as it was given
            group.pool.give_up(link)


def _deliver(link: Link, calls: Sequence[Call[Any]]) -> None:
    """Bring a node what must reach it, though nobody waits for the answers."""
    for call in calls:
        if call.final:
            link.send(pack(call, link, whole=True), 1, call.timeout)
            link.read(call.timeout)


def _not_connected(group: _Group) -> NodeError:
    name = group.deployment.name
    return NodeError(f"{name} could not be connected to in time", node=name, sent=False)
