"""Compilation of a graph: passes, lowering and memory, which are shared, and code generation."""

from __future__ import annotations

from functools import cached_property, partial
from typing import TYPE_CHECKING

from ostinato.backends.common.called_experts import routings
from ostinato.backends.common.image_builder import build_image, external_bytes, with_results_on_host
from ostinato.backends.common.lowered_graph import lower_graph
from ostinato.backends.common.program_image import ObjectCode, Slot
from ostinato.backends.common.report_notes import note_kernels
from ostinato.backends.cuda.capabilities import CAPABILITIES, lowering_options, rounds_rows
from ostinato.backends.cuda.code import CudaCode, KernelCode
from ostinato.backends.cuda.image import Image, Step
from ostinato.backends.cuda.kernel import CudaSizeStep
from ostinato.backends.cuda.memory import LARGE
from ostinato.backends.cuda.rules.library import LIBRARY, LibraryProduct, suits
from ostinato.backends.cuda.rules.segment_kernel import SegmentKernel
from ostinato.backends.cuda.rules.stamped_segment import StampedSegment
from ostinato.backends.cuda.rules.table import lower_for_cuda
from ostinato.backends.cuda.signal import Signal
from ostinato.cache.objects import process_cache
from ostinato.lower.control import Control, control_targets
from ostinato.records import dataclass, replace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ostinato.backends.base import Progress
    from ostinato.backends.common.called_experts import ExpertProgram
    from ostinato.backends.common.expert_store import ExpertStore
    from ostinato.backends.common.lowered_graph import LoweredGraph
    from ostinato.backends.cuda.toolchain import Toolchain
    from ostinato.backends.device import Device
    from ostinato.backends.options import CompileOptions
    from ostinato.ir.graph import BaseGraph
    from ostinato.lower.loopir.kernel import Kernel
    from ostinato.lower.program import Call, LoweredBuffer
    from ostinato.variables import Dim

__all__ = ["Compilation", "compile_graph"]


@dataclass(frozen=True, eq=False)
class Compilation:
    """A graph, compiled.

    Attributes:
        lowered: kernels, buffers and their memory.
        code: of the kernels.
    """

    lowered: LoweredGraph[ExpertProgram]
    code: CudaCode

    @property
    def kernel_code(self) -> Callable[[Kernel], KernelCode]:
        """Returns the code of a kernel."""
        return self.code.code

    @cached_property
    def image(self) -> Image:
        """The compiled program: all that a run needs."""
        objects = self.code.objects.items()
        image = build_image(
            Image,
            self.lowered,
            self._step,
            objects=(ObjectCode(key, tuple(symbols)) for key, (_, symbols) in objects),
            size_symbol=_size_text,
            routings=routings(self.lowered.program.called, self.lowered.layout),
        )
        in_parts = image.intermediate_bytes >= LARGE and image.variables
        return with_results_on_host(image)._replace(extents=self._extents() if in_parts else ())

    def _extents(self) -> tuple[tuple[int, int | str], ...]:
        """The parts of the arena that runs use; see :class:`ProgramImage`."""
        members = self.lowered.layout.members(Slot.ARENA)
        sizes = ((offset, external_bytes(buffer)) for buffer, offset in members)
        return tuple((at, size if isinstance(size, int) else str(size)) for at, size in sizes)

    @cached_property
    def stamped(self) -> Mapping[str, StampedSegment]:
        """By the symbols of segments, the same with logs, for profiles."""
        kernels = {call.kernel for call in self.lowered.program.calls}
        segments = [kernel for kernel in kernels if isinstance(kernel, SegmentKernel)]
        return {kernel.name: StampedSegment.of(kernel) for kernel in segments}

    @cached_property
    def _targets(self) -> dict[Call, int]:
        """The steps that decisions may jump to."""
        calls = self.lowered.program.calls
        return {calls[i]: target for i, target in control_targets(calls).items()}

    def _step(self, call: Call) -> Step:
        kernel, code = call.kernel, self.code.code(call.kernel)
        if isinstance(kernel, LibraryProduct):
            places = tuple(map(self.lowered.place, call.buffers))
            return Step("", kernel.arguments(places), product=tuple(kernel.product))
        step = Step(
            "" if code.kernel is None else code.name,
            tuple(map(self.lowered.place, call.buffers)),
            code.shape,
            reads=sum(arg.reads << i for i, arg in enumerate(kernel.args)),
            writes=sum(arg.writes << i for i, arg in enumerate(kernel.args)),
        )
        if isinstance(kernel, CudaSizeStep):
            return step._replace(failure=kernel.code, problem=kernel.problem)
        if isinstance(kernel, Control):
            return step._replace(control=int(kernel.kind), target=self._targets[call])
        return step


def _resident(program: ExpertProgram) -> list[LoweredBuffer]:
    """The buffers of resident experts."""
    return [*dict.fromkeys(b for layer in program.resident for b in layer.buffers)]


def _size_text(size: Dim) -> str:
    """A size that depends on Variables, as text."""
    return "" if isinstance(size, int) else str(size)


def compile_graph(
    graph: BaseGraph,
    options: CompileOptions,
    toolchain: Toolchain,
    device: Device,
    progress: Progress | None = None,
    *,
    built: BaseGraph | None = None,
    has_products: bool = False,
    experts: ExpertStore | None = None,
) -> Compilation:
    """Compile ``graph``.

    Args:
        graph, options, progress: see :meth:`ostinato.backends.base.Backend.compile`.
        toolchain: compiles kernels.
        device: for the report.
        built: the user's graph, if that is another object than ``graph``.
        has_products: whether there is a library of matrix products.
        experts: params whose experts do not all stay on the device.

    Raises:
        InputError: params in a file of experts are used for more than that, or do not fit a budget.
    """
    target = toolchain.target
    capability = target.capability
    settings = lowering_options(
        options,
        has_products=has_products,
        capability=capability,
        bulk_tiles=target.multiplies_in_bulk,
        wide_rings=target.has_wide_rings,
    )
    settings = replace(settings, experts=experts, keep_ids=True)
    lower = partial(lower_for_cuda, settings=settings)
    lowered = lower_graph(
        graph,
        options,
        device,
        CAPABILITIES,
        lower,
        resident=_resident,
        built=built,
        bfloat16_rows=rounds_rows(options, capability),
    )
    report, program = lowered.report, lowered.program
    before = replace(process_cache().counters)
    with report.timed("code"):
        kernels = [call.kernel for call in (*program.prepare, *program.calls)]
        if program.calls and options.launch_graphs:
            kernels.append(Signal())
        code = CudaCode(kernels, program.variables, toolchain, progress)
    after = process_cache().counters
    report.compiled = after.misses - before.misses
    report.cached = after.disk_hits + after.hits - before.disk_hits - before.hits
    note_kernels(report, program, lambda call: code.code(call.kernel).name)
    if (
        options.library_products
        and not has_products
        and any(map(suits, lowered.origin.lowered.nodes))
    ):
        report.remarks.append(
            f"{LIBRARY} is not installed, so large matmuls run slower: pip install nvidia-cublas"
        )
    return Compilation(lowered, code)
