"""Compilation of a graph: passes, lowering and memory, which are shared, and code generation."""

from __future__ import annotations

from functools import cached_property, partial
from typing import TYPE_CHECKING

from ostinato.backends.common.called_experts import routings
from ostinato.backends.common.image_builder import build_image, with_results_on_host
from ostinato.backends.common.lowered_graph import lower_graph
from ostinato.backends.common.report_notes import note_kernels
from ostinato.backends.webgpu.arguments import Arguments
from ostinato.backends.webgpu.capabilities import CAPABILITIES, lowering_options
from ostinato.backends.webgpu.code import LoadedCode, WebGpuCode, object_codes
from ostinato.backends.webgpu.image import ControlStep, ExpertStep, Image, SizeStep
from ostinato.backends.webgpu.rules.expert_staging import StageExperts
from ostinato.backends.webgpu.rules.table import lower_for_webgpu
from ostinato.backends.webgpu.sizes import size_text
from ostinato.cache.objects import process_cache
from ostinato.lower.control import Control, control_targets
from ostinato.lower.rules.sizes import SizeStep as SizeKernel
from ostinato.plan.report import and_more
from ostinato.records import dataclass, field, replace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ostinato.backends.base import Progress
    from ostinato.backends.common.called_experts import ExpertProgram
    from ostinato.backends.common.expert_store import ExpertStore
    from ostinato.backends.common.lowered_graph import LoweredGraph
    from ostinato.backends.device import Device
    from ostinato.backends.options import CompileOptions
    from ostinato.backends.webgpu.code import KernelCode
    from ostinato.backends.webgpu.gpu import Gpu
    from ostinato.backends.webgpu.host_steps import HostKernels
    from ostinato.backends.webgpu.image import AnyStep
    from ostinato.backends.webgpu.kernel import Bindings
    from ostinato.backends.webgpu.target import WebGpuTarget
    from ostinato.ir.graph import BaseGraph
    from ostinato.lower.loopir.kernel import Kernel
    from ostinato.lower.program import Call, LoweredBuffer
    from ostinato.plan.report import CompileReport
    from ostinato.variables import Dim

__all__ = ["Compilation", "compile_graph"]


@dataclass(frozen=True, eq=False)
class Compilation:
    """A graph, compiled.

    Attributes:
        lowered: kernels, buffers and their memory.
        code: of the kernels.
        target: the device that they are rendered for.
        shaders: by the cache's key, the source of each shader of the image.
    """

    lowered: LoweredGraph[ExpertProgram]
    code: WebGpuCode
    target: WebGpuTarget
    shaders: dict[str, str] = field(default_factory=dict)

    @property
    def kernel_code(self) -> Callable[[Kernel], KernelCode]:
        """Returns the code of a kernel."""
        return self.code.code

    @cached_property
    def image(self) -> Image:
        """The compiled program: all that a run needs."""
        image = build_image(
            Image,
            self.lowered,
            self._step,
            size_symbol=_size_text,
            routings=routings(self.lowered.program.called, self.lowered.layout),
        )
        objects = tuple(object_codes(self.shaders, self.code.machine_code))
        return with_results_on_host(image)._replace(objects=objects)

    def loaded(self, gpu: Gpu, host: HostKernels) -> LoadedCode:
        """The code of the image, ready to run."""
        _ = self.image  # has all kernels rendered
        native = self.code.machine_code
        machine_code = None if native is None else native.linked
        return LoadedCode(gpu, host, self.shaders, lambda _: machine_code)

    def nodes_of(self, position: int) -> str:
        """The names of the nodes that a step computes, for messages."""
        call = self.lowered.program.calls[position]
        return f"{call.title} ({and_more(call.nodes)})"

    @cached_property
    def _targets(self) -> dict[Call, int]:
        """The steps that decisions may jump to."""
        calls = self.lowered.program.calls
        return {calls[i]: target for i, target in control_targets(calls).items()}

    def _step(self, call: Call) -> AnyStep:
        kernel = call.kernel
        places = tuple(map(self.lowered.place, call.buffers))
        if isinstance(kernel, Control):
            trips = "" if kernel.trips is None else size_text(kernel.trips)
            flags = kernel.conditional, kernel.counted
            target = self._targets[call]
            return ControlStep(places, int(kernel.kind), target, *flags, trips, kernel.counter)
        if isinstance(kernel, SizeKernel):
            variables = self.lowered.program.variables
            number = -1 if kernel.symbol is None else variables.index(kernel.symbol)
            return SizeStep(places, number, size_text(kernel.limit), kernel.problem)
        if isinstance(kernel, StageExperts):
            layer = self.lowered.program.resident.index(kernel.layer)
            return ExpertStep((places[0], places[1]), layer, size_text(kernel.rows))
        types = [buffer.type for buffer in call.buffers]
        return self.code.code(kernel).step(places, types, self.shaders)


