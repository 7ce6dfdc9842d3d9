"""Fairness and the price of waiting, over processes: turns, dead waiters, a thousand waiters."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from itertools import pairwise
from typing import Any

import pytest
import redis

import holdfast
import holdfast.aio
from holdfast.core.keys import aux
from holdfast.locks.lock import CLAIM_MS
from holdfast.server import Server

pytestmark = pytest.mark.timeout(120)


def spawn(code: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def contenders(server: Server, name: str, seconds: float, deaf: bool = False) -> list[Any]:
    """Eight processes, 1 ms of work under the lock; what each reports."""
    # Deaf: nothing that is published finds its waiter.
    ears = "hf._rt._mailboxes = type('Deaf', (dict,), {'get': lambda *a: None})()" if deaf else ""
    code = f"""
        import holdfast, json, time
        hf = holdfast.connect({server.unix_url!r})
        hf.lock({name!r} + "-warm").acquire().release()
        {ears}
        lock = hf.lock({name!r})
        print("ready", flush=True)
        begin = float(input())
        time.sleep(max(0, begin - time.monotonic()))
        ends, waits, fences, spans = begin + {seconds}, [], [], []
        while time.monotonic() < ends:
            before = time.monotonic()
            with lock as hold:
                got = time.monotonic()
                time.sleep(0.001)
                spans.append((got, time.monotonic()))
            waits.append(got - before)
            fences.append(hold.fence)
        print(json.dumps([waits, fences, spans]))
    """
    processes = [spawn(code) for _ in range(8)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    begin = time.monotonic() + 0.2  # one clock for all processes of this machine
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(f"{begin}\n")
        process.stdin.flush()
    return [json.loads(process.communicate(timeout=60)[0]) for process in processes]


def overlaps(reports: list[Any]) -> int:
    spans = sorted(span for _, _, spans in reports for span in spans)
    return sum(later[0] < earlier[1] for earlier, later in pairwise(spans))


def test_eight_processes_get_equal_turns(server: Server, name: str) -> None:
    """1 ms of work each: turns min/max >= 0.95, no overlap, fences in order. Cases 16, 24, T40."""
    reports = contenders(server, name, 3)
    turns = [len(waits) for waits, _, _ in reports]
    assert min(turns) / max(turns) >= 0.95, turns
    assert overlaps(reports) == 0
    order = sorted(
        (span[0], fence)
        for _, fences, spans in reports
        for span, fence in zip(spans, fences, strict=True)
    )
    fences = [fence for _, fence in order]
    assert fences == sorted(set(fences))
    assert min(turns) > 50


def test_overlaps_would_be_found() -> None:
    """The check above can fail: a fabricated overlap is counted."""
    assert overlaps([[[], [], [(0.0, 1.0)]], [[], [], [(0.5, 1.5)]]]) == 1


def test_everybody_gets_a_turn_when_every_message_is_lost(server: Server, name: str) -> None:
    """All wake-ups dropped in all processes: slower, but bounded and for everybody. 17, T26."""
    reports = contenders(server, name, 12, deaf=True)
    turns = [len(waits) for waits, _, _ in reports]
    assert min(turns) >= 1, turns
    assert overlaps(reports) == 0


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_thousand_waiters_cost_few_commands(server: Server, raw: redis.Redis, name: str) -> None:
    """One process, one held lock, 1,000 waiters: at most 50 scripts a second, at any time. 25, T42.

    Over as long as the longest of their intervals: those far back look for the first time then.
    """

    async def main() -> tuple[float, int, int]:
        async with holdfast.aio.connect(server.url) as hf:
            hold = await hf.lock(name).acquire()
            tasks = [asyncio.create_task(hf.lock(name).acquire(wait=200)) for _ in range(1000)]
            while raw.zcard(aux(name, "queue")) < 1000:
                await asyncio.sleep(0.1)
            await asyncio.sleep(1)  # the second look after the inbox was opened
            rate = 0.0
            for _ in range(8):
                before, began = scripts(raw), time.monotonic()
                await asyncio.sleep(10)
                rate = max(rate, (scripts(raw) - before) / (time.monotonic() - began))
            waiting = int(raw.zcard(aux(name, "queue")))
            connections = sum(c["lib-name"].startswith("redis-py") for c in raw.client_list())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            left = int(raw.zcard(aux(name, "queue")))
            await hold.release()
            assert waiting == 1000
            assert connections <= 8
            return rate, waiting, left

    rate, _, left = asyncio.run(main())
    assert rate <= 50
    assert left == 0


def scripts(raw: redis.Redis) -> int:
    stats = raw.info("commandstats")
    return sum(stats.get(f"cmdstat_{c}", {"calls": 0})["calls"] for c in ("eval", "evalsha"))


def test_a_killed_waiter_at_the_head_delays_the_next_by_one_window(
    server: Server, raw: redis.Redis, name: str
) -> None:
    """kill -9 of a process in which ten wait: the next has the lock within a window. 71, T38."""
    code = f"""
        import asyncio, holdfast.aio
        async def main():
            async with holdfast.aio.connect({server.url!r}) as hf:
                tasks = [asyncio.create_task(hf.lock({name!r}).acquire()) for _ in range(10)]
                await asyncio.sleep(0.3)
                print("queued", flush=True)
                await asyncio.sleep(60)
        asyncio.run(main())
    """
    with holdfast.connect(server.url) as hf:
        hold = hf.lock(name).acquire()
        process = spawn(code)
        assert process.stdin is not None
        process.stdin.close()
        assert process.stdout is not None
        assert process.stdout.readline() == "queued\n"
        got: list[float] = []

        import threading

        def successor() -> None:
            with hf.lock(name, wait=60):
                got.append(time.monotonic())

        thread = threading.Thread(target=successor)
        thread.start()
        while raw.zcard(aux(name, "queue")) < 11:
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert process.stdout.close() is None
        released = time.monotonic()
        hold.release()
        thread.join(60)
        assert got[0] - released < CLAIM_MS / 1000 + 1.2


def test_five_hundred_contenders_with_short_leases_all_finish(server: Server, name: str) -> None:
    """Nobody is starved, and no deadline drifts into the far future. Case T40."""

    async def main() -> int:
        done = 0
        async with holdfast.aio.connect(server.url) as hf:

            async def turn() -> None:
                nonlocal done
                async with hf.lock(name, lease=0.5, wait=60):
                    done += 1

            await asyncio.gather(*(turn() for _ in range(500)))
        return done

    assert asyncio.run(main()) == 500


def test_order_and_leases_do_not_depend_on_the_clocks_of_clients(
    server: Server, raw: redis.Redis, name: str
) -> None:
    """Wall clocks ten minutes apart: queue deadlines are the server's all the same. Case T43."""
    code = f"""
        import time
        true = time.time
        time.time = lambda: true() + SHIFT
        import holdfast
        hf = holdfast.connect({server.url!r})
        with hf.lock({name!r}, wait=20):
            print("turn SHIFT", flush=True)
    """
    with holdfast.connect(server.url) as hf:
        hold = hf.lock(name).acquire()
        processes = []
        for position, shift in enumerate(("600", "-600", "0")):
            processes.append(spawn(code.replace("SHIFT", shift)))
            while raw.zcard(aux(name, "queue")) < position + 1:
                time.sleep(0.01)
        seconds, _ = raw.time()
        for key, record in raw.hgetall(aux(name, "waiters")).items():
            if key.startswith(b"w"):
                assert abs(int(record.split()[0]) / 1000 - seconds) < 60
        ends: list[float] = []
        hold.release()
        for process in processes:
            assert process.communicate(timeout=20)[0].startswith("turn")
            ends.append(time.monotonic())
        assert ends == sorted(ends)
