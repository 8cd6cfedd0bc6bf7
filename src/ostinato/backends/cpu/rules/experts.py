"""The kernels of ``expert_mlp``: into the hidden units, out of them, and the sum over experts.

A *row* is a token with one of its experts: row ``t * k + j`` is token ``t`` at its ``j``-th. All
rows' results are stored apart and summed last, so the order of a sum is that of a token's experts
wherever, and whenever, each of them is computed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from ostinato.backends.cpu.rules.expert_matmul import ExpertMatmul, expert_matmul
from ostinato.backends.cpu.rules.grouped_gemm import GroupedGemm
from ostinato.ir.types import TensorType
from ostinato.lower.loopir.builder import Outputs, cast, store_at, symbols_of
from ostinato.lower.loopir.merge_axes import merge_axes
from ostinato.lower.loopir.nest import LoopNest
from ostinato.lower.loopir.nodes import Accumulator, Apply, Load, Reduce, Ref, Scalar, Stage, Store
from ostinato.lower.loopir.views import linear_index
from ostinato.lower.program import LoweredBuffer, Role
from ostinato.lower.rules.loops import BLOCK
from ostinato.ops.moe import ACTIVATIONS
from ostinato.variables import floor_div

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.backends.cpu.rules.tiles import RegisterFile
    from ostinato.ir.graph import Node
    from ostinato.lower.loopir.builder import KernelBuilder
    from ostinato.variables import Symbol

__all__ = ["ExpertLayer", "ExpertStep", "MakeKernel"]

#: Makes a kernel with a builder, the matrices, the rows by expert, and the Variables.
MakeKernel: TypeAlias = Callable[..., GroupedGemm]

#: A matmul of a layer: its name, itself, and the function that makes its kernel.
ExpertStep: TypeAlias = tuple[str, ExpertMatmul, MakeKernel]


class ExpertLayer:
    """The kernels of an ``expert_mlp`` node.

    Attributes:
        node: the node.
        inner: the matmuls of tokens with the gate and up matrices.
        outer: the matmul of hidden units with the down matrices.

    Args:
        packed: whether to pack the matrices; see :func:`expert_matmul`.
    """

    def __init__(self, node: Node, registers: RegisterFile, *, packed: bool) -> None:
        self.node = node
        self.x, self.ids, self.weights, up, down, *gate = node.inputs
        rows = self.ids.type.size
        self.inner = expert_matmul(node, rows, (*gate, up), registers, packed=packed)
        self.outer = expert_matmul(node, rows, (down,), registers, packed=packed)
        acc = self.inner.acc
        self._hidden, self._results = (
            LoweredBuffer(TensorType(acc, (rows, width)), Role.TEMP, f"{node.label}.{name}")
            for name, width in (("hidden", up.shape[2]), ("rows", down.shape[2]))
        )

    @property
    def matmuls(self) -> tuple[ExpertStep, ...]:
        """The matmuls in order."""
        return (
            ("experts in", self.inner, self.inner_kernel),
            ("experts out", self.outer, self.outer_kernel),
        )

    def inner_kernel(
        self,
        build: KernelBuilder,
        matrices: Sequence[LoweredBuffer],
        groups: LoweredBuffer,
        variables: tuple[Symbol, ...],
    ) -> GroupedGemm:
        """Hidden units: ``act(x @ gate) * (x @ up)``, or ``act(x @ up)``, of every row."""
        m, n, k = at = self.inner.axes()
        left = build.at(self.x, (floor_div(m, self.ids.shape[1]), k))
        assert isinstance(left, Load)
        acc = self.inner.acc
        op, attrs = ACTIVATIONS[self.node.attrs["activation"]]
        value: Scalar = Apply(op.name, (Accumulator(acc),), acc, tuple(attrs.items()))
        if len(matrices) > 1:
            value = Apply("multiply", (value, Accumulator(acc, 1)), acc)
        target = build.argument(self._hidden, writes=True)
        store = Store(target, linear_index(self._hidden.type.shape, (m, n)), value)
        return self.inner.kernel(build, matrices, groups, left, at, [store], variables)

    def outer_kernel(
        self,
        build: KernelBuilder,
        matrices: Sequence[LoweredBuffer],
        groups: LoweredBuffer,
        variables: tuple[Symbol, ...],
    ) -> GroupedGemm:
        """The matmul out of the hidden units, of every row."""
        m, n, k = at = self.outer.axes()
        acc = self.outer.acc
        source = build.argument(self._hidden, reads=True)
        left = Load(source, linear_index(self._hidden.type.shape, (m, k)), acc)
        target = build.argument(self._results, writes=True)
        store = Store(target, linear_index(self._results.type.shape, (m, n)), Accumulator(acc))
        return self.outer.kernel(build, matrices, groups, left, at, [store], variables)

    def sum_nest(
        self, build: KernelBuilder, outputs: Outputs, variables: tuple[Symbol, ...]
    ) -> LoopNest:
        """The weighted sum over each token's experts, and what the region makes of it."""
        (result,) = self.node.outputs
        acc, k = self.outer.acc, self.ids.shape[1]
        token, column = indices = build.axes(result.shape)
        choice = build.axis(k)
        source = build.argument(self._results, reads=True)
        index = linear_index(self._results.type.shape, (token * k + choice, column))
        weight = cast(build.at(self.weights, (token, choice)), acc)
        term = Apply("multiply", (Load(source, index, acc), weight), acc)
        build.results[result] = cast(Ref("r0", acc), result.dtype)
        total = Reduce("r0", "sum", term, acc)
        stores = [
            store_at(build, value, buffer, result.shape, indices) for value, buffer in outputs
        ]
        axes, statements = merge_axes(symbols_of(indices), build.finish([total, *stores]))
        inner, summed = merge_axes(symbols_of([choice]), statements[:1])
        return LoopNest(
            build.args,
            axes[:-1],
            (Stage(inner, summed), Stage((), statements[1:])),
            tuple(build.temps),
            inner_axis=axes[-1] if axes else None,
            block=BLOCK,
            variables=variables,
        )
