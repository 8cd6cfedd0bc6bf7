"""The CPU: LLVM-generated kernels run by the native core."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from ostinato.agreed import agreed_property
from ostinato.backends.base import Backend, Progress
from ostinato.backends.common.stored_program import StoredProgram
from ostinato.backends.cpu import _core, processor_facts
from ostinato.backends.cpu.context import CpuContext
from ostinato.backends.cpu.executable import CpuExecutable
from ostinato.backends.cpu.host import usable_processors
from ostinato.backends.cpu.image import Image
from ostinato.backends.cpu.llvm.machine import load_ahead
from ostinato.backends.cpu.llvm.toolchain import TargetSpec
from ostinato.backends.cpu.work_items import work_items
from ostinato.records import replace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ostinato.backends.base import Capabilities, Executable
    from ostinato.backends.common.experts import ExpertsInFile
    from ostinato.backends.cpu.compilation import Compilation
    from ostinato.backends.cpu.rules.packed_matmul import ChooseTiles
    from ostinato.backends.cpu.rules.table import CpuLowering
    from ostinato.backends.device import Device
    from ostinato.backends.options import CompileOptions
    from ostinato.ir.graph import BaseGraph
    from ostinato.ir.stored import ExpertTensor, ParamSource
    from ostinato.ops.builder import Graph

__all__ = ["CpuBackend"]


class CpuBackend(Backend):
    """The processor that this process runs on.

    Args:
        device: always ``CPU:0``.
        threads: number of threads that run a graph, the calling one included; by default one for
            each processor that this process may use.
        recover_stolen_cores: move threads of the pool off cores that other processes keep busy.
    """

    def __init__(
        self, device: Device, threads: int | None = None, *, recover_stolen_cores: bool = False
    ) -> None:
        self.device = device
        self.threads = threads or usable_processors()
        self._items = work_items(self.threads)
        self._pool = _core.ThreadPool(self.threads, recover_stolen_cores=recover_stolen_cores)
        load_ahead()

    @property
    def capabilities(self) -> Capabilities:
        from ostinato.backends.cpu.capabilities import CAPABILITIES

        return CAPABILITIES

    @agreed_property
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
        siblings: Sequence[Executable] | None = None,
    ) -> CpuExecutable:
        near = None
        if siblings is not None:
            near = [sibling for sibling in siblings if isinstance(sibling, CpuExecutable)]
        if experts is not None or options.tune or not options.stored_programs:
            return self._compile(graph, params, options, progress, experts, near)
        target = f"{self.device.kind} {TargetSpec.of(options).identity} items {self._items}"
        recompile = functools.partial(_recompile, options, self.device, self._items)
        facts = processor_facts.known
        stored = StoredProgram(graph, options, Image, target, recompile, facts)
        image = stored.image
        code = None if image is None else image.code()
        if image is None or code is None:
            executable = self._compile(graph, params, options, progress, siblings=near)
            stored.keep(executable.compilation.image)
            return executable
        if progress is not None:
            for done in range(len(image.objects)):
                progress(done + 1, len(image.objects))
        return CpuExecutable(
            image,
            code,
            self.context,
            params,
            stored.compilation,
            siblings=near,
            store_weights=options.stored_weights,
        )

    def _compile(
        self,
        graph: BaseGraph,
        params: Mapping[str, ParamSource],
        options: CompileOptions,
        progress: Progress | None = None,
        experts: ExpertsInFile | None = None,
        siblings: Sequence[CpuExecutable] | None = None,
    ) -> CpuExecutable:
        """Compile, wherever that leads."""
        from ostinato.backends.cpu.capabilities import lowering_options

        target = TargetSpec.of(options)
        tuner = self._tuner(options, target)
        lowering = lowering_options(options, target, tuner, items=self._items)
        tensors: Mapping[str, ExpertTensor] = {}
        if experts is not None:
            from ostinato.backends.common.expert_store import ExpertStore

            tensors = experts.tensors
            lowering = replace(lowering, experts=ExpertStore.of(experts))
        return self._executable(graph, params, options, lowering, progress, tensors, siblings)

    def _tuner(self, options: CompileOptions, target: TargetSpec) -> ChooseTiles | None:
        if not options.tune:
            return None
        from ostinato.backends.cpu.tuner import Tuner

        def build(graph: Graph, lowering: CpuLowering) -> CpuExecutable:
            return self._executable(graph, graph.param_values.sources, options, lowering)

        return Tuner(build, options, target, self.threads)

    def _executable(
        self,
        graph: BaseGraph,
        params: Mapping[str, ParamSource],
        options: CompileOptions,
        lowering: CpuLowering,
        progress: Progress | None = None,
        experts: Mapping[str, ExpertTensor] | None = None,
        siblings: Sequence[CpuExecutable] | None = None,
    ) -> CpuExecutable:
        from ostinato.backends.cpu.compilation import compile_graph

        compiled = compile_graph(graph, options, lowering, self.device, progress)
        with compiled.lowered.report.timed("memory"):
            return CpuExecutable(
                compiled.image,
                compiled.code.linked,
                self.context,
                params,
                lambda: compiled,
                experts,
                siblings,
                store_weights=options.stored_weights,
            )


def _recompile(
    options: CompileOptions, device: Device, items: int, graph: BaseGraph, built: BaseGraph
) -> Compilation:
    """Compile the graph of a stored program again."""
    from ostinato.backends.cpu.capabilities import lowering_options
    from ostinato.backends.cpu.compilation import compile_graph

    lowering = lowering_options(options, TargetSpec.of(options), items=items)
    return compile_graph(graph, options, lowering, device, built=built)
