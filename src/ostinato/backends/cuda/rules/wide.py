"""Large matmuls by fixed weights, with epilogues that a library does not take.

Weights are copied once per write into tiles of columns, in the order in which tensor cores read
them: in a tile, the chunks of eight products of all its columns lie side by side, and those of the
next eight products behind them. Where several right operands share an epilogue, a tile has as many
columns of each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ostinato.backends.cuda.rules.product import Matmul
from ostinato.ir.types import TensorType
from ostinato.lazy import LazyModule
from ostinato.lower.loopir.builder import cast, symbols_of
from ostinato.lower.loopir.nest import LoopNest
from ostinato.lower.loopir.nodes import Accumulator, Load, Stage, Store
from ostinato.lower.program import LoweredBuffer, Role
from ostinato.lower.rules.loops import BLOCK
from ostinato.lower.rules.matmul_spec import matmul_spec
from ostinato.records import dataclass
from ostinato.variables import coefficient, floor_div, remainder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.backends.cuda.abi import Launch
    from ostinato.backends.cuda.render import wide_tiles
    from ostinato.backends.cuda.target import CudaTarget
    from ostinato.ir.graph import Node
    from ostinato.lower.fusion.regions import Region
    from ostinato.lower.loopir.nodes import Scalar
    from ostinato.lower.loopir.text import KernelText
    from ostinato.lower.program_builder import ProgramBuilder
    from ostinato.lower.rules.matmul_spec import MatmulSpec
    from ostinato.variables import Symbol
else:
    wide_tiles = LazyModule("ostinato.backends.cuda.render.wide_tiles")

__all__ = ["WideMatmul", "lower_wide", "tile_columns"]

#: Products of a chunk, and of a slice.
_CHUNK, _SLICE = 8, 64

#: Columns that a tile may have; rows of the tiles of two blocks; what a tile takes besides its
#: products, in the time that as many columns take.
_COLUMNS, _ROWS, _BESIDES = (256, 192, 128), 256, 64


@dataclass(frozen=True, eq=False)
class WideMatmul(Matmul):
    """A matmul by weights in tiles.

    Attributes:
        right: the elements of all right operands at ``k`` and ``n``; ``b`` is the first.
        tile_columns: columns of a tile, those of all right operands.
    """

    right: tuple[Load, ...] = ()
    tile_columns: int = 0

    prefix: ClassVar[str] = "wide"

    def describe(self, text: KernelText) -> None:
        super().describe(text)
        text.named("right", self.right[1:])
        text.line(1, f"tiles of {self.tile_columns} columns")

    @property
    def operands(self) -> tuple[Scalar, ...]:
        return (self.a, *self.right)

    def launch(self, target: CudaTarget) -> Launch:
        return wide_tiles.launch(self, target)

    def source(self, target: CudaTarget) -> str:
        return wide_tiles.source(self, target)


def tile_columns(rows: int, columns: int, multiprocessors: int, operands: int = 1) -> int | None:
    """The columns of tiles with which a matmul ends first; ``None``: it has no whole tiles.

    Args:
        rows, columns: of the result.
        multiprocessors: of the GPU.
        operands: right operands that share an epilogue.
    """
    row_tiles, clusters = -(-rows // _ROWS), multiprocessors // 2
    able = [c for c in _COLUMNS if columns * operands % c == 0]

    def time(width: int) -> int:
        return -(-row_tiles * (columns * operands // width) // clusters) * (width + _BESIDES)

    return min(able, key=time, default=None)


def lower_wide(
    lowering: ProgramBuilder, region: Region, roots: Sequence[Node], multiprocessors: int
) -> bool:
    """Lower a region around matmuls of the same rows; nothing where the operands do not suit.

    Args:
        lowering: appends the calls.
        region: the matmuls and their epilogue.
        roots: the matmuls, one or two.
        multiprocessors: of the GPU.
    """
    specs = [matmul_spec(root) for root in roots]
    first = specs[0]
    rows, columns, depth = first.m, first.n, first.k[0]
    if first.batch or len(first.k) != 1 or lowering.nested:
        return False
    if not (isinstance(rows, int) and isinstance(columns, int) and isinstance(depth, int)):
        return False
    width = tile_columns(rows, columns, multiprocessors, len(roots))
    build = lowering.builder(region)
    at = first.axes(build)
    left = first.left(build, at)
    (m,), (n,), (k,) = symbols_of([at.m]), symbols_of([at.n]), symbols_of(at.k)
    if width is None or depth % _SLICE or not _in_chunks(left, m, k):
        return False
    weights = _in_tiles(lowering, specs, width)
    outputs = lowering.region_outputs(region)
    share = width // len(roots)
    buffer = build.argument(weights, reads=True)
    tile, line = floor_div(at.n, share), remainder(at.n, share)
    chunk, inner = floor_div(at.k[0], _CHUNK), remainder(at.k[0], _CHUNK)
    start = tile * (depth * width) + chunk * (_CHUNK * width) + line * _CHUNK + inner
    right = tuple(
        Load(buffer, start + number * share * _CHUNK, first.b.dtype) for number in range(len(roots))
    )
    for number, spec in enumerate(specs):
        (out,) = spec.node.outputs
        build.results[out] = cast(Accumulator(spec.acc, number), out.dtype)
    stores = first.stores(build, Accumulator(first.acc), first.out_at((), at.m, at.n), outputs)
    kernel = WideMatmul(
        build.args,
        (),
        m,
        n,
        (k,),
        left,
        right[0],
        first.acc,
        stores,
        lowering.variables,
        right=right,
        tile_columns=width,
    )
    lowering.call(region, build, kernel, outputs)
    return True


def _in_chunks(left: Scalar, m: Symbol, k: Symbol) -> bool:
    """Whether rows of the left operand lie in memory in chunks of neighbouring products."""
    if not isinstance(left, Load) or left.bindings or left.index == 0:
        return False
    along = coefficient(left.index, k)
    across = None if along is None else coefficient(along[1], m)
    if along is None or across is None or along[0] != 1:
        return False
    step, start = across
    whole = isinstance(step, int) and isinstance(start, int)
    return whole and step % _CHUNK == 0 and start % _CHUNK == 0


def _in_tiles(
    lowering: ProgramBuilder, specs: Sequence[MatmulSpec], width: int
) -> LoweredBuffer:
    """The weights of matmuls, copied into tiles of so many columns."""
    depth, columns, share = specs[0].k[0], specs[0].n, width // len(specs)
    assert isinstance(depth, int)
    assert isinstance(columns, int)
    first = specs[0].b
    type_ = TensorType(first.dtype, (depth * columns * len(specs),))
    tiles = LoweredBuffer(type_, Role.TEMP, f"{first.node.label}.tiles")
    build = lowering.helper_builder()
    sizes = (columns // share, depth // _CHUNK, share, _CHUNK)
    tile, chunk, line, inner = at = tuple(build.axis(size) for size in sizes)
    target = build.argument(tiles, writes=True)
    start = tile * (depth * width) + chunk * (_CHUNK * width) + line * _CHUNK + inner
    stores = []
    for number, spec in enumerate(specs):
        element = build.at(spec.b, spec.b_at((), (chunk * _CHUNK + inner,), tile * share + line))
        stores.append(Store(target, start + number * share * _CHUNK, element))
    nest = LoopNest(
        build.args,
        symbols_of(at),
        (Stage((), tuple(stores)),),
        block=BLOCK,
        variables=lowering.variables,
    )
    lowering.helper_call(first.node, "tiles", build, nest)
    return tiles
