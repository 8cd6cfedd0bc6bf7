"""Recipes that apply each op of the vocabulary to random operands.

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
from ostinato.ops.special.polynomials import FAMILIES

from .draw import ANY, FLOATS, INTEGERS, NUMBERS, Draw, Recipe
from .layer_recipes import LAYERS


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


#: The domains of functions that are not defined everywhere.
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
    "erfinv": (-0.95, 0.95),
    "logit": (0.05, 0.95),
    "ndtri": (0.05, 0.95),
    "entr": (0, 4),
    "zeta": (1.2, 4),
    **dict.fromkeys(("lgamma", "digamma", "polygamma"), (0.3, 14)),
    **dict.fromkeys(("bessel_y0", "bessel_y1"), (0.3, 12)),
    **{f"{scaled}modified_bessel_k{n}": (0.3, 4) for n in "01" for scaled in ("", "scaled_")},
}

ATTRS: dict[str, Callable[[Draw], dict[str, Any]]] = {
    "leaky_relu": lambda d: {"alpha": 0.1},
    "elu": lambda d: {"alpha": 1.5},
    "celu": lambda d: {"alpha": 1.5},
    "thresholded_relu": lambda d: {"alpha": 0.5},
    "hard_sigmoid": lambda d: {"alpha": 0.3, "beta": 0.4},
    "hard_tanh": lambda d: {"min": -0.5, "max": 1.5},
    "gelu": lambda d: {"approximate": d.chance()},
    "polygamma": lambda d: {"n": 2},
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


def _bitcast(d: Draw, dtype: str) -> Value:
    """Between integers: the bits of a float tell apart what rounding leaves equal."""
    width = DType.parse(dtype).itemsize
    targets = [t for t in INTEGERS if DType.parse(t).itemsize == width]
    return d.g.bitcast(d.tensor(dtype), d.choice(targets))


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


def _searchsorted(d: Draw, dtype: str) -> Value:
    if d.chance():
        sequence, _ = d.g.sort(d.of((d.integer(0, 40),), dtype))
        return d.g.searchsorted(sequence, d.tensor(dtype), right=d.chance())
    x = d.tensor(dtype, 2, 3)
    sequence, _ = d.g.sort(d.of((*x.shape[:-1], d.integer(0, 9)), dtype))
    return d.g.searchsorted(sequence, x, right=d.chance())


def _affine_view(d: Draw, dtype: str) -> Value:
    x = d.tensor(dtype, 2, 3, nonempty=True)
    kind = d.choice(("windows", "diagonal", "strided"))
    if kind == "windows":
        axis = d.axis(x)
        return d.g.unfold(x, axis, d.integer(0, int(x.shape[axis])), d.integer(1, 3))
    if kind == "diagonal":
        return d.g.diagonal(x, d.integer(-2, 2), 0, x.ndim - 1)
    size = int(np.prod([int(s) for s in x.shape]))
    return d.g.as_strided(x, (2, 1, size // 2), (-1, 0, 1), min(1, size - 1)) if size > 1 else x


def _bind_size(d: Draw, dtype: str) -> Sequence[Value]:
    x = d.tensor(dtype, 1, 3)
    found = d.g.masked_select(x, d.of(x.shape, "bool"))
    return [found, d.g.concat([found, found], axis=0)]


def _require(d: Draw, dtype: str) -> Value:
    return d.g.require(d.tensor(dtype), d.integer(3, 5), 3, "too small")


def _flat_nonzero(d: Draw, dtype: str) -> Sequence[Value]:
    return list(d.g.nonzero(d.tensor(dtype, 1, 3)))


def _suppression(d: Draw, dtype: str) -> Value:
    batch, classes, boxes = d.integer(1, 3), d.integer(1, 4), d.integer(0, 33)
    limits = (d.integer(0, 9), float(d.rng.uniform(0, 1)), float(d.rng.uniform(0, 1)))
    return d.g.non_max_suppression(
        d.of((batch, boxes, 4), dtype, 0, 1),
        d.of((batch, classes, boxes), dtype, 0, 1),
        *limits,
        centered=d.chance(),
    )


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


def _extreme_scan(name: str) -> Recipe:
    def recipe(d: Draw, dtype: str) -> Sequence[Value]:
        x = d.tensor(dtype, 1, 3)
        return list(getattr(d.g, name)(x, d.axis(x)))

    return recipe


def _logcumsumexp(d: Draw, dtype: str) -> Value:
    x = d.tensor(dtype, 1, 3)
    return d.g.logcumsumexp(x, d.axis(x))


def _incomplete_gamma(name: str) -> Recipe:
    def recipe(d: Draw, dtype: str) -> Value:
        a = d.of(d.shape(0, 2), dtype, -0.5, 60)
        return getattr(d.g, name)(a, d.of(a.shape, dtype, -0.5, 60))

    return recipe


def _orthogonal(d: Draw, dtype: str) -> Value:
    x, family = d.of(d.shape(0, 2), dtype, -1.5, 1.5), d.choice((*FAMILIES,))
    return d.g.orthogonal_polynomial(x, d.of(x.shape, "int32", -1, 9), family, 7)


def _gcd(d: Draw, dtype: str) -> Value:
    x = d.of(d.shape(0, 3), dtype, -100, 100)
    return d.g.gcd(x, d.of(x.shape, dtype, -100, 100))


_SPECIAL: dict[str, tuple[Recipe, Sequence[str]]] = {
    "where": (_where, ANY),
    "bitcast": (_bitcast, INTEGERS),
    "cast": (_cast, ANY),
    "clip": (_clip, NUMBERS),
    "igamma": (_incomplete_gamma("igamma"), ("float32", "float64")),
    "igammac": (_incomplete_gamma("igammac"), ("float16",)),
    "orthogonal_polynomial": (_orthogonal, ("float32", "bfloat16")),
    "gcd": (_gcd, ("int8", "uint32")),  # long kernels, whose rule is the same for all integers
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
    "searchsorted": (_searchsorted, NUMBERS),
    "affine_view": (_affine_view, ANY),
    "one_hot": (_one_hot, ANY),
    "bind_size": (_bind_size, ANY),
    "require": (_require, ANY),
    "flat_nonzero": (_flat_nonzero, ANY),
    "non_max_suppression": (_suppression, ("float32",)),
    **{name: (_reduction(name), NUMBERS) for name in ("sum", "prod", "max", "min")},
    **{name: (_reduction(name), ANY) for name in ("any", "all")},
    **{name: (_reduction(name), FLOATS) for name in ("mean", "var", "std", "logsumexp", "norm")},
    **{name: (_arg(name), NUMBERS) for name in ("argmax", "argmin")},
    **{name: (_scan(name), NUMBERS) for name in ("cumsum", "cumprod")},
    **{name: (_extreme_scan(name), NUMBERS) for name in ("cummax", "cummin")},
    "logcumsumexp": (_logcumsumexp, FLOATS),
    **LAYERS,
}

#: Ops whose results have sizes that depend on data: graphs have them, sessions do not.
DATA_SIZED = frozenset({"bind_size", "require", "flat_nonzero", "non_max_suppression"})

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
