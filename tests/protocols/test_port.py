"""The runtime port, as the simulator will use it: a runtime in which every call truly suspends.

No server, no loop, no thread: a script of answers is fed to the protocol by hand, and what it asked
for is compared, call by call. This is what keeps the port complete: a protocol that reached past it
would fail here.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Sequence
from contextlib import nullcontext
from typing import Any

import pytest

import holdfast
from holdfast.core.events import Event
from holdfast.core.keeper import Keeper
from holdfast.core.lease import NS_PER_MS, NS_PER_S, Validity
from holdfast.core.runtime import Runtime
from holdfast.core.script import Call
from holdfast.errors import NodeError
from holdfast.locks.lock import AsyncLock
from holdfast.locks.terms import Kit


class Effect:
    """Something asked of the world; whoever drives the protocol answers it."""

    def __init__(self, what: str, *details: Any) -> None:
        self.what = what
        self.details = details

    def __await__(self) -> Generator[Effect, Any, Any]:
        return (yield self)


class PortSignal:
    """A signal that remembers."""

    def __init__(self) -> None:
        self.is_set = False

    def set(self, look_ms: int | None = None) -> None:
        self.is_set = True

    def told(self) -> int | None:
        return None


class PortScope:
    """Counts interruptions."""

    def __init__(self) -> None:
        self.interrupted = 0

    def interrupt(self) -> None:
        self.interrupted += 1

    async def close(self, error: BaseException | None) -> bool:
        return False


class ManualRuntime:
    """Implements core.runtime.Runtime with effects and a clock that is moved by hand."""

    epoch = 1
    inbox = "holdfast:inbox:manual"
    nodes = ("the only one",)

    def __init__(self) -> None:
        self.clock = 10 * NS_PER_S
        self.events: list[Event] = []
        self.spawned: list[tuple[str, Coroutine[Any, Any, None]]] = []
        self.mailboxes: dict[str, PortSignal] = {}
        self.ids = 0

    def now(self) -> int:
        return self.clock

    def wall(self) -> int:
        return self.clock + 1_790_000_000 * NS_PER_S

    def me(self) -> object:
        return "flow"

    def token(self, label: str) -> str:
        self.ids += 1
        return f"id{self.ids}:{label}"

    def jitter(self, low: float, high: float) -> float:
        return low

    async def call(self, call: Call[Any]) -> Any:
        raw = await Effect("call", call)
        return call.script.parse(raw)

    async def fan_out(
        self, calls: Sequence[Call[Any]], enough: Callable[[Any], bool] | None = None
    ) -> list[Any]:
        return [await self.call(call) for call in calls]

    def signal(self) -> PortSignal:
        return PortSignal()

    def listen(self, mailbox: str) -> PortSignal:
        signal = self.mailboxes[mailbox] = PortSignal()
        return signal

    def unlisten(self, mailbox: str) -> None:
        self.mailboxes.pop(mailbox, None)

    async def wait(self, signal: Any, timeout: float, *, inbox: bool = False) -> bool:
        return bool(await Effect("wait", round(timeout, 4), inbox))

    def spawn(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        self.spawned.append((name, work))

    async def shield(self, work: Coroutine[Any, Any, Any]) -> Any:
        return await work

    def guard(self) -> Any:
        return nullcontext()

    def scope(self) -> PortScope:
        return PortScope()

    def wants(self, kind: type[Event]) -> bool:
        return True

    def emit(self, event: Event) -> None:
        self.events.append(event)

    def close(self) -> None:
        for _, work in self.spawned:
            work.close()


def made(**options: Any) -> tuple[ManualRuntime, AsyncLock]:
    rt = ManualRuntime()
    port: Runtime = rt  # the static check that the port is implemented whole
    return rt, AsyncLock(
        Kit(port, Keeper(port), Validity(), 2.0, 3600.0, AsyncLock), "job", **options
    )


class Driver:
    """Runs one protocol, effect by effect."""

    def __init__(self, rt: ManualRuntime, protocol: Coroutine[Any, Any, Any]) -> None:
        self.rt = rt
        self._protocol = protocol
        self.effect: Effect | None = None
        self.result: Any = None
        self._advance(lambda: protocol.send(None))

    def answer(self, value: Any, after_ms: float = 1) -> Driver:
        self.rt.clock += int(after_ms * NS_PER_MS)
        return self._advance(lambda: self._protocol.send(value))

    def fail(self, error: BaseException, after_ms: float = 1) -> Driver:
        self.rt.clock += int(after_ms * NS_PER_MS)
        return self._advance(lambda: self._protocol.throw(error))

    def _advance(self, step: Callable[[], Any]) -> Driver:
        try:
            self.effect = step()
        except StopIteration as end:
            self.effect, self.result = None, end.value
        return self

    @property
    def asked(self) -> str:
        """The script that the protocol runs now, or what else it does."""
        if self.effect is None:
            return "done"
        if self.effect.what == "call":
            return str(self.effect.details[0].script.name)
        return self.effect.what


def test_an_uncontended_hold_is_two_calls() -> None:
    """Acquire, then release: exactly these calls, with these arguments."""
    rt, lock = made(lease=10)
    acquiring = Driver(rt, lock.acquire())
    call = acquiring.effect.details[0]  # type: ignore[union-attr]
    assert (call.script.name, call.keys[0], call.tied) == ("lock.acquire", "job", "id1:")
    assert call.args[:4] == ("id1:", "10000", str(10**12), rt.inbox)
    hold = acquiring.answer([1, b"77"]).result
    assert hold.fence == 77
    # Counted from before the send: 10 s less 1 % less 2 ms, less the 1 ms that the answer took.
    assert hold.remaining() == pytest.approx(9.897)
    releasing = Driver(rt, hold.release())
    assert releasing.asked == "lock.release"
    assert releasing.answer([1, b"id1:", 0]).asked == "done"
    kinds = [type(event).__name__ for event in rt.events]
    assert kinds == ["Acquiring", "Granted", "Released"]
    rt.close()


def test_a_late_grant_is_given_back() -> None:
    """The answer took longer than the lease: withdrawn, and asked for again. Case T71."""
    rt, lock = made(lease=1, renew=False)
    driver = Driver(rt, lock.acquire())
    assert driver.answer([1, b"5"], after_ms=995).asked == "lock.leave"
    assert driver.answer([1, b"", 0]).asked == "lock.acquire"
    hold = driver.answer([1, b"9"]).result
    assert (hold.fence, hold.owner) == (9, "id1:")
    hold._state = 2
    rt.close()


def test_a_waiter_waits_as_long_as_it_is_told_and_no_longer_than_its_patience() -> None:
    """The look that the server asks for, bounded by the wait; the last question gives up the place."""
    rt, lock = made(wait=1.2)
    driver = Driver(rt, lock.acquire())
    assert driver.answer([0, 500, 3, b"other"]).asked == "wait"
    assert driver.effect is not None
    assert driver.effect.details == (0.5, True)
    assert driver.answer(False, after_ms=500).asked == "lock.acquire"
    assert driver.answer([0, 5000, 3, b"other"]).asked == "wait"
    assert driver.effect.details == (0.698, True)
    assert driver.answer(False, after_ms=698).asked == "lock.acquire"
    assert driver.effect.details[0].args[2] == "0"
    with pytest.raises(holdfast.LockTimeout) as caught:
        driver.answer([0, 0, 0, b"other"])
    assert caught.value.holder == "other"
    assert rt.mailboxes == {}
    rt.close()


@pytest.mark.parametrize("point", range(3))
def test_whatever_interrupts_an_acquire_it_is_withdrawn(point: int) -> None:
    """At each suspension of an acquire: the undo runs, once, and the error goes on. Case T02."""

    class Cut(BaseException):
        pass

    rt, lock = made()
    driver = Driver(rt, lock.acquire())
    if point > 0:
        driver.answer([0, 500, 0, b"other"])
    if point > 1:
        driver.answer(True)
    assert driver.fail(Cut()).asked == "lock.leave"
    with pytest.raises(Cut):
        driver.answer([0, b"other", 0])
    assert rt.mailboxes == {}
    rt.close()


def test_a_lost_reply_is_asked_for_again_under_the_same_id() -> None:
    """Retried by the protocol, never by the wire: same owner, later validity. Case T17."""
    rt, lock = made(lease=10)
    driver = Driver(rt, lock.acquire())
    assert driver.fail(NodeError("gone", sent=True), after_ms=100).asked == "wait"
    driver.answer(False, after_ms=20)
    assert driver.effect is not None
    assert driver.effect.details[0].args[0] == "id1:"
    hold = driver.answer([1, b"5"]).result
    assert hold.remaining() == pytest.approx(9.897)
    hold._state = 2
    rt.close()


def test_a_collected_acquire_does_not_await() -> None:
    """GeneratorExit: no further effect, or the interpreter would complain. Rule R4."""
    rt, lock = made()
    protocol = lock.acquire()
    protocol.send(None)
    protocol.close()
    rt.close()


def test_the_keeper_renews_in_time_and_reports_the_loss() -> None:
    """Its two loops over the port: the renewal at a third of the lease, the loss at the deadline."""
    rt, lock = made(lease=3, on_lost="ignore")
    hold = Driver(rt, lock.acquire()).answer([1, b"5"]).result
    loops = {name: Driver(rt, work) for name, work in rt.spawned}
    watcher, renewer = loops["holdfast-watcher"], loops["holdfast-renewer"]
    assert (watcher.asked, renewer.asked) == ("wait", "wait")
    assert renewer.effect is not None
    pause = renewer.effect.details[0]
    assert 0.7 < pause < 1.0
    assert renewer.answer(False, after_ms=pause * 1000 + 12).asked == "lock.renew"
    assert len(renewer.effect.details[0].keys) == 2
    renewer.answer([1, b"id1:", 0])
    assert hold.remaining() == pytest.approx(2.967, abs=0.002)
    assert watcher.effect is not None
    assert not hold.lost.is_set()
    rt.clock += 3 * NS_PER_S
    watcher.answer(False)
    names = [type(event).__name__ for event in rt.events]
    assert names == ["Acquiring", "Granted", "Renewed", "Lost"]
    assert hold.lost.is_set()
    rt.close()