def _size_text(size: Dim) -> str:
    """A size that depends on Variables, as text."""
    return "" if isinstance(size, int) else str(size)


def compile_graph(
    graph: BaseGraph,
    options: CompileOptions,
    target: WebGpuTarget,
    device: Device,
    progress: Progress | None = None,
    *,
    built: BaseGraph | None = None,
    experts: ExpertStore | None = None,
) -> Compilation:
    """Compile ``graph``.

    Args:
        graph, options, progress: see :meth:`ostinato.backends.base.Backend.compile`.
        target: the device that kernels are rendered for; without optimisation, they use neither
            its subgroups nor its floats of 16 bits.
        device: for the report.
        built: the user's graph, if that is another object than ``graph``.
        experts: params whose experts do not all stay on the device.

    Raises:
        InputError: params in a file of experts are used for more than that, or do not fit a budget.
    """
    if not options.optimize:
        target = replace(target, subgroups=False, halves=False)
    settings = replace(lowering_options(options), experts=experts, keep_ids=True)
    lower = partial(lower_for_webgpu, settings=settings)
    lowered = lower_graph(
        graph, options, device, CAPABILITIES, lower, resident=_resident, built=built
    )
    report, program = lowered.report, lowered.program
    before = replace(process_cache().counters)
    with report.timed("code"):
        calls = (*program.prepare, *program.calls)
        buffers = {call.kernel: _bindings(lowered, call, target) for call in calls}
        nodes = {call.kernel: call.nodes for call in calls}
        code = WebGpuCode(buffers, program.variables, target, nodes)
        compiled = Compilation(lowered, code, target)
        objects = len(compiled.image.objects)
    if progress is not None:
        for done in range(objects):
            progress(done + 1, objects)
    after = process_cache().counters
    report.compiled = after.misses - before.misses
    report.cached = after.disk_hits + after.hits - before.disk_hits - before.hits
    note_kernels(report, program, lambda call: compiled.code.code(call.kernel).name)
    _note_reasons(report, compiled.code, calls)
    return compiled


def _resident(program: ExpertProgram) -> list[LoweredBuffer]:
    """The buffers of resident experts."""
    return [*dict.fromkeys(m.places for layer in program.resident for m in layer.matrices)]


def _bindings(lowered: LoweredGraph[ExpertProgram], call: Call, target: WebGpuTarget) -> Bindings:
    """The buffers that the arguments of a call are in."""
    places = [lowered.place(buffer) for buffer in call.buffers]
    sizes = [buffer.nbytes for buffer in call.buffers]
    return Arguments.of(call.kernel.args, places, sizes, target.part_bytes).bindings


def _note_reasons(report: CompileReport, code: WebGpuCode, calls: Sequence[Call]) -> None:
    """Note the nodes that the CPU computes, by reason."""
    nodes: dict[str, list[str]] = {}
    for call in calls:
        if reason := code.reasons.get(call.kernel):
            nodes.setdefault(reason, []).extend(call.nodes)
    for reason, labels in nodes.items():
        report.remarks.append(f"on the CPU: {reason} ({and_more(labels)})")
