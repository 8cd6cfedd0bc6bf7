"""Matmuls by tiles: of the operands in workgroup memory, of the result in registers.

A workgroup has a tile of the result, a thread vectors of four of its columns. A slice of both
operands at a time is brought into workgroup memory, as vectors of four rows of the left one and
four columns of the right one at a step of the sum.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from ostinato.backends.common.clike.vectors import run_of
from ostinato.backends.webgpu.render.arrays import element_type
from ostinato.backends.webgpu.render.code import KernelCode
from ostinato.backends.webgpu.render.operands import LANES, are_neighbours, four_along, store_row
from ostinato.dtypes import FLOAT32
from ostinato.lower.loopir.nodes import Reduce, Stage, extent_of, max_extent
from ostinato.variables import ceil_div, provably_less, remainder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ostinato.backends.common.clike.scopes import Scope
    from ostinato.backends.webgpu.kernel import Bindings, Shader
    from ostinato.backends.webgpu.target import WebGpuTarget
    from ostinato.lower.loopir.nodes import Scalar
    from ostinato.lower.rules.matmul_kernel import MatmulKernel
    from ostinato.variables import Symbol

__all__ = ["TileForm", "shader"]

#: Threads along each side of a workgroup.
_SIDE = 16

#: Steps of a sum between two barriers.
_SLICE = 16

#: Rows and columns from which threads have two vectors along them.
_LARGE = 512


def shader(matmul: MatmulKernel, target: WebGpuTarget, bindings: Bindings) -> Shader:
    """A matmul, rendered for a device."""
    return _Tiles(matmul, target, bindings).render()


class TileForm(NamedTuple):
    """The sizes of a workgroup's tile.

    Attributes:
        side: threads along each side.
        row_vectors, column_vectors: vectors of four along rows and columns that a thread has.
    """

    side: int
    row_vectors: int
    column_vectors: int

    @staticmethod
    def of(matmul: MatmulKernel, target: WebGpuTarget) -> TileForm:
        """The sizes for a matmul on a device."""
        side = _SIDE if target.threads >= _SIDE * _SIDE else _SIDE // 2
        rows, columns = (2 if max_extent(axis) >= _LARGE else 1 for axis in (matmul.m, matmul.n))
        return TileForm(side, rows, columns)

    @property
    def rows(self) -> int:
        """Rows of the tile."""
        return self.side * LANES * self.row_vectors

    @property
    def columns(self) -> int:
        """Columns of the tile."""
        return self.side * LANES * self.column_vectors


class _Tiles:
    def __init__(self, matmul: MatmulKernel, target: WebGpuTarget, bindings: Bindings) -> None:
        self.matmul = matmul
        reads = [Reduce("", "sum", scalar, matmul.acc) for scalar in matmul.operands]
        stages = [Stage((), (*reads, *matmul.stores))]
        self.code = KernelCode(matmul, stages, target, bindings)
        form = TileForm.of(matmul, target)
        self.side, self.rows, self.columns = form.side, form.rows, form.columns
        self.row_vectors, self.column_vectors = form.row_vectors, form.column_vectors
        self.vector = f"vec4<{element_type(matmul.acc)}>"
        self.depth = ""

    def render(self) -> Shader:
        code, matmul, writer = self.code, self.matmul, self.code.writer
        threads = self.side * self.side
        row_tiles = ceil_div(extent_of(matmul.m), self.rows)
        column_tiles = ceil_div(extent_of(matmul.n), self.columns)
        groups = matmul.points * row_tiles * column_tiles
        across = code.declare("n", code.size(column_tiles, code.outermost))
        down = code.declare("n", code.size(row_tiles, code.outermost))
        count = code.size(groups, code.outermost)
        self.depth = code.declare("n", code.size(matmul.depth, code.outermost))
        writer.line("let tile = i32(group);")
        with writer.block(f"if (tile < {count})"):
            writer.line(f"let first_column = tile % {across} * {self.columns};")
            writer.line(f"let first_row = tile / {across} % {down} * {self.rows};")
            writer.line(f"let point = tile / {across} / {down};")
            scope = code.enter(matmul.batch, "point", code.outermost)
            writer.line(f"let own_column = i32(thread % {self.side}u);")
            writer.line(f"let own_row = i32(thread / {self.side}u);")
            self._sums(scope)
            self._store(scope)
        return code.shader(threads, groups)

    @property
    def _names(self) -> list[list[str]]:
        """The sums of a thread: by row, a vector for each group of four columns."""
        return [
            [f"sum{row}_{vector}" for vector in range(self.column_vectors)]
            for row in range(LANES * self.row_vectors)
        ]

    def _sums(self, scope: Scope) -> None:
        code, matmul, writer = self.code, self.matmul, self.code.writer
        left = code.shared(self.vector, _SLICE * self.rows // LANES)
        right = code.shared(self.vector, _SLICE * self.columns // LANES)
        for names in self._names:
            for name in names:
                writer.line(f"var {name}: {self.vector};")
        head = f"for (var start = 0i; start < {self.depth}; start += {_SLICE})"
        with code.repeat(head, ceil_div(matmul.depth, _SLICE)):
            self._fetch(matmul.a, matmul.m, "first_row", self.rows, left, scope)
            self._fetch(matmul.b, matmul.n, "first_column", self.columns, right, scope)
            writer.line("workgroupBarrier();")
            with code.repeat(f"for (var d = 0i; d < {_SLICE}; d++)", _SLICE):
                self._multiply(left, right)
            writer.line("workgroupBarrier();")

    def _fetch(
        self, scalar: Scalar, outer: Symbol, first: str, side: int, shared: str, scope: Scope
    ) -> None:
        """Bring a slice of an operand into workgroup memory.

        Neighbouring threads fetch neighbouring elements: along the sum, where elements are stored
        in that order.
        """
        code, writer, matmul = self.code, self.code.writer, self.matmul
        vectors, threads = side // LANES, self.side * self.side
        name = writer.fresh("e")
        head = f"for (var {name} = i32(thread); {name} < {vectors * _SLICE}; {name} += {threads})"
        with code.repeat(head, -(-vectors * _SLICE // threads)):
            if are_neighbours(scalar, outer) or not self._runs_along_sum(scalar):
                place, step = f"{name} % {vectors}", f"{name} / {vectors}"
            else:
                place, step = f"{name} / {_SLICE}", f"{name} % {_SLICE}"
            place = code.declare("e", place)
            step = code.declare("e", step)
            k = code.declare("k", f"start + {step}")
            found = code.variable("v", f"{self.vector}()", self.vector)
            with self._within_sum(k):
                inside = code.enter(matmul.k, k, scope)
                at = code.declare("e", f"{first} + {place} * {LANES}")
                writer.line(f"{found} = {four_along(code, scalar, outer, at, inside, matmul.acc)};")
            writer.line(f"{shared}[{step} * {vectors} + {place}] = {found};")

    def _runs_along_sum(self, scalar: Scalar) -> bool:
        """Whether elements next to one another in memory are so along the sum."""
        inner = self.matmul.k[-1]
        return run_of(scalar, inner, extent_of(inner)) is not None

    @contextmanager
    def _within_sum(self, k: str) -> Iterator[None]:
        """A block for elements at ``k``, if there are any."""
        if remainder(self.matmul.depth, _SLICE) == 0 and provably_less(0, self.matmul.depth):
            yield
            return
        with self.code.writer.block(f"if ({k} < {self.depth})"):
            yield

    def _multiply(self, left: str, right: str) -> None:
        writer = self.code.writer
        a = [f"a{i}" for i in range(self.row_vectors)]
        b = [f"c{i}" for i in range(self.column_vectors)]
        for names, array, own, side in (
            (a, left, "own_row", self.rows),
            (b, right, "own_column", self.columns),
        ):
            for i, name in enumerate(names):
                place = f"d * {side // LANES} + {own} + {i * self.side}"
                writer.line(f"let {name} = {array}[{place}];")
        for row, names in enumerate(self._names):
            factor = f"{a[row // LANES]}.{'xyzw'[row % LANES]}"
            for name, vector in zip(names, b, strict=True):
                if self.matmul.acc == FLOAT32:
                    writer.line(f"{name} = fma({self.vector}({factor}), {vector}, {name});")
                else:
                    writer.line(f"{name} += {factor} * {vector};")

    def _store(self, scope: Scope) -> None:
        code, matmul, writer = self.code, self.matmul, self.code.writer
        rows = code.size(extent_of(matmul.m), scope)
        every = [f"{name}.{lane}" for names in self._names for name in names for lane in "xyzw"]
        type_ = f"array<{element_type(matmul.acc)}, {len(every)}>"
        writer.line(f"var totals = {type_}({', '.join(every)});")
        in_row = LANES * self.column_vectors
        with writer.block(f"for (var row = 0i; row < {LANES * self.row_vectors}; row++)"):
            part = f"row / {LANES} * {self.side * LANES}" if self.row_vectors > 1 else "0"
            writer.line(f"let m = first_row + {part} + own_row * {LANES} + row % {LANES};")
            with (
                writer.block(f"if (m < {rows})"),
                writer.block(f"for (var vector = 0i; vector < {self.column_vectors}; vector++)"),
            ):
                at = code.declare(
                    "e", f"first_column + (vector * {self.side} + own_column) * {LANES}"
                )
                inside = code.at({matmul.m: "m"}, scope)
                start = f"row * {in_row} + vector * {LANES}"
                totals = ("totals", start, matmul.acc)
                store_row(code, matmul.stores, matmul.n, at, LANES, inside, totals)
