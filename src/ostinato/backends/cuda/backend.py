"""NVIDIA GPUs: kernels as CUDA C++, run through the driver."""

from __future__ import annotations

from functools import cached_property, partial
from typing import TYPE_CHECKING

from ostinato.agreed import agreed_property
from ostinato.backends.base import Backend
from ostinato.backends.common.expert_store import ExpertStore
from ostinato.backends.common.stored_program import StoredProgram
from ostinato.backends.cuda.code import load_image, load_objects
from ostinato.backends.cuda.context import CudaContext
from ostinato.backends.cuda.cublaslt import CublasLt, find_library
from ostinato.backends.cuda.driver import nvidia_driver
from ostinato.backends.cuda.executable import CudaExecutable
from ostinato.backends.cuda.gpu import Gpu
from ostinato.backends.cuda.image import Image

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ostinato.backends.base import Capabilities, Executable, Progress
    from ostinato.backends.common.experts import ExpertsInFile
    from ostinato.backends.cuda.compilation import Compilation
    from ostinato.backends.cuda.driver import Driver
    from ostinato.backends.cuda.product import ProductLibrary
    from ostinato.backends.cuda.target import CudaTarget
    from ostinato.backends.cuda.toolchain import Toolchain
    from ostinato.backends.device import Device
    from ostinato.backends.options import CompileOptions
    from ostinato.ir.graph import BaseGraph
    from ostinato.ir.stored import ExpertTensor, ParamSource

__all__ = ["CudaBackend"]


class CudaBackend(Backend):
    """A GPU of this machine.

    Args:
        device: ``CUDA:0``, ``CUDA:1`` and so on, in the order of the driver.
        threads: has no effect.
    """

    def __init__(self, device: Device, threads: int | None = None) -> None:
        self.device = device
        self.gpu = Gpu(self._driver(), device, self._products())

    @classmethod
    def _driver(cls) -> Driver:
        """The driver.

        Raises:
            DeviceUnavailableError: there is none, or the packages for it are missing.
        """
        return nvidia_driver()

    def _products(self) -> Callable[[], ProductLibrary] | None:
        """Opens the library of matrix products; ``None``: it is not installed."""
        path = find_library()
        return None if path is None else partial(CublasLt, path)

    def _toolchain(self, target: CudaTarget) -> Toolchain:
        """The compiler of kernels."""
        from ostinato.backends.cuda.compiler import NvrtcToolchain

        return NvrtcToolchain(target)

    @cached_property
    def toolchain(self) -> Toolchain:
        """The compiler of kernels for this GPU."""
        return self._toolchain(self.gpu.target)

    @property
    def capabilities(self) -> Capabilities:
        from ostinato.backends.cuda.capabilities import CAPABILITIES

        return CAPABILITIES

    @agreed_property
    def context(self) -> CudaContext:
        return CudaContext(self.device, self.gpu, self.toolchain)

    @classmethod
    def count(cls) -> int:
        """The number of GPUs.

        Raises:
            DeviceUnavailableError: the packages or the driver are missing.
        """
        return cls._driver().count()

    def compile(
        self,
        graph: BaseGraph,
        params: Mapping[str, ParamSource],
        options: CompileOptions,
        progress: Progress | None = None,
        *,
        experts: ExpertsInFile | None = None,
        siblings: Sequence[Executable] | None = None,
    ) -> CudaExecutable:
        near = None
        if siblings is not None:
            near = [sibling for sibling in siblings if isinstance(sibling, CudaExecutable)]
        load = partial(self._executable, params=params, siblings=near, graphs=options.launch_graphs)
        if experts is not None:
            compiled = self._compile(graph, options, progress, experts=ExpertStore.of(experts))
            return load(compiled, experts=experts.tensors)
        if not options.stored_programs:
            return load(self._compile(graph, options, progress))
        target = f"{self.device.kind} {self.toolchain.identity} {self.gpu.has_products}"
        stored = StoredProgram(graph, options, Image, target, partial(self._recompile, options))
        image = stored.image
        code = None if image is None else load_image(self.gpu, image.objects)
        if image is None or code is None:
            compiled = self._compile(graph, options, progress)
            stored.keep(compiled.image)
            return load(compiled)
        if progress is not None:
            for done in range(len(image.objects)):
                progress(done + 1, len(image.objects))
        return CudaExecutable(
            image,
            code,
            self.context,
            params,
            stored.compilation,
            near,
            graphs=options.launch_graphs,
        )

    def _compile(
        self,
        graph: BaseGraph,
        options: CompileOptions,
        progress: Progress | None = None,
        built: BaseGraph | None = None,
        experts: ExpertStore | None = None,
    ) -> Compilation:
        from ostinato.backends.cuda.compilation import compile_graph

        return compile_graph(
            graph,
            options,
            self.toolchain,
            self.device,
            progress,
            built=built,
            has_products=self.gpu.has_products,
            experts=experts,
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
        siblings: Sequence[CudaExecutable] | None,
        *,
        graphs: bool,
        experts: Mapping[str, ExpertTensor] | None = None,
    ) -> CudaExecutable:
        with compiled.lowered.report.timed("memory"):
            code = load_objects(self.gpu, compiled.code.objects)
            return CudaExecutable(
                compiled.image,
                code,
                self.context,
                params,
                lambda: compiled,
                siblings,
                graphs=graphs,
                experts=experts,
            )
