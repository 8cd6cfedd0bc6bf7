"""The kernels of matmuls and convolutions, and the choice between them.

All compute ``acc[batch, m, n] = Σ_k a[batch, m, k] · b[batch, k, n]`` and store what the region
makes of the sums. Operands are scalar expressions, so that any strides, views and conversions are
read where they are: matmuls and convolutions differ in index expressions alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.common.clike.vectors import run_of
from ostinato.backends.cuda.rules.narrow_channels import NarrowConvolution, is_narrow
from ostinato.backends.cuda.rules.product import FEW_ROWS, FewRowsProduct, Matmul
from ostinato.backends.cuda.rules.split_convolution import is_long, lower_split
from ostinato.dtypes import FLOAT16, INT8, INT32, UINT8
from ostinato.ir.leaves import CONSTANT, PARAM
from ostinato.ir.types import TensorType
from ostinato.lazy import LazyModule
from ostinato.lower.loopir.builder import cast, symbols_of
from ostinato.lower.loopir.dependences import reached
from ostinato.lower.loopir.nodes import Load, Store
from ostinato.lower.loopir.views import linear_index
from ostinato.lower.program import Layout, LoweredBuffer, Role
from ostinato.lower.rules.loops import block_nest
from ostinato.lower.rules.matmul_kernel import matmul_kernel
from ostinato.lower.rules.matmul_spec import conv_spec, matmul_spec, scaled_spec
from ostinato.records import replace
from ostinato.variables import bounds, floor_div, prod, remainder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.backends.cuda.abi import Launch
    from ostinato.backends.cuda.render import (
        bulk_tiles,
        byte_rows,
        byte_tiles,
        few_rows,
        float8_rows,
        group_tiles,
        single_rows,
        tensor_rows,
        tensor_tiles,
        tiles,
    )
    from ostinato.backends.cuda.render.body import Body
    from ostinato.backends.cuda.rules.column_order import ColumnOrder
    from ostinato.backends.cuda.target import CudaTarget
    from ostinato.ir.graph import Node, Value
    from ostinato.lower.fusion.regions import Region
    from ostinato.lower.loopir.views import Indices
    from ostinato.lower.program_builder import ProgramBuilder
    from ostinato.lower.rules.matmul_spec import MatmulSpec
    from ostinato.variables import Dim
else:
    bulk_tiles = LazyModule("ostinato.backends.cuda.render.bulk_tiles")
    byte_rows = LazyModule("ostinato.backends.cuda.render.byte_rows")
    byte_tiles = LazyModule("ostinato.backends.cuda.render.byte_tiles")
    few_rows = LazyModule("ostinato.backends.cuda.render.few_rows")
    float8_rows = LazyModule("ostinato.backends.cuda.render.float8_rows")
    group_tiles = LazyModule("ostinato.backends.cuda.render.group_tiles")
    single_rows = LazyModule("ostinato.backends.cuda.render.single_rows")
    tensor_rows = LazyModule("ostinato.backends.cuda.render.tensor_rows")
    tensor_tiles = LazyModule("ostinato.backends.cuda.render.tensor_tiles")
    tiles = LazyModule("ostinato.backends.cuda.render.tiles")

__all__ = ["FewRowsMatmul", "MatmulRules", "TiledMatmul", "bring_weight_into_memory"]


class TiledMatmul(Matmul):
    """Tiles of the result in registers, of the operands in shared memory.

    Floats of 16 bits, and bytes that lie side by side along ``k``, are multiplied by tensor cores
    where the GPU has them.
    """

    def launch(self, target: CudaTarget) -> Launch:
        if bulk_tiles.fits(self, target):
            return bulk_tiles.launch(self, target)
        if group_tiles.fits(self, target):
            return group_tiles.launch(self, target)
        if tensor_tiles.fits(self, target):
            return tensor_tiles.launch(self, target)
        if byte_tiles.fits(self, target):
            return byte_tiles.launch(self, target)
        return tiles.launch(self, target)

    def source(self, target: CudaTarget) -> str:
        if bulk_tiles.fits(self, target):
            return bulk_tiles.source(self, target)
        if group_tiles.fits(self, target):
            return group_tiles.source(self, target)
        if tensor_tiles.fits(self, target):
            return tensor_tiles.source(self, target)
        if byte_tiles.fits(self, target):
            return byte_tiles.source(self)
        return tiles.source(self)


class FewRowsMatmul(FewRowsProduct):
    """See :class:`~ostinato.backends.cuda.rules.product.FewRowsProduct`."""

    def launch(self, target: CudaTarget) -> Launch:
        if single_rows.fits(self, target):
            return single_rows.launch(self, target)
        if tensor_rows.fits(self, target):
            return tensor_rows.launch(self, target)
        if float8_rows.fits(self, target):
            return float8_rows.launch(self, target)
        if byte_rows.fits(self):
            return byte_rows.launch(self, target)
        return few_rows.launch(self, target)

    def source(self, target: CudaTarget) -> str:
        return self.body(target).kernel(self.name)

    def body(self, target: CudaTarget) -> Body:
        if single_rows.fits(self, target):
            return single_rows.body(self, target)
        if tensor_rows.fits(self, target):
            return tensor_rows.body(self, target)
        if float8_rows.fits(self, target):
            return float8_rows.body(self, target)
        if byte_rows.fits(self):
            return byte_rows.body(self, target)
        return few_rows.body(self, target)


class MatmulRules:
    """The rules for the products of one graph.

    Args:
        columns: the weights of its matmuls that are in order.
        splits: whether long sums of few results may be two kernels.
    """

    def __init__(self, columns: ColumnOrder, *, splits: bool = True) -> None:
        self._columns = columns
        self._splits = splits
        self._filters: dict[Value, LoweredBuffer] = {}
        self._halves: dict[Value, LoweredBuffer] = {}
        self._chunks: dict[tuple[Value, int], LoweredBuffer] = {}

    def matmul(self, lowering: ProgramBuilder, region: Region, root: Node) -> None:
        """Lower a region around a matmul."""
        bring_weight_into_memory(lowering, region, root)
        self._lower(lowering, region, matmul_spec(root))

    def scaled(self, lowering: ProgramBuilder, region: Region, root: Node) -> None:
        """Lower a region around a matmul of 8-bit floats.

        Many rows are multiplied as float16, which all of these numbers are, by tensor cores, and
        summed in float32: both operands are widened in memory first.
        """
        spec = scaled_spec(root)
        if bounds(spec.m)[1] <= FEW_ROWS or spec.n == 1:
            self._lower(lowering, region, spec)
            return
        halves = {value: self._in_float16(lowering, value) for value in (spec.a, spec.b)}
        build, outputs = lowering.builder(region, halves), lowering.region_outputs(region)
        kernel = matmul_kernel(TiledMatmul, build, spec, outputs, lowering.variables)
        wide = kernel.rewritten(lambda load: replace(load, dtype=FLOAT16))
        lowering.call(region, build, wide, outputs)

    def _in_float16(self, lowering: ProgramBuilder, value: Value) -> LoweredBuffer:
        """A matrix of 8-bit floats as float16, made once outside of nested graphs."""
        if lowering.nested:
            return _in_float16(lowering, value)
        if value not in self._halves:
            self._halves[value] = _in_float16(lowering, value)
        return self._halves[value]

    def convolution(self, lowering: ProgramBuilder, region: Region, root: Node) -> None:
        """Lower a region around a convolution, as an implicit matmul."""
        x, w = root.inputs[:2]
        if is_narrow(root) and _is_fixed(lowering, w) and not lowering.nested:
            narrow = NarrowConvolution(root)
            if (w, narrow.columns) not in self._chunks:
                self._chunks[w, narrow.columns] = narrow.chunks(lowering, w)
            image = narrow.chunks(lowering, x)
            filters = self._chunks[w, narrow.columns]
            spec = _simplified(narrow.spec(image))
            self._lower(lowering, region, spec, {x: image, w: filters})
            return
        layout = lowering.layout(x)
        spec = _simplified(conv_spec(root, layout))
        instead = None
        if layout is not None and layout.order[-1] == 1:
            instead = self._channels_last(lowering, spec.b)
        self._lower(lowering, region, spec, instead)

    def _lower(
        self,
        lowering: ProgramBuilder,
        region: Region,
        spec: MatmulSpec,
        instead: Mapping[Value, LoweredBuffer] | None = None,
    ) -> None:
        outputs = lowering.region_outputs(region)
        if spec.n == 1:
            build = lowering.builder(region, instead)
            nest = spec.loop_nest(build, outputs, lowering.variables)
            lowering.call(region, build, nest, outputs)
            return
        if instead is not None and self._splits and is_long(spec):
            lower_split(lowering, region, spec, instead, TiledMatmul)
            return
        few = bounds(spec.m)[1] <= FEW_ROWS
        in_bytes = spec.b.dtype in (INT8, UINT8) and spec.acc == INT32
        if instead is None and (few or in_bytes):
            instead = self._columns_in_order(lowering, region, spec)
        build = lowering.builder(region, instead)
        kind = FewRowsMatmul if few else TiledMatmul
        kernel = matmul_kernel(kind, build, spec, outputs, lowering.variables)
        # What is computed from params may be written by each run, where it is a result, too.
        read = (build.buffers[s.buffer] for s in reached([kernel.b]) if isinstance(s, Load))
        leaf = {buffer.role for buffer in read} <= {Role.PARAM, Role.CONSTANT}
        if leaf and not (few or lowering.nested or kernel.guarded) and kernel.variable_free():
            kernel = replace(kernel, fixed_right=True)
        lowering.call(region, build, kernel, outputs)

    def _columns_in_order(
        self, lowering: ProgramBuilder, region: Region, spec: MatmulSpec
    ) -> Mapping[Value, LoweredBuffer] | None:
        """A weight with the elements of a column side by side, if it is not like that anyway."""
        b = spec.b
        if b.ndim != 2 or not self._columns.possible(lowering, b):
            return None
        if spec.batch or len(spec.k) != 1:
            return None
        build = lowering.builder(region)
        at = spec.axes(build)
        element = build.at(b, spec.b_at((), at.k, at.n))
        (k,) = symbols_of(at.k)
        run = run_of(element, k, spec.k[0])
        if run is not None and run.load is element:
            return None
        return {b: self._columns.of(lowering, b)}

    def _channels_last(
        self, lowering: ProgramBuilder, b: Value
    ) -> Mapping[Value, LoweredBuffer] | None:
        """A convolution's weight with the channels of a filter's position side by side.

        That is the order of sums over an image with its channels last.
        """
        narrow = b.dtype.is_narrow or b.type.size == 0 or prod(b.shape[2:]) == 1
        if narrow or lowering.nested or not _is_fixed(lowering, b):
            return None
        if b not in self._filters:
            layout = Layout((0, *range(2, b.ndim), 1), b.shape, (0,) * b.ndim)
            label = f"{b.node.label}.filters"
            buffer = LoweredBuffer(b.type, Role.TEMP, label, None, None, layout)
            lowering.copy_into(b, buffer)
            self._filters[b] = buffer
        return {b: self._filters[b]}


def bring_weight_into_memory(lowering: ProgramBuilder, region: Region, root: Node) -> None:
    """Compute the narrow weight of a ``widening_matmul`` once, if it follows from params.

    Such as the elements of packed blocks: each run would decode them in every tile otherwise.
    """
    weight = root.inputs[1]
    while weight.node.op.name == "permute_dims" and weight not in lowering.stored:
        (weight,) = weight.node.inputs
    if root.op.name != "widening_matmul" or lowering.nested or not _is_fixed(lowering, weight):
        return
    build = lowering.builder(region)
    if not isinstance(build.at(weight, build.axes(weight.shape)), Load):
        lowering.copy(weight)


def _in_float16(lowering: ProgramBuilder, value: Value) -> LoweredBuffer:
    """A matrix of 8-bit floats as float16, in memory of its own."""
    label = f"{value.node.label}.float16"
    buffer = LoweredBuffer(TensorType(FLOAT16, value.shape), Role.TEMP, label)
    build = lowering.helper_builder()
    indices = build.axes(value.shape)
    number = cast(build.at(value, indices), FLOAT16)
    position = build.argument(buffer, writes=True)
    store = Store(position, linear_index(value.shape, indices), number)
    nest = block_nest(build, symbols_of(indices), [store], lowering.variables)
    lowering.helper_call(value.node, "widen", build, nest)
    return buffer


def _is_fixed(lowering: ProgramBuilder, value: Value) -> bool:
    """Whether a value depends on params and constants alone."""
    return value.node.op in (PARAM, CONSTANT) or value.node in lowering.fixed


def _simplified(spec: MatmulSpec) -> MatmulSpec:
    """A convolution with fewer axes, of which more than one value each is left.

    Its rows are the positions of all images: more than those of one. Sums go over no axis of a
    filter that has one position.
    """
    images, groups = spec.batch
    positions, summed = spec.m, [i for i, size in enumerate(spec.k) if size != 1]

    def split(at: Indices, row: Dim) -> tuple[Indices, Dim]:
        if images == 1:
            return (0, *at), row
        return (floor_div(row, positions), *at), remainder(row, positions)

    def whole(k: Indices) -> Indices:
        if not summed:
            return k
        given = dict(zip(summed, k, strict=True))
        return tuple(given.get(i, 0) for i in range(len(spec.k)))

    def a_at(at: Indices, row: Dim, k: Indices) -> Indices:
        lead, place = split(at, row)
        return spec.a_at(lead, place, whole(k))

    def out_at(at: Indices, row: Dim, column: Dim) -> Indices:
        lead, place = split(at, row)
        return spec.out_at(lead, place, column)

    return replace(
        spec,
        batch=(groups,),
        m=images * positions,
        k=tuple(spec.k[i] for i in summed) or spec.k,
        a_at=a_at,
        b_at=lambda group, k, column: spec.b_at(group, whole(k), column),
        out_at=out_at,
        group_of=lambda at: at,
    )
