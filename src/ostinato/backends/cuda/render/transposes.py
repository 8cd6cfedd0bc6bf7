"""Elementwise nests that read along another axis than they write: tiles by way of shared memory.

Threads of a warp load neighbours along the axis that is contiguous in the operand, and store
neighbours along the nest's last axis; a tile in shared memory turns one order into the other.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from ostinato.backends.common.clike.scopes import Index
from ostinato.backends.cuda.render.body import SharedArray
from ostinato.lower.loopir.dependences import reached, roots
from ostinato.lower.loopir.independence import reads_its_writes
from ostinato.lower.loopir.nodes import Guard, Load, Store, extent_of, max_extent
from ostinato.variables import axis, ceil_div, coefficient, prod, symbols

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ostinato.backends.common.clike.scopes import Scope
    from ostinato.backends.cuda.render.code import NestCode
    from ostinato.dtypes import DType
    from ostinato.lower.loopir.nest import LoopNest
    from ostinato.variables import Dim, Symbol

__all__ = ["TILE", "TILE_THREADS", "tile_axis", "tile_per_block"]

TILE = 32
"""Points of a tile along each of its two axes."""

TILE_THREADS = 256

#: Points of an axis for which tiles are worth their barriers.
_LONG = 16

#: Operands that are turned in shared memory, at most.
_MOST_TURNED = 4


def tile_axis(nest: LoopNest) -> Symbol | None:
    """The axis along which operands are contiguous that are not so along the last axis.

    ``None`` if there is none, or if points cannot be taken in tiles.
    """
    axes = nest.outer_axes
    if len(nest.stages) != 1 or nest.stages[0].axes or nest.temps or len(axes) < 2:
        return None
    (stage,) = nest.stages
    if not all(isinstance(s, Store) for s in stage.statements) or reads_its_writes(
        stage.statements
    ):
        return None
    last = axes[-1]
    for other in axes[:-1]:
        if min(max_extent(last), max_extent(other)) >= _LONG and turned_loads(nest, other):
            return other
    return None


def turned_loads(nest: LoopNest, other: Symbol) -> list[Load]:
    """The loads that step by one along ``other``, and by more along the last axis."""
    last = nest.outer_axes[-1]
    starts = [root for s in nest.stages[0].statements for root in roots(s)]
    scalars = list(reached(starts))
    guarded = {id(n) for guard in scalars if isinstance(guard, Guard) for n in reached([guard])}
    found = []
    for load in scalars:
        if not isinstance(load, Load) or load.bindings or id(load) in guarded:
            continue
        along, across = coefficient(load.index, other), coefficient(load.index, last)
        if along is not None and across is not None and along[0] == 1 and across[0] not in (0, 1):
            found.append(load)
    return found[:_MOST_TURNED]


def tile_per_block(code: NestCode, other: Symbol) -> None:
    """A block of threads takes a tile of the last axis and ``other`` at a time."""
    _Tiles(code, other).render()


class _Tiles:
    def __init__(self, code: NestCode, other: Symbol) -> None:
        self.code = code
        self.other = other
        self.last = code.nest.outer_axes[-1]
        self.loads = turned_loads(code.nest, other)
        self.tiles = {id(load): code.writer.fresh("tile") for load in self.loads}

    def render(self) -> None:
        code, writer = self.code, self.code.writer
        for load in self.loads:
            type_, sizes = code.dialect.memory_type(load.dtype), (TILE, _pitch(load.dtype))
            name = self.tiles[id(load)]
            code.arrays.append(SharedArray(type_, load.dtype.itemsize, name, sizes))
        writer.line(f"const int lane = threadIdx.x % {TILE}, row = threadIdx.x / {TILE};")
        rows = axis(f"{self.other.name}.tiles", ceil_div(extent_of(self.other), TILE))
        columns = axis(f"{self.last.name}.tiles", ceil_div(extent_of(self.last), TILE))
        rest = [a for a in code.nest.outer_axes if a not in (self.other, self.last)]
        axes = (*rest, *symbols(rows), *symbols(columns))
        count = code.size(prod(map(extent_of, axes)), code.outermost, code.launch.grid)
        type_, name = code.dialect.index_type(count.wide), writer.fresh("p")
        head = f"for ({type_} {name} = own.x; {name} < {count.text}; {name} += all.x)"
        with writer.block(head):
            scope = code.enter(axes, Index(name, count.wide), code.outermost)
            with self._points(scope, rows * TILE, columns * TILE, loads=True) as inside:
                for load in self.loads:
                    element = code.scalars.indices.value(load.index, inside).text
                    tile = self.tiles[id(load)]
                    writer.line(f"{tile}[step][lane] = b{load.buffer}[{element}];")
            writer.line("OST_SYNC();")
            with self._points(scope, rows * TILE, columns * TILE, loads=False) as inside:
                for load in self.loads:
                    element = f"{self.tiles[id(load)]}[lane][step]"
                    value = code.dialect.from_memory(element, load.dtype)
                    inside.values[id(load)] = code.code.keep(load.dtype, value, rounded=True)
                statements = code.nest.stages[0].statements
                code.evaluate(statements, inside)
                for statement in statements:
                    assert isinstance(statement, Store)
                    code.scalars.store(statement, code.dtype(statement.buffer), inside)
            writer.line("OST_SYNC();")

    @contextmanager
    def _points(self, scope: Scope, row: Dim, column: Dim, *, loads: bool) -> Iterator[Scope]:
        """A loop over the points of a tile, the lanes of a warp along one of its axes.

        Args:
            scope: around the tile.
            row, column: the first point of the tile along the two axes.
            loads: whether lanes are along the axis that loads are contiguous along.
        """
        code, writer = self.code, self.code.writer
        places = []
        for symbol, first, along in ((self.other, row, loads), (self.last, column, not loads)):
            start = code.scalars.indices.value(first, scope)
            stop = code.size(extent_of(symbol), scope, TILE)
            places.append((symbol, start, stop, "lane" if along else "step"))
        step = TILE_THREADS // TILE
        with writer.block(f"for (int step = row; step < {TILE}; step += {step})"):
            inside = scope.child()
            conditions = []
            for symbol, start, stop, offset in places:
                name, wide = writer.fresh("i"), start.wide or stop.wide
                type_ = code.dialect.index_type(wide)
                writer.line(code.dialect.declare(type_, name, f"{start.text} + {offset}"))
                inside.symbols[symbol] = Index(name, wide)
                conditions.append(f"{name} < {stop.text}")
            with writer.block(f"if ({' && '.join(conditions)})"):
                yield inside


def _pitch(dtype: DType) -> int:
    """Elements of a tile's row, such that a column is in different banks."""
    return TILE + max(4 // dtype.itemsize, 1)
