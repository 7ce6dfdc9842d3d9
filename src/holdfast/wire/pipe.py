"""Asyncio connections: one per server carries everything, in the order it was asked for.

Commands issued in one tick of the loop leave in one write; replies resolve futures in order;
RESP3 pushes (the inbox) arrive on the same connection. A caller that is cancelled leaves its place
in the order: the reply is read and dropped, the connection lives on. A server that says nothing
while answers are due is given up, and everything in flight ends in NodeError.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import hiredis

from ..errors import NodeError
from .endpoint import RETIREMENT_S, Endpoint
from .replies import command, run_id

SILENCE_S = 0.2
SWEEP_S = 0.01  # thousands may be due one after the other: not a look at all of them for each


class Awaiter(Protocol):
    """Who is told of a reply: an `asyncio.Future`, or whatever needs no turn of the loop for it."""

    def done(self) -> bool:
        """Whether nobody wants the reply any more."""
        ...

    def set_result(self, reply: Any, /) -> None:
        """The reply has come."""
        ...

    def set_exception(self, error: NodeError, /) -> None:
        """It will not come."""
        ...


OnMessage = Callable[[str], None]
OnLost = Callable[["Pipe"], None]


class Pipe(asyncio.Protocol):
    """One multiplexed connection."""

    def __init__(self, endpoint: Endpoint, loop: asyncio.AbstractEventLoop) -> None:
        self.endpoint = endpoint
        self.on_message: OnMessage | None = None
        self.on_lost: OnLost | None = None
        self.closed = False
        self.retired = False
        self.run_id = ""
        self.known: set[str] = set()
        self._loop = loop
        self._reader = hiredis.Reader(notEnoughData=Ellipsis)
        # Two deques in step, not one of pairs: fewer objects for the collector to look at.
        self._in_flight: deque[Awaiter] = deque()
        self._deadlines: deque[float] = deque()
        self._out: list[bytes] = []
        self._unsent = 0
        self._subscribing: asyncio.Future[None] | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._sweep_at = 0.0
        self._heard_at = 0.0
        self._connection: Any = None
        self._transport: Any = None

    @classmethod
    async def open(cls, endpoint: Endpoint, timeout: float) -> Pipe:
        """Let the client library connect and authenticate, then take its byte stream over."""
        connection = endpoint.connection(timeout)
        try:
            await connection.connect()
            found = ""
            if endpoint.identified:
                await connection.send_command("INFO", "server")
                found = run_id(await connection.read_response())
                endpoint.met(found)
        except Exception as error:
            await connection.disconnect(nowait=True)
            raise endpoint.unreachable(error) from error
        except BaseException:  # cancelled: the client library leaves the socket open
            if connection._writer is not None:
                connection._writer.transport.abort()
                connection._reader = connection._writer = None
            raise
        finally:
            for sentinel in endpoint.sentinels:
                await sentinel.connection_pool.disconnect()
        pipe = cls(endpoint, asyncio.get_running_loop())
        pipe.run_id = found
        pipe._connection = connection
        pipe._transport = connection._writer.transport
        pipe._transport.set_protocol(pipe)
        pipe._heard_at = pipe._loop.time()
        # The stream reader stops reading when its buffer is full; nobody empties it any more.
        pipe._transport.resume_reading()
        return pipe

    def request(self, data: bytes, timeout: float) -> asyncio.Future[Any]:
        """Queue one command. The future gets its reply (errors are values too), or NodeError."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self.submit(data, timeout, future)
        return future

    def submit(self, data: bytes, timeout: float, awaiter: Awaiter) -> None:
        """Queue one command, whose reply is given to `awaiter`."""
        if self.closed:
            awaiter.set_exception(self._lost("is not connected any more", sent=False))
            return
        deadline = self._loop.time() + timeout
        self._in_flight.append(awaiter)
        self._deadlines.append(deadline)
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(data)
        self._unsent += 1
        if self._sweeper is None or deadline < self._sweep_at:
            self._schedule(deadline)

    async def subscribe(self, channel: str, timeout: float) -> None:
        """Have messages of the channel passed to `on_message` from now on."""
        future = self._subscribing = self._loop.create_future()
        self._transport.write(command(b"SUBSCRIBE", channel))
        try:
            await asyncio.wait_for(future, timeout)
        except TimeoutError:
            raise self._lost("did not confirm the subscription", sent=True) from None
        finally:
            self._subscribing = None

    def _flush(self) -> None:
        if not self.closed:
            self._transport.write(b"".join(self._out))
        self._out.clear()
        self._unsent = 0

    # ── asyncio.Protocol ───────────────────────────────────────────────────────────────────────

    def data_received(self, data: bytes) -> None:
        self._heard_at = self._loop.time()
        reader, in_flight, deadlines = self._reader, self._in_flight, self._deadlines
        reader.feed(data)
        while True:
            try:
                reply = reader.gets()
            except hiredis.ProtocolError:
                self.abort()
                return
            if reply is Ellipsis:
                return
            if type(reply) is hiredis.PushNotification or not in_flight or self._is_resp2_push():
                self._pushed(reply)
                continue
            future = in_flight.popleft()
            deadlines.popleft()
            if not future.done():
                future.set_result(reply)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(f"broke the connection{f' ({exc})' if exc else ''}")

    def _is_resp2_push(self) -> bool:
        return not self.endpoint.resp3 and self.on_message is not None

    def _pushed(self, reply: Any) -> None:
        if isinstance(reply, Exception):  # SUBSCRIBE refused, for want of a right to the channel
            if self._subscribing is not None and not self._subscribing.done():
                self._subscribing.set_exception(
                    NodeError(
                        f"{self.endpoint.name} refuses the inbox: {reply}",
                        sent=False,
                        transient=False,
                    )
                )
        elif reply[0] == b"message":
            if self.on_message is not None:
                self.on_message(reply[2].decode("utf-8", "backslashreplace"))
        elif (
            reply[0] == b"subscribe"
            and self._subscribing is not None
            and not self._subscribing.done()
        ):
            self._subscribing.set_result(None)

    # ── timeouts: one timer per connection, at the earliest deadline ───────────────────────────

    def _schedule(self, when: float) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._sweep_at = when
        self._sweeper = self._loop.call_at(when, self._sweep)

    def _sweep(self) -> None:
        self._sweeper = None
        now = self._loop.time()
        silent: NodeError | None = None
        earliest = None
        for future, deadline in zip(self._in_flight, self._deadlines, strict=True):
            if deadline > now:
                earliest = deadline if earliest is None else min(earliest, deadline)
            elif not future.done():
                # Each task has an error of its own; those that only note it share one.
                if silent is None or isinstance(future, asyncio.Future):
                    silent = self._lost("did not answer in time", sent=True)
                    silent.__cause__ = TimeoutError()
                future.set_exception(silent)
        # Answers are due and nothing at all has come since they were asked for: the connection is
        # dead, or the server is frozen. New work shall not queue up behind it.
        if silent is not None and now - self._heard_at > SILENCE_S:
            self.retire()
        if earliest is not None:
            self._schedule(max(earliest, now + SWEEP_S))

    def owes(self) -> bool:
        """Whether the server has requests to answer yet, whether or not anybody waits for that."""
        return not self.closed and bool(self._in_flight)

    def retire(self) -> None:
        """Take no new work. For a while the connection stays, for what must follow in order."""
        if not self.retired:
            self.retired = True
            self._loop.call_later(RETIREMENT_S, self.abort)
            if self.on_lost is not None:
                self.on_lost(self)

    # ── the end ────────────────────────────────────────────────────────────────────────────────

    def _lost(self, what: str, *, sent: bool) -> NodeError:
        name = self.endpoint.name
        tail = "; it may or may not have acted" if sent else ""
        return NodeError(f"{name} {what}{tail}", node=name, sent=sent)

    def _fail(self, what: str) -> None:
        if self.closed:
            return
        self.closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        never_left = len(self._in_flight) - self._unsent
        for place, future in enumerate(self._in_flight):
            if not future.done():
                future.set_exception(self._lost(what, sent=place < never_left))
                if isinstance(future, asyncio.Future):
                    future.exception()  # its caller may be gone: that is no unretrieved exception
        self._in_flight.clear()
        self._deadlines.clear()
        if self._subscribing is not None and not self._subscribing.done():
            self._subscribing.set_exception(self._lost(what, sent=True))
        if self.on_lost is not None and not self.retired:
            self.on_lost(self)
        # So that the client library does not close (or complain about) it a second time.
        self._connection._reader = self._connection._writer = None

    def abort(self) -> None:
        """Give the connection up at once."""
        self._drop()  # first: a stream writer that is collected before its transport closes warns
        self._fail("was given up")

    def _drop(self) -> None:
        transport, self._transport = self._transport, None
        if transport is None:
            return
        try:
            transport.abort()
        except RuntimeError:
            # The loop is closed already and cannot run the transport's own end: close the file
            # under it, or it would be reported as leaked when it is collected.
            sock = getattr(transport, "_sock", None)
            if sock is not None:
                sock.close()
                transport._sock = None
