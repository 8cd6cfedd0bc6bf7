"""Matmuls whose right operand is chosen or scaled by data, as loop nests.

Each element of the result is a sum along one axis, with columns side by side; what the region
computes after it is stored in the same nest.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ostinato.dtypes import FLOAT32, INT32
from ostinato.lower.loopir.builder import cast, symbols_of
from ostinato.lower.loopir.merge_axes import merge_axes
from ostinato.lower.loopir.nest import LoopNest
from ostinato.lower.loopir.nodes import Apply, Guard, IndexValue, Number, Reduce, Ref, Stage
from ostinato.lower.rules.expert_operands import ExpertOperands
from ostinato.lower.rules.loops import BLOCK
from ostinato.lower.rules.matmul_spec import row_spec
from ostinato.variables import floor_div, remainder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ostinato.ir.graph import Node, Value
    from ostinato.lower.fusion.regions import Region
    from ostinato.lower.loopir.builder import KernelBuilder
    from ostinato.lower.loopir.nodes import Scalar
    from ostinato.lower.program import LoweredBuffer
    from ostinato.lower.program_builder import ProgramBuilder
    from ostinato.lower.rules.matmul_spec import MatmulSpec
    from ostinato.variables import Dim

    #: The product at row, depth and column.
    Term = Callable[[KernelBuilder, MatmulSpec, Dim, Dim, Dim], Scalar]

__all__ = ["lower_blockwise_matmul", "lower_grouped_matmul"]

#: The code of zero in a 4-bit weight, and the bits of one.
_ZERO_CODE, _CODE_BITS = 8, 4


def lower_grouped_matmul(
    lowering: ProgramBuilder, region: Region, root: Node, operands: ExpertOperands | None = None
) -> None:
    """Lower a region around a ``grouped_matmul`` node.

    Args:
        lowering: takes the kernels.
        region: the nodes.
        root: the matmul.
        operands: the matrices that rows choose among; by default, the node's, where they are.
    """
    x, w, ids = root.inputs
    operands = operands or ExpertOperands(ids, w.shape[0])
    term = partial(_grouped_term, operands)
    _lower(lowering, region, row_spec(root, x, w), w.shape[2], term, operands.instead)


def lower_blockwise_matmul(lowering: ProgramBuilder, region: Region, root: Node) -> None:
    """Lower a region around a ``blockwise_matmul`` node."""
    q, _, codes, _ = root.inputs
    _lower(lowering, region, row_spec(root, q, codes), codes.shape[1], _blockwise_term)


def _lower(
    lowering: ProgramBuilder,
    region: Region,
    spec: MatmulSpec,
    columns: Dim,
    term: Term,
    instead: Mapping[Value, LoweredBuffer] | None = None,
) -> None:
    build = lowering.builder(region, instead)
    outputs = lowering.region_outputs(region)
    row, column = build.axis(spec.m), build.axis(columns)
    (extent,) = spec.k
    depth = build.axis(extent)
    total = Reduce("r0", "sum", term(build, spec, row, depth, column), spec.acc, fused=True)
    stores = spec.stores(build, Ref("r0", spec.acc), spec.out_at((), row, column), outputs)
    outer, statements = merge_axes(symbols_of((row, column)), build.finish([total, *stores]))
    inner, summed = merge_axes(symbols_of([depth]), statements[:1])
    columns_apart = bool(symbols_of([column]))
    nest = LoopNest(
        build.args,
        outer[:-1] if columns_apart else outer,
        (Stage(inner, summed), Stage((), statements[1:])),
        inner_axis=outer[-1] if columns_apart else None,
        block=BLOCK,
        variables=lowering.variables,
    )
    lowering.call(region, build, nest, outputs)


def _grouped_term(
    operands: ExpertOperands,
    build: KernelBuilder,
    spec: MatmulSpec,
    row: Dim,
    depth: Dim,
    column: Dim,
) -> Scalar:
    x, w, _ = spec.node.inputs
    expert = operands.expert(build, (row,))
    left, right = build.at(x, (row, depth)), build.at(w, (expert, depth, column))
    return Apply("multiply", (cast(left, spec.acc), cast(right, spec.acc)), spec.acc)


def _blockwise_term(
    build: KernelBuilder, spec: MatmulSpec, row: Dim, depth: Dim, column: Dim
) -> Scalar:
    q, q_scales, codes, scales = spec.node.inputs
    group: int = spec.node.attrs["group"]
    *lead, inner = spec.a_at((), row, (depth,))
    block = floor_div(depth, group)
    left = cast(build.at(q, (*lead, inner)), INT32)
    byte = cast(build.at(codes, (floor_div(depth, 2), column)), INT32)
    shift = IndexValue(remainder(depth, 2) * _CODE_BITS, INT32)
    code = Apply("bitwise_right_shift", (byte, shift), INT32)
    code = Apply("bitwise_and", (code, Number((1 << _CODE_BITS) - 1, INT32)), INT32)
    weight: Scalar = Apply("subtract", (code, Number(_ZERO_CODE, INT32)), INT32)
    missing = 2 * codes.shape[0] - 1 - depth
    weight = Guard((missing,), weight, Number(0, INT32), INT32)
    scale = (
        build.at(q_scales, (*lead, block)),
        cast(build.at(scales, (block, column)), FLOAT32),
    )
    product = cast(Apply("multiply", (left, weight), INT32), FLOAT32)
    return Apply("multiply", (product, Apply("multiply", scale, FLOAT32)), FLOAT32)
