"""Matmuls of few rows: the right operand is read once, straight into registers.

Threads of a workgroup share its columns, and divide the sum among themselves: each adds up every
so many steps for its columns. At the end, the parts of each sum are added up in workgroup memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.common.clike.vectors import run_of
from ostinato.backends.webgpu.render.arrays import element_type, word
from ostinato.backends.webgpu.render.code import KernelCode
from ostinato.backends.webgpu.render.dialect import wrapped
from ostinato.backends.webgpu.render.operands import LANES, are_neighbours, four_along, store_row
from ostinato.dtypes import FLOAT32, INT8, INT32
from ostinato.lower.loopir.nodes import Apply, Load, Reduce, Stage, extent_of, max_extent
from ostinato.variables import ceil_div

if TYPE_CHECKING:
    from ostinato.backends.common.clike.scopes import Scope
    from ostinato.backends.webgpu.kernel import Bindings, Shader
    from ostinato.backends.webgpu.target import WebGpuTarget
    from ostinato.lower.loopir.nodes import Scalar
    from ostinato.lower.rules.matmul_kernel import MatmulKernel

__all__ = ["MOST_ROWS", "shader", "tile"]

#: Rows up to which a workgroup reads the right operand for all of them at once.
MOST_ROWS = 8

#: Threads of a workgroup that share a column.
_SHARERS = 16

_THREADS = 128


def shader(matmul: MatmulKernel, target: WebGpuTarget, bindings: Bindings) -> Shader:
    """A matmul of few rows, rendered for a device."""
    return _FewRows(matmul, target, bindings).render()


class _FewRows:
    def __init__(self, matmul: MatmulKernel, target: WebGpuTarget, bindings: Bindings) -> None:
        self.matmul = matmul
        reads = [Reduce("", "sum", scalar, matmul.acc) for scalar in matmul.operands]
        stages = [Stage((), (*reads, *matmul.stores))]
        self.code = KernelCode(matmul, stages, target, bindings)
        #: whether neighbours along the sum are loaded at once; else those along columns are
        self.along_sum = _runs_along_sum(matmul)
        #: the function that multiplies four bytes by four, where both operands are such
        self.dot = _dot(matmul) if self.along_sum and self.code.arrays.aligned else ""
        #: columns of a thread
        self.own = 1 if self.along_sum else LANES
        self.rows, self.columns = tile(matmul)
        self.scalar = element_type(matmul.acc)
        self.vector = f"vec4<{self.scalar}>"

    def render(self) -> Shader:
        code, matmul, writer = self.code, self.matmul, self.code.writer
        tiles = ceil_div(extent_of(matmul.n), self.columns)
        row_tiles = ceil_div(extent_of(matmul.m), self.rows)
        groups = matmul.points * row_tiles * tiles
        across = code.declare("n", code.size(tiles, code.outermost))
        down = code.declare("n", code.size(row_tiles, code.outermost))
        count = code.size(groups, code.outermost)
        depth = code.declare("n", code.size(matmul.depth, code.outermost))
        columns = code.declare("n", code.size(extent_of(matmul.n), code.outermost))
        writer.line("let tile = i32(group);")
        with writer.block(f"if (tile < {count})"):
            writer.line(f"let first_row = tile / {across} % {down} * {self.rows};")
            writer.line(f"let point = tile / {across} / {down};")
            scope = code.enter(matmul.batch, "point", code.outermost)
            if self.along_sum:
                writer.line(f"let sharer = i32(thread % {_SHARERS}u);")
                writer.line(f"let slot = i32(thread / {_SHARERS}u);")
            else:
                slots = _THREADS // _SHARERS
                writer.line(f"let sharer = i32(thread / {slots}u);")
                writer.line(f"let slot = i32(thread % {slots}u);")
            writer.line(f"let column = tile % {across} * {self.columns} + slot * {self.own};")
            for row in range(self.rows):
                writer.line(f"var sum{row}: {self.vector};")
            with writer.block(f"if (column < {columns})"):
                self._sums(scope.child(), depth)
            self._add_up()
            self._store(scope)
        return code.shader(_THREADS, groups)

    def _sums(self, scope: Scope, depth: str) -> None:
        """A thread's part of the sums of its columns."""
        code, matmul, writer = self.code, self.matmul, self.code.writer
        lanes = LANES if self.along_sum else 1
        k = writer.fresh("k")
        head = f"for (var {k} = sharer * {lanes}; {k} < {depth}; {k} += {_SHARERS * lanes})"
        with code.repeat(head, ceil_div(matmul.depth, _SHARERS * lanes)):
            if self.dot:
                self._multiply_bytes(scope, k)
                return
            if self.along_sum:
                inside = code.at({matmul.n: "column"}, scope)
                right = self._masked(
                    four_along(code, matmul.b, matmul.k[0], k, inside, matmul.acc), k, depth
                )
            else:
                inside = code.enter(matmul.k, k, scope)
                right = four_along(code, matmul.b, matmul.n, "column", inside, matmul.acc)
            last = code.size(extent_of(matmul.m), scope)
            for row in range(self.rows):
                m = code.declare("q", f"min(first_row + {row}, {last} - 1)")
                at = code.at({matmul.m: m}, scope)
                if self.along_sum:
                    left = four_along(code, matmul.a, matmul.k[0], k, at, matmul.acc)
                else:
                    value = code.value(matmul.a, matmul.acc, code.enter(matmul.k, k, at))
                    left = f"{self.vector}({value})"
                writer.line(f"sum{row} = {self._multiply_add(left, right, f'sum{row}')};")

    def _multiply_bytes(self, scope: Scope, k: str) -> None:
        """The products of four bytes with those of every row."""
        code, matmul, writer = self.code, self.matmul, self.code.writer
        last = code.size(extent_of(matmul.m), scope)
        right = self._bytes(matmul.b, code.at({matmul.n: "column", matmul.k[0]: k}, scope))
        for row in range(self.rows):
            m = code.declare("q", f"min(first_row + {row}, {last} - 1)")
            left = self._bytes(matmul.a, code.at({matmul.m: m, matmul.k[0]: k}, scope))
            writer.line(f"sum{row}.x += {self.dot}({left}, {right});")

    def _bytes(self, scalar: Scalar, scope: Scope) -> str:
        """A word with the four bytes from an element on."""
        inner = self.matmul.k[0]
        run = run_of(scalar, inner, extent_of(inner))
        assert run is not None
        index = word(self.code.scalars.indices.value(run.load.index, scope))
        return self.code.declare("v", self.code.arrays.packed(run.load.buffer, index), "u32")

    def _masked(self, vector: str, k: str, depth: str) -> str:
        """A vector along the sum with zeros beyond its end."""
        extent = self.matmul.depth
        if isinstance(extent, int) and extent % LANES == 0:
            return vector
        inside = f"vec4<i32>({k}) + vec4<i32>(0, 1, 2, 3) < vec4<i32>({depth})"
        text = f"select({self.vector}(), {vector}, {inside})"
        return self.code.declare("v", text, self.vector)

    def _multiply_add(self, left: str, right: str, total: str) -> str:
        if self.matmul.acc == FLOAT32:
            return f"fma({left}, {right}, {total})"
        return f"{left} * {right} + {total}"

    def _add_up(self) -> None:
        """The parts of each sum, which the first of the threads that share a column have then."""
        writer = self.code.writer
        parts = self.code.shared(self.vector, _THREADS)
        stride = 1 if self.along_sum else _THREADS // _SHARERS
        if self.along_sum and self.code.shares_lanes(_SHARERS, _THREADS):
            self._add_up_lanes(parts)
            return
        for row in range(self.rows):
            writer.line(f"{parts}[thread] = sum{row};")
            writer.line("workgroupBarrier();")
            step = writer.fresh("s")
            with writer.block(f"for (var {step} = {_SHARERS // 2}i; {step} > 0; {step} >>= 1u)"):
                with writer.block(f"if (sharer < {step})"):
                    other = f"{parts}[thread + u32({step}) * {stride}u]"
                    writer.line(f"{parts}[thread] = {parts}[thread] + {other};")
                writer.line("workgroupBarrier();")
            writer.line(f"sum{row} = {parts}[thread];")
            writer.line("workgroupBarrier();")

    def _add_up_lanes(self, parts: str) -> None:
        """Each subgroup exchanges its parts; then the first threads add up those of subgroups."""
        writer = self.code.writer
        width = self.code.declare("w", f"min(lanes, {_SHARERS}u)", "u32")
        for row in range(self.rows):
            step = writer.fresh("s")
            with writer.block(f"for (var {step} = {width} >> 1u; {step} > 0u; {step} >>= 1u)"):
                writer.line(f"sum{row} = sum{row} + subgroupShuffleXor(sum{row}, {step});")
            writer.line(f"{parts}[thread] = sum{row};")
            writer.line("workgroupBarrier();")
            part = writer.fresh("s")
            head = f"for (var {part} = {width}; {part} < {_SHARERS}u; {part} += {width})"
            with writer.block("if (sharer == 0)"), writer.block(head):
                writer.line(f"sum{row} = sum{row} + {parts}[thread + {part}];")
            writer.line("workgroupBarrier();")

    def _store(self, scope: Scope) -> None:
        """The first of the threads that share a column store its sums."""
        code, matmul, writer = self.code, self.matmul, self.code.writer
        every = []
        for row in range(self.rows):
            if self.along_sum:
                every.append(" + ".join(f"sum{row}.{lane}" for lane in "xyzw"))
            else:
                every += [f"sum{row}.{lane}" for lane in "xyzw"]
        rows = code.size(extent_of(matmul.m), scope)
        with writer.block("if (sharer == 0)"):
            if self.along_sum:
                self._store_columns(scope, every, rows)
                return
            writer.line(f"var totals = array<{self.scalar}, {len(every)}>({', '.join(every)});")
            with writer.block(f"for (var row = 0i; row < {self.rows}; row++)"):
                writer.line("let m = first_row + row;")
                with writer.block(f"if (m < {rows})"):
                    inside = code.at({matmul.m: "m"}, scope)
                    totals = ("totals", f"row * {LANES}", matmul.acc)
                    store_row(code, matmul.stores, matmul.n, "column", LANES, inside, totals)

    def _store_columns(self, scope: Scope, every: list[str], rows: str) -> None:
        """Stores of a thread that has one column."""
        code, matmul, writer = self.code, self.matmul, self.code.writer
        columns = code.size(extent_of(matmul.n), scope)
        writer.line(f"var totals = array<{self.scalar}, {len(every)}>({', '.join(every)});")
        with writer.block(f"for (var row = 0i; row < {self.rows}; row++)"):
            writer.line("let m = first_row + row;")
            with writer.block(f"if (m < {rows} && column < {columns})"):
                inside = code.at({matmul.m: "m", matmul.n: "column"}, scope)
                total = code.code.keep(matmul.acc, wrapped("totals[row]", matmul.acc))
                for store in matmul.stores:
                    code.store(store, inside, total)


