"""Matmuls of bfloat16 by dot products of pairs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.cpu.rules.int_gemm import SteppedMatmul
from ostinato.backends.cpu.rules.packing import PanelFormat
from ostinato.backends.cpu.rules.tiles import tile_for
from ostinato.dtypes import BFLOAT16
from ostinato.lower.rules.matmul_spec import row_spec
from ostinato.records import dataclass
from ostinato.variables import bounds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.backends.cpu.rules.packed_matmul import PackedMatmul
    from ostinato.backends.cpu.rules.tiles import RegisterFile
    from ostinato.ir.graph import Node

__all__ = ["bfloat16_matmul"]


@dataclass(frozen=True, eq=False)
class Bfloat16Matmul(SteppedMatmul):
    """A matmul of bfloat16 that is summed in float32, two positions of ``k`` at a time."""

    def tile(self, registers: RegisterFile, others: Sequence[PackedMatmul] = ()) -> tuple[int, int]:
        """Panels are never narrower than a register."""
        acc = self.spec.acc
        lanes = registers.vector_bytes // acc.itemsize
        columns = [max(bounds(matmul.spec.n)[1], lanes) for matmul in (self, *others)]
        return tile_for(registers.vector_bytes, registers.count, acc, self.spec.m, *columns)

    def panel_format(self, registers: RegisterFile) -> PanelFormat:
        return PanelFormat(BFLOAT16, 2)


def bfloat16_matmul(node: Node) -> Bfloat16Matmul | None:
    """The matmul of a node by dot products, if it is rows of bfloat16 times a matrix of it."""
    a, b = node.inputs
    if not (a.dtype == b.dtype == BFLOAT16):
        return None
    if len(a.shape) < 2 or len(b.shape) != 2 or not all(isinstance(size, int) for size in b.shape):
        return None
    return Bfloat16Matmul(row_spec(node, a, b))
