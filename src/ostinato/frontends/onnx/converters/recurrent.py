"""LSTM, GRU and RNN."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.frontends.onnx.known import Known

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.frontends.onnx.call import Call, Converter, Result
    from ostinato.ir.graph import Value

__all__ = ["CONVERTERS"]

#: The activations that the vocabulary's recurrent ops know, by ONNX's names in lower case.
_ACTIVATIONS = {"sigmoid", "tanh", "relu"}
_DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}


def convert_lstm(call: Call) -> Result:
    if call.flag("input_forget", 0):
        call.unsupported("its input and forget gates are coupled (input_forget=1)")
    arguments = _arguments(call, 3)
    y, h, c = call.g.lstm(
        *_operands(call),
        c0=_state(call, 6),
        peepholes=call.optional(7),
        **arguments,
    )
    return _results(call, y, h, c)


def convert_gru(call: Call) -> Result:
    y, h = call.g.gru(
        *_operands(call),
        linear_before_reset=call.flag("linear_before_reset", 0),
        **_arguments(call, 2),
    )
    return _results(call, y, h)


def convert_rnn(call: Call) -> Result:
    y, h = call.g.rnn(*_operands(call), **_arguments(call, 1))
    return _results(call, y, h)


def _operands(call: Call) -> tuple[Value, Value, Value, Value | None]:
    """Input, weights and bias; with ``layout=1`` the batch comes first."""
    x = call.value(0)
    if x.ndim != 3:
        call.malformed(f"expected x [seq,batch,input], got {x.type}")
    if call.flag("layout", 0):
        x = call.g.permute_dims(x, (1, 0, 2))
    return x, call.value(1), call.value(2), call.optional(3)


def _state(call: Call, index: int) -> Value | None:
    found = call.optional(index)
    if found is None or not call.flag("layout", 0):
        return found
    return call.g.permute_dims(found, (1, 0, 2))


def _arguments(call: Call, per_direction: int) -> dict[str, Any]:
    direction = call.text("direction", "forward")
    if direction not in _DIRECTIONS:
        call.malformed(f"unknown direction {direction!r}")
    clip = call.real("clip", None)
    hidden = call.integer("hidden_size", None)
    if hidden is not None and call.shape(2)[-1] != hidden:
        call.malformed(f"hidden_size {hidden} contradicts the weights {call.type(2)}")
    return {
        "h0": _state(call, 5),
        "sequence_lens": _lengths(call),
        "direction": direction,
        "activations": _activations(call, per_direction * _DIRECTIONS[direction]),
        "clip": clip or None,
    }


def _activations(call: Call, expected: int) -> tuple[str, ...] | None:
    """The activations, direction after direction; ``None`` for the kind's own."""
    names = call.text_list("activations", None)
    if names is None:
        return None
    lowered = tuple(name.lower() for name in names)
    if len(lowered) != expected:
        call.malformed(f"{len(lowered)} activations, expected {expected}")
    unknown = [name for name in names if name.lower() not in _ACTIVATIONS]
    if unknown:
        call.unsupported(f"activation {unknown[0]} (Sigmoid, Tanh and Relu are supported)")
    return lowered


def _lengths(call: Call) -> Value | None:
    """The sequences' lengths, unless all are known to be full."""
    lengths = call.operands[4] if call.has(4) else None
    if lengths is None:
        return None
    steps = call.shape(0)[1 if call.flag("layout", 0) else 0]
    if isinstance(lengths, Known) and all(n == steps for n in call.dims(4, "sequence lengths")):
        return None
    return call.value(4)


def _results(call: Call, y: Value, *states: Value) -> list[Value]:
    if not call.flag("layout", 0):
        return [y, *states]
    g = call.g
    return [g.permute_dims(y, (2, 0, 1, 3)), *(g.permute_dims(s, (1, 0, 2)) for s in states)]


CONVERTERS: Mapping[str, Converter] = {
    "GRU": convert_gru,
    "LSTM": convert_lstm,
    "RNN": convert_rnn,
}