def tile(matmul: MatmulKernel) -> tuple[int, int]:
    """The rows and columns of a workgroup."""
    own = 1 if _runs_along_sum(matmul) else LANES
    return min(max_extent(matmul.m), MOST_ROWS), _THREADS // _SHARERS * own


def _runs_along_sum(matmul: MatmulKernel) -> bool:
    """Whether neighbours along the sum are loaded at once."""
    inner = matmul.k[-1]
    if len(matmul.k) != 1:
        return False
    if are_neighbours(matmul.b, inner):
        return True
    along = run_of(matmul.b, inner, extent_of(inner))
    return not are_neighbours(matmul.b, matmul.n) and along is not None


def _dot(matmul: MatmulKernel) -> str:
    """The function of WGSL that adds four products of bytes up; empty: operands are no bytes."""
    inner = matmul.k[0]
    runs = [run_of(scalar, inner, extent_of(inner)) for scalar in matmul.operands]
    dtypes = {run.load.dtype for run in runs if run is not None and run.count >= LANES}
    if None in runs or matmul.acc != INT32 or not all(map(_is_widened, matmul.operands)):
        return ""
    if any(run is not None and run.count < LANES for run in runs):
        return ""
    return "dot4I8Packed" if dtypes == {INT8} else ""


def _is_widened(scalar: Scalar) -> bool:
    """Whether an element is loaded, and converted to a wider integer if at all."""
    while isinstance(scalar, Apply) and scalar.op == "cast" and scalar.dtype == INT32:
        (scalar,) = scalar.operands
    return isinstance(scalar, Load)
