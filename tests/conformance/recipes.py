"""How to apply each op of the vocabulary to random operands.

A recipe draws operands from a :class:`Draw` and gives the results. The op sweep calls each recipe
on fresh inputs; the fuzzer lets ``Draw.tensor`` hand out values computed before, so that random
graphs grow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ostinato.dtypes import DType
from ostinato.ir.graph import Value
from ostinato.ops import OPS
from ostinato.ops.base import Elementwise

FLOATS = ("float32", "float16", "bfloat16", "float64")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
NUMBERS = FLOATS + INTEGERS
ANY = (*NUMBERS, "bool")

#: Sizes that sit on the edges of vectors and blocks, and those in between.
SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 13, 15, 16, 17, 23, 31, 33, 48, 49)


class Draw:
    """Random operands for one graph; ``arrays`` holds the value of every input.

    Instead of a graph it may be whatever else has the methods of the vocabulary.
    """

    def __init__(self, graph: Any, rng: np.random.Generator, *, reuse: float = 0.0) -> None:
        self.g = graph
        self.rng = rng
        self.reuse = reuse
        self.arrays: dict[str, np.ndarray[Any, Any]] = {}
        self.pool: list[Value] = []

    # -- choices ---------------------------------------------------------------------------------

    def integer(self, low: int, high: int) -> int:
        """Within ``low..high``, both included."""
        return int(self.rng.integers(low, high + 1))

    def chance(self, probability: float = 0.5) -> bool:
        return bool(self.rng.random() < probability)

    def choice(self, options: Sequence[Any]) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def size(self) -> int:
        return 0 if self.chance(0.02) else int(self.choice(SIZES))

    def shape(self, low: int, high: int) -> tuple[int, ...]:
        """A shape of ``low`` to ``high`` dims, of a few thousand elements at most."""
        sizes = [self.size() for _ in range(self.integer(low, high))]
        while np.prod(sizes, dtype=float) > 4000:
            sizes[int(np.argmax(sizes))] //= 2
        return tuple(max(s, 0) for s in sizes)

    def axis(self, x: Value) -> int:
        return self.integer(-x.ndim, x.ndim - 1)

    # -- operands --------------------------------------------------------------------------------

    def tensor(self, dtype: str, low: int = 0, high: int = 4, *, nonempty: bool = False) -> Value:
        """A value of any shape of ``low`` to ``high`` dims."""
        known = [
            v
            for v in self.pool
            if v.dtype.name == dtype and low <= v.ndim <= high and not (nonempty and 0 in v.shape)
        ]
        if known and self.chance(self.reuse):
            return self.choice(known)
        shape = self.shape(low, high)
        return self.of(tuple(max(s, 1) for s in shape) if nonempty else shape, dtype)

    def of(self, shape: Sequence[Any], dtype: str, low: float = -3, high: float = 3) -> Value:
        """A fresh input of a given shape, with elements within ``low..high``."""
        parsed = DType.parse(dtype)
        sizes = tuple(int(s) for s in shape)
        if parsed.is_bool:
            array = self.rng.random(sizes) < 0.5
        elif parsed.is_integer:
            least = 0 if not parsed.is_signed else int(low)
            array = self.rng.integers(least, int(high) + 1, sizes)
        else:
            array = self.rng.uniform(low, high, sizes)
        return self.holding(np.asarray(array).astype(parsed.numpy))

    def holding(self, array: np.ndarray[Any, Any]) -> Value:
        """A fresh input with exactly these elements."""
        name = f"x{len(self.arrays)}"
        self.arrays[name] = array
        return self.g.input(name, array.shape, array.dtype)

    def ids(self, shape: Sequence[Any], size: Any, *, beyond: bool = True) -> Value:
        """Indices into an axis of ``size``, some counted from the end, a few out of range."""
        reach = int(size) + (2 if beyond else 0)
        dtype = self.choice(("int64", "int32"))
        array = self.rng.integers(-reach, max(reach, 1), tuple(int(s) for s in shape))
        return self.holding(array.astype(dtype))

    def like(self, x: Value) -> Value:
        """An operand that broadcasts with ``x``: of its shape, or with some dims left out or 1."""
        shape = list(x.shape)
        if self.chance():
            shape = shape[self.integer(0, len(shape)) :]
            shape = [1 if self.chance(0.3) else s for s in shape]
        return self.of(shape, x.dtype.name)


Recipe = Callable[[Draw, str], "Value | Sequence[Value]"]


def _elementwise(op: Elementwise) -> Recipe:
    def recipe(d: Draw, dtype: str) -> Value:
        x = _in_domain(d, op.name, dtype)
        operands = [x, *(d.like(x) for _ in range(op.arity - 1))]
        if op.name in ("bitwise_left_shift", "bitwise_right_shift"):
            operands[1] = d.of(x.shape, dtype, 0, 70 if dtype not in ("int8",) else 9)
        if op.name == "pow" and not x.dtype.is_float:
            operands[1] = d.of(x.shape, dtype, 0, 5)
        return getattr(d.g, op.name)(*operands, **ATTRS.get(op.name, lambda d: {})(d))

    return recipe


#: Where a function is defined, for those that are not defined everywhere.
_DOMAINS: dict[str, tuple[float, float]] = {
    "log": (0.01, 8),
    "log2": (0.01, 8),
    "log10": (0.01, 8),
    "log1p": (-0.9, 8),
    "sqrt": (0, 8),
    "rsqrt": (0.05, 8),
    "asin": (-1, 1),
    "acos": (-1, 1),
    "atanh": (-0.95, 0.95),
    "acosh": (1, 9),
    "pow": (0.1, 3),
    "tan": (-1.4, 1.4),
    "reciprocal": (0.2, 4),
}

ATTRS: dict[str, Callable[[Draw], dict[str, Any]]] = {
    "leaky_relu": lambda d: {"alpha": 0.1},
    "elu": lambda d: {"alpha": 1.5},
    "celu": lambda d: {"alpha": 1.5},
    "thresholded_relu": lambda d: {"alpha": 0.5},
    "hard_sigmoid": lambda d: {"alpha": 0.3, "beta": 0.4},
    "hard_tanh": lambda d: {"min": -0.5, "max": 1.5},
    "gelu": lambda d: {"approximate": d.chance()},
}


def _in_domain(d: Draw, name: str, dtype: str) -> Value:
    parsed = DType.parse(dtype)
    if name in _DOMAINS and parsed.is_float:
        return d.of(d.shape(0, 4), dtype, *_DOMAINS[name])
    if name in _DOMAINS:
        low = 1 if name in ("log", "log2", "log10", "rsqrt", "acosh", "reciprocal") else 0
        return d.of(d.shape(0, 4), dtype, low, 1 if name in ("asin", "acos") else 5)
    return d.tensor(dtype)


def _where(d: Draw, dtype: str) -> Value:
    x = d.tensor(dtype)
    condition = d.of(d.like(x).shape, "bool")
    return d.g.where(condition, x, d.like(x))


def _cast(d: Draw, dtype: str) -> Value:
    target = d.choice(ANY)
    x = d.tensor(dtype)
    if DType.parse(target).kind.value == "unsigned":
        x = d.g.abs(x) if not x.dtype.is_bool else x
    return d.g.cast(x, target)


def _clip(d: Draw, dtype: str) -> Value:
    bounds = ((-1, 2), (None, 1), (0, None))
    low, high = d.choice(bounds)
    if dtype.startswith("uint") and low is not None and low < 0:
        low = 0
    return d.g.clip(d.tensor(dtype), low, high)


def _reshape(d: Draw, dtype: str) -> Value:
    x = d.tensor(dtype, 1, 4)
    sizes = [int(s) for s in x.shape]
    if 0 in sizes:
        return d.g.reshape(x, d.choice(((0,), (3, 0), (0, 2, 2), tuple(sizes[::-1]))))
    if d.chance():
        return d.g.reshape(x, (-1,))
    split = d.integer(0, len(sizes))
    shape = [int(np.prod(sizes[:split])), *sizes[split:]]
    for i, size in enumerate(shape):
        for factor in (2, 3, 5):
            if size % factor == 0 and d.chance(0.5):
                shape[i : i + 1] = [factor, size // factor]
                return d.g.reshape(x, shape)
    return d.g.reshape(x, (*shape, 1))


def _permute(d: Draw, dtype: str) -> Value:
    x = d.tensor(dtype, 1, 4)
    return d.g.permute_dims(x, [int(a) for a in d.rng.permutation(x.ndim)])


def _broadcast(d: Draw, dtype: str) -> Value:
    shape = list(d.shape(1, 3))
    source = [1 if d.chance(0.5) else s for s in shape]
    x = d.of(source[d.integer(0, 1) if source[0] == 1 else 0 :], dtype)
    return d.g.broadcast_to(x, shape)


def _slice(d: Draw, dtype: str) -> Value:
    x = d.tensor(dtype, 1, 4)
    starts = [d.integer(-int(s) - 1, int(s)) for s in x.shape]
    stops = [d.integer(-int(s) - 1, int(s) + 1) for s in x.shape]
    return d.g.slice(x, starts, stops, [d.choice((1, 1, 2, 3, -1, -2)) for _ in x.shape])


def _flip(d: Draw, dtype: str) -> Value:
    x = d.tensor(dtype, 1, 4)
    return d.g.flip(x, d.choice((None, d.axis(x))))


def _concat(d: Draw, dtype: str) -> Value:
    x = d.tensor(dtype, 1, 4)
    axis = d.axis(x)
    parts = [x]
    for _ in range(d.integer(1, 3)):
        shape = list(x.shape)
        shape[axis] = d.integer(0, 5)
        parts.append(d.of(shape, dtype))
    return d.g.concat(parts, axis)


def _pad(d: Draw, dtype: str) -> Value:
    x = d.tensor(dtype, 1, 4)
    return d.g.pad(x, [(d.integer(0, 3), d.integer(0, 3)) for _ in x.shape], value=d.choice((0, 1)))


def _pad_border(d: Draw, dtype: str) -> Value:
    x = d.tensor(dtype, 1, 3, nonempty=True)
    widths = [(d.integer(0, int(s) - 1), d.integer(0, int(s) - 1)) for s in x.shape]
    return d.g.pad(x, widths, mode=d.choice(("reflect", "edge")))


def _tile(d: Draw, dtype: str) -> Value:
    x = d.tensor(dtype, 1, 3)
    return d.g.tile(x, [d.integer(1, 3) for _ in x.shape])


def _iota(d: Draw, dtype: str) -> Value:
    shape = d.shape(1, 3)
    return d.g.iota(shape, d.integer(0, len(shape) - 1), dtype)


def _dim_value(d: Draw, dtype: str) -> Value:
    return d.g.add(d.g.dim_value(5), d.of((3,), "int64"))


def _triangle(name: str) -> Recipe:
    def recipe(d: Draw, dtype: str) -> Value:
        return getattr(d.g, name)(d.tensor(dtype, 2, 4), d.integer(-3, 3))

    return recipe


def _take(d: Draw, dtype: str) -> Value:
    x = d.tensor(dtype, 1, 3, nonempty=True)
    axis = d.axis(x)
    return d.g.take(x, d.ids(d.shape(0, 2), x.shape[axis]), axis)


def _take_along_axis(d: Draw, dtype: str) -> Value:
    x = d.tensor(dtype, 1, 3, nonempty=True)
    axis = d.axis(x)
    shape = list(x.shape)
    shape[axis] = d.integer(1, 6)
    return d.g.take_along_axis(x, d.ids(shape, x.shape[axis]), axis)


def _gather_nd(d: Draw, dtype: str) -> Value:
    x = d.tensor(dtype, 2, 4, nonempty=True)
    batch = d.integer(0, x.ndim - 1)
    depth = d.integer(1, x.ndim - batch)
    size = min(int(s) for s in x.shape)
    return d.g.gather_nd(x, d.ids((*x.shape[:batch], d.integer(1, 4), depth), size), batch)


def _starts(d: Draw, x: Value) -> list[Any]:
    return [
        d.choice((d.integer(0, int(s)), d.holding(np.int64(d.integer(-2, int(s))).reshape(()))))
        for s in x.shape
    ]


def _dynamic_slice(d: Draw, dtype: str) -> Value:
    x = d.tensor(dtype, 1, 3, nonempty=True)
    return d.g.dynamic_slice(x, _starts(d, x), [d.integer(1, int(s)) for s in x.shape])


def _dynamic_update_slice(d: Draw, dtype: str) -> Value:
    x = d.tensor(dtype, 1, 3, nonempty=True)
    update = d.of([d.integer(1, int(s)) for s in x.shape], dtype)
    return d.g.dynamic_update_slice(x, update, _starts(d, x))


def _scatter(d: Draw, dtype: str) -> Value:
    x = d.tensor(dtype, 1, 3, nonempty=True)
    axis = d.axis(x)
    shape = [d.integer(1, int(s)) for s in x.shape]
    mode = d.choice(("set", "add", "mul", "min", "max")) if dtype != "bool" else "set"
    updates = d.of(shape, dtype)
    return d.g.scatter(x, d.ids(shape, x.shape[axis]), updates, axis, mode)


def _scatter_nd(d: Draw, dtype: str) -> Value:
    x = d.tensor(dtype, 1, 3, nonempty=True)
    depth = d.integer(1, x.ndim)
    count = d.integer(1, 5)
    size = min(int(s) for s in x.shape)
    mode = d.choice(("set", "add", "mul", "min", "max")) if dtype != "bool" else "set"
    updates = d.of((count, *x.shape[depth:]), dtype)
    return d.g.scatter_nd(x, d.ids((count, depth), size), updates, mode)


def _topk(d: Draw, dtype: str) -> Sequence[Value]:
    x = d.tensor(dtype, 1, 3, nonempty=True)
    axis = d.axis(x)
    return d.g.topk(x, d.integer(1, int(x.shape[axis])), axis, largest=d.chance())


def _one_hot(d: Draw, dtype: str) -> Value:
    return d.g.one_hot(d.of(d.shape(0, 2), "int64", 0, 6), 5, d.choice((-1, 0)), dtype)


def _reduction(name: str) -> Recipe:
    def recipe(d: Draw, dtype: str) -> Value:
        x = d.tensor(dtype, 1, 4, nonempty=name not in ("sum", "prod", "any", "all"))
        axes = [a for a in range(x.ndim) if d.chance()]
        axis = d.choice((None, tuple(axes), d.axis(x)))
        return getattr(d.g, name)(x, axis=axis, keepdims=d.chance())

    return recipe


def _arg(name: str) -> Recipe:
    def recipe(d: Draw, dtype: str) -> Value:
        x = d.tensor(dtype, 1, 4, nonempty=True)
        return getattr(d.g, name)(x, axis=d.choice((None, d.axis(x))), keepdims=d.chance())

    return recipe


def _scan(name: str) -> Recipe:
    def recipe(d: Draw, dtype: str) -> Value:
        x = d.tensor(dtype, 1, 3)
        return getattr(d.g, name)(x, d.axis(x), exclusive=d.chance(), reverse=d.chance())

    return recipe


def _matmul(d: Draw, dtype: str) -> Value:
    m, k, n = (d.size() for _ in range(3))
    batch = d.choice(((), (), (2,), (3, 2)))
    a = d.of(d.choice(((k,), (m, k), (*batch, m, k))), dtype)
    b_shape: tuple[int, ...] = d.choice(((k,), (k, n), (*batch, k, n), (*batch[1:], k, n)))
    if d.chance(0.3) and len(b_shape) > 1:
        order = (*range(len(b_shape) - 2), len(b_shape) - 1, len(b_shape) - 2)
        b = d.g.permute_dims(d.of([b_shape[i] for i in order], dtype), order)
    else:
        b = d.of(b_shape, dtype)
    return d.g.matmul(a, b)


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


def _l2_normalize(d: Draw, dtype: str) -> Value:
    x = d.tensor(dtype, 1, 3, nonempty=True)
    return d.g.l2_normalize(x, d.axis(x))


_SPECIAL: dict[str, tuple[Recipe, Sequence[str]]] = {
    "where": (_where, ANY),
    "cast": (_cast, ANY),
    "clip": (_clip, NUMBERS),
    "reshape": (_reshape, ANY),
    "permute_dims": (_permute, ANY),
    "broadcast_to": (_broadcast, ANY),
    "slice": (_slice, ANY),
    "flip": (_flip, ANY),
    "concat": (_concat, ANY),
    "pad": (_pad, ANY),
    "pad_border": (_pad_border, ANY),
    "tile": (_tile, ANY),
    "iota": (_iota, NUMBERS),
    "dim_value": (_dim_value, ("int64",)),
    "tril": (_triangle("tril"), ANY),
    "triu": (_triangle("triu"), ANY),
    "take": (_take, ANY),
    "take_along_axis": (_take_along_axis, ANY),
    "gather_nd": (_gather_nd, ANY),
    "dynamic_slice": (_dynamic_slice, ANY),
    "dynamic_update_slice": (_dynamic_update_slice, ANY),
    "scatter": (_scatter, ANY),
    "scatter_nd": (_scatter_nd, ANY),
    "topk": (_topk, NUMBERS),
    "one_hot": (_one_hot, ANY),
    **{name: (_reduction(name), NUMBERS) for name in ("sum", "prod", "max", "min")},
    **{name: (_reduction(name), ANY) for name in ("any", "all")},
    **{name: (_reduction(name), FLOATS) for name in ("mean", "var", "std", "logsumexp", "norm")},
    **{name: (_arg(name), NUMBERS) for name in ("argmax", "argmin")},
    **{name: (_scan(name), NUMBERS) for name in ("cumsum", "cumprod")},
    "matmul": (_matmul, NUMBERS),
    "integer_matmul": (_integer_matmul, ("int8", "uint8")),
    "quantized_matmul": (_quantized_matmul, FLOATS[:3]),
    "int4_matmul": (_int4_matmul, FLOATS[:3]),
    "blockwise_matmul": (_blockwise_matmul, ("float32",)),
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
    "rope": (_rope, FLOATS),
    "grouped_matmul": (_grouped_matmul, NUMBERS),
    "expert_mlp": (_expert_mlp, FLOATS),
    "moe": (_moe, FLOATS),
    **{name: (_recurrent(name), FLOATS) for name in _GATES},
    # The scan is what lstm, gru and rnn become; it has no method of its own.
    "recurrent_scan": (_recurrent("lstm"), FLOATS),
}

DTYPES_OF_DOMAIN: dict[str, Sequence[str]] = {
    "any": ANY,
    "numeric": NUMBERS,
    "float": FLOATS,
    "integer": INTEGERS,
    "integral": (*INTEGERS, "bool"),
    "bool": ("bool",),
}


def recipes() -> dict[str, tuple[Recipe, Sequence[str]]]:
    """By op name, its recipe and the dtypes that it takes."""
    table = dict(_SPECIAL)
    for name, op in OPS.items():
        if name not in table and isinstance(op, Elementwise):
            table[name] = (_elementwise(op), DTYPES_OF_DOMAIN[op.domain])
    return table
