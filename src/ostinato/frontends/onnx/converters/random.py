"""Random numbers, made by a counter-based generator.

Element ``i`` of run ``n`` of a node is a word of Philox4x32-10 (Salmon, Moraes, Dror and Shaw,
"Parallel random numbers: as easy as 1, 2, 3", 2011): the counter is ``(i // 4, n)``, the key is the
node's seed, or where it has none a checksum of its name. A state of the graph counts the runs.
"""

from __future__ import annotations

import math
import struct
import zlib
from typing import TYPE_CHECKING

import numpy as np

from ostinato.dtypes import FLOAT32, FLOAT64, INT32, INT64, UINT64, DType
from ostinato.frontends.onnx.tensors import ELEMENT_TYPES, element_name
from ostinato.variables import ceil_div, prod

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ostinato.frontends.onnx.call import Call, Converter, Result
    from ostinato.ir.graph import Value
    from ostinato.variables import Dim

__all__ = ["CONVERTERS", "uniform"]

_ROUNDS = 10
_FACTORS = (0xD251_1F53, 0xCD9E_8D57)
_WEYL = (0x9E37_79B9, 0xBB67_AE85)
_WORD = (1 << 32) - 1


def uniform(call: Call, shape: Sequence[Dim], dtype: DType) -> Value:
    """Numbers from 0 to below 1, as many different ones as the mantissa holds up to 32 bits."""
    g = call.g
    words, size = _words(call, prod(shape)), prod(shape)
    bits = {"float16": 11, "bfloat16": 8, "float32": 24}.get(dtype.name, 32)
    kept = g.bitwise_right_shift(words, g.constant(np.uint64(32 - bits)))
    exact = FLOAT64 if dtype == FLOAT64 else FLOAT32
    fractions = g.multiply(g.cast(kept, exact), 2.0**-bits)
    flat = g.reshape(g.slice(fractions, [0], [size]), tuple(shape))
    return g.cast(flat, dtype)


def _words(call: Call, count: Dim) -> Value:
    """At least ``count`` words of 32 random bits, as uint64 ``[words]``."""
    g = call.g
    blocks = ceil_div(count, 4)
    runs = _runs(call)

    def low(x: Value) -> Value:
        return g.bitwise_and(x, g.constant(np.uint64(_WORD)))

    def high(x: Value) -> Value:
        return g.bitwise_right_shift(x, g.constant(np.uint64(32)))

    index = g.iota((blocks,), 0, UINT64)
    run = g.broadcast_to(runs, (blocks,))
    c = [low(index), high(index), low(run), high(run)]
    keys = list(_key(call))
    for _ in range(_ROUNDS):
        first, second = (
            g.multiply(c[i], g.constant(np.uint64(factor)))
            for i, factor in zip((0, 2), _FACTORS, strict=True)
        )
        k0, k1 = (g.constant(np.uint64(key)) for key in keys)
        c = [
            g.bitwise_xor(g.bitwise_xor(high(second), c[1]), k0),
            low(second),
            g.bitwise_xor(g.bitwise_xor(high(first), c[3]), k1),
            low(first),
        ]
        keys = [(key + step) & _WORD for key, step in zip(keys, _WEYL, strict=True)]
    return g.reshape(g.stack(c, axis=1), (4 * blocks,))


def _key(call: Call) -> tuple[int, int]:
    if call.op_type == "Dropout":
        whole = call.integer("seed", None)
        if whole is not None:
            return whole & _WORD, whole >> 32 & _WORD
    elif (seed := call.real("seed", None)) is not None:
        return int.from_bytes(struct.pack("<f", seed), "little"), 0
    return zlib.crc32(call.label.encode()), 1


def _runs(call: Call) -> Value:
    """The number of runs before this one, as uint64 ``[1]``."""
    g = call.g
    name, taken = f"{call.label}.runs", g.states.keys() | g.inputs.keys() | g.params.keys()
    count = 2
    while name in taken:
        name, count = f"{call.label}.runs_{count}", count + 1
    runs = g.state(name, (1,), UINT64)
    g.assign(runs, g.add(runs, g.constant(np.ones(1, np.uint64))))
    return runs


