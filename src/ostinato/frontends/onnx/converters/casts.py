"""``Cast``, ``CastLike`` and ``BitCast``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ostinato.dtypes import FLOAT32, UINT8, UINT32, DType
from ostinato.frontends.onnx.known import Strings, as_known, boxed
from ostinato.frontends.onnx.tensors import ELEMENT_TYPES, STRING, element_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.frontends.onnx.call import Call, Converter, Result
    from ostinato.frontends.onnx.known import Known
    from ostinato.ir.graph import Value

__all__ = ["CONVERTERS", "saturated_cast"]

#: The greatest number of each format to which ``saturate`` applies.
_GREATEST = {
    "float8_e4m3fn": 448.0,
    "float8_e4m3fnuz": 240.0,
    "float8_e5m2": 57344.0,
    "float8_e5m2fnuz": 57344.0,
}

_EXPONENT = DType.parse("float8_e8m0fnu")


def convert_cast(call: Call) -> Result:
    if call.holds_strings(0):
        return _parsed(call, _target(call))
    if call.required("to") == STRING:
        return _printed(call)
    return saturated_cast(call, call.value(0), _target(call))


def convert_cast_like(call: Call) -> Result:
    if call.holds_strings(0):
        texts = Strings(call.strings(0))
        return texts if call.holds_strings(1) else _parsed(call, call.dtype(1))
    if call.holds_strings(1):
        return _printed(call)
    return saturated_cast(call, call.value(0), call.dtype(1))


def convert_bit_cast(call: Call) -> Result:
    x, target = call.value(0), _target(call)
    if x.dtype.itemsize != target.itemsize:
        call.malformed(f"{x.dtype} and {target} are not of the same width")
    return call.g.bitcast(x, target)


def _target(call: Call) -> DType:
    number = call.required("to")
    if number not in ELEMENT_TYPES:
        call.unsupported(f"it casts to {element_name(number)}")
    return ELEMENT_TYPES[number]


def saturated_cast(call: Call, x: Value, target: DType) -> Value:
    """``x`` as ``target``; ``saturate`` says what is beyond the range of a float of 8 bits."""
    g = call.g
    if x.dtype == target:
        return x
    if target == _EXPONENT:
        return _exponent(call, x)
    greatest = _GREATEST.get(target.name)
    if greatest is not None and call.flag("saturate", 1):
        numbers = x if x.dtype.is_float else g.cast(x, FLOAT32)
        x = g.clip(numbers, -greatest, greatest)
    return g.cast(x, target)


def _printed(call: Call) -> Strings:
    """Numbers as text, in Python's shortest form."""
    known = call.known(0)
    if known is None or known.symbolic:
        call.unknown(0, "its strings depend on data")
    special = {"nan": "NaN", "inf": "INF", "-inf": "-INF"}
    array = known.array.astype(np.float32) if known.array.dtype.kind == "V" else known.array
    texts = (str(item) for item in array.reshape(-1))
    return Strings(boxed((special.get(text, text) for text in texts), array.shape))


def _parsed(call: Call, target: DType) -> Known:
    """The numbers that strings hold."""
    texts = call.strings(0)
    read = float if not target.is_integer else int
    try:
        numbers = [read(text) for text in texts.reshape(-1)]
    except ValueError as error:
        call.malformed(f"it reads a number: {error}")
    exact = np.array(numbers, np.float64 if read is float else object).reshape(texts.shape)
    return as_known(exact.astype(target.numpy))


def _exponent(call: Call, x: Value) -> Value:
    """The exponent of ``x``, its fraction rounded as ``round_mode`` has it; no sign is kept."""
    g, mode = call.g, call.text("round_mode", "up")
    if mode not in ("up", "down", "nearest"):
        call.malformed(f"round_mode should be up, down or nearest, got {mode!r}")

    def bits_of(value: int) -> Value:
        return g.constant(np.uint32(value))

    bits = g.bitcast(g.cast(x, FLOAT32), UINT32)
    exponent = g.bitwise_and(g.bitwise_right_shift(bits, bits_of(23)), bits_of(0xFF))
    fraction = g.bitwise_and(bits, bits_of(0x7F_FFFF))
    if mode == "up":
        rounded_up = g.greater(fraction, bits_of(0))
    elif mode == "nearest":  # a half goes up, unless the number is subnormal
        tie_stays = g.logical_and(
            g.equal(fraction, bits_of(0x40_0000)), g.equal(exponent, bits_of(0))
        )
        rounded_up = g.greater_equal(fraction, bits_of(0x40_0000))
        rounded_up = g.logical_and(rounded_up, g.logical_not(tie_stays))
    else:
        rounded_up = g.greater(bits_of(0), fraction)
    last = 0xFD if call.flag("saturate", 1) else 0xFE
    rounded_up = g.logical_and(rounded_up, g.less_equal(exponent, bits_of(last)))
    code = g.add(exponent, g.cast(rounded_up, UINT32))
    return g.bitcast(g.cast(code, UINT8), _EXPONENT)


CONVERTERS: Mapping[str, Converter] = {
    "BitCast": convert_bit_cast,
    "Cast": convert_cast,
    "CastLike": convert_cast_like,
}
