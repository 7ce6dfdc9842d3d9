"""Fork: the parent goes on, the child owns nothing, and ids are never twins."""

from __future__ import annotations

import asyncio
import os
import pickle
import subprocess
import sys
import textwrap
import time
import traceback
from collections.abc import Callable

import pytest
import redis

import holdfast
import holdfast.aio
from holdfast.server import Server

# Forking a process with threads (the keeper's) is what these tests are about.
pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork\\(\\) may lead to deadlocks")


def in_child(body: Callable[[], object], within: float = 10.0) -> bytes:
    """Run `body` in a forked child; what it returns, as text. Fails if it raises or hangs."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(reading)
            os.write(writing, str(body()).encode())
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(writing)
    ends = time.monotonic() + within
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            break
        if time.monotonic() > ends:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
            pytest.fail("the child hangs")
        time.sleep(0.005)
    text = os.read(reading, 100_000)
    os.close(reading)
    assert status == 0, "the child failed"
    return text


def test_the_parent_holds_and_renews_while_children_come_and_go(
    server: Server, raw: redis.Redis, name: str
) -> None:
    """Hold, fork, child exits: nothing is released, renewal goes on. Cases 38, B11, B17."""
    with holdfast.connect(server.url) as hf, hf.lock(name, lease=0.6) as hold:
        for _ in range(3):

            def child() -> str:
                assert hold.remaining() == 0
                assert hold.lost.is_set()
                with pytest.raises(holdfast.LockLost, match="another process"):
                    hold.ensure()
                with pytest.raises(holdfast.UsageError, match="owns nothing"):
                    hold.release()
                with pytest.raises(holdfast.LockLost):
                    hold.extend(10)
                return "ok"

            assert in_child(child) == b"ok"
            time.sleep(0.4)
            assert raw.get(name) == hold.owner.encode()
            hold.ensure()
    assert not raw.exists(name)


def test_a_child_that_runs_out_of_the_block_releases_nothing(
    server: Server, raw: redis.Redis, name: str
) -> None:
    """A fork inside `with`: the child leaves the block, collects everything, and exits. 38, B17."""
    with holdfast.connect(server.url) as hf:
        lock = hf.lock(name, lease=5)
        with lock as hold:

            def child() -> str:
                lock.__exit__(None, None, None)
                hf.close()
                return "out"

            assert in_child(child) == b"out"
            assert raw.get(name) == hold.owner.encode()
            hold.ensure()


ENDS_NORMALLY = """
import asyncio, os, sys, time
import holdfast, holdfast.aio

def child_ends(pid):
    _, status = os.waitpid(pid, 0)
    print(status, end=" ", flush=True)

with holdfast.connect(sys.argv[1]) as hf:
    with hf.lock(sys.argv[2], lease=0.6) as hold:
        pid = os.fork()
        if pid == 0:
            sys.exit(0)  # leaves both blocks, and runs what runs at the end of an interpreter
        child_ends(pid)
        time.sleep(1)
        hold.ensure()

async def main():
    async with holdfast.aio.connect(sys.argv[1]) as hf:
        async with hf.lock(sys.argv[2], lease=0.6) as hold:
            pid = os.fork()
            if pid == 0:
                assert hold.is_lost()
                sys.exit(0)
            child_ends(pid)
            await asyncio.sleep(1)
            hold.ensure()

asyncio.run(main())
print("parent", flush=True)
"""


def test_children_that_end_normally_leave_everything_to_the_parent(
    server: Server, raw: redis.Redis, name: str
) -> None:
    """`sys.exit` inside both blocks, also inside a running loop: status 0, nothing released. 38."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", ENDS_NORMALLY, server.url, name],
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    assert done.stdout.split() == ["0", "0", "parent"], done.stdout + done.stderr
    assert done.stderr == ""
    assert not raw.exists(name)


def test_a_child_may_use_the_client_and_gets_its_own_ids(
    server: Server, raw: redis.Redis, name: str
) -> None:
    """Own connections, own keeper, own inbox: the child locks, waits and renews. Case 38."""
    with holdfast.connect(server.url) as hf, hf.lock(name) as hold:

        def child() -> str:
            assert hf.lock(name).try_acquire() is None
            with hf.lock(f"{name}-child", lease=0.4) as mine:
                time.sleep(0.9)
                mine.ensure()
                return mine.owner

        theirs = in_child(child).decode()
        assert theirs.split(":")[0] != hold.owner.split(":")[0]
        assert theirs.split(":")[2] != hold.owner.split(":")[2]
        assert not raw.exists(f"{name}-child")
        hold.ensure()


