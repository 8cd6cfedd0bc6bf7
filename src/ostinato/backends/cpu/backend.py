"""The CPU: LLVM-generated kernels run by the native core."""

from __future__ import annotations

import dataclasses
import functools
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ostinato.backends.base import Backend, Progress
from ostinato.backends.cpu import _core
from ostinato.backends.cpu.choices import CAPABILITIES, lowering_options, process_cache
from ostinato.backends.cpu.compiler import KernelCompiler, MachineCode
from ostinato.backends.cpu.context import CpuContext
from ostinato.backends.cpu.executable import CpuExecutable
from ostinato.codegen.llvm.toolchain import TargetSpec
from ostinato.ir.leaves import LEAVES
from ostinato.lower.lowering import lower
from ostinato.lower.waves import ExpertStore
from ostinato.passes.decompose import REWROTE
from ostinato.passes.pipeline import run_passes
from ostinato.plan.report import CompileReport, KernelNote, NodeNote
from ostinato.plan.values import Origin

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ostinato.backends.base import Executable
    from ostinato.backends.device import Device
    from ostinato.backends.experts import ExpertsInFile
    from ostinato.backends.options import CompileOptions
    from ostinato.ir.graph import BaseGraph
    from ostinato.ir.stored import ExpertTensor, ParamSource
    from ostinato.lower.lowering import LoweringOptions
    from ostinato.lower.products import Tiling
    from ostinato.lower.program import Call, Program
    from ostinato.ops.builder import Graph

__all__ = ["CpuBackend"]


class CpuBackend(Backend):
    """The processor that this process runs on.

    Args:
        device: always ``CPU:0``.
        threads: how many threads run a graph, the calling one included; by default one for each
            processor that this process may use.
    """

    capabilities = CAPABILITIES

    def __init__(self, device: Device, threads: int | None = None) -> None:
        self.device = device
        self.threads = threads or len(os.sched_getaffinity(0))
        self._pool = _core.ThreadPool(self.threads)

    @functools.cached_property
    def context(self) -> CpuContext:
        return CpuContext(self.device, self._pool)

    @staticmethod
    def count() -> int:
        return 1

    def compile(
        self,
        graph: BaseGraph,
        params: Mapping[str, ParamSource],
        options: CompileOptions,
        progress: Progress | None = None,
        *,
        experts: ExpertsInFile | None = None,
    ) -> Executable:
        target = TargetSpec.named(options.target)
        lowering = lowering_options(options, target, self._tuner(options, target))
        tensors: Mapping[str, ExpertTensor] = {}
        if experts is not None:
            tensors = experts.tensors
            transposed = {name: tensor.transposed for name, tensor in tensors.items()}
            store = ExpertStore(transposed, experts.budget)
            lowering = dataclasses.replace(lowering, experts=store)
        return self._compile(graph, params, options, lowering, progress, tensors)

    def _tuner(self, options: CompileOptions, target: TargetSpec) -> Tiling | None:
        if not options.tune:
            return None
        from ostinato.backends.cpu.tuning import Tuner

        def build(graph: Graph, lowering: LoweringOptions) -> Executable:
            return self._compile(graph, graph.param_values.sources, options, lowering)

        return Tuner(build, options, target, self.threads)

    def _compile(
        self,
        graph: BaseGraph,
        params: Mapping[str, ParamSource],
        options: CompileOptions,
        lowering: LoweringOptions,
        progress: Progress | None = None,
        experts: Mapping[str, ExpertTensor] | None = None,
    ) -> Executable:
        report = CompileReport(graph.name, str(self.device))
        target = TargetSpec.named(options.target)
        built = graph
        with _timed(report, "passes"):
            graph, report.passes = run_passes(
                graph,
                capabilities=self.capabilities,
                optimize=options.optimize,
                disabled=options.disabled_passes,
                verify=options.verify,
            )
        with _timed(report, "lowering"):
            program, report.refused = lower(graph, lowering)
        with _timed(report, "code"):
            code = self._compile_kernels(program, target, report, progress)
        _describe(graph, program, code, report)
        with _timed(report, "memory"):
            return CpuExecutable(
                program,
                code,
                self.context,
                report,
                params,
                Origin(built, graph),
                experts,
                apart=options.keep_intermediates,
            )

    def _compile_kernels(
        self,
        program: Program,
        target: TargetSpec,
        report: CompileReport,
        progress: Progress | None,
    ) -> MachineCode:
        cache = process_cache()
        before = dataclasses.replace(cache.counters)
        kernels = [call.kernel for call in (*program.prepare, *program.calls)]
        matrices = [m for layer in program.stored_experts for m in layer.matrices]
        kernels += [matrix.packing.nest for matrix in matrices]
        externals = [*program.inputs.values(), *program.outputs.values()]
        sizes = [b.type.size * b.type.dtype.itemsize for b in externals]
        compiler = KernelCompiler(target, cache)
        code = compiler.compile(kernels, sizes, program.variables, progress)
        report.compiled = cache.counters.misses - before.misses
        report.cached = cache.counters.disk_hits + cache.counters.hits
        report.cached -= before.disk_hits + before.hits
        return code


@contextmanager
def _timed(report: CompileReport, stage: str) -> Iterator[None]:
    start = time.perf_counter()
    try:
        yield
    finally:
        report.seconds[stage] = time.perf_counter() - start


def _describe(graph: BaseGraph, program: Program, code: MachineCode, report: CompileReport) -> None:
    """Note which nodes of the final graph are in which kernel."""
    rewritten = {
        label: event.what.removeprefix(REWROTE)
        for event in report.passes
        if event.what.startswith(REWROTE)
        for label in event.labels
    }
    computed = {n.label: n.op.name for n in graph.nodes if n.op.name not in LEAVES}
    report.rewritten = [NodeNote(label, op) for label, op in rewritten.items()]
    report.native = [NodeNote(la, op) for la, op in computed.items() if la not in rewritten]
    report.kernels = [_note(call, code) for call in program.calls]
    report.prepared = [_note(call, code) for call in program.prepare]


def _note(call: Call, code: MachineCode) -> KernelNote:
    return KernelNote(call.title, call.nodes, code.kernel(call.kernel).name)
