"""Sessions on a WebGPU adapter; without one, the tests of this folder are skipped."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from unittest import mock

import pytest

import ostinato as ost
from ostinato.backends.webgpu.backend import WebGpuBackend


@pytest.fixture(scope="session")
def session() -> ost.Session:
    if not ost.is_available("webgpu"):
        pytest.skip("there is no WebGPU adapter, or no package wgpu")
    return ost.Session("webgpu", threads=2)


@pytest.fixture(scope="session")
def bounded(session: ost.Session) -> Callable[[int], ost.Session]:
    """Opens sessions on devices of their own, whose buffers have at most so many bytes."""

    def opened(most_bytes: int) -> ost.Session:
        init = WebGpuBackend.__init__
        small = partial(init, most_buffer_bytes=most_bytes)
        with mock.patch.object(WebGpuBackend, "__init__", lambda *given: small(*given)):
            return ost.Session("webgpu", threads=2)

    return opened
