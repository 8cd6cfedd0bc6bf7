"""Graphs whose sizes are Variables: compiled once, run at many sizes, each against the oracle."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.dtypes import DType
from ostinato.ir.graph import Value
from tests.devices.registered import open_session

from .compare import assert_close

Array = np.ndarray[Any, Any]
OPTIMISED = ost.CompileOptions(verify=True)
UNOPTIMISED = ost.CompileOptions(optimize=False, verify=True)

#: Batch and length: least and greatest, primes, both sides of vectors and tiles; up and down.
SIZES = ((2, 17), (5, 64), (1, 1), (3, 7), (1, 31), (2, 2), (4, 16), (5, 1), (3, 8), (1, 64))


class Symbolic:
    """A graph with a Variable batch ``b`` and length ``n``, and arrays for its inputs."""

    def __init__(self, least_batch: int = 1, longest: int = 64) -> None:
        self.g = ost.Graph("symbolic")
        self.b = ost.Variable("b", least_batch, 5)
        self.n = ost.Variable("n", 1, longest)
        self._ranges: dict[str, tuple[float, float]] = {}

    def of(self, *shape: Any, dtype: str = "float32", low: float = -2, high: float = 2) -> Value:
        name = f"x{len(self._ranges)}"
        self._ranges[name] = (low, high)
        return self.g.input(name, shape, dtype)

    def weight(self, *shape: int, dtype: str = "float32") -> Value:
        array = np.random.default_rng(len(self.g.params)).uniform(-1, 1, shape)
        parsed = DType.parse(dtype)
        name = f"w{len(self.g.params)}"
        return self.g.param(name, shape, dtype, value=array.astype(parsed.numpy))

    def arrays(self, sizes: Mapping[str, int], rng: np.random.Generator) -> dict[str, Array]:
        return {name: self._array(name, value, sizes, rng) for name, value in self.g.inputs.items()}

    def _array(
        self, name: str, value: Value, sizes: Mapping[str, int], rng: np.random.Generator
    ) -> Array:
        shape = tuple(ost.variables.evaluate(dim, sizes) for dim in value.shape)
        low, high = self._ranges[name]
        if value.dtype.is_float:
            return rng.uniform(low, high, shape).astype(value.dtype.numpy)
        return rng.integers(int(low), int(high) + 1, shape).astype(value.dtype.numpy)


Build = Callable[[Symbolic], Any]
CASES: dict[str, Build] = {}


def case(build: Build) -> Build:
    CASES[build.__name__.strip("_")] = build
    return build


def _each(s: Symbolic, *names: str) -> Iterator[Value]:
    x, y = s.of(s.b, s.n, 3), s.of(s.b, s.n, 3)
    for name in names:
        method = getattr(s.g, name)
        yield method(x, y) if name in ("add", "subtract", "maximum") else method(x)


# -- elementwise and reductions ------------------------------------------------------------------


@case
def _elementwise(s: Symbolic) -> Any:
    return list(_each(s, "add", "gelu", "tanh", "isnan", "maximum"))


@case
def _chain(s: Symbolic) -> Any:
    x, row, column = s.of(s.b, s.n), s.of(s.n), s.of(s.b, 1)
    return s.g.exp(x * row + column) - s.g.where(row > 0, x, column)


@case
def _cast_narrow(s: Symbolic) -> Any:
    x = s.of(s.b, s.n, dtype="int32", low=-300, high=300)
    return [s.g.cast(x, t) for t in ("int8", "bfloat16", "int16", "bool")]


@case
def _rows(s: Symbolic) -> Any:
    x = s.of(s.b, s.n)
    return [f(x, axis=-1) for f in (s.g.sum, s.g.max, s.g.argmax, s.g.mean, s.g.any)]


@case
def _columns(s: Symbolic) -> Any:
    x = s.of(s.n, s.b, 5)
    return [f(x, axis=0) for f in (s.g.sum, s.g.min, s.g.argmin, s.g.var)]


@case
def _everything(s: Symbolic) -> Any:
    x = s.of(s.b, s.n, 3)
    return [s.g.sum(x), s.g.max(x, axis=(0, 2)), s.g.mean(x, axis=1, keepdims=True)]


@case
def _scans(s: Symbolic) -> Any:
    x = s.of(s.b, s.n, 3, low=0.5, high=1.1)
    return [s.g.cumsum(x, 1), s.g.cumprod(x, 0, exclusive=True), s.g.cumsum(x, 1, reverse=True)]


@case
def _softmax(s: Symbolic) -> Any:
    x = s.of(s.b, 2, s.n)
    return [s.g.softmax(x, -1), s.g.log_softmax(x, -1), s.g.softmax(x, 0), s.g.logsumexp(x, -1)]


@case
def _norms(s: Symbolic) -> Any:
    x = s.of(s.b, s.n, 24)
    w, v = s.weight(24), s.weight(24)
    channels = s.g.permute_dims(x, (0, 2, 1))
    return [
        s.g.layer_norm(x, w, v), s.g.rms_norm(x, w), s.g.group_norm(channels, 4, w, v),
        s.g.instance_norm(channels, w, v), s.g.l2_normalize(x, 1),
    ]  # fmt: skip


# -- contractions --------------------------------------------------------------------------------


@case
def _dense(s: Symbolic) -> Any:
    x = s.of(s.b, s.n, 24)
    return s.g.gelu(s.g.matmul(x, s.weight(24, 33)) + s.weight(33)) + s.of(s.b, s.n, 33)


@case
def _dense_narrow(s: Symbolic) -> Any:
    x = s.of(s.b, s.n, 24, dtype="bfloat16")
    return s.g.tanh(s.g.matmul(x, s.weight(24, 17, dtype="bfloat16")))


@case
def _products(s: Symbolic) -> Any:
    q, k = s.of(s.b, 2, s.n, 8), s.of(s.b, 2, s.n, 8)
    scores = s.g.matmul(q, s.g.permute_dims(k, (0, 1, 3, 2)))
    return [scores, s.g.matmul(scores, k), s.g.matmul(s.of(s.n), s.of(s.n, 7))]


@case
def _conv(s: Symbolic) -> Any:
    x = s.of(s.b, 4, s.n + 4)
    image = s.of(s.b, 3, s.n + 2, 9)
    return [
        s.g.relu(s.g.conv(x, s.weight(6, 4, 3), s.weight(6), padding=1)),
        s.g.conv(x, s.weight(4, 1, 5), groups=4),
        s.g.conv(image, s.weight(5, 3, 3, 3), padding=1, stride=2),
        s.g.conv_transpose(x, s.weight(4, 3, 2), stride=2),
    ]


@case
def _pooling(s: Symbolic) -> Any:
    x = s.of(s.b, 3, s.n + 4)
    return [
        s.g.max_pool(x, 3, stride=2, padding=1), s.g.avg_pool(x, 3, stride=1, padding=1),
        s.g.avg_pool(x, 2, ceil_mode=True, count_include_pad=False),
    ]  # fmt: skip


@case
def _attention(s: Symbolic) -> Any:
    q, k, v = (s.of(s.b, heads, s.n, 8) for heads in (4, 2, 2))
    mask = s.of(s.b, 1, 1, s.n, low=-1, high=0)
    return [s.g.attention(q, k, v, mask=mask), s.g.attention(q, k, v, causal=True)]


@case
def _self_attention(s: Symbolic) -> Any:
    """Heads taken out of one projection by slices, reshapes and transposes."""
    g, x = s.g, s.of(s.b, s.n, 16)
    qkv = g.matmul(x, s.weight(16, 48)) + s.weight(48)
    heads = [
        g.permute_dims(g.reshape(part, (s.b, s.n, 2, 8)), (0, 2, 1, 3))
        for part in g.split(qkv, 3, -1)
    ]
    scores = g.matmul(heads[0], g.permute_dims(heads[1], (0, 1, 3, 2))) * 0.35
    y = g.matmul(g.softmax(scores, -1), heads[2])
    return g.reshape(g.permute_dims(y, (0, 2, 1, 3)), (s.b, s.n, 16))


# -- moving --------------------------------------------------------------------------------------


@case
def _concat(s: Symbolic) -> Any:
    x, y = s.of(s.b, s.n), s.of(s.b, s.n)
    return [s.g.concat([x, y], 0), s.g.concat([x, y, s.of(s.b, 3)], 1)]


@case
def _slices(s: Symbolic) -> Any:
    x = s.of(s.b, s.n + 3)
    return [x[:, 1:], x[:, :-2], x[:, s.n :], x[:, ::2], s.g.flip(x, 1), x[:, -1]]


@case
def _pads(s: Symbolic) -> Any:
    x = s.of(s.b, s.n)
    return [s.g.pad(x, [(0, 1), (2, 3)], value=1.5), s.g.tile(x, [2, 3])]


@case
def _reshapes(s: Symbolic) -> Any:
    x = s.of(s.b, s.n, 6)
    turned = s.g.permute_dims(x, (2, 0, 1))
    return [
        s.g.reshape(x, (s.b * s.n, 6)), s.g.reshape(x, (s.b, s.n * 3, 2)),
        s.g.exp(s.g.reshape(turned, (6, s.b * s.n))), s.g.reshape(turned, (-1,)),
        s.g.broadcast_to(x[:, :1], (s.b, s.n, 6)),
    ]  # fmt: skip


@case
def _takes(s: Symbolic) -> Any:
    table, ids = s.weight(11, 5), s.of(s.b, s.n, dtype="int64", low=-11, high=10)
    x, along = s.of(s.n, 4), s.of(3, dtype="int64", low=-1, high=0)
    return [
        s.g.embedding(ids, table), s.g.take(x, along, 0),
        s.g.take_along_axis(s.of(s.b, s.n), s.of(s.b, 2, dtype="int64", low=-1, high=0), 1),
    ]  # fmt: skip


@case
def _updates(s: Symbolic) -> Any:
    x, start = s.of(s.n + 4, s.b), s.of(dtype="int64", low=0, high=3)
    y = s.g.dynamic_update_slice(x, s.of(2, s.b), [start, 0])
    ids = s.of(3, s.b, dtype="int64", low=0, high=3)
    return [y, s.g.scatter(x, ids, s.of(3, s.b), 0, "add"),
            s.g.dynamic_slice(x, [start, 0], (s.n, s.b))]  # fmt: skip


@case
def _triangles(s: Symbolic) -> Any:
    x = s.of(s.n, s.n)
    return [s.g.tril(x), s.g.triu(x, 1), s.g.iota((s.n, 3), 0) + s.g.dim_value(s.n)]


@case
def _topk(s: Symbolic) -> Any:
    x = s.of(s.b, s.n + 3)
    return list(s.g.topk(x, 3, -1))


# -- recurrent -----------------------------------------------------------------------------------


@case
def _lstm(s: Symbolic) -> Any:
    x = s.of(s.n, s.b, 5, low=-1, high=1)
    return list(s.g.lstm(x, s.weight(2, 28, 5), s.weight(2, 28, 7), direction="bidirectional"))


@case
def _gru(s: Symbolic) -> Any:
    x = s.of(s.n, s.b, 5, low=-1, high=1)
    return list(s.g.gru(x, s.weight(1, 21, 5), s.weight(1, 21, 7)))


# -- experts -------------------------------------------------------------------------------------


@case
def _experts(s: Symbolic) -> Any:
    matrices = s.weight(5, 6, 18), s.weight(5, 6, 18), s.weight(5, 18, 7)
    ids = s.of(s.n, dtype="int64", low=-5, high=4)
    return [
        s.g.moe(s.of(s.b, s.n, 6), s.weight(6, 5), *matrices, k=2),
        s.g.grouped_matmul(s.of(s.n, 6), matrices[0], ids),
    ]


# -- the tests -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def session(device: str) -> ost.Session:
    return open_session(device, threads=2)


def check_sizes(
    symbolic: Symbolic, name: str, compiled_by: Callable[[ost.Graph], Any], sizes: Sequence[Any]
) -> None:
    """Compile a case once and run it at each of ``sizes``, pairs of batch and length."""
    outputs = CASES[name](symbolic)
    symbolic.g.set_outputs(outputs if isinstance(outputs, list) else [outputs])
    compiled = compiled_by(symbolic.g)
    rng = np.random.default_rng(1)
    for batch, length in sizes:
        inputs = symbolic.arrays({"b": batch, "n": length}, rng)
        expected = ost.reference.evaluate(symbolic.g, inputs)
        actual = compiled.run(inputs)
        for i, (mine, truth) in enumerate(zip(actual, expected, strict=True)):
            assert_close(mine, truth, f"output {i} at b = {batch}, n = {length}\n{symbolic.g}")


@pytest.mark.parametrize(
    ("options", "name"),
    # Without optimisation every second case: nodes have kernels of their own, which cases share.
    [*((OPTIMISED, name) for name in CASES), *((UNOPTIMISED, name) for name in [*CASES][::2])],
)
def test_sizes_in_turn(name: str, options: ost.CompileOptions, session: ost.Session) -> None:
    check_sizes(Symbolic(), name, lambda g: session.compile(g, options=options), SIZES)


#: Cases without a value for an empty batch: the oracle refuses it.
_NEED_A_BATCH = frozenset({"columns", "everything", "softmax"})


@pytest.mark.parametrize("name", sorted(CASES.keys() - _NEED_A_BATCH))
def test_empty_batch(name: str, session: ost.Session) -> None:
    sizes = [(0, 5), (2, 9), (0, 64)]
    check_sizes(Symbolic(least_batch=0), name, session.compile, sizes)


#: Cases whose work grows no faster than their length.
_LINEAR = (
    *("elementwise", "chain", "cast_narrow", "rows", "columns", "scans", "softmax", "norms"),
    *("concat", "slices", "pads", "reshapes", "updates", "topk"),
)


@pytest.mark.needs("quick")
@pytest.mark.parametrize("name", _LINEAR)
def test_long(name: str, session: ost.Session) -> None:
    """Lengths beyond one block of the parallel range, and beyond what a row may keep."""
    sizes = [(1, 10007), (2, 4096), (5, 8191), (1, 1), (3, 100003)]
    check_sizes(Symbolic(longest=100003), name, session.compile, sizes)
