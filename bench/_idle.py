"""Sections 4 and 5: what waiting and holding cost while nothing happens."""

from __future__ import annotations

import asyncio
import resource
import threading
import time
from typing import Any

from _report import Goal, Section
from _workers import Failed, Workers

from holdfast.core.lease import NS_PER_S, Validity, renewal_ns
from holdfast.server import Server

LEASE_S = 30
HELD = 10_000
LOOK_S = 1.5  # how long a worker keeps still at its end, so that the parent sees the last second


def _period() -> float:
    """Seconds between two renewals of a hold."""
    return renewal_ns(Validity().span_ns(LEASE_S * 1000), 2.0) / NS_PER_S


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


# ── in workers: they hold or wait, and the parent looks at the server meanwhile ─────────────────


def wait_tasks(shared: Any, url: str, count: int, seconds: float) -> bool:
    """So many tasks wait for a lock that is held; `shared[0]` says that they all do."""
    import holdfast.aio

    async def main() -> None:
        async with holdfast.aio.connect(url) as hf:
            hold = await hf.lock("bench:idle", lease=LEASE_S).acquire()
            waiters = [
                asyncio.create_task(hf.lock("bench:idle", lease=LEASE_S).acquire())
                for _ in range(count)
            ]
            await asyncio.sleep(2.0)
            shared[0] = 1
            await asyncio.sleep(seconds)
            shared[0] = 2
            await asyncio.sleep(LOOK_S)
            for waiter in waiters:
                waiter.cancel()
            await asyncio.gather(*waiters, return_exceptions=True)
            await hold.release()

    asyncio.run(main())
    return True


def wait_threads(shared: Any, url: str, count: int, seconds: float) -> bool:
    """The same with threads."""
    import holdfast

    with holdfast.connect(url) as hf:
        hold = hf.lock("bench:idle", lease=LEASE_S).acquire()

        def wait() -> None:
            try:
                hf.lock("bench:idle", lease=LEASE_S, wait=seconds + 10).acquire().release()
            except holdfast.HoldfastError:
                pass

        threads = [threading.Thread(target=wait, daemon=True) for _ in range(count)]
        for thread in threads:
            thread.start()
        time.sleep(2.0)
        shared[0] = 1
        time.sleep(seconds)
        shared[0] = 2
        time.sleep(LOOK_S)
        hold.release()
        for thread in threads:
            thread.join(10)
    return True


def hold_async(shared: Any, url: str, seconds: float) -> dict[str, float]:
    """Hold many locks in one asyncio client; what its process used while they were renewed."""
    import holdfast.aio

    async def main() -> dict[str, float]:
        async with holdfast.aio.connect(url) as hf:
            await (await hf.lock("bench:first").acquire()).release()
            idle = await _watched(2.0)
            locks = [hf.lock(f"bench:held:{n}", lease=LEASE_S) for n in range(HELD)]
            holds = []
            for first in range(0, HELD, 500):
                some = locks[first : first + 500]
                holds += await asyncio.gather(*(lock.acquire() for lock in some))
            await asyncio.sleep(_period() / 2)  # a window between two bursts of renewals
            shared[0] = 1
            busy = await _watched(seconds)
            shared[0] = 2
            lost = sum(hold.is_lost() for hold in holds)
            await asyncio.sleep(LOOK_S)
            await asyncio.gather(*(hold.release() for hold in holds))
            return {"idle": idle, "busy": busy, "lost": lost}

    return asyncio.run(main())


async def _watched(seconds: float) -> float:
    """The share of a core that this process used meanwhile."""
    cpu, began = _cpu_s(), time.monotonic()
    await asyncio.sleep(seconds)
    return (_cpu_s() - cpu) / (time.monotonic() - began)


def hold_blocking(shared: Any, url: str, seconds: float) -> dict[str, float]:
    """The same in one thread of a blocking client."""
    import holdfast

    with holdfast.connect(url) as hf:
        hf.lock("bench:first").acquire().release()
        cpu, began = _cpu_s(), time.monotonic()
        time.sleep(2.0)
        idle = (_cpu_s() - cpu) / (time.monotonic() - began)
        holds = [hf.lock(f"bench:held:{n}", lease=LEASE_S).acquire() for n in range(HELD)]
        time.sleep(_period() / 2)
        shared[0] = 1
        cpu, began = _cpu_s(), time.monotonic()
        time.sleep(seconds)
        busy = (_cpu_s() - cpu) / (time.monotonic() - began)
        shared[0] = 2
        lost = sum(hold.is_lost() for hold in holds)
        time.sleep(LOOK_S)
        for hold in holds:
            hold.release()
    return {"idle": idle, "busy": busy, "lost": lost}


# ── in the parent ───────────────────────────────────────────────────────────────────────────────


def _info(server: Server) -> dict[str, int]:
    """How often each command was called."""
    text = server.command("INFO", "commandstats")
    assert isinstance(text, bytes | str)
    lines = (text if isinstance(text, str) else text.decode()).splitlines()
    return {
        line.split(":")[0].removeprefix("cmdstat_"): int(line.split("calls=")[1].split(",")[0])
        for line in lines
        if line.startswith("cmdstat_")
    }


# What a client sends; the others are called by scripts, or by this benchmark.
_SENT = ("eval", "evalsha", "subscribe", "unsubscribe", "ping", "hello")


