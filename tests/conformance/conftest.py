"""The devices that the suite runs on: the CPU, one that interprets loop nests, and GPUs'."""

from __future__ import annotations

import pytest

from tests.devices.contract import PRESENT
from tests.devices.wgsl import adapter

from .build import build_cases

__all__ = ["build_cases", "device"]

#: CUDA kernels on the host, every access checked.
EMULATED = pytest.param("cudaemu", marks=pytest.mark.slow)

#: WebGPU kernels one by one, on an adapter.
WGSL = pytest.param("wgsl", marks=pytest.mark.slow)


@pytest.fixture(scope="session", params=["cpu", "loops", WGSL, EMULATED, *PRESENT])
def device(request: pytest.FixtureRequest) -> str:
    """The name of each device in turn."""
    name: str = request.param
    if name == "wgsl" and adapter.device() is None:
        pytest.skip("there is no WebGPU adapter, or no package wgpu")
    return name
