"""Compiled ops: the kernels of an op signature, before they are bound to buffers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.lower.program import Role
from ostinato.plan.prepared import KernelCall, PreparedKernel
from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ostinato.ir.types import TensorType
    from ostinato.lower.loopir.kernel import Kernel
    from ostinato.lower.program import LoweredBuffer, Program
    from ostinato.plan.buffer import Buffer
    from ostinato.plan.prepared import KernelCode
    from ostinato.variables import Dim

__all__ = ["CompiledOp", "UnboundKernel"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class UnboundKernel:
    """A kernel whose arguments are numbers of buffers.

    Attributes:
        kernel: the kernel.
        arguments: numbers of buffers; see :class:`CompiledOp`.
        node_names: labels of the ops that it computes.
        flops: floating point operations.
    """

    kernel: PreparedKernel
    arguments: tuple[int, ...]
    node_names: tuple[str, ...]
    flops: Dim


@dataclass(frozen=True, eq=False)
class CompiledOp:
    """Kernels in order. Buffers are numbered: operands, results, temps, then constants.

    Attributes:
        calls: the kernels.
        temps: types of the buffers that are live only within a run.
        constants: buffers that are read besides the operands.
    """

    calls: tuple[UnboundKernel, ...]
    temps: tuple[TensorType, ...]
    constants: tuple[Buffer, ...]

    def ops(self, first_id: int, buffers: Sequence[Buffer]) -> list[KernelCall]:
        """Bind the kernels to buffers.

        Args:
            first_id: number of the first op.
            buffers: operands, results and temps, in this order.
        """
        arguments = (*buffers, *self.constants)
        return [
            KernelCall(
                id=first_id + number,
                kernel=call.kernel,
                buffers=tuple([arguments[i] for i in call.arguments]),
                node_names=call.node_names,
                flops=call.flops,
            )
            for number, call in enumerate(self.calls)
        ]

    @staticmethod
    def of(
        program: Program,
        operands: int,
        results: int,
        code: Callable[[Kernel], KernelCode],
        upload: Callable[[Array], Buffer],
    ) -> CompiledOp:
        """The compiled op of a lowered signature.

        Values that depend on constants alone are computed at each run.

        Args:
            program: has inputs or states ``x0``, ``x1``, … and outputs ``y0``, ``y1``, ….
            operands, results: their numbers.
            code: the device's code of a kernel.
            upload: makes a buffer of an array.
        """
        calls = [*program.prepare, *program.calls]
        numbers = _numbers(program, operands, results)
        used = dict.fromkeys(b for call in calls for b in call.buffers if b not in numbers)
        fixed = {b: _contents(b) for b in used if b.role in (Role.CONSTANT, Role.MASKED_TAIL)}
        temps = [b for b in used if b not in fixed]
        numbers.update((b, operands + results + i) for i, b in enumerate((*temps, *fixed)))
        constants = {b: upload(array) for b, array in fixed.items()}
        return CompiledOp(
            tuple(
                UnboundKernel(
                    PreparedKernel.of(call, code(call.kernel), constants),
                    tuple(numbers[b] for b in call.buffers),
                    call.nodes,
                    call.flops,
                )
                for call in calls
            ),
            tuple(b.type for b in temps),
            tuple(constants.values()),
        )


def _numbers(program: Program, operands: int, results: int) -> dict[LoweredBuffer, int]:
    leaves: Mapping[str, LoweredBuffer] = {**program.inputs, **program.states}
    numbers = {leaves[f"x{i}"]: i for i in range(operands) if f"x{i}" in leaves}
    for i in range(results):
        if f"y{i}" in program.outputs:  # else it is written over the first operand
            numbers[program.outputs[f"y{i}"]] = operands + i
    return numbers


def _contents(buffer: LoweredBuffer) -> Array:
    if buffer.data is not None:
        return buffer.data
    return np.zeros(buffer.type.shape, buffer.type.dtype.numpy)
