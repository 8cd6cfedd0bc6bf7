"""The devices that the suite runs on: the CPU, and one that interprets loop nests."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session", params=["cpu", "loops"])
def device(request: pytest.FixtureRequest) -> str:
    """The name of each device in turn."""
    name: str = request.param
    return name
