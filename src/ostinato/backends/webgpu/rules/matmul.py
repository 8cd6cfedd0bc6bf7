"""The kernels of matmuls and convolutions, and the choice between them.

All compute ``acc[batch, m, n] = Σ_k a[batch, m, k] · b[batch, k, n]`` and store what the region
makes of the sums. Operands are scalar expressions, so that any strides, views and conversions are
read where they are: matmuls and convolutions differ in index expressions alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ostinato.backends.webgpu.kernel import WebGpuKernel
from ostinato.backends.webgpu.render import few_rows, tiles
from ostinato.dtypes import BOOL, FLOAT64, INT64, UINT64
from ostinato.lower.loopir.dependences import reached, roots
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

__all__ = ["FewRowsMatmul", "TiledMatmul", "lower_convolution", "lower_matmul"]

#: Rows up to which the right operand is best read straight from memory.
_FEW_ROWS = 16

#: Rows, columns and steps of a sum below which tiles would be mostly empty.
_SMALL = 8

#: Sums that have no vectors.
_WITHOUT_VECTORS = (BOOL, INT64, UINT64, FLOAT64)


@dataclass(frozen=True, eq=False)
class TiledMatmul(MatmulKernel, WebGpuKernel):
    """Tiles of the result in registers, of the operands in workgroup memory."""

    prefix: ClassVar[str] = "matmul"

    def shader(self, target: WebGpuTarget, bindings: Bindings) -> Shader:
        return tiles.shader(self, target, bindings)


@dataclass(frozen=True, eq=False)
class FewRowsMatmul(MatmulKernel, WebGpuKernel):
    """A few rows by a matrix that is read once, straight from memory into registers."""

    prefix: ClassVar[str] = "few_rows"

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
