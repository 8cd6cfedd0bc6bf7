"""A device of the host that runs the CUDA device's kernels in the emulator, one after another.

Its runtime is the example device's: what differs is the lowering and the steps. Arguments are
bounded by their very elements, so that no access beyond them is missed.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar

import numpy as np

from ostinato.backends.base import Backend, Progress
from ostinato.backends.common.experts import ExpertsInFile
from ostinato.backends.common.image_builder import build_image
from ostinato.backends.common.lowered_graph import LoweredGraph, lower_graph
from ostinato.backends.common.program_image import ProgramImage
from ostinato.backends.common.report_notes import note_kernels
from ostinato.backends.cuda.abi import FAILED, FOUND, HEADER_WORDS
from ostinato.backends.cuda.capabilities import CAPABILITIES, lowering_options
from ostinato.backends.cuda.headers import DIRECTORY
from ostinato.backends.cuda.kernel import CudaKernel, CudaSizeStep
from ostinato.backends.cuda.rules.table import lower_for_cuda
from ostinato.backends.cuda.target import CudaTarget
from ostinato.backends.device import Device
from ostinato.backends.options import CompileOptions
from ostinato.errors import VariableError
from ostinato.ir.graph import BaseGraph
from ostinato.ir.stored import ParamSource
from ostinato.lower.loopir.kernel import Kernel
from ostinato.lower.program import Program
from ostinato.records import replace
from ostinato.variables import Symbol
from tests.devices.loops.executable import LoopsExecutable
from tests.devices.loops.program import Compute, Step

from .emulator import EmulatedKernel, Memory, load_kernels
from .toolchain import CompileError, kernel_objects

__all__ = [
    "TARGET",
    "CudaEmulationBackend",
    "CudaOneBlockBackend",
    "CudaSegmentsBackend",
    "KernelStep",
    "build_ahead",
]

Array = np.ndarray[Any, Any]

#: A GPU so small that most loops over a grid take several iterations; rings have room for eight
#: stages, two pairs of tiles of 2048 elements in depth.
TARGET = CudaTarget("sm_90", 2, 176 << 10, 1024, bulk_tiles=False)


#: Kernels that one call of the compiler takes.
_BATCH = 40


class KernelStep:
    """A launch of an emulated kernel, on host arrays.

    Attributes:
        kernel: the kernel.
        code: its object.
        seeds: see :meth:`EmulatedKernel.run`.
        blocks: those of a cooperative launch, at most.
    """

    def __init__(
        self, kernel: CudaKernel, code: EmulatedKernel, seeds: Sequence[int], blocks: int
    ) -> None:
        self.kernel = kernel
        self.code = code
        self.seeds = seeds
        self.blocks = blocks

    def __call__(self, buffers: Sequence[Array], values: dict[Symbol, int]) -> None:
        kernel = self.kernel
        binds = isinstance(kernel, CudaSizeStep)
        words = [0] * HEADER_WORDS + [values.get(symbol, 0) for symbol in kernel.variables]
        block = np.array(words, np.int64)
        memory = [
            Memory(f"b{number}", _as_stored(buffer), arg.reads, arg.writes)
            for number, (arg, buffer) in enumerate(zip(kernel.args, buffers, strict=True))
        ]
        launch = kernel.launch(TARGET)
        writes = binds or launch.cooperative
        memory.append(Memory("vars", block, writes=writes, start=HEADER_WORDS))
        self.code.run(
            min(launch.grid, self.blocks) if launch.cooperative else launch.grid,
            launch.block,
            memory,
            shared_bytes=launch.shared_bytes,
            together=launch.cooperative,
            seeds=self.seeds,
        )
        if isinstance(kernel, CudaSizeStep):
            if block[HEADER_WORDS + FAILED]:
                raise VariableError(f"{kernel.problem}, got {block[HEADER_WORDS + FOUND]}")
            if kernel.symbol is not None:
                found = block[HEADER_WORDS + kernel.variables.index(kernel.symbol)]
                values[kernel.symbol] = int(found)


def _sources(kernels: Iterable[Kernel]) -> dict[str, str]:
    """The text of the device's own kernels, by name."""
    own = {kernel.name: kernel for kernel in kernels if isinstance(kernel, CudaKernel)}
    return {name: kernel.source(TARGET) for name, kernel in own.items()}


