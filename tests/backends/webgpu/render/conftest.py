"""A WebGPU adapter; without one, the tests of this folder are skipped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import ostinato as ost


@pytest.fixture(scope="session")
def session() -> ost.Session:
    try:
        return ost.Session("webgpu", threads=1)
    except ost.DeviceUnavailableError as error:
        pytest.skip(f"there is no WebGPU adapter: {error}")


@pytest.fixture(scope="session")
def validate(session: ost.Session) -> Callable[[str], None]:
    """Raises for a module that WebGPU refuses."""
    import wgpu

    adapter: Any = wgpu.gpu.request_adapter_sync(power_preference="high-performance")
    features = [name for name in ("subgroup",) if name in adapter.features]
    device = adapter.request_device_sync(required_features=features)
    return lambda source: device.create_shader_module(code=source)
