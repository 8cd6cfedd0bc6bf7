"""The rule of ``recurrent_scan``: one kernel for all steps, a block for each sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.cuda.render import recurrent
from ostinato.backends.cuda.rules.recurrence import Recurrence, parts_of
from ostinato.dtypes import INT64
from ostinato.ir.types import TensorType
from ostinato.lower.loopir.builder import cast, symbols_of
from ostinato.lower.loopir.nodes import Accumulator, Store
from ostinato.lower.loopir.views import linear_index
from ostinato.lower.program import LoweredBuffer, Role
from ostinato.ops.recurrent import GATES, RECURRENT_SCAN, WEIGHT_PARTS
from ostinato.variables import axis

if TYPE_CHECKING:
    from ostinato.backends.cuda.abi import Launch
    from ostinato.backends.cuda.target import CudaTarget
    from ostinato.ir.graph import Node
    from ostinato.lower.fusion.regions import Region
    from ostinato.lower.program_builder import ProgramBuilder

__all__ = ["RecurrentKernel", "lower_recurrent"]


class RecurrentKernel(Recurrence):
    """A recurrence whose sequences are computed by a block each."""

    def launch(self, target: CudaTarget) -> Launch:
        return recurrent.launch(self, target)

    def source(self, target: CudaTarget) -> str:
        return recurrent.source(self)


def lower_recurrent(lowering: ProgramBuilder, region: Region, root: Node) -> None:
    """Lower a region around a ``recurrent_scan`` node."""
    build, outputs = lowering.builder(region), lowering.region_outputs(region)
    named = RECURRENT_SCAN.named(root.inputs, root.attrs)
    xproj, r = named["xproj"], named["r"]
    gates, hidden, acc = GATES[root.attrs["kind"]], r.shape[1], xproj.dtype.accumulator
    step, row = axis("step", xproj.shape[0]), axis("row", xproj.shape[1])
    column, inner = axis("n", hidden), axis("k", hidden)
    weights = {
        name: tuple(build.at(named[name], (part * hidden + column,)) for part in range(parts))
        for name, parts in WEIGHT_PARTS.items()
        if name in named
    }
    length = None
    if "sequence_lens" in named:
        length = cast(build.at(named["sequence_lens"], (row,)), INT64)
    stores: list[Store | None] = [None] * len(root.outputs)
    for result, buffer in outputs:
        at = (step, row, column)[-result.ndim :]
        target = build.argument(buffer, writes=True)
        stores[result.index] = Store(target, linear_index(result.shape, at), Accumulator(acc))
    x = tuple(build.at(xproj, (step, row, gate * hidden + column)) for gate in range(gates))
    matrices = tuple(build.at(r, (gate * hidden + column, inner)) for gate in range(gates))
    initial = tuple(build.at(named[s], (row, column)) for s in ("h0", "c0") if s in named)
    shape = (xproj.shape[1], len(parts_of(root.attrs, gates)) * hidden)
    scratch = LoweredBuffer(TensorType(acc, shape), Role.TEMP, f"{root.label}.state")
    position = build.argument(scratch, reads=True, writes=True)
    step_symbol, row_symbol, column_symbol, inner_symbol = symbols_of((step, row, column, inner))
    kernel = RecurrentKernel(
        build.args,
        step_symbol,
        row_symbol,
        column_symbol,
        inner_symbol,
        tuple(sorted((name, value) for name, value in root.attrs.items() if name != "given")),
        x,
        matrices,
        initial,
        tuple(weights.items()),
        length,
        stores[0],
        tuple(stores[1:]),
        position,
        acc,
        lowering.variables,
    )
    lowering.call(region, build, kernel, outputs)
