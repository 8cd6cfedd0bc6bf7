"""Single ops: their compile, and their steps on the buffers of a session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.backends.common.signature_compiler import compile_signature
from ostinato.backends.options import CompileOptions
from ostinato.backends.webgpu.capabilities import CAPABILITIES, lowering_options
from ostinato.backends.webgpu.code import KernelCode, LoadedCode, WebGpuCode
from ostinato.backends.webgpu.image import CopyStep
from ostinato.backends.webgpu.kernel import Bindings
from ostinato.backends.webgpu.rules.table import lower_for_webgpu
from ostinato.dtypes import UINT8
from ostinato.errors import PlanError
from ostinato.lower.rules.sizes import SizeStep
from ostinato.ops.builder import Graph
from ostinato.plan.prepared import Copy, KernelCall, View

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np

    from ostinato.backends.common.compiled_op import CompiledOp
    from ostinato.backends.common.op_encoding import OpMemory
    from ostinato.backends.common.op_signature import OpSignature
    from ostinato.backends.cpu.llvm.toolchain import LinkedCode
    from ostinato.backends.webgpu.gpu import Gpu
    from ostinato.backends.webgpu.host_steps import HostKernels
    from ostinato.backends.webgpu.image import AnyStep
    from ostinato.backends.webgpu.target import WebGpuTarget
    from ostinato.ir.graph import BaseGraph
    from ostinato.ir.types import TensorType
    from ostinato.lower.program import Program
    from ostinato.plan.buffer import Buffer
    from ostinato.plan.prepared import PreparedOp
    from ostinato.variables import Symbol

__all__ = ["compile_op", "op_steps"]

#: Kernels may take an argument to begin at a multiple of this, and to end at one.
_VECTOR = 16

#: The driver copies whole words.
_WORD = 4


class _WebGpuCompiler:
    """See :class:`~ostinato.backends.common.signature_compiler.SignatureCompiler`."""

    capabilities = CAPABILITIES

    def __init__(self, target: WebGpuTarget) -> None:
        self._target = target

    def lower(self, graph: BaseGraph, variables: tuple[Symbol, ...]) -> Program:
        settings = lowering_options(CompileOptions())
        return lower_for_webgpu(graph, settings, variables)[0]

    def code(self, program: Program) -> Callable[[Any], KernelCode]:
        kernels = [call.kernel for call in (*program.prepare, *program.calls)]
        bindings = {kernel: Bindings.apart(kernel) for kernel in kernels}
        return WebGpuCode(bindings, program.variables, self._target).code


def compile_op(
    signature: OpSignature,
    target: WebGpuTarget,
    upload: Callable[[np.ndarray[Any, Any]], Buffer],
) -> CompiledOp:
    """Compile a signature; ``upload`` makes the buffers of its constants.

    Raises:
        UnsupportedOpError: there is no kernel for an op, and no way to rewrite it.
    """
    return compile_signature(signature, _WebGpuCompiler(target), upload)


def op_steps(
    ops: Sequence[PreparedOp], memory: OpMemory, gpu: Gpu, host: HostKernels
) -> tuple[list[AnyStep], list[str], LoadedCode]:
    """The steps of ops on their storages, the names of the ops, and the code of their kernels.

    Raises:
        PlanError: an op is a step of its own plan only.
    """
    steps: list[AnyStep] = []
    names = [str(op) for op in ops if not isinstance(op, View)]
    shaders: dict[str, str] = {}
    machine_code: dict[str, LinkedCode] = {}
    for op in ops:
        match op:
            case KernelCall():
                code = op.kernel.code
                if isinstance(op.kernel.kernel, SizeStep):
                    what = "binds or checks a size, which only its own plan can do"
                    raise PlanError(f"{op.name} {what}")
                assert isinstance(code, KernelCode)
                places = [memory.place(buffer) for buffer in op.buffers]
                types = [argument.type for argument in op.kernel.arguments]
                aligned = all(map(_aligned, op.buffers))
                steps.append(code.step(places, types, shaders, aligned=aligned))
                machine_code.update(code.machine_code)
            case Copy():
                ends = memory.place(op.target), memory.place(op.source)
                if (whole := _whole_words(op)) is not None:
                    steps.append(CopyStep(ends, whole))
                elif op.source.nbytes:
                    code, types = _byte_copy(op.source.nbytes, gpu.target)
                    steps.append(code.step(ends[::-1], types, shaders, aligned=False))
    return steps, names, LoadedCode(gpu, host, shaders, machine_code.get)


def _whole_words(op: Copy) -> int | None:
    """The bytes that the driver copies for an op, in whole words; ``None``: it cannot.

    What follows the last storage's end in its last word is nothing's.
    """
    source, target, nbytes = op.source, op.target, op.source.nbytes
    if source.offset % _WORD or target.offset % _WORD:
        return None
    if nbytes % _WORD and target.end != target.storage.nbytes:
        return None
    return -(-nbytes // _WORD) * _WORD


def _byte_copy(nbytes: int, target: WebGpuTarget) -> tuple[KernelCode, list[TensorType]]:
    """A kernel that copies bytes from anywhere to anywhere, and the types of its arguments."""
    graph = Graph("copy")
    graph.set_outputs([graph.input("bytes", (nbytes,), UINT8)])
    (call,) = lower_for_webgpu(graph, lowering_options(CompileOptions()))[0].calls
    code = WebGpuCode({call.kernel: Bindings.apart(call.kernel)}, (), target).code(call.kernel)
    return code, [buffer.type for buffer in call.buffers]


def _aligned(buffer: Buffer) -> bool:
    """Whether a buffer begins at a multiple of 16 bytes, and no other one is in its last 16."""
    alone = buffer.end % _VECTOR == 0 or buffer.end == buffer.storage.nbytes
    return buffer.offset % _VECTOR == 0 and alone
