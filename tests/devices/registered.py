"""Devices of the tests, registered as those of an installed package are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from unittest import mock

import ostinato as ost

__all__ = ["CUDAEMU", "CUDAHOST", "LOOPS", "WGSL", "open_session", "registered"]

#: The entry point of the device that interprets loop nests.
LOOPS = "tests.devices.loops.backend:LoopsBackend"

#: The entry point of the device that runs CUDA kernels in an emulator of threads and blocks.
CUDAEMU = "tests.devices.cuda_emulation.backend:CudaEmulationBackend"

#: The entry point of the CUDA device's own runtime on a driver in this process.
CUDAHOST = "tests.devices.cuda_host.backend:CudaHostBackend"

#: The entry point of the device that runs kernels of the WebGPU device one by one.
WGSL = "tests.devices.wgsl.backend:WgslBackend"

_GROUP = "ostinato.backends"


def open_session(device: str, threads: int | None = None) -> ost.Session:
    """A session on a device of this machine, or on one of the tests' own."""
    with registered(loops=LOOPS, cudaemu=CUDAEMU, cudahost=CUDAHOST, wgsl=WGSL):
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
