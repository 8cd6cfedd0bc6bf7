"""The kernels of matmuls and convolutions, and the choice between them.

All compute ``acc[batch, m, n] = Σ_k a[batch, m, k] · b[batch, k, n]`` and store what the region
makes of the sums. Operands are scalar expressions, so that any strides, views and conversions are
read where they are: matmuls and convolutions differ in index expressions alone.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar

from ostinato.backends.webgpu.kernel import WebGpuKernel
from ostinato.backends.webgpu.render import few_rows, tiles
from ostinato.dtypes import BOOL, FLOAT64, INT64, UINT64
from ostinato.lower.loopir.dependences import reached, roots
from ostinato.lower.loopir.nodes import extent_of, max_extent
from ostinato.lower.rules.matmul_kernel import MatmulKernel, matmul_kernel
from ostinato.lower.rules.matmul_spec import conv_spec, matmul_spec
from ostinato.records import dataclass
from ostinato.variables import bounds

if TYPE_CHECKING:
    from ostinato.backends.webgpu.kernel import Bindings, Shader
    from ostinato.backends.webgpu.target import WebGpuTarget
    from ostinato.ir.graph import Node
    from ostinato.lower.fusion.regions import Region
    from ostinato.lower.program_builder import ProgramBuilder
    from ostinato.lower.rules.matmul_spec import MatmulSpec
    from ostinato.variables import Symbol

__all__ = ["FewRowsMatmul", "TiledMatmul", "lower_convolution", "lower_matmul"]

#: Rows up to which the right operand is best read straight from memory.
_FEW_ROWS = 16

#: Rows, columns and steps of a sum below which tiles would be mostly empty.
_SMALL = 8

#: Sums that have no vectors.
_WITHOUT_VECTORS = (BOOL, INT64, UINT64, FLOAT64)


@dataclass(frozen=True, eq=False)
class _TiledKernel(MatmulKernel, WebGpuKernel):
    """A matmul whose workgroups have tiles of the result, in C order."""

    @property
    def row_axis(self) -> Symbol | None:
        axes = (*self.batch, self.m, self.n)
        return axes[0] if all(isinstance(extent_of(axis), int) for axis in axes) else None

    @abstractmethod
    def tile(self, target: WebGpuTarget) -> tuple[int, int]:
        """The rows and columns of a tile."""

    def groups_for(self, wanted: int, target: WebGpuTarget) -> int | None:
        rows, columns = self.tile(target)
        across = -(-max_extent(self.n) // columns)
        if not self.batch:
            return -(-wanted // rows) * across
        inside = math.prod(map(max_extent, self.batch[1:])) * -(-max_extent(self.m) // rows)
        return wanted * inside * across


@dataclass(frozen=True, eq=False)
class TiledMatmul(_TiledKernel):
    """Tiles of the result in registers, of the operands in workgroup memory."""

    prefix: ClassVar[str] = "matmul"

    def tile(self, target: WebGpuTarget) -> tuple[int, int]:
        form = tiles.TileForm.of(self, target)
        return form.rows, form.columns

    def shader(self, target: WebGpuTarget, bindings: Bindings) -> Shader:
        return tiles.shader(self, target, bindings)


@dataclass(frozen=True, eq=False)
class FewRowsMatmul(_TiledKernel):
    """A few rows by a matrix that is read once, straight from memory into registers."""

    prefix: ClassVar[str] = "few_rows"

    def tile(self, target: WebGpuTarget) -> tuple[int, int]:
        return few_rows.tile(self)

    def shader(self, target: WebGpuTarget, bindings: Bindings) -> Shader:
        return few_rows.shader(self, target, bindings)


def lower_matmul(lowering: ProgramBuilder, region: Region, root: Node) -> None:
    """Lower a region around a matmul."""
    _lower(lowering, region, matmul_spec(root))


def lower_convolution(lowering: ProgramBuilder, region: Region, root: Node) -> None:
    """Lower a region around a convolution, as an implicit matmul."""
    _lower(lowering, region, conv_spec(root, lowering.layout(root.inputs[0])))


def _lower(lowering: ProgramBuilder, region: Region, spec: MatmulSpec) -> None:
    outputs, variables = lowering.region_outputs(region), lowering.variables
    build = lowering.builder(region)
    rows, columns = bounds(spec.m)[1], bounds(spec.n)[1]
    if spec.acc not in _WITHOUT_VECTORS and columns >= _SMALL and 0 not in (rows, spec.depth):
        kind = FewRowsMatmul if rows <= _FEW_ROWS else TiledMatmul
        kernel = matmul_kernel(kind, build, spec, outputs, variables)
        if not _has_float64(kernel):
            lowering.call(region, build, kernel, outputs)
            return
        build = lowering.builder(region)
    nest = spec.loop_nest(build, outputs, variables)
    lowering.call(region, build, nest, outputs)


def _has_float64(kernel: MatmulKernel) -> bool:
    """Whether a matmul's operands or results are computed by way of float64."""
    starts = [*kernel.operands, *(root for store in kernel.stores for root in roots(store))]
    dtypes = {scalar.dtype for scalar in reached(starts)} | {arg.dtype for arg in kernel.args}
    return FLOAT64 in dtypes