def convert_random(call: Call) -> Result:
    """RandomUniform, RandomNormal, and their forms that take the shape of an operand."""
    g = call.g
    like = call.op_type.endswith("Like")
    number = call.integer("dtype", None)
    if number is not None and number not in ELEMENT_TYPES:
        call.unsupported(f"it makes {element_name(number)} elements")
    default = call.dtype(0) if like else FLOAT32
    dtype = default if number is None else ELEMENT_TYPES[number]
    shape = call.shape(0) if like else call.integer_list("shape", None)
    if shape is None or any(isinstance(dim, int) and dim < 0 for dim in shape):
        call.malformed(f"its shape is {shape}")
    if not dtype.is_float:
        call.malformed(f"it makes floats, not {dtype}")
    if call.op_type.startswith("RandomUniform"):
        low, high = call.real("low", 0.0), call.real("high", 1.0)
        return g.add(g.multiply(uniform(call, shape, dtype), high - low), low)
    spread = g.multiply(_normal(call, shape, dtype), call.real("scale", 1.0))
    return g.add(spread, call.real("mean", 0.0))


def _normal(call: Call, shape: Sequence[Dim], dtype: DType) -> Value:
    """Normal numbers, each from two uniform ones, as Box and Muller make them."""
    g, exact = call.g, FLOAT64 if dtype == FLOAT64 else FLOAT32
    both = uniform(call, (2, *shape), exact)
    first, second = (g.reshape(g.slice(both, [i], [i + 1], axes=[0]), tuple(shape)) for i in (0, 1))
    radius = g.sqrt(g.multiply(g.log(g.subtract(1.0, first)), -2.0))
    return g.cast(g.multiply(radius, g.cos(g.multiply(second, 2 * math.pi))), dtype)


def convert_multinomial(call: Call) -> Result:
    """Convert ``Multinomial``: of each sample, the greatest log-probability plus Gumbel noise."""
    g, x, samples = call.g, call.value(0), call.integer("sample_size", 1)
    dtype = ELEMENT_TYPES.get(call.integer("dtype", 6))
    if x.ndim != 2 or samples < 1 or dtype not in (INT32, INT64):
        call.malformed(f"expected x [batch,classes] and a sample size, got {x.type} and {samples}")
    fractions = uniform(call, (x.shape[0], samples, x.shape[1]), x.dtype.accumulator)
    noise = g.neg(g.log(g.neg(g.log(g.subtract(1.0, fractions)))))
    scores = g.add(g.cast(g.expand_dims(x, 1), noise.dtype), noise)
    return g.cast(g.argmax(scores, axis=2), dtype)


def convert_dropout(call: Call) -> Result:
    """Convert ``Dropout``: in training mode it drops a share of the elements, else none."""
    g = call.g
    ratio = call.scalar(1, "ratio") if call.opset >= 12 and call.has(1) else 0.5
    training = call.opset >= 12 and call.has(2) and call.scalar(2, "training mode")
    if training and ratio > 0:
        x = call.value(0)
        kept = g.greater_equal(uniform(call, x.shape, FLOAT32), float(ratio))
        scaled = g.multiply(x, 1 / (1 - ratio)) if ratio < 1 else x
        dropped = g.where(kept, scaled, 0.0)
        return [dropped, kept] if call.wants(1) else dropped
    if not call.wants(1):
        return call.operand(0)
    # Before operator set 10 the mask has the type of the data.
    mask = g.constant(True) if call.opset >= 10 else g.cast(g.constant(True), call.dtype(0))
    return call.operand(0), g.broadcast_to(mask, call.shape(0))


CONVERTERS: Mapping[str, Converter] = {
    "Dropout": convert_dropout,
    "Multinomial": convert_multinomial,
    "RandomNormal": convert_random,
    "RandomNormalLike": convert_random,
    "RandomUniform": convert_random,
    "RandomUniformLike": convert_random,
}
