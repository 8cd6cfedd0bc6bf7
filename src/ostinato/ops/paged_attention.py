"""Attention of rows of many sequences to keys and values in blocks of a pool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.dtypes import INT8, INT64
from ostinato.ir.op import Attr, Op
from ostinato.ir.types import TensorType
from ostinato.ops.attention import ATTENTION, SINK_ATTENTION, expect_options, expect_sinks
from ostinato.ops.indexing import clamped
from ostinato.variables import bounds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ostinato.ir.graph import Value
    from ostinato.variables import Dim

__all__ = ["FAMILY", "PAGED_ATTENTION", "PagedAttention", "scales_and_sinks"]


class PagedAttention(Op):
    """Causal attention of the rows of several sequences, by tables of blocks.

    ``q [N, H, D]``: the rows of all sequences, one below the other. ``keys [B, T, Hk, D]`` and
    ``values [B, T, Hk, Dv]``: pools of blocks of ``T`` positions. ``table [S, P]``: the block of
    the positions ``p * T`` to ``(p + 1) * T - 1`` of sequence ``s`` is ``table[s, p]``.
    ``sequence [N]`` and ``position [N]``: of each row. The result is ``[N, H, Dv]``.

    Row ``n`` attends to the positions 0 to ``position[n]`` of its sequence; with ``window``, to
    the last ``window`` of these. No other element of the pools matters, be it a NaN. Query head
    ``h`` reads key head ``h // (H / Hk)``. ``scale`` and ``softcap`` are those of ``attention``.
    Pools may be of another float dtype than the queries, whose dtype the result has; nothing is
    rounded to 16 bits between them.

    Further operands: for pools of int8, the scales of keys and of values, floats ``[B, T, Hk]``,
    factors of all their features; and then the ``sinks`` of ``attention``.

    Sequences and blocks that a row needs are taken as ``take`` takes indices; a position beyond
    the table is the last one. A row at a negative position gives zeros.

    A row's result does not depend on the other rows, nor on how many there are, down to the bit.
    """

    name = "paged_attention"

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        self.expect_count(operands, 6, 9)
        q, keys, values, table, sequence, position = operands[:6]
        scales, sinks = scales_and_sinks(operands)
        self.expect(q.ndim == 3 and q.dtype.is_float, f"q is a float [rows, heads, dim], got {q}")
        self._check_pools(keys, values, scales)
        self._check_heads(q, keys)
        least = min(bounds(size)[0] for size in keys.shape[:2])
        self.expect(least > 0, f"the pools have no positions, got {keys}")
        self.expect(
            table.ndim == 2 and table.dtype.is_integer,
            f"table is integers [sequences, blocks], got {table}",
        )
        self.expect(
            all(bounds(size)[0] > 0 for size in table.shape), f"the table is empty, got {table}"
        )
        for name, numbers in (("sequence", sequence), ("position", position)):
            self.expect(
                numbers.dtype.is_integer and numbers.shape == q.shape[:1],
                f"{name} is integers [{q.shape[0]}], one for each row of q, got {numbers}",
            )
        for sink in sinks:
            expect_sinks(self, sink, q.shape[1])
        expect_options(self, attrs)
        return (TensorType(q.dtype, (*q.shape[:2], values.shape[3])),)

    def _check_pools(
        self, keys: TensorType, values: TensorType, scales: Sequence[TensorType]
    ) -> None:
        kind = "int8" if scales else "floats"
        for name, pool in (("keys", keys), ("values", values)):
            known = all(isinstance(size, int) for size in pool.shape[1:])
            fits = pool.dtype == INT8 if scales else pool.dtype.is_float
            self.expect(
                pool.ndim == 4 and fits and known,
                f"{name} are {kind} [blocks, positions, key heads, dim] of known sizes behind the "
                f"first, got {pool}",
            )
        self.expect(
            keys.dtype == values.dtype, f"keys are {keys.dtype} and values {values.dtype}; cast one"
        )
        self.expect(
            keys.shape[:3] == values.shape[:3],
            f"keys {keys} and values {values} differ in more than their last axis",
        )
        for name, factors in zip(("key_scales", "value_scales"), scales, strict=False):
            self.expect(
                factors.dtype.is_float and factors.shape == keys.shape[:3],
                f"{name} are floats [{','.join(map(str, keys.shape[:3]))}], got {factors}",
            )

    def _check_heads(self, q: TensorType, keys: TensorType) -> None:
        heads, depth = q.shape[1:]
        self.expect(
            isinstance(heads, int) and isinstance(depth, int) and heads * depth > 0,
            f"the heads and features of q are known sizes from 1 up, got {q}",
        )
        self.expect(
            keys.shape[3] == depth,
            f"head dimensions {depth} of q and {keys.shape[3]} of keys differ",
        )
        self.expect(
            keys.shape[2] != 0 and heads % keys.shape[2] == 0,
            f"{heads} query heads are no multiple of {keys.shape[2]} key heads",
        )

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        def attend(q: Any, k: Any, v: Any, mask: Any, *sinks: Any, **options: Any) -> Any:
            op = SINK_ATTENTION if sinks else ATTENTION
            return op.evaluate(xp, q, k, v, *sinks, mask, causal=False, window=None, **options)

        return self._rule(xp, lambda x: x, attend, *operands, **attrs)

    def decompose(self, g: Any, operands: Sequence[Value], attrs: dict[str, Attr]) -> Any:
        q = operands[0]
        wide = q.dtype.accumulator

        def attend(q: Any, k: Any, v: Any, mask: Any, *sinks: Any, **options: Any) -> Any:
            return g.attention(q, k, v, mask=mask, sinks=sinks[0] if sinks else None, **options)

        result = self._rule(g, lambda x: g.cast(x, wide), attend, *operands, **attrs)
        return g.cast(result, q.dtype)

    @staticmethod
    def _rule(
        xp: Any,
        widen: Callable[[Any], Any],
        attend: Callable[..., Any],
        q: Any,
        keys: Any,
        values: Any,
        table: Any,
        sequence: Any,
        position: Any,
        *more: Any,
        window: int | None,
        scale: float | None,
        softcap: float | None,
    ) -> Any:
        """The attention of all rows to the positions of every sequence; each row keeps its own."""
        scales, sinks = scales_and_sinks((q, keys, values, table, sequence, position, *more))
        (rows, heads, depth), (count, blocks) = q.shape, table.shape
        length, features = blocks * keys.shape[1], values.shape[3]
        own = clamped(xp, sequence, count)
        place = xp.minimum(xp.cast(position, INT64), length - 1)
        ahead = xp.reshape(place, (1, rows, 1)) - xp.iota((1, 1, length), 2, INT64)
        kept = xp.equal(xp.reshape(own, (1, rows, 1)), xp.iota((count, 1, 1), 0, INT64))
        kept = xp.logical_and(kept, xp.greater_equal(ahead, 0))
        if window is not None:
            kept = xp.logical_and(kept, xp.less(ahead, window))
        # What no row attends to may be anything, such as a NaN.
        used = xp.reshape(xp.any(kept, axis=1), (count, 1, length, 1))
        index = clamped(xp, table, keys.shape[0])

        def gathered(pool: Any, factors: Sequence[Any]) -> Any:
            chosen = widen(xp.take(pool, index, axis=0))
            for factor in factors:
                wide = widen(xp.take(factor, index, axis=0))
                chosen = chosen * xp.reshape(wide, (*chosen.shape[:-1], 1))
            chosen = xp.reshape(chosen, (count, length, *pool.shape[2:]))
            return xp.where(used, xp.permute_dims(chosen, (0, 2, 1, 3)), 0.0)

        stacked = xp.reshape(xp.permute_dims(widen(q), (1, 0, 2)), (1, heads, rows, depth))
        every = attend(
            xp.broadcast_to(stacked, (count, heads, rows, depth)),
            gathered(keys, scales[:1]),
            gathered(values, scales[1:]),
            xp.reshape(kept, (count, 1, rows, length)),
            *(widen(sink) for sink in sinks),
            scale=scale,
            softcap=softcap,
        )
        chosen = xp.broadcast_to(xp.reshape(own, (1, 1, rows, 1)), (1, heads, rows, features))
        result = xp.reshape(xp.take_along_axis(every, chosen, axis=0), (heads, rows, features))
        return xp.permute_dims(result, (1, 0, 2))

    def flops(self, operands: Sequence[TensorType], attrs: dict[str, Attr]) -> Dim:
        q, keys, values, table = operands[:4]
        scores = q.shape[0] * q.shape[1] * table.shape[1] * keys.shape[1]
        return scores * (2 * q.shape[2] + 2 * values.shape[3] + 5)


def scales_and_sinks(operands: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
    """The scales of keys and values, and the sinks; either may be none."""
    more = operands[6:]
    return more[: len(more) // 2 * 2], more[len(more) // 2 * 2 :]


PAGED_ATTENTION = PagedAttention()
FAMILY: tuple[Op, ...] = (PAGED_ATTENTION,)
