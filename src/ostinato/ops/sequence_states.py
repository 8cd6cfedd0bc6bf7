"""Ops over rows of several sequences that carry a state: linear attention, causal convolution.

Rows of all sequences stand one below the other, those of one sequence in the order of their
positions. A row continues the state in the slot of its sequence, and a row at position 0 begins it
with zeros. Rows are defined one by one, in their order, so a result does not depend on how a
sequence is divided into calls, nor on the other sequences of a call.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

from ostinato.dtypes import FLOAT64, INT64
from ostinato.ir.op import Attr, Op
from ostinato.ir.types import TensorType
from ostinato.ops.indexing import clamped
from ostinato.variables import bounds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ostinato.variables import Dim

__all__ = [
    "CAUSAL_CONV_WITH_STATE",
    "CONV_ACTIVATIONS",
    "FAMILY",
    "LINEAR_ATTENTION",
    "UPDATE_RULES",
    "CausalConvWithState",
    "LinearAttention",
    "SequenceStateOp",
    "convolved",
]

#: The update rules of linear attention, and the optional operands that each takes.
UPDATE_RULES: dict[str, tuple[str, ...]] = {
    "linear": (),
    "gated": ("decay",),
    "delta": ("beta",),
    "gated_delta": ("decay", "beta"),
}

#: The activations of a causal convolution.
CONV_ACTIVATIONS = ("none", "silu")


class SequenceStateOp(Op):
    """An op over ragged rows: it gives the updated state, then a result for each row.

    The first operand is the state, whose first axis has the slots. ``sequence [N]`` has the slot of
    each row (taken as :meth:`take` takes indices), ``position [N]`` its position.

    Attributes:
        by_row: the names of operands that have a part for each row, the tokens' own first.
    """

    updates_operand = True
    by_row: ClassVar[tuple[str, ...]] = ()

    def names(self, attrs: Mapping[str, Attr]) -> tuple[str, ...]:
        """The names of the operands."""
        raise NotImplementedError

    def row(
        self, xp: Any, state: Any, named: Mapping[str, Any], attrs: Mapping[str, Attr]
    ) -> tuple[Any, Any]:
        """The state ``[1, ...]`` after a row, and the row's result ``[1, ...]``.

        Args:
            xp: the methods of the vocabulary.
            state: of the row's sequence, before the row.
            named: the other operands by name, those with rows reduced to this one.
            attrs: of the node.
        """
        raise NotImplementedError

    def result_shape(self, named: Mapping[str, Any]) -> tuple[Dim, ...]:
        """The shape of the rows' results."""
        raise NotImplementedError

    def named(self, operands: Sequence[Any], attrs: Mapping[str, Attr]) -> dict[str, Any]:
        """Operands by name.

        Raises:
            GraphError: their number differs.
        """
        names = self.names(attrs)
        self.expect(
            len(operands) == len(names), f"takes {', '.join(names)}, got {len(operands)} operands"
        )
        return dict(zip(names, operands, strict=True))

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        named = self.named(operands, attrs)
        state = named["state"]
        slots, line = state.shape[0], (-1, *(1,) * (len(state.shape) - 1))
        results = [xp.full((0, *self.result_shape(named)[1:]), 0.0, FLOAT64)]
        for n in range(named["sequence"].shape[0]):
            parts = {name: x[n : n + 1] if name in self.by_row else x for name, x in named.items()}
            slot = clamped(xp, parts["sequence"], slots)
            before = _begun(xp, xp.take(state, slot, axis=0), parts["position"])
            after, result = self.row(xp, before, parts, attrs)
            own = xp.reshape(xp.equal(xp.iota((slots,), 0, INT64), slot), line)
            state = xp.where(own, after, state)
            results.append(result)
        return state, xp.concat(results, axis=0)

    def decompose(self, g: Any, operands: Sequence[Any], attrs: dict[str, Attr]) -> Any:
        """A loop over the rows, for devices without a kernel."""
        named = self.named(operands, attrs)
        state, scanned = named.pop("state"), [name for name in self.by_row if name in named]
        dtype = named[scanned[0]].dtype
        wide = {
            n: x if x.dtype.is_integer else g.cast(x, dtype.accumulator) for n, x in named.items()
        }
        weights = {name: x for name, x in wide.items() if name not in scanned}

        def body(b: Any, carried: Any, *parts: Any) -> tuple[Any, Any]:
            row = {n: b.expand_dims(x, 0) for n, x in zip(scanned, parts, strict=True)}
            row |= {name: b.local(value) for name, value in weights.items()}
            slot = clamped(b, row["sequence"], state.shape[0])
            before = b.cast(b.take(carried, slot, axis=0), dtype.accumulator)
            after, result = self.row(b, _begun(b, before, row["position"]), row, attrs)
            starts = (b.reshape(slot, ()), *(0,) * (carried.ndim - 1))
            updated = b.dynamic_update_slice(carried, b.cast(after, carried.dtype), starts)
            return updated, b.reshape(result, result.shape[1:])

        last, results = g.scan(body, [state], [wide[name] for name in scanned])
        return last, g.cast(results, dtype)

    def check_rows(self, named: Mapping[str, TensorType]) -> Dim:
        """The number of rows, once slots and positions are one for each."""
        state, sequence, position = (named[name] for name in ("state", "sequence", "position"))
        known = all(isinstance(size, int) for size in state.shape[1:])
        self.expect(known, f"the state has known sizes behind its slots, got {state}")
        some = state.ndim > 0 and bounds(state.shape[0])[0] > 0
        self.expect(some, f"the state {state} has no slot")
        for name in ("sequence", "position"):
            given = named[name]
            fits = given.ndim == 1 and given.dtype.is_integer
            self.expect(fits, f"{name} is integers [rows], got {given}")
        differ = f"sequence {sequence} and position {position} differ in rows"
        self.expect_equal(sequence.shape[0], position.shape[0], differ)
        return sequence.shape[0]

    def expect_types(
        self, named: Mapping[str, TensorType], wanted: Mapping[str, TensorType]
    ) -> None:
        """Raise :class:`GraphError` unless operands have these types."""
        for name, type_ in wanted.items():
            self.expect(named[name] == type_, f"{name} is {type_}, got {named[name]}")


