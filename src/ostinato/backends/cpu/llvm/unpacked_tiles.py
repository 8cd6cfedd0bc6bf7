"""The register tile of several rows times a panel of packed weights, with products in pairs (AVX2).

A panel passes by in stretches of ``k`` that the first-level cache holds. The first rows, up to four
of them, unpack the codes of a stretch to bytes while they multiply
(:mod:`ostinato.backends.cpu.llvm.unpacked_rows`); the others read the bytes.
"""

from __future__ import annotations

from llvmlite import ir

from ostinato.backends.cpu.llvm.kernel import counted_loop
from ostinato.backends.cpu.llvm.lanes import Lane
from ostinato.backends.cpu.llvm.memory import address, store
from ostinato.backends.cpu.llvm.packed_operands import PackedPanel, known_step
from ostinato.backends.cpu.llvm.types import BYTE_POINTER, I8, I64, constant
from ostinato.backends.cpu.llvm.unpacked_rows import UnpackedRows
from ostinato.backends.cpu.llvm.unpacking import STRETCH_CHUNKS, Stretch, reserve
from ostinato.backends.cpu.rules.packed_blocks import CHUNK, ROWS_OF_PAIRS
from ostinato.dtypes import FLOAT32, INT32, INT64
from ostinato.variables import bounds

__all__ = ["emit_unpacked_tile"]


def emit_unpacked_tile(
    panel: PackedPanel,
    prefix: str,
    rows: int,
    arguments: tuple[ir.Value, ...],
    ahead: ir.Value | None,
) -> None:
    """Emit a tile of ``rows`` rows, at least two.

    Args:
        panel: the form of the panel, with the builder of the tile's function.
        prefix: of the names of functions that tiles share.
        arguments: ``a, offsets, b, out, scales, sums``, as
            :func:`~ostinato.backends.cpu.llvm.packed_tiles.define_packed_tile` has them.
        ahead: the address from which to prefetch, if the tile does.
    """
    _Tile(panel, prefix, rows, arguments, ahead).emit()


class _Tile:
    """The stretches of a panel, one after the other; see :func:`emit_unpacked_tile`."""

    def __init__(
        self,
        panel: PackedPanel,
        prefix: str,
        rows: int,
        arguments: tuple[ir.Value, ...],
        ahead: ir.Value | None,
    ) -> None:
        self.panel, self.builder, self.gemm = panel, panel.builder, panel.gemm
        self.prefix, self.rows, self.ahead = prefix, rows, ahead
        self.a, self.offsets, self.start, self.out, self.scales, self.sums = arguments
        self.stretch = Stretch(panel)

    def emit(self) -> None:
        """Emit all of it."""
        b, panel, stretch = self.builder, self.panel, self.stretch
        parts = -(-self.rows // ROWS_OF_PAIRS)
        heights = [self.rows // parts + (part < self.rows % parts) for part in range(parts)]
        first, *others = heights
        unpacking = self._function(first, unpacks=True)
        multiply = [(rows, self._function(rows, unpacks=False)) for rows in others]
        memory = reserve(panel, stretch.nbytes)
        zero = Lane(b, constant(FLOAT32, 0.0, panel.lanes), FLOAT32, panel.lanes)
        for place in range(self.rows * panel.vectors):
            store(b, self.out, FLOAT32, I64(place * panel.lanes), zero)
        chunks = bounds(self.gemm.depth)[1] // CHUNK

        def pass_by(chunk: ir.Value) -> None:
            count = I64(STRETCH_CHUNKS)
            if chunks % STRETCH_CHUNKS:
                left = b.sub(I64(chunks), chunk)
                count = b.select(b.icmp_signed("<", left, count), left, count)
            nbytes = b.mul(chunk, I64(stretch.chunk_panel_bytes))
            start = b.gep(self.start, [nbytes], source_etype=I8)
            near, far = self._aheads(nbytes, memory)
            b.call(unpacking, [*self._part(0, chunk), memory, count, start, *near])
            if not multiply:
                self._prefetch_rest(far, count)
            row = first
            for height, function in multiply:
                b.call(function, [*self._part(row, chunk), memory, count, start, *far])
                row += height

        trips = -(-chunks // STRETCH_CHUNKS)
        counted_loop(b, I64(0), I64(chunks), STRETCH_CHUNKS, pass_by, trips=trips, name="stretch")

    def _function(self, rows: int, *, unpacks: bool) -> ir.Function:
        """The function of :class:`UnpackedRows`, which tiles share."""
        module = self.builder.module
        name = f"{self.prefix}.{'unpack' if unpacks else 'rows'}{rows}"
        found = module.globals.get(name)
        if found is not None:
            return found
        more = [] if self.gemm.fetch is None else [BYTE_POINTER]
        kinds = [*[BYTE_POINTER] * 6, I64, BYTE_POINTER, *more]
        function = ir.Function(module, ir.FunctionType(ir.VoidType(), kinds), name)
        function.linkage = "internal"
        function.attributes.add("noinline")
        self.panel.target.decorate(function)
        builder = ir.IRBuilder(function.append_basic_block("entry"))
        panel = PackedPanel(builder, self.gemm, self.panel.target)
        ahead = function.args[-1] if more else None
        UnpackedRows(panel, function.args[:8], ahead, rows, unpacks=unpacks).emit()
        builder.ret_void()
        return function

    def _aheads(self, nbytes: ir.Value, memory: ir.Value) -> tuple[list[ir.Value], list[ir.Value]]:
        """The addresses from which either half of the lines of a stretch is prefetched.

        Where the tile does not prefetch, they are of memory in cache.
        """
        if self.gemm.fetch is None:
            return [], []
        if self.ahead is None:
            return [memory], [memory]
        b = self.builder
        near = b.gep(self.ahead, [nbytes], source_etype=I8)
        far = b.gep(near, [I64(self.stretch.chunk_panel_bytes // 2)], source_etype=I8)
        return [near], [far]

    def _prefetch_rest(self, far: list[ir.Value], count: ir.Value) -> None:
        """Prefetches the second half where no other part of the rows does."""
        if self.ahead is None:
            return
        (ahead,) = far

        def chunk(number: ir.Value) -> None:
            self.stretch.prefetch_half(ahead, number)

        counted_loop(self.builder, I64(0), count, 1, chunk, trips=STRETCH_CHUNKS, name="ahead")

    def _part(self, row: int, chunk: ir.Value) -> list[ir.Value]:
        """The rows from ``row`` on, at a chunk: ``a, offsets, out, scales, sums``."""
        b, gemm, layout = self.builder, self.gemm, self.panel.layout
        assert gemm.block_rows is not None
        a = b.gep(self.a, [b.mul(chunk, I64(CHUNK))], source_etype=I8)
        scales = address(b, self.scales, INT32, b.udiv(chunk, I64(layout.chunks)))
        sums = address(b, self.sums, INT32, b.mul(chunk, I64(layout.chunk_groups)))
        out = address(b, self.out, FLOAT32, I64(row * gemm.panel))
        if gemm.row_stride is None:
            return [a, address(b, self.offsets, INT64, I64(row)), out, scales, sums]
        a = b.gep(a, [I64(row * gemm.row_stride)], source_etype=I8)
        scales, sums = (
            address(b, base, INT32, I64(row * known_step(index, gemm)))
            for base, index in (
                (scales, gemm.block_rows.scales_index),
                (sums, gemm.block_rows.sums_index),
            )
        )
        return [a, self.offsets, out, scales, sums]
