"""Sessions on the CUDA runtime with a driver in this process."""

from __future__ import annotations

import pytest

import ostinato as ost
from tests.devices.cuda_host.backend import CudaHostBackend
from tests.devices.cuda_host.driver import HostDriver
from tests.devices.registered import registered


@pytest.fixture
def session() -> ost.Session:
    with registered(cudahost="tests.devices.cuda_host.backend:CudaHostBackend"):
        return ost.Session("cudahost")


@pytest.fixture
def driver(session: ost.Session) -> HostDriver:
    backend = session._backend
    assert isinstance(backend, CudaHostBackend)
    return backend.host
