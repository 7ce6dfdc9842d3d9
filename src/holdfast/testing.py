"""A pytest plugin: a real server and ready clients for the tests of code that uses holdfast.

It is registered on installation; its fixtures cost nothing until a test asks for one.

    def test_only_one_runs(holdfast_client):
        with holdfast_client.lock("report"):
            ...

    async def test_the_same_in_asyncio(holdfast_aio_client):
        async with holdfast_aio_client as client:
            ...
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

# Everything of holdfast is imported inside the fixtures: pytest loads this module in every suite
# of an environment in which holdfast is installed, whether it is used there or not.
if TYPE_CHECKING:
    import holdfast
    import holdfast.aio
    from holdfast.server import Server


@pytest.fixture(scope="session")
def holdfast_server() -> Iterator[Server]:
    """A started `holdfast.server.Server` of the newest binary at hand, one for the session.

    A test may pause, kill or restart it: the next test that asks for `holdfast_url` finds it
    mended. Fails with `ServerNotFound`, and the fix, if there is no server binary.
    """
    from holdfast.server import Server

    with Server() as server:
        yield server


@pytest.fixture
def holdfast_url(holdfast_server: Server) -> str:
    """The URL of `holdfast_server`, which is running and empty when the test begins."""
    holdfast_server.start()
    holdfast_server.resume()
    holdfast_server.command("FLUSHALL")
    return holdfast_server.url


@pytest.fixture
def holdfast_client(holdfast_url: str) -> Iterator[holdfast.Client]:
    """`holdfast.connect(holdfast_url)`, closed after the test."""
    import holdfast

    client = holdfast.connect(holdfast_url)
    try:
        yield client
    finally:
        client.close()


@pytest.fixture
def holdfast_aio_client(holdfast_url: str) -> holdfast.aio.Client:
    """`holdfast.aio.connect(holdfast_url)`, not yet entered: use it with `async with`.

    It is not entered here because it belongs to the event loop of the test, which only the test
    (or a plugin of its choice) knows.
    """
    import holdfast.aio

    return holdfast.aio.connect(holdfast_url)