def _as_stored(array: Array) -> Array:
    """The array as integers of its width: ctypes and NumPy agree on those."""
    return array.view(f"u{array.itemsize}")


class Steps:
    """Makes steps of calls; kernels that were not seen before are compiled together.

    Args:
        kernels: all that will be asked for.
        orders: how many orders of threads to run each launch in.
        blocks: those of a cooperative launch, at most.
    """

    def __init__(self, kernels: Iterable[Kernel], orders: int, blocks: int) -> None:
        self._codes = load_kernels(_sources(kernels), DIRECTORY)
        self._orders = orders
        self._blocks = blocks

    def _seeds(self, name: str) -> Sequence[int]:
        first = zlib.crc32(name.encode())
        return [first, 0, 1][: self._orders]

    def compute(self, kernel: Kernel) -> Compute:
        assert isinstance(kernel, CudaKernel), f"{kernel} is no kernel of the CUDA device"
        seeds = self._seeds(kernel.name)
        return KernelStep(kernel, self._codes[kernel.name], seeds, self._blocks)


class CudaEmulationBackend(Backend):
    """The device ``CUDAEMU:0``.

    Args:
        device: it.
        threads: not used.
        orders: how many orders of threads to run each launch in; their results must be the same.

    Attributes:
        segments: whether small kernels may be parts of one.
        blocks: those of such a kernel, at most, which run at the same time.
        one_block: whether those that are short enough are made for one block.
    """

    segments: ClassVar[bool] = False
    blocks: ClassVar[int] = 1
    one_block: ClassVar[bool] = False
    capabilities = replace(CAPABILITIES, capture=False, single_ops=False, shared_weights=False)

    def __init__(self, device: Device, threads: int | None = None, orders: int = 1) -> None:
        self.device = device
        self.orders = orders

    @staticmethod
    def count() -> int:
        return 1

    def lower(self, graph: BaseGraph, options: CompileOptions) -> LoweredGraph[Program]:
        """The kernels of a graph."""
        # Rings are wide enough for what the tests' segments have in shared memory.
        settings = lowering_options(options, bulk_tiles=TARGET.multiplies_in_bulk, wide_rings=True)
        one_block = self.one_block and settings.one_block
        settings = replace(settings, segments=self.segments, one_block=one_block)
        lower = partial(lower_for_cuda, settings=settings)
        return lower_graph(graph, options, self.device, self.capabilities, lower)

    def compile(
        self,
        graph: BaseGraph,
        params: Mapping[str, ParamSource],
        options: CompileOptions,
        progress: Progress | None = None,
        *,
        experts: ExpertsInFile | None = None,
    ) -> LoopsExecutable:
        lowered = self.lower(graph, options)
        program = lowered.program
        note_kernels(lowered.report, program, lambda call: call.title)
        calls = [*program.calls, *program.prepare]
        steps = Steps([call.kernel for call in calls], self.orders, self.blocks)
        image = build_image(
            ProgramImage[Step], lowered, partial(Step.of_call, lowered, compute_of=steps.compute)
        )
        return LoopsExecutable(image, lowered, self.context, params)


def build_ahead(cases: Iterable[tuple[BaseGraph, CompileOptions]]) -> None:
    """Compile the kernels of many graphs together: a tenth of the work of one graph at a time.

    What cannot be lowered or compiled is left to the tests of those graphs.
    """
    backend = CudaEmulationBackend(Device("CUDAEMU"))
    sources: dict[str, str] = {}
    for graph, options in cases:
        with suppress(Exception):
            program = backend.lower(graph, options).program
            sources |= _sources(call.kernel for call in [*program.calls, *program.prepare])
    names = sorted(sources)
    batches = [names[start : start + _BATCH] for start in range(0, len(names), _BATCH)]
    first = os.getpid() % max(len(batches), 1)  # processes side by side begin apart
    for batch in batches[first:] + batches[:first]:
        with suppress(CompileError):
            kernel_objects({name: sources[name] for name in batch}, DIRECTORY)


class CudaSegmentsBackend(CudaEmulationBackend):
    """The same, with segments."""

    segments = True


class CudaGridsBackend(CudaSegmentsBackend):
    """The same, with two blocks of each, which wait for one another."""

    blocks = 2


class CudaOneBlockBackend(CudaSegmentsBackend):
    """The same, with those that one block runs."""

    one_block = True
