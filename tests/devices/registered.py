"""Devices of the tests, registered as those of an installed package are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from unittest import mock

import ostinato as ost

__all__ = ["TEST_BACKENDS", "open_session", "registered"]

#: The entry points of the tests' own devices: one that interprets loop nests; four that run CUDA
#: kernels in an emulator of threads and blocks, without segments, with those of a grid of one block
#: or of two, and with those of one block, too; and the CUDA device's runtime on a driver in this
#: process.
TEST_BACKENDS = {
    "loops": "tests.devices.loops.backend:LoopsBackend",
    "cudaemu": "tests.devices.cuda_emulation.backend:CudaEmulationBackend",
    "cudasegments": "tests.devices.cuda_emulation.backend:CudaSegmentsBackend",
    "cudagrids": "tests.devices.cuda_emulation.backend:CudaGridsBackend",
    "cudaoneblock": "tests.devices.cuda_emulation.backend:CudaOneBlockBackend",
    "cudahost": "tests.devices.cuda_host.backend:CudaHostBackend",
}

_GROUP = "ostinato.backends"


def open_session(device: str, threads: int | None = None) -> ost.Session:
    """A session on a device of this machine, or on one of the tests' own."""
    with registered(**TEST_BACKENDS):
        return ost.Session(device, threads=threads)


@contextmanager
def registered(**backends: str) -> Iterator[None]:
    """Have further entry points ``kind = "module:Class"`` in the group of backends."""
    found = metadata.entry_points
    entries = [metadata.EntryPoint(kind, path, _GROUP) for kind, path in backends.items()]

    def entry_points(*, group: str) -> object:
        return [*found(group=group), *entries] if group == _GROUP else found(group=group)

    with mock.patch.object(metadata, "entry_points", entry_points):
        yield
