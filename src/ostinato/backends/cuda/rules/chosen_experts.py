"""Experts for a few tokens: a matmul of one row for each token and choice.

Each reads the matrix of the expert that was chosen, once, as a matmul of few rows reads a weight:
``x @ up``, then ``act(x @ gate)`` times that, then the same hidden units times ``down``. A loop
nest weighs the results of a token's choices, and adds them up in order. A ``grouped_matmul`` is one
of these matmuls by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.cuda.rules.matmul import FewRowsMatmul
from ostinato.backends.cuda.rules.product import FEW_ROWS
from ostinato.ir.types import TensorType
from ostinato.lazy import LazyModule
from ostinato.lower.loopir.builder import cast, store_at, symbols_of
from ostinato.lower.loopir.nest import LoopNest
from ostinato.lower.loopir.nodes import Accumulator, Apply, Load, Reduce, Ref, Stage, Store
from ostinato.lower.loopir.views import linear_index
from ostinato.lower.program import LoweredBuffer, Role
from ostinato.lower.rules.loops import BLOCK
from ostinato.lower.rules.matmul_spec import row_spec
from ostinato.ops.moe import ACTIVATIONS
from ostinato.variables import axis, bounds, prod

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ostinato.backends.cuda.render import single_rows
    from ostinato.backends.cuda.rules.expert_operands import OrderedExperts
    from ostinato.dtypes import DType
    from ostinato.ir.graph import Node, Value
    from ostinato.lower.fusion.regions import Region
    from ostinato.lower.loopir.builder import KernelBuilder
    from ostinato.lower.loopir.nodes import Scalar
    from ostinato.lower.loopir.views import Indices
    from ostinato.lower.program_builder import ProgramBuilder
    from ostinato.variables import Dim

    #: An element at a token, a choice, and a place along the last axis.
    Element = Callable[[KernelBuilder, Indices, Dim], Scalar]

    #: The result at such a point, made of the sum there.
    Finish = Callable[[KernelBuilder, Indices, Dim, Scalar], Scalar]

else:
    single_rows = LazyModule("ostinato.backends.cuda.render.single_rows")

__all__ = ["lower_few_choices", "lower_few_rows"]


def lower_few_choices(
    lowering: ProgramBuilder,
    region: Region,
    root: Node,
    operands: OrderedExperts,
    *,
    pairs: bool,
) -> bool:
    """Lower a region around an ``expert_mlp`` node, if few experts are chosen altogether.

    Args:
        lowering: takes the kernels.
        region: the nodes.
        root: the experts' networks.
        operands: their matrices.
        pairs: whether two matrices may be multiplied by one kernel.

    Returns:
        Whether it was lowered.
    """
    x, ids, _, up, down, *gate = root.inputs
    if bounds(prod(ids.shape))[1] > FEW_ROWS or not all(w.type.size for w in (up, down)):
        return False
    layer = _Layer(lowering, root, operands)

    def row(build: KernelBuilder, at: Indices, place: Dim) -> Scalar:
        return build.at(x, (at[0], place))

    title = "experts' gated hidden units"
    hidden = None
    if gate and pairs:
        hidden = layer.pair(title, row, gate[0], up, layer.gated(None))
    if hidden is None:
        hidden = layer.matmul("experts' hidden units", row, up, None if gate else layer.activated)
        if gate:
            hidden = layer.matmul(title, row, gate[0], layer.gated(layer.element(hidden)))
    results = layer.matmul("experts' results", layer.element(hidden), down, None)
    lowering.counted.add(root)
    layer.weigh(region, results)
    return True


def lower_few_rows(
    lowering: ProgramBuilder, region: Region, root: Node, operands: OrderedExperts
) -> bool:
    """Lower a region around a ``grouped_matmul`` node, if it has few rows; whether it was."""
    x, w, _ = root.inputs
    if bounds(x.shape[0])[1] > FEW_ROWS or not w.type.size:
        return False
    spec, instead = row_spec(root, x, w), operands.by_columns(lowering, w)
    build, outputs = lowering.builder(region, instead), lowering.region_outputs(region)
    point = build.axis(x.shape[0])
    m, n, k = axis("m", 1), axis("n", w.shape[2]), axis("k", w.shape[1])
    (row,), (column,) = symbols_of((m,)), symbols_of((n,))
    expert = operands.expert(build, (point,))
    a, b = build.at(x, (point, k)), build.at(w, (expert, k, n))
    stores = spec.stores(build, Accumulator(spec.acc), spec.out_at((), point, n), outputs)
    kernel = FewRowsMatmul(
        build.args,
        symbols_of((point,)),
        row,
        column,
        symbols_of((k,)),
        a,
        b,
        spec.acc,
        stores,
        lowering.variables,
    )
    lowering.call(region, build, kernel, outputs)
    return True


class _Layer:
    """The kernels of a layer.

    Args:
        lowering: takes the kernels.
        root: the experts' networks.
        operands: their matrices.

    Attributes:
        acc: the dtype of all that is between the operands and the result.
    """

    def __init__(self, lowering: ProgramBuilder, root: Node, operands: OrderedExperts) -> None:
        self._lowering = lowering
        self._root = root
        self._operands = operands
        self.acc: DType = root.inputs[0].dtype.accumulator

    def activated(self, build: KernelBuilder, at: Indices, place: Dim, total: Scalar) -> Scalar:
        """The activation of a sum."""
        op, attrs = ACTIVATIONS[self._root.attrs["activation"]]
        return Apply(op.name, (total,), self.acc, tuple(attrs.items()))

    def gated(self, through: Element | None) -> Finish:
        """The activation of a sum, times what it lets through: an element, or another sum."""

        def finish(build: KernelBuilder, at: Indices, place: Dim, total: Scalar) -> Scalar:
            other = Accumulator(self.acc, 1) if through is None else through(build, at, place)
            terms = self.activated(build, at, place, total), other
            return Apply("multiply", terms, self.acc)

        return finish

    def element(self, buffer: LoweredBuffer) -> Element:
        """The elements of a result of :meth:`matmul`."""

        def at(build: KernelBuilder, point: Indices, place: Dim) -> Scalar:
            index = linear_index(buffer.type.shape, (*point, place))
            return Load(build.argument(buffer, reads=True), index, self.acc)

        return at

    def pair(
        self, title: str, left: Element, matrices: Value, beside: Value, finish: Finish
    ) -> LoweredBuffer | None:
        """The same with the columns of two matrices; ``None``: these are no rows of memory.

        Args:
            title, left, matrices: see :meth:`matmul`.
            beside: the matrices whose sums are ``Accumulator`` 1.
            finish: makes the result of both sums.
        """
        build, kernel, result = self._product(title, left, (matrices, beside), finish)
        if not single_rows.suits(kernel):
            return None
        self._call(title, build, kernel, result)
        return result

    def matmul(
        self, title: str, left: Element, matrices: Value, finish: Finish | None
    ) -> LoweredBuffer:
        """A row for each token and choice, times the matrix of the expert that was chosen.

        Args:
            title: of the kernel.
            left: the rows.
            matrices: of the experts.
            finish: makes the result of a sum; by default, it is the sum.

        Returns:
            The results, ``[tokens, choices, columns]``.
        """
        build, kernel, result = self._product(title, left, (matrices,), finish)
        self._call(title, build, kernel, result)
        return result

    def _product(
        self, title: str, left: Element, matrices: Sequence[Value], finish: Finish | None
    ) -> tuple[KernelBuilder, FewRowsMatmul, LoweredBuffer]:
        """The kernel of a product by one matrix or two, its builder, and its result."""
        lowering, acc = self._lowering, self.acc
        ids, (_, depth, columns) = self._root.inputs[1], matrices[0].shape
        instead: dict[Value, LoweredBuffer] = {}
        for each in matrices:
            instead.update(self._operands.by_columns(lowering, each) or {})
        build = lowering.helper_builder(instead or None)
        shape = (*ids.shape, columns)
        result = LoweredBuffer(TensorType(acc, shape), Role.TEMP, f"{self._root.label}: {title}")
        point = build.axes(ids.shape)
        m, n, k = axis("m", 1), axis("n", columns), axis("k", depth)
        (row,), (column,) = symbols_of((m,)), symbols_of((n,))
        expert = self._operands.expert(build, point)
        a = left(build, point, k)
        b, *beside = (build.at(each, (expert, k, n)) for each in matrices)
        total: Scalar = Accumulator(acc)
        if finish is not None:
            total = finish(build, point, n, total)
        position = build.argument(result, writes=True)
        store = Store(position, linear_index(shape, (*point, n)), total)
        kernel = FewRowsMatmul(
            build.args,
            symbols_of(point),
            row,
            column,
            symbols_of((k,)),
            a,
            b,
            acc,
            (store,),
            lowering.variables,
            beside=beside[0] if beside else None,
        )
        return build, kernel, result

    def _call(
        self, title: str, build: KernelBuilder, kernel: FewRowsMatmul, result: LoweredBuffer
    ) -> None:
        products = len(kernel.rights)
        flops = 2 * products * prod(result.type.shape) * kernel.depth
        self._lowering.helper_call(self._root, title, build, kernel, flops)

    def weigh(self, region: Region, results: LoweredBuffer) -> None:
        """Add up the results of each token's choices, weighted; then the rest of the region."""
        lowering, root, acc = self._lowering, self._root, self.acc
        ids, weights = root.inputs[1:3]
        build, outputs = lowering.builder(region), lowering.region_outputs(region)
        (out,) = root.outputs
        token, column = build.axes(out.shape)
        choice = build.axis(ids.shape[1])
        weight = cast(build.at(weights, (token, choice)), acc)
        result = self.element(results)(build, (token, choice), column)
        product = Apply("multiply", (weight, result), acc)
        total = Reduce("r0", "sum", product, acc, fused=True)
        build.results[out] = cast(Ref("r0", acc), out.dtype)
        at = (token, column)
        stores = [store_at(build, value, buffer, out.shape, at) for value, buffer in outputs]
        axes = symbols_of(at)
        last = axes[-1] if symbols_of((column,)) else None
        nest = LoopNest(
            build.args,
            axes if last is None else axes[:-1],
            (Stage(symbols_of((choice,)), (total,)), Stage((), tuple(stores))),
            inner_axis=last,
            block=BLOCK,
            variables=lowering.variables,
        )
        lowering.call(region, build, nest, outputs)
