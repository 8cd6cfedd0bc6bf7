"""Matmuls of 8-bit floats that a library computes, the scales of both operands included.

The library sums along neighbours in memory: weights are brought into the order of columns, once
where they are fixed. It multiplies any two formats but E5M2 by itself, and scales either by one
number each or by rows and columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.cuda.abi import is_guarded
from ostinato.backends.cuda.product import Matrix, Product
from ostinato.backends.cuda.rules.library import (
    LIBRARY,
    Operand,
    bring_into_memory,
    library_kernel,
    stored_strides,
    strides_of,
)
from ostinato.dtypes import FLOAT8_E5M2
from ostinato.lower.loopir.builder import symbols_of
from ostinato.lower.loopir.nodes import Accumulator, Load
from ostinato.lower.loopir.views import linear_index
from ostinato.lower.program import Layout, LoweredBuffer, Role
from ostinato.lower.rules.matmul_spec import row_spec
from ostinato.variables import prod, recombine

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ostinato.backends.cuda.rules.column_order import ColumnOrder
    from ostinato.backends.cuda.rules.library import LibrarySettings
    from ostinato.ir.graph import Node, Value
    from ostinato.lower.fusion.regions import Region
    from ostinato.lower.loopir.builder import KernelBuilder
    from ostinato.lower.program_builder import ProgramBuilder
    from ostinato.lower.rules.matmul_spec import MatmulSpec

__all__ = ["ScaledRules", "suits_scaled"]

#: Rows up to which the device's own kernels are faster, and operations from which on the library's
#: are.
_FEW_ROWS, _LEAST_WORK = 16, 100_000_000

#: Columns of the result, and products of a sum, are multiples of this, as are addresses, in bytes.
_GRAIN = 16

#: Bytes of a workspace: what the library's documentation recommends for GPUs since Hopper.
_WORKSPACE = 32 << 20


def suits_scaled(node: Node, settings: LibrarySettings) -> bool:
    """Whether a library takes a matmul of 8-bit floats, to all that its types say."""
    if node.op.name != "scaled_matmul" or not settings.float8:
        return False
    x, w, x_scale, w_scale = node.inputs
    sizes = _sizes(node)
    if sizes is None or x.dtype == w.dtype == FLOAT8_E5M2:
        return False
    rows, depth, columns = sizes
    if rows <= _FEW_ROWS or depth % _GRAIN or columns % _GRAIN:
        return False
    if 2 * rows * depth * columns < _LEAST_WORK:
        return False
    by_rows = {x_scale.ndim > 0, w_scale.ndim > 0}
    return len(by_rows) == 1 and (settings.row_scales or True not in by_rows)


class ScaledRules:
    """The rule for matmuls of 8-bit floats.

    Args:
        settings: the use of the library.
        columns: brings weights into order.
        otherwise: lowers a region whose matrices are not as the library takes them.
    """

    def __init__(
        self,
        settings: LibrarySettings,
        columns: ColumnOrder,
        otherwise: Callable[[ProgramBuilder, Region, Node], None],
    ) -> None:
        self._settings = settings
        self._columns = columns
        self._otherwise = otherwise

    def matmul(self, lowering: ProgramBuilder, region: Region, root: Node) -> None:
        """Lower a region around a matmul of 8-bit floats."""
        able = region.members == [root] and suits_scaled(root, self._settings)
        able = able and not lowering.nested and not is_guarded(lowering.variables)
        if not able or not self._by_library(lowering, region, root):
            self._otherwise(lowering, region, root)

    def _by_library(self, lowering: ProgramBuilder, region: Region, root: Node) -> bool:
        """Append the call; nothing where the library does not take the operands as they are."""
        x, w, *scales = root.inputs
        spec = row_spec(root, x, w)
        for value in (x, *scales):
            bring_into_memory(lowering, region, value)
        build = lowering.builder(region, self._in_columns(lowering, region, spec))
        at = spec.axes(build)
        (m,), (n,), (k,) = map(symbols_of, ([at.m], [at.n], at.k))
        left = strides_of(spec.left(build, at), (), m, k)
        right = strides_of(build.at(w, spec.b_at((), at.k, at.n)), (), k, n)
        outputs = lowering.region_outputs(region)
        stores = spec.stores(build, Accumulator(spec.acc), spec.out_at((), at.m, at.n), outputs)
        target = stored_strides(stores[0], (), m, n) if len(stores) == 1 else None
        places = [_dense(build, scale) for scale in scales]
        if left is None or right is None or target is None or None in places:
            return False
        sizes, result = _sizes(root), root.outputs[0].dtype
        assert sizes is not None
        rows, depth, columns = sizes
        steps = (left.column, right.row, target.column, target.offset)
        starts = (left.offset, left.row, right.offset, right.column, target.row * result.itemsize)
        if steps != (1, 1, 1, 0) or any(start % _GRAIN for start in starts):
            return False
        product = Product(
            w.dtype.name,
            result.name,
            Matrix(depth, columns, right.column, 0, _GRAIN),
            Matrix(depth, rows, left.row, 0, _GRAIN),
            Matrix(columns, rows, target.row, 0, _GRAIN),
            (True, False),
            1,
            _WORKSPACE,
            timed=self._settings.timed,
            right=x.dtype.name,
            scales="rows" if scales[0].ndim else "one",
        )
        operands = (
            Operand(right.position, right.offset),
            Operand(left.position, left.offset),
            Operand(target.position, 0),
            *(place for place in reversed(places) if place is not None),
        )
        kernel = library_kernel(build, product, operands)
        lowering.call(region, build, kernel, outputs, LIBRARY)
        return True

    def _in_columns(
        self, lowering: ProgramBuilder, region: Region, spec: MatmulSpec
    ) -> Mapping[Value, LoweredBuffer] | None:
        """The weights with the elements of a column side by side, if they are not like that."""
        w, build = spec.b, lowering.builder(region)
        at = spec.axes(build)
        (n,), (k,) = map(symbols_of, ([at.n], at.k))
        found = strides_of(build.at(w, spec.b_at((), at.k, at.n)), (), k, n)
        if found is not None and found.row == 1:
            return None
        if self._columns.possible(lowering, w):
            return {w: self._columns.of(lowering, w)}
        layout = Layout((1, 0), w.shape, (0, 0))
        label = f"{w.node.label}.columns"
        buffer = LoweredBuffer(w.type, Role.TEMP, label, None, None, layout)
        lowering.copy_into(w, buffer)
        return {w: buffer}


def _sizes(node: Node) -> tuple[int, int, int] | None:
    """Rows, depth and columns, if all are known."""
    x, w = node.inputs[:2]
    depth, columns = w.shape
    rows = prod(x.shape[:-1])
    if not (isinstance(rows, int) and isinstance(depth, int) and isinstance(columns, int)):
        return None
    return rows, depth, columns


def _dense(build: KernelBuilder, scale: Value) -> Operand | None:
    """The place of scales that are next to one another; ``None``: they are not."""
    axes = build.axes(scale.shape)
    element = build.at(scale, axes)
    if not isinstance(element, Load) or element.bindings:
        return None
    offset = recombine(element.index - linear_index(scale.shape, axes))
    if not isinstance(offset, int):
        return None
    return Operand(element.buffer, offset * scale.dtype.itemsize)