class _Watch:
    """Counts commands at a server, second by second."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.first = self.last = _info(server)
        self.began = time.monotonic()
        self.elapsed = 0.0
        self.seconds: list[int] = []

    def second(self) -> None:
        """One more second has passed."""
        now = _info(self.server)
        self.seconds.append(_sent(now) - _sent(self.last))
        self.last = now
        self.elapsed = time.monotonic() - self.began

    def rate(self, *commands: str) -> float:
        """Calls per second of these commands, or of all that clients send."""
        names = commands or _SENT
        calls = sum(self.last.get(name, 0) - self.first.get(name, 0) for name in names)
        return calls / self.elapsed

    def inner(self) -> float:
        """Everything the server did, the commands inside scripts included."""
        return (sum(self.last.values()) - sum(self.first.values())) / self.elapsed


def _sent(stats: dict[str, int]) -> int:
    return sum(stats.get(name, 0) for name in _SENT)


def _await(crew: Workers, value: int, patience: float) -> None:
    ends = time.monotonic() + patience
    while crew.shared[0] < value:
        if time.monotonic() > ends:
            raise Failed(f"not ready within {patience:g} s")
        time.sleep(0.01)


def _connections(server: Server) -> int:
    """Clients of the server, without the one that asks."""
    text = server.command("CLIENT", "LIST")
    assert isinstance(text, bytes | str)
    return len((text if isinstance(text, str) else text.decode()).strip().splitlines()) - 1


class _Observed:
    """A worker at work on a server of its own, observed from outside."""

    def __init__(self, where: str, *arguments: Any, seconds: float) -> None:
        self.server = Server().start()
        self.crew = Workers(1)
        self.connections = 0
        self.result: Any = None
        self.watch: _Watch | None = None
        self.error = ""
        self._order = (where, [(self.server.url, *arguments, seconds)], seconds + 60)
        self._threads = [
            threading.Thread(target=self._work),
            threading.Thread(target=self._observe),
        ]
        for thread in self._threads:
            thread.start()

    def _work(self) -> None:
        try:
            self.result = self.crew.all(*self._order)[0]
        except Failed as error:
            self.error = str(error)

    def _observe(self) -> None:
        try:
            _await(self.crew, 1, 60)
        except Failed as error:
            self.error = self.error or str(error)
            return
        self.watch = _Watch(self.server)
        self.connections = _connections(self.server)
        while self.crew.shared[0] < 2 and not self.error:
            time.sleep(1.0)
            self.watch.second()

    def finish(self) -> _Watch | None:
        """Wait for both, and end the server."""
        for thread in self._threads:
            thread.join()
        self.crew.stop()
        self.server.stop()
        return self.watch if not self.error else None


def waiting(quick: bool) -> Section:
    """Section 4: waiters on a lock that stays held."""
    section = Section("waiting", "4. Idle waiters on one held lock: commands at the server")
    section.columns = [
        "",
        "sent/s",
        "scripts/s",
        "busiest second",
        "with inner commands/s",
        "connections",
    ]
    # A waiter far back looks every 40 to 44 s: a shorter window may miss, or catch, them all.
    seconds = 12.0 if quick else 46.0
    observed = {
        "1,000 tasks": _Observed("_idle:wait_tasks", 1000, seconds=seconds),
        "200 threads": _Observed("_idle:wait_threads", 200, seconds=seconds),
    }
    rates: dict[str, float] = {}
    for title, one in observed.items():
        watch = one.finish()
        if watch is None:
            section.notes.append(f"{title}: {one.error}")
            continue
        rates[title] = watch.rate()
        busiest = max(watch.seconds)
        scripts = watch.rate("eval", "evalsha")
        section.rows.append([title, rates[title], scripts, busiest, watch.inner(), one.connections])
        section.raw[title] = {"sent_by_second": watch.seconds}
    section.goals = [
        Goal(f"{title}, mean", rates.get(title), 50, at_least=False, unit="commands/s")
        for title in observed
    ]
    section.notes.append(
        f"Over {seconds:g} s, from 2 s after the last waiter came; the holder's renewals included."
    )
    return section


def renewing(quick: bool) -> Section:
    """Section 5: ten thousand locks held by one process."""
    section = Section("renewal", f"5. {HELD:,} held locks, lease {LEASE_S} s, renewed")
    section.columns = ["", "cpu % of a core", "idle %", "renewals of a lock", "connections", "lost"]
    period = _period()
    seconds = period * (1 if quick else 3)  # whole periods: renewals come in bursts
    observed = {
        "asyncio": _Observed("_idle:hold_async", seconds=seconds),
        "blocking": _Observed("_idle:hold_blocking", seconds=seconds),
    }
    for title, one in observed.items():
        watch = one.finish()
        cpu, connections = None, None
        if watch is None:
            section.notes.append(f"{title}: {one.error}")
        else:
            got, connections = one.result, float(one.connections)
            cpu = (got["busy"] - got["idle"]) * 100
            renewals = sum(watch.seconds) / HELD
            section.rows.append(
                [title, cpu, got["idle"] * 100, renewals, one.connections, int(got["lost"])]
            )
        section.goals += [
            Goal(f"{title}: cpu", cpu, 5, at_least=False, unit="%"),
            Goal(f"{title}: connections", connections, 1, at_least=False, unit="connections"),
        ]
    section.notes.append(
        f"CPU of the client's process over {seconds:.1f} s (whole renewal periods of {period:.2f} "
        "s), its idle use subtracted; `renewals of a lock` in that time should be the number of "
        "periods. Blocking: all acquired in one thread."
    )
    return section
