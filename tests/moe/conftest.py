"""Sessions that the tests of this folder share."""

from __future__ import annotations

import pytest

import ostinato as ost
from tests.devices.registered import open_session


@pytest.fixture(scope="session")
def session(device: str) -> ost.Session:
    return open_session(device, threads=2)
