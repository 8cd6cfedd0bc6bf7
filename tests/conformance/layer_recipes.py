"""Recipes that apply matmuls, convolutions, norms and other layers to random operands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ostinato.dtypes import DType
from ostinato.ir.graph import Value
from ostinato.ops.packed.formats import FORMATS
from tests.packed_blocks import random_blocks

from .draw import FLOATS, NUMBERS, SIZES, Draw, Recipe

#: Floats of 8 bits that are multiplied.
FLOAT8 = ("float8_e4m3fn", "float8_e5m2")


def _matmul(d: Draw, dtype: str) -> Value:
    return d.g.matmul(*_matmul_operands(d, dtype))


def _widening_matmul(d: Draw, dtype: str) -> Value:
    return d.g.widening_matmul(*_matmul_operands(d, dtype))


def _matmul_operands(d: Draw, dtype: str) -> tuple[Value, Value]:
    m, k, n = (d.size() for _ in range(3))
    batch = d.choice(((), (), (2,), (3, 2)))
    a = d.of(d.choice(((k,), (m, k), (*batch, m, k))), dtype)
    b_shape: tuple[int, ...] = d.choice(((k,), (k, n), (*batch, k, n), (*batch[1:], k, n)))
    if d.chance(0.3) and len(b_shape) > 1:
        order = (*range(len(b_shape) - 2), len(b_shape) - 1, len(b_shape) - 2)
        b = d.g.permute_dims(d.of([b_shape[i] for i in order], dtype), order)
    else:
        b = d.of(b_shape, dtype)
    return a, b


def _integer_matmul(d: Draw, dtype: str) -> Value:
    m, k, n = d.size(), d.size(), max(1, d.size())
    a = d.of(d.choice(((k,), (m, k), (2, m, k))), dtype, -128, 127 if dtype == "int8" else 255)
    return d.g.integer_matmul(a, d.of((k, n), d.choice(("int8", "uint8")), -128, 127))


def _quantized_matmul(d: Draw, dtype: str) -> Value:
    m, k, n = d.size(), max(1, d.size()), max(1, d.size())
    x = d.of(d.choice(((k,), (m, k), (2, m, k))), dtype)
    return d.g.quantized_matmul(x, d.of((k, n), "int8", -127, 127), d.of((n,), "float32", 0, 0.1))


def _int4_matmul(d: Draw, dtype: str) -> Value:
    m, k, n = d.size(), d.integer(1, 200), max(1, d.size())
    group = d.choice((32, 64, 128))
    x = d.of(d.choice(((k,), (m, k), (2, m, k))), dtype)
    codes = d.of((-(-k // 2), n), "uint8", 0, 255)
    scales = d.of((-(-k // group), n), d.choice(("float32", "bfloat16")), 0, 0.1)
    return d.g.int4_matmul(x, codes, scales, group=group)


def _blockwise_matmul(d: Draw, dtype: str) -> Value:
    m, blocks, n = d.size(), d.integer(1, 4), max(1, d.size())
    group = d.choice((32, 64, 128))
    lead = d.choice(((), (m,), (2, m)))
    q = d.of((*lead, blocks * group), "int8", -127, 127)
    q_scales = d.of((*lead, blocks), dtype)
    codes = d.of((blocks * group // 2 - d.integer(0, group // 2 - 1), n), "uint8", 0, 255)
    return d.g.blockwise_matmul(q, q_scales, codes, d.of((blocks, n), "float16"), group=group)


def _scaled_matmul(d: Draw, dtype: str) -> Value:
    m, k, n = (d.size() for _ in range(3))
    lead = d.choice(((), (m,), (2, m)))
    x, w = d.of((*lead, k), dtype), d.of((k, n), d.choice(FLOAT8))
    scales = d.of(d.choice(((), (*lead, 1))), "float32"), d.of(d.choice(((), (n,))), "float32")
    return d.g.scaled_matmul(x, w, *scales, dtype=d.choice(FLOATS[:3]))


def _packed(d: Draw, rows: int, blocks: int) -> tuple[str, Value]:
    """A format, and random blocks in it whose scales are small numbers."""
    name = d.choice(tuple(name for name, form in FORMATS.items() if form.computed))
    count = rows * blocks
    array = random_blocks(d.rng, name.removeprefix("gguf:"), count, hard=False)
    return name, d.holding(array.reshape(rows, blocks * FORMATS[name].nbytes))


def _packed_matmul(d: Draw, dtype: str) -> Value:
    m, blocks, n = d.size(), d.integer(1, 3), d.size()
    if d.integer(0, 3) == 0:
        count = d.integer(1, 3)
        name, w = _packed(d, count * n, blocks)
        stack = d.g.reshape(w, (count, n, blocks * FORMATS[name].nbytes))
        return d.g.packed_matmul(d.of((count, m, blocks * FORMATS[name].size), dtype), stack, name)
    name, w = _packed(d, n, blocks)
    depth = blocks * FORMATS[name].size
    return d.g.packed_matmul(d.of(d.choice(((depth,), (m, depth), (2, m, depth))), dtype), w, name)


def _packed_block_matmul(d: Draw, dtype: str) -> Value:
    m, blocks, n = d.size(), d.integer(1, 3), d.size()
    name, w = _packed(d, n, blocks)
    form = FORMATS[name]
    lead = d.choice(((), (m,), (2, m)))
    q = d.of((*lead, blocks * form.size), "int8", -127, 127)
    groups = d.g.reshape(d.g.cast(q, "int32"), (*lead, blocks * form.groups, form.group))
    scales = d.of((*lead, blocks), dtype)
    return d.g.packed_block_matmul(q, scales, d.g.sum(groups, axis=-1), w, name)


def _packed_grouped_matmul(d: Draw, dtype: str) -> Value:
    rows, experts, blocks, n = d.size(), d.integer(1, 9), d.integer(1, 3), d.size()
    name, w = _packed(d, experts * n, blocks)
    matrices = d.g.reshape(w, (experts, n, blocks * FORMATS[name].nbytes))
    x = d.of((rows, blocks * FORMATS[name].size), dtype)
    return d.g.packed_grouped_matmul(x, matrices, d.ids((rows,), experts, beyond=False), name)


def _packed_embedding(d: Draw, dtype: str) -> Value:
    rows = max(1, d.size())
    name, w = _packed(d, rows, d.integer(1, 3))
    ids = d.of(d.shape(0, 2), d.choice(("int32", "int64")), 0, rows - 1)
    return d.g.packed_embedding(ids, w, name, dtype)


def _dequantize_packed(d: Draw, dtype: str) -> Value:
    rows, blocks = d.size(), d.integer(0, 3)
    name, w = _packed(d, rows, blocks)
    return d.g.dequantize_packed(w, name, (blocks * FORMATS[name].size, rows), dtype)


def _bytes(d: Draw, shape: Sequence[int], dtype: str) -> Value:
    return d.of(shape, dtype, *((-128, 127) if dtype == "int8" else (0, 255)))


def _scale(d: Draw, shape: Sequence[int], dtype: str = "float32") -> Value:
    return d.of(shape, dtype, 0.01, 0.5)


def _quantize(d: Draw, dtype: str) -> Value:
    n = d.size()
    scale, zero_point = d.choice(((), (n,))), d.choice(((), (3, 1)))
    code = d.choice(("int8", "uint8", "int16"))
    return d.g.quantize(d.of((3, n), dtype), _scale(d, scale, dtype), d.of(zero_point, code, 0, 99))


def _dequantize(d: Draw, dtype: str) -> Value:
    n = d.size()
    scale, zero_point = d.choice(((), (n,))), d.choice(((), (3, 1)))
    q = d.of((3, n), dtype, 0, 120)
    return d.g.dequantize(q, _scale(d, scale, d.choice(FLOATS[:3])), d.of(zero_point, dtype, 0, 99))


def _requantize(d: Draw, dtype: str) -> Value:
    n = d.size()
    sums = d.of((3, n), dtype, -9999, 9999)
    return d.g.requantize(sums, _scale(d, (n,)), d.of((), d.choice(("int8", "uint8")), 0, 99))


def _affine_matmul(d: Draw, dtype: str) -> Value:
    m, k, n = d.size(), d.size(), d.size()
    other = d.choice(("int8", "uint8"))
    batch = d.choice(((), (2,)))
    a, b = _bytes(d, d.choice(((k,), (2, m, k))), dtype), _bytes(d, (*batch, k, n), other)
    return d.g.affine_matmul(a, b, _bytes(d, (), dtype), _bytes(d, (*batch, 1, n), other))


def _integer_conv(d: Draw, dtype: str) -> Value:
    return d.g.integer_conv(*_conv_bytes(d, dtype), stride=d.integer(1, 2), padding=1)


def _affine_conv(d: Draw, dtype: str) -> Value:
    x, w = _conv_bytes(d, dtype)
    zeros = _bytes(d, (), dtype), _bytes(d, d.choice(((), (w.shape[0],))), w.dtype.name)
    return d.g.affine_conv(x, w, *zeros, padding=d.choice((0, 1)), dilation=d.integer(1, 2))


def _conv_bytes(d: Draw, dtype: str) -> tuple[Value, Value]:
    channels, kernel = d.choice((1, 3, 17, 32)), (d.integer(1, 3), d.integer(1, 3))
    x = _bytes(d, (d.integer(1, 2), channels, d.integer(6, 14), d.integer(6, 14)), dtype)
    return x, _bytes(d, (d.integer(1, 20), channels, *kernel), d.choice(("int8", "uint8")))


def _conv_parts(d: Draw) -> tuple[int, int, int, list[int], list[int]]:
    spatial = d.choice((1, 2, 2, 3))
    groups = d.choice((1, 1, 2, 4))
    kernel = [d.integer(1, 3) for _ in range(spatial)]
    limit = {1: 30, 2: 14, 3: 7}[spatial]
    sizes = [d.integer(6, limit) for _ in range(spatial)]
    return spatial, groups, d.choice((1, 2, 3)), kernel, sizes


def _conv(d: Draw, dtype: str) -> Value:
    spatial, groups, per_group, kernel, sizes = _conv_parts(d)
    filters = groups * d.integer(1, 9)
    x = d.of((d.integer(1, 2), groups * per_group, *sizes), dtype)
    w = d.of((filters, per_group, *kernel), dtype)
    bias = d.of((filters,), dtype) if d.chance() else None
    return d.g.conv(
        x, w, bias,
        stride=d.integer(1, 2), padding=d.choice((0, 1, "same", [(0, 1)] * spatial)),
        dilation=d.integer(1, 2), groups=groups,
    )  # fmt: skip


def _conv_transpose(d: Draw, dtype: str) -> Value:
    _, groups, per_group, kernel, sizes = _conv_parts(d)
    sizes = [min(s, 8) for s in sizes]
    x = d.of((1, groups * per_group, *sizes), dtype)
    w = d.of((groups * per_group, d.integer(1, 4), *kernel), dtype)
    stride = d.integer(1, 3)
    output_padding = d.integer(0, stride - 1)
    return d.g.conv_transpose(x, w, stride=stride, output_padding=output_padding, groups=groups)


def _pool(name: str) -> Recipe:
    def recipe(d: Draw, dtype: str) -> Value:
        _spatial, _, _, kernel, sizes = _conv_parts(d)
        x = d.of((d.integer(1, 2), d.integer(1, 3), *sizes), dtype)
        options: dict[str, Any] = {
            "stride": d.choice((None, 1, 2)),
            "padding": [(d.integer(0, k - 1), d.integer(0, k - 1)) for k in kernel],
            "dilation": d.integer(1, 2),
            "ceil_mode": d.chance(),
        }
        if name == "avg_pool":
            options["count_include_pad"] = d.chance()
        return getattr(d.g, name)(x, kernel, **options)

    return recipe


def _softmax(name: str) -> Recipe:
    def recipe(d: Draw, dtype: str) -> Value:
        x = d.tensor(dtype, 1, 4, nonempty=True)
        return getattr(d.g, name)(x, d.axis(x))

    return recipe


def _layer_norm(d: Draw, dtype: str) -> Value:
    x = d.tensor(dtype, 1, 4, nonempty=True)
    shape = x.shape[d.integer(0, x.ndim - 1) :]
    return d.g.layer_norm(x, d.of(shape, dtype), d.of(shape, dtype) if d.chance() else None)


def _rms_norm(d: Draw, dtype: str) -> Value:
    x = d.tensor(dtype, 1, 4, nonempty=True)
    return d.g.rms_norm(x, d.of(x.shape[-1:], dtype))


def _channels(d: Draw, dtype: str, channels: int) -> tuple[Value, Value, Value]:
    x = d.of((d.integer(1, 3), channels, *d.choice(((), (5,), (3, 7))), 4), dtype)
    return x, d.of((channels,), dtype), d.of((channels,), dtype)


def _group_norm(d: Draw, dtype: str) -> Value:
    groups = d.integer(1, 4)
    x, weight, bias = _channels(d, dtype, groups * d.integer(1, 3))
    return d.g.group_norm(x, groups, weight, bias)


def _instance_norm(d: Draw, dtype: str) -> Value:
    return d.g.instance_norm(*_channels(d, dtype, d.integer(1, 5)))


def _batch_norm(d: Draw, dtype: str) -> Value:
    x, weight, bias = _channels(d, dtype, channels := d.integer(1, 5))
    mean, var = d.of((channels,), dtype), d.of((channels,), dtype, 0.1, 3)
    return d.g.batch_norm(x, mean, var, weight, bias)


def _local_response_norm(d: Draw, dtype: str) -> Value:
    x, _, _ = _channels(d, dtype, d.integer(1, 7))
    return d.g.local_response_norm(x, d.integer(1, 5), alpha=0.1)


def _attention(d: Draw, dtype: str) -> Value:
    batch, kv_heads, group = d.integer(1, 2), d.integer(1, 2), d.integer(1, 3)
    lq, lk, size = d.choice(SIZES), d.choice(SIZES), d.choice((1, 4, 7, 8, 16))
    q = d.of((batch, kv_heads * group, lq, size), dtype)
    k, v = (d.of((batch, kv_heads, lk, size), dtype) for _ in range(2))
    options: dict[str, Any] = {"causal": d.chance() and lk >= lq}
    mask = d.choice((None, "bool", dtype))
    if mask is not None:
        options["mask"] = d.of((d.choice((1, batch)), 1, lq, lk), mask)
    if d.chance(0.3):
        options["window"] = d.integer(1, 9)
    if d.chance(0.3):
        options["softcap"] = 5.0
    if d.chance(0.3):
        options["scale"] = 0.3
    return d.g.attention(q, k, v, **options)


def _sink_attention(d: Draw, dtype: str) -> Value:
    batch, kv_heads, group = d.integer(1, 2), d.integer(1, 2), d.integer(1, 3)
    lq, lk, size = d.choice(SIZES), d.choice(SIZES), d.choice((1, 4, 7, 8, 16))
    q = d.of((batch, kv_heads * group, lq, size), dtype)
    k, v = (d.of((batch, kv_heads, lk, size), dtype) for _ in range(2))
    options: dict[str, Any] = {"causal": d.chance() and lk >= lq}
    if d.chance():
        options["mask"] = d.of((batch, 1, lq, lk), "bool")
    return d.g.attention(q, k, v, sinks=d.of((kv_heads * group,), dtype), **options)


def _paged_attention(d: Draw, dtype: str) -> Value:
    kv_heads, group, sequences = d.integer(1, 2), d.integer(1, 3), d.integer(1, 4)
    blocks, per_block, wide = d.integer(1, 9), d.choice((1, 3, 16, 64)), d.integer(1, 4)
    rows, depth, features = d.size(), d.choice((1, 4, 7, 16, 64)), d.choice((1, 5, 8, 16))
    pools = d.choice((dtype, *FLOATS[:3], "int8"))
    options: dict[str, Any] = {}
    if pools == "int8":
        for name in ("key_scales", "value_scales"):
            options[name] = d.of((blocks, per_block, kv_heads), d.choice(FLOATS[:2]), 0, 0.05)
    if d.chance(0.3):
        options["window"] = d.integer(1, 2 * per_block)
    if d.chance(0.3):
        options["softcap"] = 5.0
    if d.chance(0.3):
        options["scale"] = 0.3
    if d.chance(0.3):
        options["sinks"] = d.of((kv_heads * group,), d.choice((dtype, "float32")))
    position = d.rng.integers(-1, wide * per_block + 2, rows).astype(np.int32)
    integers = pools == "int8"
    return d.g.paged_attention(
        d.of((rows, kv_heads * group, depth), dtype),
        *(
            d.of(
                (blocks, per_block, kv_heads, size), pools, *((-127, 127) if integers else (-3, 3))
            )
            for size in (depth, features)
        ),
        d.ids((sequences, wide), blocks),
        d.ids((rows,), sequences),
        d.holding(position),
        **options,
    )


def _rope(d: Draw, dtype: str) -> Value:
    length, half = d.integer(1, 9), d.integer(1, 8)
    x = d.of((d.integer(1, 2), d.integer(1, 3), length, 2 * half), dtype)
    angles = [d.of((length, half), dtype, -1, 1) for _ in range(2)]
    return d.g.rope(x, *angles, interleaved=d.chance())


def _grouped_matmul(d: Draw, dtype: str) -> Value:
    rows, experts, k, n = d.size(), d.integer(1, 9), d.choice(SIZES), d.choice(SIZES)
    x, w = d.of((rows, k), dtype), d.of((experts, k, n), dtype)
    return d.g.grouped_matmul(x, w, d.ids((rows,), experts, beyond=False))


def _matrices(d: Draw, dtype: str, experts: int, features: int) -> list[Value | None]:
    """The gate, up and down matrices of some experts."""
    hidden, out = d.choice(SIZES), d.choice(SIZES)
    inner = [d.of((experts, features, hidden), dtype, -0.5, 0.5) for _ in range(2)]
    return [inner[0] if d.chance(0.7) else None, inner[1], d.of((experts, hidden, out), dtype)]


_EXPERT_ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu")


def _expert_mlp(d: Draw, dtype: str) -> Value:
    tokens, experts, features = d.size(), d.integer(1, 9), d.choice(SIZES)
    k = d.integer(1, 4)
    x, ids = d.of((tokens, features), dtype), d.ids((tokens, k), experts, beyond=False)
    wide = DType.parse(dtype).accumulator.name
    weights = d.of((tokens, k), d.choice((dtype, wide)), 0, 1)
    matrices = _matrices(d, dtype, experts, features)
    return d.g.expert_mlp(x, ids, weights, *matrices, activation=d.choice(_EXPERT_ACTIVATIONS))


def _moe(d: Draw, dtype: str) -> Value:
    experts, features = d.integer(1, 9), d.choice(SIZES)
    x = d.of((*d.shape(0, 2), features), dtype)
    gate, up, down = _matrices(d, dtype, experts, features)
    options: dict[str, Any] = {"k": d.integer(1, experts), "renormalize": d.chance()}
    options["route"] = d.choice(("softmax_topk", "topk_softmax"))
    options["activation"] = d.choice(_EXPERT_ACTIVATIONS)
    if d.chance():
        width, out = d.choice(SIZES), down.shape[2]
        inner = [d.of((features, width), dtype, -0.5, 0.5) for _ in range(2)]
        options["shared"] = (inner[0], inner[1], d.of((width, out), dtype))
        if gate is None:
            options["shared"] = (None, *options["shared"][1:])
        if d.chance():
            options["shared_router"] = d.of((features, 1), dtype, -0.5, 0.5)
    return d.g.moe(x, d.of((features, experts), dtype, -0.5, 0.5), gate, up, down, **options)


def _sample(d: Draw, dtype: str) -> Value:
    rows, vocabulary = d.integer(1, 4), d.choice((*SIZES, 130, 1000))
    real = d.choice(("float32", "float64"))
    cold = d.of((rows,), real, -0.5, 2) if d.chance() else d.of((rows,), real, 0.2, 2)
    return d.g.sample(
        d.of((rows, vocabulary), dtype, -9, 9),
        d.of((rows,), real, 0, 1),
        cold,
        d.of((rows,), d.choice(("int32", "int64")), -2, vocabulary + 2),
        d.of((rows,), real, 0, 1.2),
        d.of((rows,), real, -0.1, 0.2),
    )


def _draw(d: Draw, dtype: str) -> Value:
    rows, vocabulary = d.integer(1, 4), d.choice((*SIZES, 1100))
    return d.g.draw(
        d.of((rows, vocabulary), dtype, -0.2, 1),
        d.of((rows,), dtype, 0, 1),
        d.of((rows,), d.choice(("int32", "int64")), -2, vocabulary + 2),
        d.of((rows,), dtype, 0, 1.2),
        d.of((rows,), dtype, -0.1, 0.6),
    )


_GATES = {"lstm": 4, "gru": 3, "rnn": 1}


def _recurrent(name: str) -> Recipe:
    def recipe(d: Draw, dtype: str) -> Sequence[Value]:
        seq, batch, width, hidden = (d.integer(1, n) for n in (6, 3, 7, 18))
        direction = d.choice(("forward", "reverse", "bidirectional"))
        dirs = 2 if direction == "bidirectional" else 1
        rows = _GATES[name] * hidden
        options: dict[str, Any] = {"direction": direction}
        if d.chance():
            options["bias"] = d.of((dirs, 2 * rows), dtype)
        if d.chance():
            options["h0"] = d.of((dirs, batch, hidden), dtype)
        if d.chance(0.3):
            lens = d.rng.integers(0, seq + 1, batch).astype(np.int32)
            options["sequence_lens"] = d.holding(lens)
        if name == "gru":
            options["linear_before_reset"] = d.chance()
        if name == "lstm" and d.chance(0.3):
            options["peepholes"] = d.of((dirs, 3 * hidden), dtype, -0.5, 0.5)
        x = d.of((seq, batch, width), dtype, -1, 1)
        w = d.of((dirs, rows, width), dtype, -0.5, 0.5)
        r = d.of((dirs, rows, hidden), dtype, -0.5, 0.5)
        return getattr(d.g, name)(x, w, r, **options)

    return recipe


def _rows_of_sequences(d: Draw, slots: int) -> tuple[int, Value, Value]:
    """The number of rows, their slots and their positions; some sequences are begun by others."""
    rows = d.integer(0, 9)
    slot = np.sort(d.rng.integers(0, slots, rows)) - d.choice((0, slots))
    start = d.rng.choice((0, 0, 1, 5), slots)[slot]
    position = start + np.arange(rows) - np.searchsorted(slot, slot)
    dtype = d.choice((np.int32, np.int64))
    return rows, d.holding(slot.astype(dtype)), d.holding(position.astype(dtype))


def _linear_attention(d: Draw, dtype: str) -> Sequence[Value]:
    slots, heads, depth, features = d.integer(1, 3), d.integer(1, 3), d.choice(SIZES), d.size()
    queries = heads * d.integer(1, 3)
    rows, *places = _rows_of_sequences(d, slots)
    q, k = (d.of((rows, count, depth), dtype, -0.5, 0.5) for count in (queries, heads))
    v = d.of((rows, heads, features), dtype)
    state = d.of((slots, heads, depth, features), DType.parse(dtype).accumulator.name)
    rule = d.choice(("linear", "gated", "delta", "gated_delta"))
    options: dict[str, Any] = {"update_rule": rule}
    if "gated" in rule:
        options["decay"] = d.of(d.choice(((rows, heads), (rows, heads, depth))), dtype, -2, 0)
    if "delta" in rule:
        options["beta"] = d.of((rows, heads), dtype, 0, 0.2)
    if d.chance(0.3):
        options["scale"] = 0.3
    return d.g.linear_attention(q, k, v, state, *places, **options)


def _causal_conv_with_state(d: Draw, dtype: str) -> Sequence[Value]:
    slots, channels, taps = d.integer(1, 3), d.size(), d.integer(1, 5)
    rows, *places = _rows_of_sequences(d, slots)
    x, weight = d.of((rows, channels), dtype), d.of((channels, taps), dtype, -0.5, 0.5)
    bias = d.of((channels,), dtype) if d.chance() else None
    state = d.of((slots, channels, taps - 1), dtype)
    activation = d.choice(("none", "silu"))
    return d.g.causal_conv_with_state(x, weight, state, *places, bias, activation=activation)


def _l2_normalize(d: Draw, dtype: str) -> Value:
    x = d.tensor(dtype, 1, 3, nonempty=True)
    return d.g.l2_normalize(x, d.axis(x))


#: By op name, its recipe and the dtypes that it takes.
LAYERS: dict[str, tuple[Recipe, Sequence[str]]] = {
    "matmul": (_matmul, NUMBERS),
    "widening_matmul": (_widening_matmul, ("float16", "bfloat16")),
    "integer_matmul": (_integer_matmul, ("int8", "uint8")),
    "quantize": (_quantize, FLOATS),
    "dequantize": (_dequantize, ("int8", "uint8", "int16", "int32")),
    "requantize": (_requantize, ("int32",)),
    "affine_matmul": (_affine_matmul, ("int8", "uint8")),
    "affine_conv": (_affine_conv, ("int8", "uint8")),
    "integer_conv": (_integer_conv, ("int8", "uint8")),
    "quantized_matmul": (_quantized_matmul, FLOATS[:3]),
    "int4_matmul": (_int4_matmul, FLOATS[:3]),
    "blockwise_matmul": (_blockwise_matmul, ("float32",)),
    "scaled_matmul": (_scaled_matmul, FLOAT8),
    "packed_matmul": (_packed_matmul, FLOATS[:3]),
    "packed_block_matmul": (_packed_block_matmul, ("float32",)),
    "packed_grouped_matmul": (_packed_grouped_matmul, FLOATS[:3]),
    # What the op above becomes; it has no method of its own.
    "packed_grouped_block_matmul": (_packed_grouped_matmul, ("float32",)),
    "packed_embedding": (_packed_embedding, FLOATS),
    "dequantize_packed": (_dequantize_packed, FLOATS),
    "conv": (_conv, (*FLOATS, "int32")),
    "conv_transpose": (_conv_transpose, FLOATS),
    "max_pool": (_pool("max_pool"), NUMBERS),
    "avg_pool": (_pool("avg_pool"), FLOATS),
    "softmax": (_softmax("softmax"), FLOATS),
    "log_softmax": (_softmax("log_softmax"), FLOATS),
    "layer_norm": (_layer_norm, FLOATS),
    "rms_norm": (_rms_norm, FLOATS),
    "group_norm": (_group_norm, FLOATS),
    "instance_norm": (_instance_norm, FLOATS),
    "batch_norm": (_batch_norm, FLOATS),
    "local_response_norm": (_local_response_norm, FLOATS),
    "l2_normalize": (_l2_normalize, FLOATS),
    "attention": (_attention, FLOATS),
    "sink_attention": (_sink_attention, FLOATS),
    "paged_attention": (_paged_attention, FLOATS),
    "rope": (_rope, FLOATS),
    "sample": (_sample, FLOATS),
    "draw": (_draw, ("float32",)),
    "grouped_matmul": (_grouped_matmul, NUMBERS),
    "expert_mlp": (_expert_mlp, FLOATS),
    "moe": (_moe, FLOATS),
    **{name: (_recurrent(name), FLOATS) for name in _GATES},
    # The scan is what lstm, gru and rnn become; it has no method of its own.
    "recurrent_scan": (_recurrent("lstm"), FLOATS),
    "linear_attention": (_linear_attention, FLOATS),
    "causal_conv_with_state": (_causal_conv_with_state, FLOATS),
}
