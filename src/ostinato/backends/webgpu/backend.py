"""GPUs by WebGPU: kernels as WGSL, run through Vulkan, Metal or Direct3D 12."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar

from ostinato.agreed import agreed_property
from ostinato.backends.base import Backend
from ostinato.backends.common.expert_store import ExpertStore
from ostinato.backends.common.stored_program import StoredProgram
from ostinato.backends.webgpu.code import load_image
from ostinato.backends.webgpu.context import WebGpuContext
from ostinato.backends.webgpu.executable import WebGpuExecutable
from ostinato.backends.webgpu.gpu import INTERFACES, Gpu
from ostinato.backends.webgpu.host_steps import HostKernels
from ostinato.backends.webgpu.image import Image
from ostinato.backends.webgpu.presence import adapter_count

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ostinato.backends.base import Capabilities, Executable, Progress
    from ostinato.backends.common.experts import ExpertsInFile
    from ostinato.backends.device import Device
    from ostinato.backends.options import CompileOptions
    from ostinato.backends.webgpu.compilation import Compilation
    from ostinato.ir.graph import BaseGraph
    from ostinato.ir.stored import ExpertTensor, ParamSource

__all__ = ["MetalBackend", "VulkanBackend", "WebGpuBackend"]


class WebGpuBackend(Backend):
    """An adapter of this machine.

    Args:
        device: ``WEBGPU:0``, ``WEBGPU:1`` and so on: discrete GPUs first, software last.
        threads: the number of threads that run the kernels that the device lacks.
        most_buffer_bytes: a bound on the size of one buffer; larger memory is split.

    Attributes:
        kind: of the devices.
    """

    kind: ClassVar[str] = "WEBGPU"

    def __init__(
        self, device: Device, threads: int | None = None, *, most_buffer_bytes: int | None = None
    ) -> None:
        self.device = device
        self.gpu = Gpu.opened(device, most_buffer_bytes)
        self._host = HostKernels(threads)

    @property
    def capabilities(self) -> Capabilities:
        from ostinato.backends.webgpu.capabilities import CAPABILITIES

        return CAPABILITIES

    @agreed_property
    def context(self) -> WebGpuContext:
        return WebGpuContext(self.device, self.gpu, self._host)

    @classmethod
    def count(cls) -> int:
        """The number of adapters.

        Raises:
            DeviceUnavailableError: the package ``wgpu`` is missing, or its library is.
        """
        return adapter_count(INTERFACES.get(cls.kind, ""))

    def compile(
        self,
        graph: BaseGraph,
        params: Mapping[str, ParamSource],
        options: CompileOptions,
        progress: Progress | None = None,
        *,
        experts: ExpertsInFile | None = None,
        siblings: Sequence[Executable] | None = None,
    ) -> WebGpuExecutable:
        if experts is not None:
            store = ExpertStore.of(experts)
            compiled = self._compile(graph, options, progress, experts=store)
            return self._executable(compiled, params, None, experts.tensors)
        near = None
        if siblings is not None:
            near = [sibling for sibling in siblings if isinstance(sibling, WebGpuExecutable)]
        if not options.stored_programs:
            return self._executable(self._compile(graph, options, progress), params, near)
        target = f"{self.device.kind} {self.gpu.target.identity}"
        stored = StoredProgram(graph, options, Image, target, partial(self._recompile, options))
        image = stored.image
        code = None if image is None else load_image(self.gpu, self._host, image.objects)
        if image is None or code is None:
            compiled = self._compile(graph, options, progress)
            stored.keep(compiled.image)
            return self._executable(compiled, params, near)
        if progress is not None:
            for done in range(len(image.objects)):
                progress(done + 1, len(image.objects))
        return WebGpuExecutable(image, code, self.context, params, stored.compilation, near)

    def _compile(
        self,
        graph: BaseGraph,
        options: CompileOptions,
        progress: Progress | None = None,
        built: BaseGraph | None = None,
        experts: ExpertStore | None = None,
    ) -> Compilation:
        from ostinato.backends.webgpu.compilation import compile_graph

        target = self.gpu.target
        return compile_graph(
            graph, options, target, self.device, progress, built=built, experts=experts
        )

    def _recompile(
        self, options: CompileOptions, graph: BaseGraph, built: BaseGraph
    ) -> Compilation:
        """Compile the graph of a stored program again."""
        return self._compile(graph, options, built=built)

    def _executable(
        self,
        compiled: Compilation,
        params: Mapping[str, ParamSource],
        siblings: Sequence[WebGpuExecutable] | None,
        experts: Mapping[str, ExpertTensor] | None = None,
    ) -> WebGpuExecutable:
        with compiled.lowered.report.timed("memory"):
            code = compiled.loaded(self.gpu, self._host)
            return WebGpuExecutable(
                compiled.image, code, self.context, params, lambda: compiled, siblings, experts
            )


class VulkanBackend(WebGpuBackend):
    """An adapter of this machine that is reached by Vulkan: ``VULKAN:0`` and so on."""

    kind = "VULKAN"


class MetalBackend(WebGpuBackend):
    """An adapter of this machine that is reached by Metal: ``METAL:0`` and so on."""

    kind = "METAL"
