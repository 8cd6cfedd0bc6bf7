"""The devices that the tests of this folder run on: those whose heavy runs take milliseconds."""

from __future__ import annotations

import pytest

from tests.devices.contract import PRESENT


@pytest.fixture(scope="session", params=["cpu", *PRESENT])
def device(request: pytest.FixtureRequest) -> str:
    """The name of each device in turn."""
    name: str = request.param
    return name
