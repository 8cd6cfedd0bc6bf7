"""Compilation of a graph: passes, lowering and memory, which are shared, and code generation."""

from __future__ import annotations

from functools import cached_property, partial
from typing import TYPE_CHECKING

from ostinato.backends.common.image_builder import build_image, external_bytes
from ostinato.backends.common.lowered_graph import lower_graph
from ostinato.backends.common.program_image import ObjectCode, RoutingLocation
from ostinato.backends.common.report_notes import note_kernels
from ostinato.backends.cpu.capabilities import CAPABILITIES, rounds_rows, widens_rows
from ostinato.backends.cpu.compiler import BuiltinKernel, KernelCompiler, MachineCode, SizeCode
from ostinato.backends.cpu.image import AnyStep, ControlStep, Image, SizeStep, Step
from ostinato.backends.cpu.llvm.toolchain import TargetSpec
from ostinato.backends.cpu.rules.table import lower_for_cpu
from ostinato.cache.objects import process_cache
from ostinato.lower.control import ENDLESS, Control, control_targets
from ostinato.records import dataclass, replace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ostinato.backends.base import Progress
    from ostinato.backends.common.lowered_graph import LoweredGraph
    from ostinato.backends.cpu.rules.offload import StoredExperts
    from ostinato.backends.cpu.rules.table import CpuLowering, CpuProgram
    from ostinato.backends.device import Device
    from ostinato.backends.options import CompileOptions
    from ostinato.ir.graph import BaseGraph
    from ostinato.lower.program import Call, LoweredBuffer
    from ostinato.plan.report import CompileReport

__all__ = ["Compilation", "compile_graph"]


@dataclass(frozen=True, eq=False)
class Compilation:
    """A graph, compiled.

    Attributes:
        lowered: kernels, buffers and their memory.
        code: of the kernels.
    """

    lowered: LoweredGraph[CpuProgram]
    code: MachineCode

    @property
    def program(self) -> CpuProgram:
        """The kernels and buffers, and the order in which kernels run."""
        return self.lowered.program

    @property
    def stored_by_layer(self) -> list[StoredExperts | None]:
        """For each layer that selects experts, its experts in a file, if they are there."""
        stored = {experts.routing: experts for experts in self.program.stored_experts}
        return [stored.get(routing) for routing in self.program.routings if routing.chooses]

    @cached_property
    def image(self) -> Image:
        """The compiled program: all that a run needs."""
        return build_image(
            Image,
            self.lowered,
            self._step,
            objects=(ObjectCode(key, tuple(s)) for key, s in self.code.objects.items()),
            size_symbol=self.code.size_symbol,
            routings=self._routings(),
        )

    @cached_property
    def _targets(self) -> dict[Call, int]:
        """The steps that control steps may jump to."""
        calls = self.program.calls
        return {calls[i]: target for i, target in control_targets(calls).items()}

    def _step(self, call: Call) -> AnyStep:
        if isinstance(call.kernel, Control):
            return self._control_step(call, call.kernel)
        code = self.code.kernel(call.kernel)
        if isinstance(code, SizeCode):
            return self._size_step(call, code)
        builtin = isinstance(code, BuiltinKernel)
        extent, _, grain, scratch_bytes, parallel = code.launch
        return Step(
            f"{code.name}_kernel" if builtin else code.name,
            builtin,
            tuple(map(self.lowered.place, call.buffers)),
            extent,
            code.extent_symbol,
            grain,
            scratch_bytes,
            parallel,
        )

    def _control_step(self, call: Call, kernel: Control) -> ControlStep:
        trips = ENDLESS if kernel.trips is None else kernel.trips
        return ControlStep(
            tuple(map(self.lowered.place, call.buffers)),
            trips if isinstance(trips, int) else 0,
            self.code.size_symbol(trips),
            (int(kernel.kind), self._targets[call], kernel.counter),
            (kernel.conditional, kernel.counted),
        )

    def _size_step(self, call: Call, code: SizeCode) -> SizeStep:
        step, variables = code.kernel, self.program.variables
        return SizeStep(
            tuple(map(self.lowered.place, call.buffers)),
            -1 if step.symbol is None else variables.index(step.symbol),
            step.limit if isinstance(step.limit, int) else 0,
            code.limit,
            step.problem,
        )

    def _routings(self) -> Iterator[RoutingLocation]:
        for routing in self.program.routings:
            if routing.chooses:
                groups = routing.groups
                yield RoutingLocation(
                    routing.node,
                    tuple(map(int, routing.shape[1:])),  # type: ignore[arg-type]  # not symbolic
                    routing.layout.experts,
                    routing.layout.first_row,
                    self.lowered.layout.locations[groups][1],
                    groups.nbytes,
                )


def compile_graph(
    graph: BaseGraph,
    options: CompileOptions,
    lowering: CpuLowering,
    device: Device,
    progress: Progress | None = None,
    *,
    built: BaseGraph | None = None,
) -> Compilation:
    """Compile ``graph``.

    Args:
        graph, options, progress: see :meth:`ostinato.backends.base.Backend.compile`.
        lowering: options of lowering.
        device: for the report.
        built: the user's graph, if that is another object than ``graph``.
    """
    target = TargetSpec.of(options)
    lowered = lower_graph(
        graph,
        options,
        device,
        CAPABILITIES,
        partial(lower_for_cpu, settings=lowering),
        resident=_resident,
        built=built,
        bfloat16_rows=rounds_rows(options, target),
        widened_rows=partial(widens_rows, options, target),
    )
    report, program = lowered.report, lowered.program
    with report.timed("code"):
        code = _compile_kernels(program, target, report, progress)
    note_kernels(report, program, lambda call: code.code(call.kernel).name)
    return Compilation(lowered, code)


def _resident(program: CpuProgram) -> list[LoweredBuffer]:
    """The buffers of resident experts."""
    return [b for layer in program.stored_experts for b in layer.buffers]


def _compile_kernels(
    program: CpuProgram,
    target: TargetSpec,
    report: CompileReport,
    progress: Progress | None,
) -> MachineCode:
    cache = process_cache()
    before = replace(cache.counters)
    matrices = [m for layer in program.stored_experts for m in layer.matrices]
    kernels = [*program.kernels, *(matrix.packing.nest for matrix in matrices)]
    sizes = [external_bytes(buffer) for buffer in program.externals]
    controls = [call.kernel for call in program.calls if isinstance(call.kernel, Control)]
    sizes += [kernel.trips for kernel in controls if kernel.trips is not None]
    compiler = KernelCompiler(target, cache)
    code = compiler.compile(kernels, sizes, program.variables, progress)
    report.compiled = cache.counters.misses - before.misses
    report.cached = cache.counters.disk_hits + cache.counters.hits
    report.cached -= before.disk_hits + before.hits
    return code
