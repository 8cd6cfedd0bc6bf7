"""Single ops: their compile, and their steps on the buffers of a session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.backends.common.signature_compiler import compile_signature
from ostinato.backends.cuda.capabilities import CAPABILITIES, lowering_options
from ostinato.backends.cuda.code import CudaCode, KernelCode, load_objects
from ostinato.backends.cuda.image import Step
from ostinato.backends.cuda.kernel import CudaSizeStep
from ostinato.backends.cuda.rules.library import LibraryProduct
from ostinato.backends.cuda.rules.table import lower_for_cuda
from ostinato.backends.options import CompileOptions
from ostinato.errors import PlanError
from ostinato.plan.prepared import Copy, KernelCall
from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np

    from ostinato.backends.common.compiled_op import CompiledOp
    from ostinato.backends.common.op_encoding import OpMemory
    from ostinato.backends.common.op_signature import OpSignature
    from ostinato.backends.cuda.gpu import Gpu, Library
    from ostinato.backends.cuda.toolchain import Toolchain
    from ostinato.ir.graph import BaseGraph
    from ostinato.lower.loopir.kernel import Kernel
    from ostinato.lower.program import Program
    from ostinato.plan.buffer import Buffer
    from ostinato.plan.prepared import PreparedOp
    from ostinato.variables import Symbol

__all__ = ["compile_op", "op_steps"]


@dataclass(frozen=True)
class LoadedCode:
    """The code of a kernel, loaded.

    Attributes:
        code: its code.
        library: the compiled kernels that it is among; ``None``: a library computes it.
    """

    code: KernelCode
    library: Library | None

    @property
    def source(self) -> str:
        return self.code.source

    @property
    def assembly(self) -> str | None:
        return self.code.assembly


class _CudaCompiler:
    """See :class:`~ostinato.backends.common.signature_compiler.SignatureCompiler`."""

    capabilities = CAPABILITIES

    def __init__(self, toolchain: Toolchain, gpu: Gpu) -> None:
        self._toolchain = toolchain
        self._gpu = gpu

    def lower(self, graph: BaseGraph, variables: tuple[Symbol, ...]) -> Program:
        options = CompileOptions(segments=False, time_products=False)
        has_products, capability = self._gpu.has_products, self._toolchain.target.capability
        settings = lowering_options(options, has_products=has_products, capability=capability)
        return lower_for_cuda(graph, settings, variables)[0]

    def code(self, program: Program) -> Callable[[Kernel], LoadedCode]:
        kernels = [call.kernel for call in (*program.prepare, *program.calls)]
        compiled = CudaCode(kernels, program.variables, self._toolchain)
        libraries = load_objects(self._gpu, compiled.objects)

        def loaded(kernel: Kernel) -> LoadedCode:
            code = compiled.code(kernel)
            return LoadedCode(code, None if code.kernel is None else libraries[code.name])

        return loaded


def compile_op(
    signature: OpSignature,
    toolchain: Toolchain,
    gpu: Gpu,
    upload: Callable[[np.ndarray[Any, Any]], Buffer],
) -> CompiledOp:
    """Compile a signature; ``upload`` makes the buffers of its constants.

    Raises:
        UnsupportedOpError: there is no kernel for an op, and no way to rewrite it.
    """
    return compile_signature(signature, _CudaCompiler(toolchain, gpu), upload)


def op_steps(ops: Sequence[PreparedOp], memory: OpMemory) -> tuple[list[Step], dict[str, Library]]:
    """The steps of ops on their storages, and the libraries of their kernels by symbol.

    Raises:
        PlanError: an op is a step of its own plan only.
    """
    steps: list[Step] = []
    libraries: dict[str, Library] = {}
    for op in ops:
        match op:
            case KernelCall():
                code = op.kernel.code
                if isinstance(op.kernel.kernel, CudaSizeStep):
                    what = "binds or checks a size, which only its own plan can do"
                    raise PlanError(f"{op.name} {what}")
                assert isinstance(code, LoadedCode)
                name = code.code.name
                places = tuple(memory.place(buffer) for buffer in op.buffers)
                if isinstance(op.kernel.kernel, LibraryProduct):
                    product = op.kernel.kernel
                    entry = tuple(product.product)
                    steps.append(Step("", product.arguments(places), product=entry))
                    continue
                assert code.library is not None
                libraries[name] = code.library
                steps.append(Step(name, places, code.code.shape))
            case Copy():
                places = memory.place(op.target), memory.place(op.source)
                steps.append(Step("", places, nbytes=op.source.nbytes))
    return steps, libraries
