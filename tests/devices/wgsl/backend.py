"""The backend: kernels of the WebGPU device in the steps of the loops device."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from ostinato.backends.base import Progress
from ostinato.backends.common.experts import ExpertsInFile
from ostinato.backends.common.image_builder import build_image
from ostinato.backends.common.lowered_graph import lower_graph
from ostinato.backends.common.program_image import ProgramImage
from ostinato.backends.common.report_notes import note_kernels
from ostinato.backends.options import CompileOptions
from ostinato.backends.webgpu.capabilities import CAPABILITIES, lowering_options
from ostinato.backends.webgpu.kernel import WebGpuKernel
from ostinato.backends.webgpu.rules.table import lower_for_webgpu
from ostinato.ir.graph import BaseGraph
from ostinato.ir.stored import ParamSource
from ostinato.lower.loopir.kernel import Kernel
from ostinato.records import replace
from tests.devices.loops.backend import LoopsBackend
from tests.devices.loops.executable import LoopsExecutable
from tests.devices.loops.program import Compute, Step, computation

from .adapter import TARGET, device, run

__all__ = ["WgslBackend"]


class WgslBackend(LoopsBackend):
    """The device ``WGSL:0``."""

    capabilities = replace(CAPABILITIES, capture=False)

    @staticmethod
    def count() -> int:
        return int(device() is not None)

    def compile(
        self,
        graph: BaseGraph,
        params: Mapping[str, ParamSource],
        options: CompileOptions,
        progress: Progress | None = None,
        *,
        experts: ExpertsInFile | None = None,
    ) -> LoopsExecutable:
        lower = partial(lower_for_webgpu, settings=lowering_options(options))
        lowered = lower_graph(graph, options, self.device, self.capabilities, lower)
        note_kernels(lowered.report, lowered.program, lambda call: call.title)
        step = partial(Step.of_call, lowered, compute_of=_computation)
        image = build_image(ProgramImage[Step], lowered, step)
        return LoopsExecutable(image, lowered, self.context, params)


def _computation(kernel: Kernel) -> Compute:
    if isinstance(kernel, WebGpuKernel) and not kernel.obstacle(TARGET):
        return partial(run, kernel)
    return computation(kernel)
