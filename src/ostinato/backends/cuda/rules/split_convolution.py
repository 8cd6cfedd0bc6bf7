"""Convolutions of few results and long sums, as two kernels.

The first one sums over a row of the filter's positions at a time, so that more multiprocessors have
work; the second one adds those sums up in order, and applies the epilogue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.dtypes import BFLOAT16, FLOAT16
from ostinato.ir.types import TensorType
from ostinato.lower.loopir.builder import symbols_of
from ostinato.lower.loopir.merge_axes import merge_axes
from ostinato.lower.loopir.nest import LoopNest
from ostinato.lower.loopir.nodes import Accumulator, Load, Reduce, Ref, Stage, Store
from ostinato.lower.loopir.views import linear_index
from ostinato.lower.program import LoweredBuffer, Role
from ostinato.lower.rules.loops import BLOCK
from ostinato.variables import prod

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.backends.cuda.rules.product import Matmul
    from ostinato.ir.graph import Value
    from ostinato.lower.fusion.regions import Region
    from ostinato.lower.program_builder import ProgramBuilder
    from ostinato.lower.rules.matmul_spec import MatmulSpec

__all__ = ["is_long", "lower_split"]

#: Results of a small tile, and small tiles that leave multiprocessors without work.
_TILE, _FEW_TILES = 32 * 32, 64

#: Products of a sum that is worth two kernels, and sections of it, at most.
_LONG, _MOST_SECTIONS = 1024, 8


def is_long(spec: MatmulSpec) -> bool:
    """Whether a convolution has few results and long sums of products for tensor cores."""
    sizes = (*spec.batch, spec.m, spec.n, *spec.k)
    results = prod((*spec.batch, spec.m, spec.n))
    if len(spec.k) < 2 or not all(isinstance(size, int) for size in sizes):
        return False
    sections, depth = spec.k[0], spec.depth
    assert isinstance(sections, int)
    assert isinstance(depth, int)
    assert isinstance(results, int)
    for_tensor_cores = spec.a.dtype == spec.b.dtype and spec.a.dtype in (FLOAT16, BFLOAT16)
    few = 0 < results <= _TILE * _FEW_TILES
    return for_tensor_cores and few and depth >= _LONG and 1 < sections <= _MOST_SECTIONS


def lower_split(
    lowering: ProgramBuilder,
    region: Region,
    spec: MatmulSpec,
    instead: Mapping[Value, LoweredBuffer],
    kind: type[Matmul],
) -> None:
    """Lower a region around a convolution.

    Args:
        lowering: takes the calls.
        region: the region.
        spec: its convolution, whose sums go over a filter's rows first.
        instead: where operands are, if not where they are for others.
        kind: the kernel of matmuls.
    """
    root, shape = spec.node, (spec.k[0], *spec.batch, spec.m, spec.n)
    memory = TensorType(spec.acc, shape)
    sections = LoweredBuffer(memory, Role.TEMP, f"{root.label}.sections")
    build = lowering.builder(region, instead)
    at = spec.axes(build)
    a = spec.left(build, at)
    b = build.at(spec.b, spec.b_at(spec.group_of(at.batch), at.k, at.n))
    place = linear_index(shape, (at.k[0], *at.batch, at.m, at.n))
    store = Store(build.argument(sections, writes=True), place, Accumulator(spec.acc))
    (m,), (n,) = symbols_of([at.m]), symbols_of([at.n])
    batch, summed = symbols_of((at.k[0], *at.batch)), symbols_of(at.k[1:])
    kernel = kind(build.args, batch, m, n, summed, a, b, spec.acc, (store,), lowering.variables)
    flops = root.op.flops([value.type for value in root.inputs], root.attrs)
    lowering.helper_call(root, f"{root.op.name} of sections", build, kernel, flops)
    lowering.counted.add(root)
    _add_up(lowering, region, spec, sections)


def _add_up(
    lowering: ProgramBuilder, region: Region, spec: MatmulSpec, sections: LoweredBuffer
) -> None:
    """The second kernel."""
    build, outputs = lowering.builder(region), lowering.region_outputs(region)
    batch, m, n = build.axes(spec.batch), build.axis(spec.m), build.axis(spec.n)
    section = build.axis(spec.k[0])
    place = linear_index(sections.type.shape, (section, *batch, m, n))
    part = Load(build.argument(sections, reads=True), place, spec.acc)
    total = Reduce("r0", "sum", part, spec.acc)
    stores = spec.stores(build, Ref("r0", spec.acc), spec.out_at(batch, m, n), outputs)
    outer, statements = merge_axes(symbols_of((*batch, m, n)), build.finish([total, *stores]))
    stages = (Stage(symbols_of([section]), statements[:1]), Stage((), statements[1:]))
    nest = LoopNest(build.args, outer, stages, block=BLOCK, variables=lowering.variables)
    lowering.call(region, build, nest, outputs)
