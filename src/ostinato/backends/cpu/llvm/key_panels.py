"""Panels of keys: going over them vector by vector, and packing them for register tiles."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llvmlite import ir

from ostinato.backends.cpu.llvm.kernel import counted_loop
from ostinato.backends.cpu.llvm.lanes import Lane, broadcast
from ostinato.backends.cpu.llvm.memory import address, load, store
from ostinato.backends.cpu.llvm.microkernel import tile_lanes
from ostinato.backends.cpu.llvm.scopes import Mask, Scope
from ostinato.backends.cpu.llvm.transpose import square_size, transposed
from ostinato.backends.cpu.llvm.types import I1, I64, mask_type
from ostinato.dtypes import INT64
from ostinato.lower.loopir.nodes import Load, max_extent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ostinato.backends.cpu.llvm.kernel import KernelFunction
    from ostinato.backends.cpu.llvm.scalars import Scalars
    from ostinato.backends.cpu.rules.attention import AttentionKernel
    from ostinato.dtypes import DType
    from ostinato.variables import Dim

__all__ = ["KeyPanels", "first_lanes", "pack_keys"]


class KeyPanels:
    """The panels of keys of one attention kernel.

    Args:
        target: where the packed panel goes: ``depth`` rows of as many keys as a panel has.
    """

    def __init__(
        self,
        attention: AttentionKernel,
        kernel: KernelFunction,
        scalars: Scalars,
        target: ir.Value,
    ) -> None:
        self.attention = attention
        self.builder = kernel.builder
        self.kernel = kernel
        self.scalars = scalars
        self.target = target
        self.width = tile_lanes(attention.score_gemm, kernel.target)
        self.size = attention.tiles.scores[1]
        self.square = min(square_size(self.size), self.width)

    def whole_or_partial(self, left: ir.Value, emit: Callable[[bool], None]) -> None:
        """Emits what happens to a whole panel, and, if there may be one, to a partial one.

        Args:
            left: keys from the panel's first on.
            emit: takes whether the panel may be partial.
        """
        b, keys = self.builder, self.attention.key_count
        if isinstance(keys, int) and keys % self.size == 0:
            emit(False)
            return
        with b.if_else(b.icmp_signed(">=", left, I64(self.size))) as (whole, rest):
            with whole:
                emit(False)
            with rest:
                emit(True)

    def vectors(
        self, scope: Scope, first: ir.Value, live: ir.Value | None
    ) -> Iterator[tuple[int, Scope]]:
        """The vectors of the panel that starts at key ``first``: their places in it, and scopes.

        Args:
            live: how many keys there are; ``None`` for as many as the panel has.
        """
        b, key = self.builder, self.attention.spec.key
        for within in range(0, self.size, self.width):
            mask = None
            if live is not None:
                mask = Mask(first_lanes(b, b.sub(live, I64(within)), self.width), nonempty=False)
            start = b.add(first, I64(within))
            yield within, Scope((scope,), key, self.width, mask, {key: start})

    # -- packing ----------------------------------------------------------------------------

    def pack(self, scope: Scope, first: ir.Value, left: ir.Value) -> None:
        """Packs the panel of keys from ``first`` on, of which there are ``left`` or more.

        Lanes beyond the last key are left with whatever numbers.
        """
        k, strides = self.attention.spec.k, self.attention.key_strides
        if isinstance(k, Load) and strides is not None:
            self._pack_squares(k, strides, scope, first, left)
            return
        self.whole_or_partial(
            left, lambda partial: self._pack_rows(scope, first, left if partial else None)
        )

    def _pack_rows(self, scope: Scope, first: ir.Value, live: ir.Value | None) -> None:
        """Feature by feature, vectors of keys."""
        b, attention = self.builder, self.attention

        def feature(number: ir.Value) -> None:
            inside = scope.child(symbols={attention.spec.depth: number})
            for within, vector in self.vectors(inside, first, live):
                lane = self.scalars.value(attention.spec.k, vector).astype(attention.spec.acc)
                self._store(number, I64(within), broadcast(lane, self.width))

        counted_loop(b, I64(0), I64(max_extent(attention.spec.depth)), 1, feature, name="d")

    def _store(self, depth: ir.Value, within: ir.Value, lane: Lane) -> None:
        b = self.builder
        place = b.add(b.mul(depth, I64(self.size)), within)
        store(b, self.target, self.attention.spec.acc, place, lane)

    def _pack_squares(
        self, k: Load, strides: tuple[Dim, Dim], scope: Scope, first: ir.Value, left: ir.Value
    ) -> None:
        """Transposes squares of keys by features."""
        depth = max_extent(self.attention.spec.depth)

        def keys(rows: list[ir.Value], within: ir.Value) -> None:
            panel = self.target, self.size, self.attention.spec.acc
            pack_keys(self.builder, rows, k.dtype, depth, panel, within)

        self.for_keys(k, strides, scope, first, left, keys)

    def for_keys(
        self,
        k: Load,
        strides: tuple[Dim, Dim],
        scope: Scope,
        first: ir.Value,
        left: ir.Value,
        body: Callable[[list[ir.Value], ir.Value], None],
    ) -> None:
        """Runs ``body`` for every few keys of a panel; the last stands in for those beyond it.

        Args:
            strides: see :attr:`AttentionKernel.key_strides`.
            body: takes the addresses of the keys, as many as a square has rows, and the place of
                the first in the panel.
        """
        b = self.builder
        start, stride = (self.scalars.indices.scalar(dim, scope) for dim in strides)
        base = address(b, self.kernel.buffers[k.buffer], k.dtype, start)
        last = b.add(first, b.sub(left, I64(1)))
        size = self.square

        def keys(within: ir.Value) -> None:
            rows = []
            for number in range(size):
                key = b.add(b.add(first, within), I64(number))
                key = b.select(b.icmp_signed("<", key, last), key, last)
                rows.append(address(b, base, k.dtype, b.mul(key, stride)))
            body(rows, within)

        most = I64(self.size)
        end = b.select(b.icmp_signed("<", left, most), left, most)
        counted_loop(b, I64(0), end, size, keys, name="square")


def pack_keys(
    builder: ir.IRBuilder,
    rows: list[ir.Value],
    dtype: DType,
    depth: int,
    panel: tuple[ir.Value, int, DType],
    within: ir.Value,
    scales: Sequence[Lane] = (),
) -> None:
    """Transpose a few keys into a panel, square by square.

    Args:
        rows: the addresses of the keys, a power of two of them.
        dtype: of their features.
        depth: how many features there are.
        panel: its address, the keys that it has room for, and its dtype.
        within: the place of the first key in it.
        scales: of each key, factors of its features; none of any.
    """
    b, size = builder, len(rows)
    target, pitch, acc = panel

    def square(at: ir.Value, features: int) -> None:
        mask = first_lanes(b, I64(features), size) if features < size else None
        lanes = [load(b, row, dtype, at, size, mask).astype(acc) for row in rows]
        if scales:
            lanes = [lane * scale for lane, scale in zip(lanes, scales, strict=True)]
        for number, lane in enumerate(transposed(lanes)[:features]):
            place = b.add(b.mul(b.add(at, I64(number)), I64(pitch)), within)
            store(b, target, acc, place, lane)

    whole = depth - depth % size
    counted_loop(
        b, I64(0), I64(whole), size, lambda at: square(at, size), trips=whole // size, name="d"
    )
    if depth % size:
        square(I64(whole), depth % size)


def first_lanes(builder: ir.IRBuilder, count: ir.Value, width: int) -> ir.Value:
    """A mask of the first ``count`` of ``width`` lanes; all or none of them beyond the ends."""
    if isinstance(count, ir.Constant):
        flags = [lane < count.constant for lane in range(width)]
        return ir.Constant(mask_type(width), flags) if width > 1 else I1(flags[0])
    if width == 1:
        return builder.icmp_signed(">", count, I64(0))
    steps = ir.Constant(ir.VectorType(I64, width), list(range(width)))
    limit = broadcast(Lane(builder, count, INT64, 1), width)
    return builder.icmp_signed("<", steps, limit.value)
