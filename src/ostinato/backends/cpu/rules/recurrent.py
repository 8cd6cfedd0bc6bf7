"""The kernel of ``recurrent_scan``: every time step of one direction of a recurrent layer."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from ostinato.backends.cpu.rules.gemm import Gemm
from ostinato.backends.cpu.rules.kernel import CpuKernel
from ostinato.backends.cpu.rules.packed_matmul import PackedMatmul, pack
from ostinato.backends.cpu.rules.tiles import RegisterFile, tile_for
from ostinato.lower.loopir.builder import Outputs, symbols_of
from ostinato.lower.loopir.nodes import Scalar, Store, extent_of, max_extent
from ostinato.lower.rules.matmul_spec import MatmulSpec
from ostinato.lower.rules.recurrence import ScanOperands
from ostinato.ops.recurrent import GATES, resets_first
from ostinato.records import dataclass
from ostinato.variables import Dim, Symbol, axis, bounds, ceil_div

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.dtypes import DType
    from ostinato.ir.graph import Node
    from ostinato.ir.op import Attr
    from ostinato.lower.fusion.regions import Region
    from ostinato.lower.loopir.builder import KernelBuilder
    from ostinato.lower.loopir.nodes import Arg
    from ostinato.lower.loopir.text import KernelText
    from ostinato.lower.program import LoweredBuffer
    from ostinato.lower.program_builder import ProgramBuilder

__all__ = ["RecurrentKernel", "lower_recurrent"]

#: Sequences that one thread runs together, unless there are many: enough to read the packed
#: weights, which rarely fit the first-level cache, several times less often.
_FEW_ROWS = 4

#: Parts that a large batch is cut into at least, for threads to share.
_PARTS = 8


@dataclass(frozen=True, eq=False)
class RecurrentKernel(CpuKernel):
    """All steps of a ``recurrent_scan``, for a few sequences at a time.

    Scalar expressions are over ``step``, ``row`` and ``column``; in stores, ``Accumulator`` is the
    new state. The state stays in scratch memory, in the accumulator's dtype, from step to step.

    Attributes:
        args: the buffers, in the order of the kernel's ``buffers``.
        step: the axis of time.
        row: the axis of sequences: the parallel range, in blocks of ``rows``.
        column: the axis of hidden units: vector lanes.
        attrs: those of the op that its rules of a step need.
        x: the inputs' share of each gate.
        initial: the state before the first step, ``h`` and (LSTM) ``c``.
        weights: the parts of the op's optional weights, by name.
        length: how many steps a sequence has, an int64; ``None`` for all of them.
        y: stores ``h`` of every step.
        last: stores the last state, part by part; ``None`` for one that is not read.
        r: the argument that holds the packed recurrent weights, a panel group for each gate.
        panel: elements per row of a panel.
        rows: sequences per block, and rows of the register tile.
        acc: the dtype of sums and of the state.
        variables: the graph's Variables in the order of ``vars``.
    """

    args: tuple[Arg, ...]
    step: Symbol
    row: Symbol
    column: Symbol
    attrs: tuple[tuple[str, Attr], ...]
    x: tuple[Scalar, ...]
    initial: tuple[Scalar, ...]
    weights: tuple[tuple[str, tuple[Scalar, ...]], ...]
    length: Scalar | None
    y: Store | None
    last: tuple[Store | None, ...]
    r: int
    panel: int
    rows: int
    acc: DType
    variables: tuple[Symbol, ...] = ()

    renderer: ClassVar[str] = "recurrent"

    def describe(self, text: KernelText) -> None:
        attrs = ", ".join(f"{name}={text.attr(value)}" for name, value in self.attrs)
        text.line(0, f"recurrent scan, {attrs}")
        text.head(self.args)
        text.line(1, f"rows {text.axis(self.row)} by {self.rows}")
        text.line(1, f"columns {text.axis(self.column)} by {self.panel}")
        text.line(1, f"steps {text.axis(self.step)}")
        text.line(1, f"accumulate {self.acc.short} state * b{self.r}")
        text.named("x", self.x)
        text.named("initial", self.initial)
        for name, parts in self.weights:
            text.named(name, parts)
        if self.length is not None:
            text.named("length", [self.length])
        for name, store in zip(("y", "h", "c"), (self.y, *self.last), strict=False):
            if store is not None:
                text.line(1, f"store {name}")
                text.statement(store)

    @property
    def extent(self) -> Dim:
        """The parallel range: blocks of sequences."""
        return ceil_div(extent_of(self.row), self.rows)

    @cached_property
    def rule(self) -> Mapping[str, Attr]:
        """The attributes by name, as the op's rules take them."""
        return dict(self.attrs)

    @property
    def hidden(self) -> int:
        """Hidden units."""
        return max_extent(self.column)

    @property
    def panels(self) -> int:
        """Panels of each gate."""
        return -(-self.hidden // self.panel)

    @cached_property
    def gemm(self) -> Gemm:
        """The GEMM of a block of states and one gate's panels, for its register tiles."""
        row, inner = axis("row", self.rows), axis("k", self.hidden)
        row_symbols, inner_symbols = symbols_of([row]), symbols_of([inner])
        return Gemm(
            args=(),
            batch=(),
            m=row_symbols[0],
            n=self.column,
            k=inner_symbols,
            a=0,
            a_dtype=self.acc,
            a_index=row * self.pitch + inner,
            b=self.r,
            b_group=0,
            panel=self.panel,
            rows=self.rows,
            acc=self.acc,
            epilogue=(),
        )

    @cached_property
    def heights(self) -> tuple[int, ...]:
        """Heights of register tiles, greatest first: one suits every block's number of rows."""
        batch = extent_of(self.row)
        if isinstance(batch, int):
            found = {min(batch, self.rows), batch % self.rows}
        else:
            found = {self.rows, *(1 << bit for bit in range(self.rows.bit_length()))}
        return tuple(sorted(found - {0}, reverse=True)) or (self.rows,)

    # -- scratch memory -----------------------------------------------------------------------

    @property
    def pitch(self) -> int:
        """Elements from one sequence's state to the next, whole panels."""
        return self.panels * self.panel

    @cached_property
    def scratch_layout(self) -> dict[str, int]:
        """Offsets in scratch memory, in bytes; ``end`` is its size.

        ``h0`` and ``h1`` alternate as the old and the new state, ``c`` is an LSTM's cell,
        ``update`` and ``reset`` are what a GRU's first gates leave for its candidate, ``sums`` the
        sums of all gates with one panel.
        """
        state = self.rows * self.pitch
        parts = {"h0": state, "h1": state}
        if len(self.initial) > 1:
            parts["c"] = state
        if resets_first(self.rule):
            parts |= {"update": state, "reset": state}
        parts["sums"] = len(self.x) * self.rows * self.panel
        layout, offset = {}, 0
        for name, elements in parts.items():
            layout[name] = offset
            offset += -(-elements * self.acc.itemsize // 64) * 64
        return layout | {"end": offset}

    @property
    def scratch_bytes(self) -> int:
        """Bytes of scratch that the kernel needs."""
        return self.scratch_layout["end"]


def _tile(node: Node, registers: RegisterFile) -> tuple[int, int]:
    """The register tile, ``(rows, panel)``, of a ``recurrent_scan`` node."""
    xproj, r = node.inputs[:2]
    batch, hidden = bounds(xproj.shape[1])[1], r.shape[1]
    assert isinstance(hidden, int)
    rows = max(1, min(batch, max(_FEW_ROWS, batch // _PARTS)))
    return tile_for(registers.vector_bytes, registers.count, xproj.dtype.accumulator, rows, hidden)


def _matmul(node: Node) -> PackedMatmul:
    """The state times the recurrent weights, each gate a panel group of its own."""
    xproj, r, h0 = node.inputs[:3]
    hidden = r.shape[1]
    spec = MatmulSpec(
        node,
        (GATES[node.attrs["kind"]],),
        xproj.shape[1],
        hidden,
        (hidden,),
        (GATES[node.attrs["kind"]],),
        h0,
        lambda gate, row, inner: (row, *inner),
        r,
        lambda gate, inner, column: (gate[0] * hidden + column, *inner),
        lambda gate: gate,
        lambda gate, row, column: (row, gate[0] * hidden + column),
    )
    return PackedMatmul(spec)


def _kernel(
    build: KernelBuilder,
    node: Node,
    packed: LoweredBuffer,
    tile: tuple[int, int],
    outputs: Outputs,
    variables: tuple[Symbol, ...],
) -> RecurrentKernel:
    """The kernel of a ``recurrent_scan`` node that stores whichever of its results are wanted.

    Args:
        packed: the weights as :func:`_matmul` packs them, in panels of the tile's width.
    """
    scan = ScanOperands(build, node, outputs)
    initial = scan.initial(build)
    position = build.argument(packed, reads=True)
    step_symbol, row_symbol, column_symbol = symbols_of((scan.step, scan.row, scan.column))
    return RecurrentKernel(
        build.args,
        step_symbol,
        row_symbol,
        column_symbol,
        scan.attrs,
        scan.x,
        initial,
        scan.weights,
        scan.length,
        scan.stores[0],
        tuple(scan.stores[1:]),
        position,
        tile[1],
        tile[0],
        scan.acc,
        variables,
    )


def lower_recurrent(
    lowering: ProgramBuilder, region: Region, root: Node, registers: RegisterFile
) -> None:
    """Lower a region around a ``recurrent_scan`` node."""
    tile = _tile(root, registers)
    packed = pack(lowering, _matmul(root), tile[1])
    build = lowering.builder(region)
    outputs = lowering.region_outputs(region)
    kernel = _kernel(build, root, packed, tile, outputs, lowering.variables)
    lowering.call(region, build, kernel, outputs)
