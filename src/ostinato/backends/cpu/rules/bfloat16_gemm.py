"""Matmuls of bfloat16 by dot products of pairs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.cpu.rules.packing import PanelFormat
from ostinato.backends.cpu.rules.stepped_matmul import SteppedMatmul, rows_times_matrix
from ostinato.dtypes import BFLOAT16
from ostinato.records import dataclass

if TYPE_CHECKING:
    from ostinato.backends.cpu.rules.tiles import RegisterFile
    from ostinato.ir.graph import Node

__all__ = ["bfloat16_matmul"]


@dataclass(frozen=True, eq=False)
class Bfloat16Matmul(SteppedMatmul):
    """A matmul of bfloat16 that is summed in float32, two positions of ``k`` at a time."""

    def panel_format(self, registers: RegisterFile) -> PanelFormat:
        return PanelFormat(BFLOAT16, 2)


def bfloat16_matmul(node: Node) -> Bfloat16Matmul | None:
    """The matmul of a node by dot products, if it is rows of bfloat16 times a matrix of it."""
    a, b = node.inputs
    if not (a.dtype == b.dtype == BFLOAT16):
        return None
    spec = rows_times_matrix(node)
    return None if spec is None else Bfloat16Matmul(spec)