class LinearAttention(SequenceStateOp):
    """Attention without softmax, by a matrix for each sequence and head. (ONNX, opset 27.)

    Operands: ``state [S, H, Dk, Dv]``, of the dtype of sums; ``q [N, Hq, Dk]``, ``k [N, H, Dk]``
    and ``v [N, H, Dv]``; ``sequence [N]``; ``position [N]``; then, as the update rule asks,
    ``decay [N, H]`` or ``[N, H, Dk]`` and ``beta [N, H]``. ``H`` divides ``Hq``: query head ``h``
    reads head ``h // (Hq / H)``. With the rows of a head as columns, each row makes the state ``s``

    - ``"linear"``: ``s + k v^T``;
    - ``"gated"``: ``exp(decay) s + k v^T``;
    - ``"delta"``: ``s + beta k (v - s^T k)^T``;
    - ``"gated_delta"``: that of ``exp(decay) s`` in place of ``s``.

    The results are the state after all rows, and ``scale * s^T q`` after each: ``[N, Hq, Dv]``.

    Attributes:
        update_rule: one of :data:`UPDATE_RULES`.
        scale: a factor on the results.
    """

    name = "linear_attention"
    by_row = ("q", "k", "v", "sequence", "position", "decay", "beta")

    def names(self, attrs: Mapping[str, Attr]) -> tuple[str, ...]:
        rule = attrs["update_rule"]
        known = isinstance(rule, str) and rule in UPDATE_RULES
        self.expect(known, f"update_rule is one of {', '.join(UPDATE_RULES)}, got {rule!r}")
        return ("state", "q", "k", "v", "sequence", "position", *UPDATE_RULES[rule])

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        named = self.named(operands, attrs)
        state, q = named["state"], named["q"]
        rows = self.check_rows(named)
        self.expect(state.ndim == 4, f"state is [slots, heads, Dk, Dv], got {state}")
        self.expect(q.dtype.is_float, f"q is {q.dtype}, not a float; cast it first")
        wide = q.dtype.accumulator
        self.expect(state.dtype == wide, f"the state beside {q.dtype} is {wide}, got {state}")
        _, heads, depth, features = state.shape
        queries = q.shape[1] if q.ndim == 3 else None
        known = isinstance(queries, int) and heads != 0 and queries != 0
        self.expect(known, f"q is [rows, heads, {depth}] with a known number of heads, got {q}")
        assert isinstance(queries, int)
        assert isinstance(heads, int)
        several = f"{queries} query heads are no multiple of {heads} heads of the state"
        self.expect(queries % heads == 0, several)
        wanted = {
            "q": TensorType(q.dtype, (rows, queries, depth)),
            "k": TensorType(q.dtype, (rows, heads, depth)),
            "v": TensorType(q.dtype, (rows, heads, features)),
        }
        if "beta" in named:
            wanted["beta"] = TensorType(q.dtype, (rows, heads))
        if "decay" in named:
            per_key = (depth,) if named["decay"].ndim == 3 else ()
            wanted["decay"] = TensorType(q.dtype, (rows, heads, *per_key))
        self.expect_types(named, wanted)
        scale = attrs["scale"]
        number = isinstance(scale, float) and math.isfinite(scale)
        self.expect(number, f"scale is a finite number, got {scale!r}")
        return state, TensorType(q.dtype, (rows, queries, features))

    def result_shape(self, named: Mapping[str, Any]) -> tuple[Dim, ...]:
        return (*named["q"].shape[:2], named["v"].shape[2])

    def row(
        self, xp: Any, state: Any, named: Mapping[str, Any], attrs: Mapping[str, Attr]
    ) -> tuple[Any, Any]:
        _, heads, depth, features = state.shape
        queries = named["q"].shape[1]
        k = xp.reshape(named["k"], (1, heads, depth, 1))
        new = xp.reshape(named["v"], (1, heads, 1, features))
        if "decay" in named:
            per_key = depth if len(named["decay"].shape) == 3 else 1
            state = state * xp.exp(xp.reshape(named["decay"], (1, heads, per_key, 1)))
        if "beta" in named:
            held = xp.sum(k * state, axis=2, keepdims=True)
            new = xp.reshape(named["beta"], (1, heads, 1, 1)) * (new - held)
        state = state + k * new
        q = xp.reshape(named["q"], (1, heads, queries // heads, depth, 1))
        read = xp.sum(q * xp.reshape(state, (1, heads, 1, depth, features)), axis=3)
        return state, xp.reshape(read * attrs["scale"], (1, queries, features))

    def flops(self, operands: Sequence[TensorType], attrs: dict[str, Attr]) -> Dim:
        named = self.named(operands, attrs)
        rows, (_, heads, depth, features) = named["q"].shape[0], named["state"].shape
        each = 2 + 2 * ("beta" in named) + ("decay" in named)
        flops: Dim = rows * depth * features * (each * heads + 2 * named["q"].shape[1])
        return flops


class CausalConvWithState(SequenceStateOp):
    """Convolution of each channel over its own last rows. (ONNX, opset 27.)

    Operands: ``state [S, C, K - 1]``, the last inputs of each sequence, the newest last;
    ``x [N, C]``, ``weight [C, K]``, ``sequence [N]``, ``position [N]``; and, with the attribute
    ``biased``, ``bias [C]``. The results are the state after all rows, and, for each, the sum of
    the channel's last ``K`` inputs times its weights, the newest times the last, plus the bias:
    ``[N, C]``. All floats are of one dtype.

    Attributes:
        activation: of :data:`CONV_ACTIVATIONS`, on the results.
        biased: whether there is a bias.
    """

    name = "causal_conv_with_state"
    by_row = ("x", "sequence", "position")

    def names(self, attrs: Mapping[str, Attr]) -> tuple[str, ...]:
        biased = attrs["biased"]
        self.expect(isinstance(biased, bool), f"biased is a bool, got {biased!r}")
        return ("state", "x", "weight", "sequence", "position", *(("bias",) if biased else ()))

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        named = self.named(operands, attrs)
        state, x, weight = named["state"], named["x"], named["weight"]
        rows = self.check_rows(named)
        self.expect(x.dtype.is_float, f"x is {x.dtype}, not a float; cast it first")
        taps = weight.shape[1] if weight.ndim == 2 else None
        self.expect(isinstance(taps, int) and taps > 0, f"weight is [channels, taps], got {weight}")
        assert isinstance(taps, int)
        channels = weight.shape[0]
        wanted = {
            "state": TensorType(x.dtype, (state.shape[0], channels, taps - 1)),
            "x": TensorType(x.dtype, (rows, channels)),
            "weight": TensorType(x.dtype, (channels, taps)),
        }
        if "bias" in named:
            wanted["bias"] = TensorType(x.dtype, (channels,))
        self.expect_types(named, wanted)
        activation = attrs["activation"]
        known = isinstance(activation, str) and activation in CONV_ACTIVATIONS
        listed = ", ".join(CONV_ACTIVATIONS)
        self.expect(known, f"activation is one of {listed}, got {activation!r}")
        return state, x

    def result_shape(self, named: Mapping[str, Any]) -> tuple[Dim, ...]:
        return tuple(named["x"].shape)

    def row(
        self, xp: Any, state: Any, named: Mapping[str, Any], attrs: Mapping[str, Attr]
    ) -> tuple[Any, Any]:
        channels, taps = named["weight"].shape
        x = xp.reshape(named["x"], (1, channels, 1))
        window = xp.concat([state, x], axis=2)
        y = xp.sum(window * xp.reshape(named["weight"], (1, channels, taps)), axis=2)
        if "bias" in named:
            y = y + xp.reshape(named["bias"], (1, channels))
        return window[:, :, 1:], convolved(xp, y, attrs["activation"])

    def flops(self, operands: Sequence[TensorType], attrs: dict[str, Attr]) -> Dim:
        named = self.named(operands, attrs)
        flops: Dim = 2 * named["x"].size * named["weight"].shape[1]
        return flops


def convolved(xp: Any, y: Any, activation: str) -> Any:
    """The result of a causal convolution's sum, an elementwise rule."""
    return xp.silu(y) if activation == "silu" else y


def _begun(xp: Any, state: Any, position: Any) -> Any:
    """The state ``[1, ...]`` that a row continues: zeros at position 0."""
    first = xp.reshape(xp.equal(position, 0), (1,) * len(state.shape))
    return xp.where(first, 0.0, state)


LINEAR_ATTENTION, CAUSAL_CONV_WITH_STATE = LinearAttention(), CausalConvWithState()
FAMILY: tuple[Op, ...] = (LINEAR_ATTENTION, CAUSAL_CONV_WITH_STATE)
