"""Matmuls of bfloat16 and of bytes in the tile registers of Intel AMX.

A tile register has 16 rows of 64 bytes. One instruction multiplies 16 rows of the left operand, 64
bytes of ``k`` each, with a tile of a panel: 16 rows of 16 columns, each with the positions of ``k``
that make four bytes. The sums are 16 x 16 numbers of 32 bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.cpu.rules.packing import TILE_ROWS, PanelFormat
from ostinato.backends.cpu.rules.stepped_matmul import SteppedMatmul, rows_times_matrix
from ostinato.records import dataclass
from ostinato.variables import bounds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.backends.cpu.rules.packed_matmul import PackedMatmul
    from ostinato.backends.cpu.rules.tiles import RegisterFile
    from ostinato.ir.graph import Node

__all__ = ["AmxMatmul", "amx_matmul"]

_TILE_COLUMNS = 16
"""Columns of 32 bits of a tile register."""

_STEP_BYTES = 4
"""Bytes of ``k`` that stand side by side in a row of a panel."""

_SUM_BYTES = 4
"""Bytes of a sum: matrices of bytes whose products are summed in bytes are not for tiles."""

_FEWEST_ROWS = 8
"""Rows that fill half a tile: fewer wait for panels rather than for arithmetic."""


@dataclass(frozen=True, eq=False)
class AmxMatmul(SteppedMatmul):
    """A matmul whose sums are in tile registers."""

    def tile(self, registers: RegisterFile, others: Sequence[PackedMatmul] = ()) -> tuple[int, int]:
        """Two by two tiles of sums, or one by four: each operand's tile serves several sums."""
        rows = min(bounds(self.spec.m)[1], 2 * TILE_ROWS)
        most = 4 if rows <= TILE_ROWS else 2
        columns = max(bounds(matmul.spec.n)[1] for matmul in (self, *others))
        return rows, min(most, max(1, -(-columns // _TILE_COLUMNS))) * _TILE_COLUMNS

    def panel_format(self, registers: RegisterFile) -> PanelFormat:
        dtype = self.spec.b.dtype
        return PanelFormat(dtype, _STEP_BYTES // dtype.itemsize, tile_rows=TILE_ROWS)


def amx_matmul(node: Node, registers: RegisterFile) -> AmxMatmul | None:
    """The matmul of a node in tiles, if it is enough rows times a matrix of known size."""
    if node.op.name not in ("matmul", "widening_matmul", "integer_matmul"):
        return None
    a, b = node.inputs
    if not {a.dtype, b.dtype} <= registers.amx_dtypes or a.dtype.is_float != b.dtype.is_float:
        return None
    spec = rows_times_matrix(node)
    # Dot products of bfloat16 are summed in one order, however many rows there are.
    dots = a.dtype.is_float and registers.bfloat16_dots is not None
    fewest = 1 if dots else _FEWEST_ROWS
    if spec is None or spec.acc.itemsize != _SUM_BYTES or bounds(spec.m)[1] < fewest:
        return None
    return AmxMatmul(spec)