def test_two_children_of_a_warmed_up_parent_are_never_the_same_owner(
    server: Server, name: str
) -> None:
    """A prefork server hands out no twins: ids and inboxes differ from the first one on."""
    with holdfast.connect(server.url) as hf:
        for number in range(5):
            hf.lock(f"{name}-{number}").acquire().release()

        def child() -> str:
            owners = [hf.lock(f"{name}-{os.getpid()}").acquire() for _ in range(1)]
            ids = [hold.owner.split(":")[0] for hold in owners]
            inbox = hf._rt.inbox
            jitter = hf._rt.jitter(0, 1)
            for hold in owners:
                hold.release()
            return "|".join([*ids, inbox, str(jitter)])

        seen = [part for _ in range(4) for part in in_child(child).decode().split("|")]
        assert len(seen) == 12
        assert len(set(seen)) == 12


def test_a_fork_while_threads_wait_and_hold_does_not_hang(
    server: Server, raw: redis.Redis, name: str
) -> None:
    """Every mutex of the library may be locked at the moment of the fork. Case 38, T15."""
    import threading

    stop = threading.Event()
    with holdfast.connect(server.url) as hf:

        def churn(number: int) -> None:
            lock = hf.lock(f"{name}-{number % 2}", wait=5, lease=1)
            while not stop.is_set():
                with lock:
                    pass

        threads = [threading.Thread(target=churn, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(10):

                def child() -> str:
                    with hf.lock(f"{name}-mine", wait=5):
                        return "ok"

                assert in_child(child) == b"ok"
        finally:
            stop.set()
            for thread in threads:
                thread.join()
    assert not raw.exists(name)


def test_an_asyncio_client_forked_between_two_runs_works_in_both(
    server: Server, raw: redis.Redis, name: str
) -> None:
    """The child runs its own loop on the same client; the parent goes on with its own. Case 38."""
    hf = holdfast.aio.connect(server.url)

    async def turn(suffix: str) -> str:
        async with hf.lock(name + suffix) as hold:
            return hold.owner

    first = asyncio.run(turn(""))
    theirs = in_child(lambda: asyncio.run(turn("-child"))).decode()
    second = asyncio.run(turn(""))
    assert len({owner.split(":")[0] for owner in (first, theirs, second)}) == 3
    asyncio.run(hf.close())


def test_kill_dash_nine_frees_within_one_lease(server: Server, raw: redis.Redis, name: str) -> None:
    """A holder that dies without a word blocks for at most its lease. Case 66."""
    code = f"""
        import holdfast, time
        hf = holdfast.connect({server.url!r})
        hold = hf.lock({name!r}, lease=1).acquire()
        print("held", flush=True)
        time.sleep(60)
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        time.sleep(1.2)
        assert raw.exists(name), "it was not renewed"
        process.kill()
        killed = time.monotonic()
        with holdfast.connect(server.url) as hf, hf.lock(name, wait=5):
            assert time.monotonic() - killed < 1.6


def test_locks_and_holds_refuse_to_be_pickled_clearly(server: Server, name: str) -> None:
    """They belong to a client of this process: a clear error, at the time of pickling. Case 64."""
    with holdfast.connect(server.url) as hf, hf.lock(name) as hold:
        for thing in (hold, hf.lock(name), hf):
            with pytest.raises(TypeError, match="pickle"):
                pickle.dumps(thing)


def test_an_exit_without_release_or_close_is_quiet_and_quick(server: Server, name: str) -> None:
    """Interpreter shutdown with a hold, threads and a client that nobody closed. Case 35."""
    code = f"""
        import holdfast, holdfast.aio
        hf = holdfast.connect({server.url!r})
        hold = hf.lock({name!r}, lease=1).acquire()
        other = holdfast.aio.connect({server.url!r})
    """
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, timeout=20, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert time.monotonic() - began < 5
