"""Primaries of each test's own: `@pytest.mark.quorum(5, ...)` says how many and of which sort."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.kit import COLOURS, Kit
from tests.support.quorum import Quorum


@pytest.fixture
def quorum(request: pytest.FixtureRequest) -> Iterator[Quorum]:
    """Independent servers, which the test may mistreat. The marker's arguments are Quorum's."""
    marker = request.node.get_closest_marker("quorum")
    args, options = (marker.args, marker.kwargs) if marker else ((3,), {})
    with Quorum(*args, **options) as made:
        yield made


@pytest.fixture(params=list(COLOURS))
def kit(request: pytest.FixtureRequest, quorum: Quorum, name: str) -> Iterator[Kit]:
    """A colour, over the test's own primaries."""
    made = COLOURS[request.param](quorum.deployment(), name, request.param)
    yield made
    made.raw.close()
