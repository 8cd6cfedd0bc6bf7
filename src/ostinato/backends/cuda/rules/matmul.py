"""The kernels of matmuls and convolutions, and the choice between them.

All compute ``acc[batch, m, n] = Σ_k a[batch, m, k] · b[batch, k, n]`` and store what the region
makes of the sums. Operands are scalar expressions, so that any strides, views and conversions are
read where they are: matmuls and convolutions differ in index expressions alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.cuda.render.vectors import run_of
from ostinato.backends.cuda.rules.product import FEW_ROWS, Matmul
from ostinato.dtypes import INT8, INT32, UINT8
from ostinato.lazy import LazyModule
from ostinato.lower.loopir.builder import symbols_of
from ostinato.lower.loopir.nodes import Accumulator
from ostinato.lower.rules.matmul_spec import conv_spec, matmul_spec
from ostinato.variables import bounds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.backends.cuda.abi import Launch
    from ostinato.backends.cuda.render import (
        byte_rows,
        byte_tiles,
        few_rows,
        tensor_rows,
        tensor_tiles,
        tiles,
    )
    from ostinato.backends.cuda.rules.column_order import ColumnOrder
    from ostinato.backends.cuda.target import CudaTarget
    from ostinato.ir.graph import Node, Value
    from ostinato.lower.fusion.regions import Region
    from ostinato.lower.loopir.builder import KernelBuilder, Outputs
    from ostinato.lower.program import LoweredBuffer
    from ostinato.lower.program_builder import ProgramBuilder
    from ostinato.lower.rules.matmul_spec import MatmulSpec
    from ostinato.variables import Symbol
else:
    byte_rows = LazyModule("ostinato.backends.cuda.render.byte_rows")
    byte_tiles = LazyModule("ostinato.backends.cuda.render.byte_tiles")
    few_rows = LazyModule("ostinato.backends.cuda.render.few_rows")
    tensor_rows = LazyModule("ostinato.backends.cuda.render.tensor_rows")
    tensor_tiles = LazyModule("ostinato.backends.cuda.render.tensor_tiles")
    tiles = LazyModule("ostinato.backends.cuda.render.tiles")

__all__ = ["FewRowsMatmul", "MatmulRules", "TiledMatmul"]


class TiledMatmul(Matmul):
    """Tiles of the result in registers, of the operands in shared memory.

    Floats of 16 bits, and bytes that lie side by side along ``k``, are multiplied by tensor cores
    where the GPU has them.
    """

    def launch(self, target: CudaTarget) -> Launch:
        if tensor_tiles.fits(self, target):
            return tensor_tiles.launch(self, target)
        if byte_tiles.fits(self, target):
            return byte_tiles.launch(self, target)
        return tiles.launch(self, target)

    def source(self, target: CudaTarget) -> str:
        if tensor_tiles.fits(self, target):
            return tensor_tiles.source(self, target)
        if byte_tiles.fits(self, target):
            return byte_tiles.source(self)
        return tiles.source(self)


class FewRowsMatmul(Matmul):
    """A few rows by a matrix that is read once, straight from memory into registers."""

    def launch(self, target: CudaTarget) -> Launch:
        if tensor_rows.fits(self, target):
            return tensor_rows.launch(self, target)
        if byte_rows.fits(self):
            return byte_rows.launch(self, target)
        return few_rows.launch(self, target)

    def source(self, target: CudaTarget) -> str:
        if tensor_rows.fits(self, target):
            return tensor_rows.source(self, target)
        if byte_rows.fits(self):
            return byte_rows.source(self, target)
        return few_rows.source(self, target)


class MatmulRules:
    """The rules for the products of one graph.

    Args:
        columns: the weights that it has brought into order.
    """

    def __init__(self, columns: ColumnOrder) -> None:
        self._columns = columns

    def matmul(self, lowering: ProgramBuilder, region: Region, root: Node) -> None:
        """Lower a region around a matmul."""
        self._lower(lowering, region, matmul_spec(root))

    def convolution(self, lowering: ProgramBuilder, region: Region, root: Node) -> None:
        """Lower a region around a convolution, as an implicit matmul."""
        self._lower(lowering, region, conv_spec(root, lowering.layout(root.inputs[0])))

    def _lower(self, lowering: ProgramBuilder, region: Region, spec: MatmulSpec) -> None:
        outputs = lowering.region_outputs(region)
        if spec.n == 1:
            build = lowering.builder(region)
            nest = spec.loop_nest(build, outputs, lowering.variables)
            lowering.call(region, build, nest, outputs)
            return
        few = bounds(spec.m)[1] <= FEW_ROWS
        in_bytes = spec.b.dtype in (INT8, UINT8) and spec.acc == INT32
        instead = None
        if few or in_bytes:
            instead = self._columns_in_order(lowering, region, spec)
        build = lowering.builder(region, instead)
        kind = FewRowsMatmul if few else TiledMatmul
        kernel = _kernel(kind, build, spec, outputs, lowering.variables)
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


def _kernel(
    kind: type[Matmul],
    build: KernelBuilder,
    spec: MatmulSpec,
    outputs: Outputs,
    variables: tuple[Symbol, ...],
) -> Matmul:
    at = spec.axes(build)
    a = spec.left(build, at)
    b = build.at(spec.b, spec.b_at(spec.group_of(at.batch), at.k, at.n))
    result = spec.out_at(at.batch, at.m, at.n)
    stores = spec.stores(build, Accumulator(spec.acc), result, outputs)
    (m,), (n,) = symbols_of([at.m]), symbols_of([at.n])
    return kind(
        build.args,
        symbols_of(at.batch),
        m,
        n,
        symbols_of(at.k),
        a,
        b,
        spec.acc,
        stores,
        variables,
    )
