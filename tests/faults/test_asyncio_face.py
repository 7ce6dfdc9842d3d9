"""What only the asyncio face has: bodies that are cancelled on loss, loops that come and go."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import time
from typing import Any

import pytest
import redis

import holdfast
import holdfast.aio
from holdfast.server import Server


def run(server: Server, body: Any, **options: Any) -> Any:
    async def main() -> Any:
        async with holdfast.aio.connect(server.url, **options) as hf:
            return await body(hf)

    return asyncio.run(main())


def test_the_body_is_cancelled_when_the_lock_is_lost(
    server: Server, raw: redis.Redis, name: str
) -> None:
    """The block ends in LockLost, at the deadline, not when the body would have ended. Case 42."""

    async def body(hf: holdfast.aio.Client) -> None:
        began = time.monotonic()
        with pytest.raises(holdfast.LockLost) as caught:
            async with hf.lock(name, lease=0.3, renew=False):
                await asyncio.sleep(30)
        assert time.monotonic() - began < 0.5
        assert caught.value.reason == "expired"
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        await asyncio.sleep(0)  # no cancellation is left over

    run(server, body)


def test_an_outer_cancellation_stays_what_it_was(server: Server, name: str) -> None:
    """Cancelled by somebody else, with and without a loss at the same time: CancelledError."""

    async def body(hf: holdfast.aio.Client) -> None:
        async def holder(lease: float) -> None:
            async with hf.lock(name, lease=lease, renew=False):
                await asyncio.sleep(30)

        task = asyncio.create_task(holder(20))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        task = asyncio.create_task(holder(0.2))
        await asyncio.sleep(0.05)
        loop = asyncio.get_running_loop()
        loop.call_later(0.13, task.cancel)  # in about the same moment as the loss
        with pytest.raises((asyncio.CancelledError, holdfast.LockLost)):
            await task

    run(server, body)


def test_a_loss_and_a_cancellation_in_one_tick_end_cancelled(server: Server, name: str) -> None:
    """Both reach the task together: the outer one wins, and the count of cancellations is right."""

    async def body(hf: holdfast.aio.Client) -> None:
        holds: list[holdfast.aio.Hold] = []

        async def holder() -> None:
            async with hf.lock(name) as hold:
                holds.append(hold)
                await asyncio.sleep(30)

        task = asyncio.create_task(holder())
        while not holds:
            await asyncio.sleep(0.001)
        holds[0]._lose("expired")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(server, body)


def test_a_body_that_ends_as_the_lock_is_lost_leaves_no_cancellation(
    server: Server, name: str
) -> None:
    """The interruption is under way when the body ends: it is taken in, LockLost comes out."""

    async def body(hf: holdfast.aio.Client) -> None:
        with pytest.raises(holdfast.LockLost):
            async with hf.lock(name) as hold:
                hold._lose("expired")
        await asyncio.sleep(0)
        await asyncio.sleep(0.01)

    run(server, body)


def test_a_body_that_finds_the_loss_itself_raises_it_once(server: Server, name: str) -> None:
    """`ensure()` inside the block: LockLost leaves it, and nothing is cancelled afterwards."""

    async def body(hf: holdfast.aio.Client) -> None:
        with pytest.raises(holdfast.LockLost):
            async with hf.lock(name, lease=0.05, renew=False) as hold:
                time.sleep(0.1)  # the loop is blocked beyond the deadline
                hold.ensure()
        await asyncio.sleep(0.01)

    run(server, body)


def test_a_blocked_loop_is_told_before_it_goes_on(server: Server, name: str) -> None:
    """Blocked past the deadline: the first await of the body is cancelled. Cases 41, T10."""

    async def body(hf: holdfast.aio.Client) -> None:
        reached = False
        with pytest.raises(holdfast.LockLost):
            async with hf.lock(name, lease=0.2):
                time.sleep(0.4)
                await asyncio.sleep(0.05)
                reached = True
        assert not reached

    run(server, body)


def test_the_exception_of_the_body_wins_over_the_loss(server: Server, name: str) -> None:
    """A body that answers the cancellation with its own error keeps it, with a note. Case 30."""

    async def body(hf: holdfast.aio.Client) -> None:
        with pytest.raises(KeyError) as caught:
            async with hf.lock(name, lease=0.1, renew=False):
                try:
                    await asyncio.sleep(30)
                except asyncio.CancelledError:
                    raise KeyError("mine") from None
        assert any("was lost" in note for note in caught.value.__notes__)
        await asyncio.sleep(0.01)

    run(server, body)


def test_timeouts_inside_and_outside_the_block_work(server: Server, name: str) -> None:
    """`asyncio.timeout` nests with the block in both orders."""

    async def body(hf: holdfast.aio.Client) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05), hf.lock(name):
                await asyncio.sleep(5)
        async with hf.lock(name):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await asyncio.sleep(5)
        with pytest.raises(holdfast.LockLost):
            async with asyncio.timeout(5), hf.lock(name, lease=0.1, renew=False):
                await asyncio.sleep(5)

    run(server, body)


def test_task_groups_work(server: Server, raw: redis.Redis, name: str) -> None:
    """Acquired in children of a TaskGroup, one fails: the others release on their way out."""

    async def body(hf: holdfast.aio.Client) -> None:
        async def fail() -> None:
            await asyncio.sleep(0.05)
            raise KeyError

        async def holder(number: int) -> None:
            async with hf.lock(f"{name}-{number}"):
                await asyncio.sleep(10)

        with pytest.raises(ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                for number in range(3):
                    group.create_task(holder(number))
                group.create_task(fail())
        assert not any(raw.exists(f"{name}-{n}") for n in range(3))

    run(server, body)


def test_one_client_works_under_repeated_asyncio_run(
    server: Server, raw: redis.Redis, name: str
) -> None:
    """New loop, new connections; holds of the old loop are gone, and say so. Case 65."""
    hf = holdfast.aio.connect(server.url)
    kept: list[holdfast.aio.Hold] = []

    async def turn(number: int) -> None:
        async with hf.lock(f"{name}-{number}", wait=1):
            pass
        if not kept:
            kept.append(await hf.lock(f"{name}-kept", lease=0.5).acquire())

    for number in range(3):
        asyncio.run(turn(number))
    assert kept[0].remaining() == 0
    assert kept[0].is_lost()
    asyncio.run(hf.close())
    time.sleep(0.5)
    assert not raw.exists(f"{name}-kept")


def test_two_running_loops_at_once_are_refused(server: Server, name: str) -> None:
    """A clear error instead of a future of another loop. Case 65."""

    async def body(hf: holdfast.aio.Client) -> None:
        await (await hf.lock(name).acquire()).release()
        errors: list[BaseException] = []

        def elsewhere() -> None:
            async def try_it() -> None:
                await hf.lock(name).acquire()

            try:
                asyncio.run(try_it())
            except holdfast.UsageError as error:
                errors.append(error)

        thread = threading.Thread(target=elsewhere)
        thread.start()
        while thread.is_alive():
            await asyncio.sleep(0.01)
        assert "another running event loop" in str(errors[0])
        await (await hf.lock(name).acquire()).release()

    run(server, body)


def test_a_closed_client_refuses_and_closing_twice_is_fine(server: Server, name: str) -> None:
    """`close()` is idempotent and bounded; what comes afterwards is a usage error."""

    async def body(hf: holdfast.aio.Client) -> None:
        lock = hf.lock(name)
        await (await lock.acquire()).release()
        began = time.monotonic()
        await hf.close()
        await hf.close()
        assert time.monotonic() - began < 1.5
        with pytest.raises(holdfast.UsageError, match="closed"):
            await lock.acquire()

    run(server, body)
    client = holdfast.connect(server.url)
    client.lock(name).acquire().release()
    client.close()
    client.close()
    with pytest.raises(holdfast.UsageError, match="closed"):
        client.lock(name).acquire()


def test_the_loop_is_never_blocked(server: Server, name: str) -> None:
    """Fifty tasks contend; a ticking task is never late by much. Case 22."""

    async def body(hf: holdfast.aio.Client) -> None:
        lags: list[float] = []
        done = False

        async def ticker() -> None:
            while not done:
                before = time.monotonic()
                await asyncio.sleep(0.01)
                lags.append(time.monotonic() - before - 0.01)

        async def worker() -> None:
            for _ in range(4):
                async with hf.lock(name, wait=20):
                    await asyncio.sleep(0.001)

        ticking = asyncio.create_task(ticker())
        await asyncio.gather(*(worker() for _ in range(50)))
        done = True
        await ticking
        lags.sort()
        # A blocking call anywhere would show here: looks are half a second apart.
        assert lags[int(len(lags) * 0.99)] < 0.2

    run(server, body)


def test_a_block_entered_by_one_task_may_be_left_by_another(server: Server, name: str) -> None:
    """As test frameworks do with fixtures: unambiguous, so it works."""

    async def body(hf: holdfast.aio.Client) -> None:
        lock = hf.lock(name)
        await asyncio.create_task(lock.__aenter__())
        await asyncio.create_task(lock.__aexit__(None, None, None))
        with pytest.raises(holdfast.UsageError, match="not entered"):
            await lock.__aexit__(None, None, None)

    run(server, body)


def test_a_task_that_ends_without_release_is_renewed_no_more(
    server: Server, raw: redis.Redis, name: str
) -> None:
    """The hold died with its task: the key dies within a lease. Cases 39, T04."""

    async def body(hf: holdfast.aio.Client) -> None:
        async def careless() -> None:
            await hf.lock(name, lease=0.4).acquire()

        with pytest.warns(ResourceWarning, match="dropped without release"):
            await asyncio.create_task(careless())
            gc.collect()
        await asyncio.sleep(0.6)
        assert not raw.exists(name)

    run(server, body)


def test_cancelling_a_renewal_in_flight_is_harmless(
    server: Server, raw: redis.Redis, name: str
) -> None:
    """Acquire, cancel and release in a fast loop: no key is renewed afterwards. Case T01."""

    async def body(hf: holdfast.aio.Client) -> None:
        lock = hf.lock(name, lease=0.06, on_lost="ignore")

        async def one(number: int) -> None:
            async with lock:
                await asyncio.sleep(0.0004 * (number % 40))

        for number in range(1_000):
            task = asyncio.create_task(one(number))
            await asyncio.sleep(0.0003 * (number % 13))
            task.cancel()
            try:
                await task
            except (asyncio.CancelledError, holdfast.LockLost):
                pass
        await asyncio.sleep(0.1)
        assert not raw.exists(name)
        assert hf._kit.keeper.kept() == 0

    run(server, body)


def test_two_loops_of_one_process_exclude_each_other(server: Server, name: str) -> None:
    """Two threads, a loop and a client in each: the second waits for the first. Case T20."""
    inside: list[str] = []
    overlaps: list[tuple[str, ...]] = []

    def loop(who: str) -> None:
        async def body(hf: holdfast.aio.Client) -> None:
            for _ in range(20):
                async with hf.lock(name, wait=20):
                    inside.append(who)
                    if len(inside) > 1:
                        overlaps.append(tuple(inside))
                    await asyncio.sleep(0.002)
                    inside.remove(who)

        run(server, body)

    threads = [threading.Thread(target=loop, args=(who,)) for who in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    assert overlaps == []


def test_what_an_operator_must_see_is_logged_as_a_warning(
    server: Server, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A loss, a renewal and a release that failed; what went well is not mentioned."""

    async def body(hf: holdfast.aio.Client) -> None:
        async with hf.lock(name):
            pass
        assert caplog.records == []
        hold = await hf.lock(name, lease=0.6, on_lost="ignore").acquire()
        await hf.lock(name).force_release()
        await asyncio.sleep(0.4)
        assert hold.is_lost()

    with caplog.at_level(logging.WARNING, "holdfast"):
        run(server, body)
    lost = [record for record in caplog.records if record.getMessage().startswith("lost ")]
    assert [record.levelno for record in lost] == [logging.WARNING]
    assert lost[0].__dict__["holdfast"]["reason"] == "released by force"
    caplog.clear()
    with Server() as own, caplog.at_level(logging.WARNING, "holdfast"):

        async def silent(hf: holdfast.aio.Client) -> None:
            async with hf.lock(name, lease=1.2, on_lost="ignore"):
                own.kill()
                await asyncio.sleep(0.8)

        run(own, silent)
    said = {record.getMessage().partition(" ")[0] for record in caplog.records}
    assert {"renewalfailed", "releasefailed"} <= said, said
