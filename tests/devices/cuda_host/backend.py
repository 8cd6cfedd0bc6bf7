"""The device ``CUDAHOST``: the CUDA device's own runtime, on a driver in this process."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import TypeAlias

from ostinato.backends.base import Progress
from ostinato.backends.cuda.abi import HEADER_WORDS, Launch
from ostinato.backends.cuda.backend import CudaBackend
from ostinato.backends.cuda.headers import DIRECTORY
from ostinato.backends.cuda.kernel import CudaKernel
from ostinato.backends.cuda.rules.expert_staging import StageExperts
from ostinato.backends.cuda.target import CudaTarget
from ostinato.backends.cuda.toolchain import Toolchain
from ostinato.backends.device import Device
from ostinato.cache.objects import process_cache
from tests.devices.cuda_emulation.emulator import EmulatedKernel, Memory, load_kernels

from .driver import HostDriver, HostFunction, Span
from .interpreter import INTERPRETED, interpret, memory_at
from .products import HostProducts

__all__ = ["CudaHostBackend", "HostToolchain", "open_host_driver"]

#: The kernels that may be interpreted, by symbol.
_KERNELS: dict[str, CudaKernel] = {}

#: The parts of a kernel that is emulated: its text; the element size and uses of its arguments; how
#: many Variables it takes; the argument whose elements are addresses of what it reads, or -1.
_Parts: TypeAlias = tuple[str, list[tuple[int, bool, bool]], int, int]

#: That argument of a kernel that stages experts.
_SOURCES = 1


class HostToolchain:
    """See :class:`~ostinato.backends.cuda.toolchain.Toolchain`.

    Loop nests are interpreted, since compiling their text takes long; all other kernels run in the
    emulator.

    Args:
        target: the GPU.
    """

    def __init__(self, target: CudaTarget) -> None:
        self.target = target
        self.identity = f"host {os.getpid()} {target.identity}"

    def compile(
        self, kernels: Sequence[CudaKernel], progress: Progress | None = None
    ) -> Mapping[str, tuple[bytes, Sequence[str]]]:
        _KERNELS.update((kernel.name, kernel) for kernel in kernels)
        objects: dict[str, tuple[bytes, Sequence[str]]] = {}
        for done, kernel in enumerate(kernels):
            image = json.dumps({kernel.name: self._parts(kernel)}).encode()
            key = hashlib.sha256(image + self.identity.encode()).hexdigest()
            objects[key] = (
                process_cache().get_or_build(key, lambda data=image: data),
                (kernel.name,),
            )
            if progress is not None:
                progress(done + 1, len(kernels))
        return objects

    def _parts(self, kernel: CudaKernel) -> _Parts | None:
        if isinstance(kernel, INTERPRETED):
            return None
        arguments = [(arg.dtype.itemsize, arg.reads, arg.writes) for arg in kernel.args]
        addresses = _SOURCES if isinstance(kernel, StageExperts) else -1
        return kernel.source(self.target), arguments, len(kernel.variables), addresses

    def assembly(self, kernel: CudaKernel) -> str | None:
        return None


def open_host_driver(**settings: int) -> HostDriver:
    """A driver whose kernels are interpreted or emulated."""
    return HostDriver(_load, **settings)


def _load(image: bytes) -> dict[str, HostFunction]:
    described: dict[str, _Parts | None] = json.loads(image)
    texts = {name: parts[0] for name, parts in described.items() if parts is not None}
    codes = load_kernels(texts, DIRECTORY) if texts else {}
    return {
        name: partial(interpret, _KERNELS[name])
        if parts is None
        else partial(_emulate, codes[name], *parts[1:])
        for name, parts in described.items()
    }


def _emulate(
    code: EmulatedKernel,
    arguments: Sequence[tuple[int, bool, bool]],
    words: int,
    table: int,
    launch: Launch,
    addresses: Sequence[int],
    memory: Callable[[int], Span],
) -> None:
    *buffers, variables = addresses
    given = []
    for number, (address, (size, reads, writes)) in enumerate(zip(buffers, arguments, strict=True)):
        array = memory_at(address, f"u{size}", (memory(address).end - address) // size)
        given.append(Memory(f"b{number}", array, reads or writes, writes))
    memory(variables)
    block = memory_at(variables - 8 * HEADER_WORDS, "u8", HEADER_WORDS + words)
    if launch.cooperative:  # its blocks count themselves there, and leave what they found
        given.append(Memory("vars", block.copy(), writes=True, start=HEADER_WORDS))
    else:
        given.append(Memory("vars", block, start=HEADER_WORDS))
    grid = 1 if launch.cooperative else launch.grid
    readable = [memory(int(given[table].array[0]))] if table >= 0 else []  # all are in one block
    code.run(
        grid,
        launch.block,
        given,
        shared_bytes=launch.shared_bytes,
        together=launch.cooperative,
        readable=readable,
    )


class CudaHostBackend(CudaBackend):
    """The CUDA device on a driver in this process.

    Args:
        device: ``CUDAHOST:0``.
        threads: has no effect.
        driver: the driver; by default, one of its own.
    """

    def __init__(
        self, device: Device, threads: int | None = None, driver: HostDriver | None = None
    ) -> None:
        self._given = driver
        super().__init__(device, threads)

    @cached_property
    def host(self) -> HostDriver:
        """The driver."""
        return self._given or open_host_driver()

    def _driver(self) -> HostDriver:  # type: ignore[override]  # each has its own
        return self.host

    def _products(self) -> Callable[[], HostProducts]:
        return partial(HostProducts, self.host)

    def _toolchain(self, target: CudaTarget) -> Toolchain:
        return HostToolchain(target)

    @classmethod
    def count(cls) -> int:
        return 1
