"""The devices that the suite runs on: the CPU, and one that interprets loop nests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.devices.registered import registered


@pytest.fixture(scope="session", params=["cpu", "loops"])
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of each device in turn."""
    with registered(loops="tests.devices.loops.backend:LoopsBackend"):
        yield request.param
