"""LSTM, GRU and RNN."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.frontends.onnx.known import Known

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.frontends.onnx.call import Call, Converter, Result
    from ostinato.ir.graph import Value

__all__ = ["CONVERTERS"]

#: The vocabulary's names of activations, and the parameters that they have where none are given.
_ACTIVATIONS: dict[str, tuple[str, float | None, float | None]] = {
    "affine": ("affine", 1.0, 0.0),
    "elu": ("elu", 1.0, None),
    "hardsigmoid": ("hard_sigmoid", 0.2, 0.5),
    "leakyrelu": ("leaky_relu", 0.01, None),
    "relu": ("relu", None, None),
    "scaledtanh": ("scaled_tanh", 1.0, 1.0),
    "sigmoid": ("sigmoid", None, None),
    "softplus": ("softplus", None, None),
    "softsign": ("softsign", None, None),
    "tanh": ("tanh", None, None),
    "thresholdedrelu": ("thresholded_relu", 1.0, None),
}
_DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}


def convert_lstm(call: Call) -> Result:
    arguments = _arguments(call, 3)
    y, h, c = call.g.lstm(
        *_operands(call),
        c0=_state(call, 6),
        peepholes=call.optional(7),
        coupled=call.flag("input_forget", 0),
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
    for index in (1, 2):
        if call.rank(index) != 3:
            call.malformed(
                f"operand {index} is {call.type(index)}, expected [directions,gates,features]"
            )
    if hidden is not None and call.shape(2)[-1] != hidden:
        call.malformed(f"hidden_size {hidden} contradicts the weights {call.type(2)}")
    return {
        "h0": _state(call, 5),
        "sequence_lens": _lengths(call),
        "direction": direction,
        "activations": _activations(call, per_direction * _DIRECTIONS[direction]),
        "clip": clip or None,
    }


def _activations(call: Call, expected: int) -> tuple[Any, ...] | None:
    """The activations, direction after direction; ``None`` for the kind's own.

    The lists of parameters hold as many numbers as there are activations with one.
    """
    names = call.text_list("activations", None)
    if names is None:
        return None
    if len(names) != expected:
        call.malformed(f"{len(names)} activations, expected {expected}")
    alphas = iter(call.real_list("activation_alpha", ()))
    betas = iter(call.real_list("activation_beta", ()))
    found: list[Any] = []
    for name in names:
        if name.lower() not in _ACTIVATIONS:
            call.unsupported(f"unknown activation {name}")
        known, alpha, beta = _ACTIVATIONS[name.lower()]
        parameters = [
            next(given, usual)
            for given, usual in ((alphas, alpha), (betas, beta))
            if usual is not None
        ]
        found.append((known, *parameters) if parameters else known)
    return tuple(found)


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
    g = call.g
    lengths = _lengths(call)
    if lengths is not None and (call.has(5) or call.has(6)):
        # An empty sequence ends in zeros, whatever it began with, as in ONNX Runtime.
        lived = g.expand_dims(g.greater(lengths, 0), 1)
        states = tuple(g.where(lived, state, 0) for state in states)
    if not call.flag("layout", 0):
        return [y, *states]
    return [g.permute_dims(y, (2, 0, 1, 3)), *(g.permute_dims(s, (1, 0, 2)) for s in states)]


CONVERTERS: Mapping[str, Converter] = {
    "GRU": convert_gru,
    "LSTM": convert_lstm,
    "RNN": convert_rnn,
}
