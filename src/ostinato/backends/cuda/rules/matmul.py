"""The kernels of matmuls and convolutions, and the choice between them.

All compute ``acc[batch, m, n] = Σ_k a[batch, m, k] · b[batch, k, n]`` and store what the region
makes of the sums. Operands are scalar expressions, so that any strides, views and conversions are
read where they are: matmuls and convolutions differ in index expressions alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.cuda.render.vectors import run_of
from ostinato.backends.cuda.rules.product import Matmul
from ostinato.ir.leaves import CONSTANT, PARAM
from ostinato.lazy import LazyModule
from ostinato.lower.loopir.builder import symbols_of
from ostinato.lower.loopir.nodes import Accumulator
from ostinato.lower.program import Layout, LoweredBuffer, Role
from ostinato.lower.rules.matmul_spec import conv_spec, matmul_spec
from ostinato.variables import bounds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.backends.cuda.abi import Launch
    from ostinato.backends.cuda.render import few_rows, tensor_rows, tensor_tiles, tiles
    from ostinato.backends.cuda.render.body import Body
    from ostinato.backends.cuda.target import CudaTarget
    from ostinato.ir.graph import Node, Value
    from ostinato.lower.fusion.regions import Region
    from ostinato.lower.loopir.builder import KernelBuilder, Outputs
    from ostinato.lower.program_builder import ProgramBuilder
    from ostinato.lower.rules.matmul_spec import MatmulSpec
    from ostinato.variables import Symbol
else:
    few_rows = LazyModule("ostinato.backends.cuda.render.few_rows")
    tensor_rows = LazyModule("ostinato.backends.cuda.render.tensor_rows")
    tensor_tiles = LazyModule("ostinato.backends.cuda.render.tensor_tiles")
    tiles = LazyModule("ostinato.backends.cuda.render.tiles")

__all__ = ["FewRowsMatmul", "MatmulRules", "TiledMatmul"]

#: Rows up to which the right operand is best read straight from memory, once.
_FEW_ROWS = 16


class TiledMatmul(Matmul):
    """Tiles of the result in registers, of the operands in shared memory.

    Floats of 16 bits are multiplied by tensor cores where the GPU has them.
    """

    def launch(self, target: CudaTarget) -> Launch:
        if tensor_tiles.fits(self, target):
            return tensor_tiles.launch(self, target)
        return tiles.launch(self, target)

    def source(self, target: CudaTarget) -> str:
        if tensor_tiles.fits(self, target):
            return tensor_tiles.source(self, target)
        return tiles.source(self)


class FewRowsMatmul(Matmul):
    """A few rows by a matrix that is read once, straight from memory into registers."""

    def launch(self, target: CudaTarget) -> Launch:
        if tensor_rows.fits(self, target):
            return tensor_rows.launch(self, target)
        return few_rows.launch(self, target)

    def source(self, target: CudaTarget) -> str:
        return self.body(target).kernel(self.name)

    def body(self, target: CudaTarget) -> Body:
        if tensor_rows.fits(self, target):
            return tensor_rows.body(self, target)
        return few_rows.body(self, target)


class MatmulRules:
    """The rules for the products of one graph, with the weights that it has brought into order."""

    def __init__(self) -> None:
        self._in_order: dict[Value, LoweredBuffer] = {}

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
        few = bounds(spec.m)[1] <= _FEW_ROWS
        instead = self._columns_in_order(lowering, region, spec) if few else None
        build = lowering.builder(region, instead)
        kind = FewRowsMatmul if few else TiledMatmul
        kernel = _kernel(kind, build, spec, outputs, lowering.variables)
        lowering.call(region, build, kernel, outputs)

    def _columns_in_order(
        self, lowering: ProgramBuilder, region: Region, spec: MatmulSpec
    ) -> Mapping[Value, LoweredBuffer] | None:
        """A weight with the elements of a column side by side, if it is not like that anyway.

        Read once for a few rows, it costs what its memory takes. A block then reads some columns
        from end to end; of rows it would read short pieces, or share columns with other blocks.
        """
        b = spec.b
        fixed = b.node.op in (PARAM, CONSTANT) or b.node in lowering.fixed
        if not fixed or lowering.nested or b.ndim != 2 or b.dtype.is_narrow or b.type.size == 0:
            return None
        if not all(isinstance(size, int) for size in b.shape) or spec.batch or len(spec.k) != 1:
            return None
        if b not in self._in_order:
            build = lowering.builder(region)
            at = spec.axes(build)
            element = build.at(b, spec.b_at((), at.k, at.n))
            (k,) = symbols_of(at.k)
            run = run_of(element, k, spec.k[0])
            if run is not None and run.load is element:
                return None
            layout = Layout((1, 0), b.shape, (0, 0))
            label = f"{b.node.label}.columns"
            buffer = LoweredBuffer(b.type, Role.TEMP, label, None, None, layout)
            lowering.copy_into(b, buffer)
            self._in_order[b] = buffer
        return {b: self._in_order[b]}


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
