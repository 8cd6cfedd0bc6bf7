"""The devices that the suite runs on: the CPU, one that interprets loop nests, and CUDA's."""

from __future__ import annotations

import pytest

from tests.devices.contract import PRESENT

from .build import build_cases

__all__ = ["build_cases", "device"]

#: CUDA kernels on the host, every access checked.
EMULATED = pytest.param("cudaemu", marks=pytest.mark.slow)


@pytest.fixture(scope="session", params=["cpu", "loops", EMULATED, *PRESENT])
def device(request: pytest.FixtureRequest) -> str:
    """The name of each device in turn."""
    name: str = request.param
    return name
