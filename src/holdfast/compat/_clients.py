"""The holdfast client that belongs to a redis-py client: made once, and ended with it.

The tables know redis-py clients by weak reference, and nothing that they hold refers back to one.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import AsyncGenerator
from typing import Any, Final

import msgspec

from ..client import AsyncClient, Client, aconnect, connect
from ..errors import UsageError
from ..locks.terms import Kit

LONGEST_S: Final = 30 * 24 * 3600


class _Tenant(msgspec.Struct, frozen=True):
    """An asyncio client, and where it lives."""

    client: AsyncClient
    loop: asyncio.AbstractEventLoop
    pid: int
    leaving: weakref.finalize[[AsyncGenerator[None, None], asyncio.AbstractEventLoop, int], Any]


_clients: weakref.WeakKeyDictionary[Any, Client] = weakref.WeakKeyDictionary()
_tenants: weakref.WeakKeyDictionary[Any, _Tenant] = weakref.WeakKeyDictionary()
# Every lodging that was begun, until it has ended: what nobody refers to any more is closed in a
# task, and a loop that ends would cancel it half-way. What is here the loop closes by itself.
_lodgings: dict[AsyncGenerator[None, None], asyncio.AbstractEventLoop] = {}
_closing: set[asyncio.Task[None]] = set()
_guard = threading.Lock()


def kit_of(redis: Any) -> Kit:
    """What the blocking locks of this redis-py client run on. Sends nothing."""
    client = _clients.get(redis)
    if client is None:
        with _guard:
            client = _clients.get(redis)
            if client is None:
                client = connect(redis, max_lease=LONGEST_S)
                _let_go(client)
                # Not at exit: the interpreter's end closes sockets and daemon threads by itself.
                weakref.finalize(redis, _end, client).atexit = False
                _clients[redis] = client
    return client._kit


async def kit_of_loop(redis: Any) -> Kit:
    """What the asyncio locks of this redis-py client run on in this loop. Sends nothing.

    Raises UsageError while the redis-py client is in use in another running loop.
    """
    loop = asyncio.get_running_loop()
    tenant = _tenants.get(redis)
    if tenant is not None:
        if tenant.loop is loop and not tenant.client._rt.closed:
            return tenant.client._kit
        if tenant.loop is not loop and tenant.loop.is_running() and tenant.pid == os.getpid():
            raise UsageError(
                "this redis.asyncio client is in use in another running event loop; "
                "make one client per loop"
            )
    client = aconnect(redis, max_lease=LONGEST_S)
    _let_go(client)
    lodging = _lodge(client)
    await anext(lodging)
    for old in [old for old, its in list(_lodgings.items()) if its.is_closed()]:
        _lodgings.pop(old, None)
    _lodgings[lodging] = loop
    leaving = weakref.finalize(redis, _leave, lodging, loop, os.getpid())
    leaving.atexit = False
    if tenant is not None:
        tenant.leaving.detach()  # one loop after another must not add up; each closes what is its
    _tenants[redis] = _Tenant(client, loop, os.getpid(), leaving)
    return client._kit


async def _lodge(client: AsyncClient) -> AsyncGenerator[None, None]:
    # A generator that was begun is closed when its loop ends (`shutdown_asyncgens`, which
    # asyncio.run calls): the user need not close anything.
    try:
        yield
    finally:
        await client.close()


def _leave(lodging: AsyncGenerator[None, None], loop: asyncio.AbstractEventLoop, pid: int) -> None:
    """The redis-py client was collected, in whatever thread: close in the loop what it had."""

    async def close() -> None:
        await lodging.aclose()
        _lodgings.pop(lodging, None)

    def start() -> None:
        task = loop.create_task(close())
        _closing.add(task)  # the loop itself keeps weak references only
        task.add_done_callback(_closing.discard)

    if pid != os.getpid() or lodging not in _lodgings:
        return
    try:
        loop.call_soon_threadsafe(start)
    except RuntimeError:
        pass  # the loop is closed, and so is what lived in it


def _let_go(client: Client | AsyncClient) -> None:
    # An endpoint keeps alive what it was taken from. For a cluster that is the redis-py client
    # itself, which would so live for ever; its connections do not need it.
    for deployment in client._rt.deployments:
        if deployment.is_cluster:
            for endpoint in deployment.candidates():  # type: ignore[attr-defined]
                endpoint._owner = None


def _end(client: Client) -> None:
    # Whatever thread the collector runs in must not wait for others: no patience.
    if not client._rt.closed:
        client._kit.keeper.close()
        client._rt.close(0.0)


def _after_fork_in_child() -> None:
    global _guard
    _guard = threading.Lock()  # another thread of the parent may have held it


os.register_at_fork(after_in_child=_after_fork_in_child)
