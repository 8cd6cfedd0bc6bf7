"""The register tile of a GEMM in the tile registers of Intel AMX.

The sums of a register tile are one or two rows of tile registers by up to four columns of them. A
step takes 64 bytes of ``k``: a tile for each 16 rows of ``a``, one for each 16 columns of the
panel, and an instruction for each pair. Registers are named, not left to LLVM to assign, so none is
ever spilled. The bytes of ``k`` that do not fill a step are copied to where the sums will be, next
to zeros.

Shapes of registers are those of the *configuration*, 64 bytes that a kernel loads once; a tile of
fewer rows than the others loads one of its own, and then the kernel's again.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from llvmlite import ir

from ostinato.backends.cpu.llvm.kernel import counted_loop
from ostinato.backends.cpu.llvm.memory import load, store
from ostinato.backends.cpu.llvm.types import BYTE_POINTER, I8, I64, call_intrinsic, mask_type
from ostinato.backends.cpu.rules.packing import TILE_ROWS
from ostinato.dtypes import BFLOAT16, UINT8
from ostinato.variables import bounds

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ostinato.backends.cpu.llvm.toolchain import TargetSpec
    from ostinato.backends.cpu.rules.gemm import Gemm
    from ostinato.dtypes import DType

__all__ = [
    "TILE_ROW_BYTES",
    "configuration",
    "configured",
    "define_amx_tile",
    "encoded",
    "load_configuration",
]

TILE_ROW_BYTES = 64
"""Bytes of a row of a tile register."""

_REGISTERS = 8
"""Tile registers."""

_SUM_BYTES = 4
"""Bytes of a sum, and of a column in a row of a panel."""

_PALETTE = 1
"""The palette of configurations: the only one there is."""


def define_amx_tile(
    module: ir.Module, name: str, gemm: Gemm, rows: int, target: TargetSpec
) -> ir.Function:
    """Adds the function ``void name(a, offsets, b, out)`` to ``module``.

    ``a`` points at the first row, ``b`` is the panel, ``out`` receives ``rows`` x ``panel`` sums,
    densely. ``offsets`` is not looked at: rows are evenly spaced. It is called within
    :func:`configured`.
    """
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [BYTE_POINTER] * 4), name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    target.decorate(function)
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    a, _, b, out = function.args
    if rows != gemm.rows:
        _load_configuration(builder, gemm, rows)
    _AmxTile(builder, gemm, rows, a, b).run(out)
    if rows != gemm.rows:
        _load_configuration(builder, gemm, gemm.rows)
    builder.ret_void()
    return function


@contextmanager
def configured(builder: ir.IRBuilder, gemm: Gemm) -> Iterator[None]:
    """Configure tile registers for what is emitted inside, and release them afterwards."""
    _load_configuration(builder, gemm, gemm.rows)
    yield
    call_intrinsic(builder, "llvm.x86.tilerelease", ir.VoidType(), [])


def configuration(gemm: Gemm, rows: int) -> bytes:
    """The operand of ``ldtilecfg`` for tiles of so many rows."""
    shapes = {}
    registers = _Registers(gemm, rows)
    for i, height in enumerate(registers.heights):
        shapes[registers.left[i]] = height, TILE_ROW_BYTES
        for register in registers.sums[i]:
            shapes[register] = height, TILE_ROW_BYTES
    for register in registers.right:
        shapes[register] = TILE_ROWS, TILE_ROW_BYTES
    return encoded(shapes)


def encoded(shapes: Mapping[int, tuple[int, int]]) -> bytes:
    """The operand of ``ldtilecfg``: rows, and bytes of a row, of each register that is used."""
    found = [shapes.get(register, (0, 0)) for register in range(_REGISTERS)]
    row_bytes = b"".join(nbytes.to_bytes(2, "little") for _, nbytes in found)
    heights = bytes(height for height, _ in found)
    return (
        bytes([_PALETTE]).ljust(16, b"\0") + row_bytes.ljust(32, b"\0") + heights.ljust(16, b"\0")
    )


def load_configuration(builder: ir.IRBuilder, name: str, content: bytes) -> None:
    """Configure tile registers.

    Args:
        name: of the constant in the module, which it is for other uses, too.
        content: the operand of ``ldtilecfg``.
    """
    module = builder.module
    if name not in module.globals:
        kind = ir.ArrayType(I8, len(content))
        held = ir.GlobalVariable(module, kind, name)
        held.initializer = ir.Constant(kind, bytearray(content))
        held.linkage, held.global_constant, held.align = "internal", True, 64
    call_intrinsic(builder, "llvm.x86.ldtilecfg", ir.VoidType(), [module.globals[name]])


class _Registers:
    """The registers of a tile, by their numbers.

    Attributes:
        heights: rows of ``a`` in each register of ``left``.
        sums: for each of those, the sums by columns.
        left: for rows of ``a``.
        right: for columns of the panel, in turns.
    """

    def __init__(self, gemm: Gemm, rows: int) -> None:
        columns = gemm.panel * _SUM_BYTES // TILE_ROW_BYTES
        self.heights = [min(TILE_ROWS, rows - first) for first in range(0, rows, TILE_ROWS)]
        count = len(self.heights)
        self.sums = [range(i * columns, (i + 1) * columns) for i in range(count)]
        self.left = range(count * columns, count * (columns + 1))
        self.right = range(self.left.stop, min(_REGISTERS, self.left.stop + columns))


class _AmxTile:
    """Emits one tile function.

    Args:
        a: the first row of the left operand.
        b: the panel.
    """

    def __init__(
        self, builder: ir.IRBuilder, gemm: Gemm, rows: int, a: ir.Value, b: ir.Value
    ) -> None:
        self.builder, self.gemm, self.rows = builder, gemm, rows
        self.a, self.b = a, b
        self.registers = _Registers(gemm, rows)
        self.product = _product(gemm.a_dtype, gemm.b_dtype)
        assert gemm.row_stride is not None
        self.row_bytes = gemm.row_stride * gemm.a_dtype.itemsize
        self.panel_row_bytes = gemm.panel * _SUM_BYTES

    def run(self, out: ir.Value) -> None:
        """Leave the sums at ``out``."""
        b = self.builder
        sums = [register for row in self.registers.sums for register in row]
        for register in sums:
            self._instruction("tilezero", [I8(register)])
        steps, rest = divmod(
            bounds(self.gemm.depth)[1] * self.gemm.a_dtype.itemsize, TILE_ROW_BYTES
        )

        def step(number: ir.Value) -> None:
            left = self._after(self.a, b.mul(number, I64(TILE_ROW_BYTES)))
            self._step(left, self.row_bytes, self._panel_rows(number))

        counted_loop(b, I64(0), I64(steps), 1, step, trips=steps, name="k")
        if rest:
            self._copy_zero_padded(out, steps * TILE_ROW_BYTES, rest)
            self._step(out, self.panel_row_bytes, self._panel_rows(I64(steps)))
        for i, row in enumerate(self.registers.sums):
            for j, register in enumerate(row):
                distance = i * TILE_ROWS * self.panel_row_bytes + j * TILE_ROW_BYTES
                place = self._after(out, I64(distance))
                self._instruction("tilestored64", [I8(register), place, I64(self.panel_row_bytes)])

    def _step(self, left: ir.Value, row_bytes: int, right: ir.Value) -> None:
        """Add the products of 64 bytes of ``k``.

        Args:
            left: the first row of ``a`` there; the next one is ``row_bytes`` on.
            right: the rows of the panel.
        """
        registers = self.registers
        for j in range(len(registers.sums[0])):
            columns = registers.right[j % len(registers.right)]
            place = self._after(right, I64(j * TILE_ROW_BYTES))
            self._instruction("tileloadd64", [I8(columns), place, I64(self.panel_row_bytes)])
            for i, rows in enumerate(registers.left):
                if j == 0:
                    place = self._after(left, I64(i * TILE_ROWS * row_bytes))
                    self._instruction("tileloadd64", [I8(rows), place, I64(row_bytes)])
                self._instruction(self.product, [I8(registers.sums[i][j]), I8(rows), I8(columns)])

    def _copy_zero_padded(self, out: ir.Value, first: int, count: int) -> None:
        """Copy ``count`` bytes of each row of ``a`` from byte ``first`` on to where its sums go."""
        b = self.builder
        mask = ir.Constant(mask_type(TILE_ROW_BYTES), [i < count for i in range(TILE_ROW_BYTES)])
        for row in range(self.rows):
            part = load(b, self.a, UINT8, I64(row * self.row_bytes + first), TILE_ROW_BYTES, mask)
            store(b, out, UINT8, I64(row * self.panel_row_bytes), part)

    def _panel_rows(self, step: ir.Value) -> ir.Value:
        """The rows of the panel that a step takes."""
        return self._after(self.b, self.builder.mul(step, I64(TILE_ROWS * self.panel_row_bytes)))

    def _after(self, base: ir.Value, distance: ir.Value) -> ir.Value:
        return self.builder.gep(base, [distance], source_etype=I8)

    def _instruction(self, name: str, operands: Sequence[ir.Value]) -> None:
        call_intrinsic(self.builder, f"llvm.x86.{name}", ir.VoidType(), list(operands))


def _product(a: DType, b: DType) -> str:
    """The instruction that multiplies tiles of two dtypes."""
    if a == BFLOAT16:
        return "tdpbf16ps"
    left, right = ("s" if dtype.is_signed else "u" for dtype in (a, b))
    return f"tdpb{left}{right}d"


def _load_configuration(builder: ir.IRBuilder, gemm: Gemm, rows: int) -> None:
    load_configuration(builder, f"tiles.{gemm.panel}x{rows}", configuration(gemm, rows))
