"""Compilation of a graph: passes, lowering, code generation and memory."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ostinato.backends.common.buffer_layout import BufferLayout
from ostinato.backends.common.node_notes import note_nodes
from ostinato.backends.common.program_image import (
    External,
    ObjectCode,
    ParamPlace,
    RoutingPlace,
    Slot,
    StatePlace,
)
from ostinato.backends.cpu.capabilities import CAPABILITIES
from ostinato.backends.cpu.compiler import BuiltinKernel, KernelCompiler, MachineCode, SizeCode
from ostinato.backends.cpu.image import Image, Preparation, SizeStep, Step
from ostinato.backends.cpu.llvm.toolchain import TargetSpec
from ostinato.backends.cpu.rules.table import lower_for_cpu
from ostinato.cache.objects import process_cache
from ostinato.ir.facts import least_values
from ostinato.ir.graph_facts import graph_facts
from ostinato.lower.program import Role
from ostinato.passes.pipeline import run_passes
from ostinato.plan.buffer import bytes_of
from ostinato.plan.preparation import non_retained_params, preparations
from ostinato.plan.report import CompileReport, KernelNote
from ostinato.plan.values import Origin
from ostinato.records import dataclass, replace
from ostinato.variables import capacity, data_symbols, minimum

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ostinato.backends.base import Progress
    from ostinato.backends.cpu.rules.offload import StoredExperts
    from ostinato.backends.cpu.rules.table import CpuLowering, CpuProgram
    from ostinato.backends.device import Device
    from ostinato.backends.options import CompileOptions
    from ostinato.ir.graph import BaseGraph
    from ostinato.lower.program import Call, LoweredBuffer
    from ostinato.variables import Dim

__all__ = ["Compilation", "compile_graph"]


@dataclass(frozen=True, eq=False)
class Compilation:
    """A graph, compiled.

    Attributes:
        program: kernels, buffers, and the order in which kernels run.
        code: of the kernels.
        layout: slots and offsets of the buffers.
        passing: non-retained params.
        origin: the graph before and after the passes.
        report: the compile report.
        least: by Variable, the least value that the graph accepts, where one is known.
    """

    program: CpuProgram
    code: MachineCode
    layout: BufferLayout
    passing: frozenset[LoweredBuffer]
    origin: Origin
    report: CompileReport
    least: Mapping[str, int]

    @property
    def stored_by_layer(self) -> list[StoredExperts | None]:
        """For each layer that selects experts, its experts in a file, if they are there."""
        stored = {experts.routing: experts for experts in self.program.stored_experts}
        return [stored.get(routing) for routing in self.program.routings if routing.chooses]

    @cached_property
    def image(self) -> Image:
        """The compiled program: all that a run needs."""
        program, layout = self.program, self.layout
        return Image(
            objects=tuple(ObjectCode(key, tuple(s)) for key, s in self.code.objects.items()),
            steps=tuple(map(self._step, program.calls)),
            preparations=tuple(
                Preparation(tuple(sorted(part.params)), tuple(map(self._step, part.calls)))
                for part in preparations(program.prepare)
            ),
            sizes=layout.sizes,
            results=layout.results,
            intermediate_bytes=layout.placement.arena_bytes,
            constants=tuple(
                (offset, bytes_of(np.ascontiguousarray(buffer.data)))
                for buffer, offset in layout.members(Slot.CONSTANTS)
            ),
            params={
                name: ParamPlace(buffer.nbytes, layout.places.get(buffer))
                for name, buffer in program.params.items()
            },
            states={name: self._state(buffer) for name, buffer in program.states.items()},
            externals=tuple(map(self._external, self._externals())),
            variables=tuple(
                (v.name, max(v.min, self.least.get(v.name, v.min)), v.max)
                for v in program.variables
            ),
            routings=tuple(self._routings()),
            live_sizes={n: layout.places[b][1] for n, b in program.live_sizes.items()},
        )

    def _step(self, call: Call) -> Step | SizeStep:
        code = self.code.kernel(call.kernel)
        if isinstance(code, SizeCode):
            return self._size_step(call, code)
        builtin = isinstance(code, BuiltinKernel)
        extent, _, grain, scratch_bytes, parallel = code.launch
        return Step(
            f"{code.name}_kernel" if builtin else code.name,
            builtin,
            tuple(self._place(buffer) for buffer in call.buffers),
            extent,
            code.extent_symbol,
            grain,
            scratch_bytes,
            parallel,
        )

    def _size_step(self, call: Call, code: SizeCode) -> SizeStep:
        step, variables = code.kernel, self.program.variables
        return SizeStep(
            tuple(self._place(buffer) for buffer in call.buffers),
            -1 if step.symbol is None else variables.index(step.symbol),
            step.limit if isinstance(step.limit, int) else 0,
            code.limit,
            step.problem,
        )

    def _place(self, buffer: LoweredBuffer) -> tuple[int, int]:
        if buffer in self.passing:
            return -1 - list(self.program.params.values()).index(buffer), 0
        return self.layout.places[buffer]

    def _state(self, buffer: LoweredBuffer) -> StatePlace:
        assert buffer.value is not None
        initial = buffer.value.node.attrs["init"]
        shape = tuple(map(int, initial.shape))
        if not any(initial.strides):  # one element, broadcast
            initial = initial[(slice(1),) * initial.ndim]
        elements = bytes_of(np.ascontiguousarray(initial))
        return StatePlace(buffer.type.dtype.name, shape, self.layout.places[buffer], elements)

    def _externals(self) -> list[LoweredBuffer]:
        return [*self.program.inputs.values(), *self.program.outputs.values()]

    def _external(self, buffer: LoweredBuffer) -> External:
        size = self.code.size_symbol(_external_bytes(buffer))
        return External(buffer.nbytes, buffer.role is Role.OUTPUT, size)

    def _routings(self) -> Iterator[RoutingPlace]:
        for routing in self.program.routings:
            if routing.chooses:
                groups = routing.groups
                yield RoutingPlace(
                    routing.node,
                    tuple(map(int, routing.shape[1:])),  # type: ignore[arg-type]  # not symbolic
                    routing.layout.experts,
                    routing.layout.first_row,
                    self.layout.places[groups][1],
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
    report = CompileReport(graph.name, str(device))
    target = TargetSpec.named(options.target)
    with report.timed("passes"):
        lowered, report.passes = run_passes(
            graph,
            capabilities=CAPABILITIES,
            optimize=options.optimize,
            disabled=options.disabled_passes,
            verify=options.verify,
        )
    with report.timed("lowering"):
        facts = graph_facts(graph)
        program, report.refused = lower_for_cpu(lowered, lowering, facts=facts)
    with report.timed("code"):
        code = _compile_kernels(program, target, report, progress)
    _describe(lowered, program, code, report)
    with report.timed("memory"):
        passing = non_retained_params(program)
        experts = [b for layer in program.stored_experts for b in layer.buffers]
        apart = options.keep_intermediates
        layout = BufferLayout.of(program, passing, experts, apart=apart)
    origin = Origin(graph if built is None else built, lowered)
    least = least_values(facts)
    return Compilation(program, code, layout, passing, origin, report, least)


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
    externals = [*program.inputs.values(), *program.outputs.values()]
    sizes = [_external_bytes(buffer) for buffer in externals]
    compiler = KernelCompiler(target, cache)
    code = compiler.compile(kernels, sizes, program.variables, progress)
    report.compiled = cache.counters.misses - before.misses
    report.cached = cache.counters.disk_hits + cache.counters.hits
    report.cached -= before.disk_hits + before.hits
    return code


def _external_bytes(buffer: LoweredBuffer) -> Dim:
    """The bytes that an input or output needs, at most where that depends on data."""
    nbytes = buffer.type.size * buffer.type.dtype.itemsize
    return minimum(capacity(nbytes), buffer.nbytes) if data_symbols(nbytes) else nbytes


def _describe(
    graph: BaseGraph, program: CpuProgram, code: MachineCode, report: CompileReport
) -> None:
    """Note which nodes of the final graph are in which kernel."""
    note_nodes(report, graph)
    report.kernels = [_note(call, code) for call in program.calls]
    report.prepared = [_note(call, code) for call in program.prepare]


def _note(call: Call, code: MachineCode) -> KernelNote:
    return KernelNote(call.title, call.nodes, code.kernel(call.kernel).name)
