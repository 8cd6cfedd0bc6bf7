"""Sizes that depend on data: ops that find them, and all others on tensors of such sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.ir.graph import Value
from ostinato.variables import symbols
from tests.devices.registered import open_session

from .compare import assert_close
from .draw import ANY
from .test_symbolic import CASES, OPTIMISED, UNOPTIMISED, Symbolic

Array = np.ndarray[Any, Any]
OPTIONS = pytest.mark.parametrize("options", [OPTIMISED, UNOPTIMISED], ids=["optimised", "plain"])
N = ost.Variable("n", 0, 40)


@pytest.fixture(scope="module")
def session(device: str) -> ost.Session:
    return open_session(device, threads=2)


def check_runs(
    g: ost.Graph,
    results: Any,
    feeds: Sequence[Mapping[str, Array]],
    compiled_by: Callable[..., Any],
) -> None:
    """Compile once; each run gives what the oracle gives, in values and in sizes."""
    g.set_outputs(list(results) if isinstance(results, list | tuple) else [results])
    compiled = compiled_by(g)
    for feed in feeds:
        expected = ost.reference.evaluate(g, feed)
        for i, (mine, truth) in enumerate(zip(compiled.run(feed), expected, strict=True)):
            assert_close(mine, truth, f"output {i} of {feed}\n{g}")


# -- ops that find sizes ---------------------------------------------------------------------------


def numbers(rng: np.random.Generator, shape: Sequence[int], dtype: str) -> Array:
    """Small whole numbers, many of them 0 or equal; NaNs among floats."""
    parsed = ost.DType.parse(dtype)
    array = rng.integers(0, 4, shape).astype(parsed.numpy)
    if parsed.is_float:
        array[rng.random(shape) < 0.1] = np.nan
    return array


Finder = Callable[[ost.Graph, Value], Any]
FINDERS: dict[str, Finder] = {
    "nonzero": lambda g, x: g.nonzero(x),
    "masked_select": lambda g, x: g.masked_select(x, g.not_equal(x, x)),
    "compress": lambda g, x: g.compress(x, g.any(g.cast(x, "bool"), axis=(0, 2)), axis=1),
    "compress_flat": lambda g, x: g.compress(x, g.cast(g.reshape(x, (-1,)), "bool")),
    "compress_short": lambda g, x: g.compress(x, np.array([True, False, True]), axis=1),
    "unique": lambda g, x: g.unique(x),
    "unique_unsorted": lambda g, x: g.unique(x, sorted=False),
    "unique_axis": lambda g, x: g.unique(x, axis=1),
    "unique_axis_unsorted": lambda g, x: g.unique(x, axis=-1, sorted=False),
    "unique_of_long_rows": lambda g, x: g.unique(g.concat([x] * 20, axis=0), axis=2),
    "unique_consecutive": lambda g, x: g.unique_consecutive(x),
    "unique_consecutive_axis": lambda g, x: g.unique_consecutive(x, axis=1),
    "masked_key": lambda g, x: g.getitem(x, (slice(None), g.any(g.cast(x, "bool"), axis=(0, 2)))),
    "bincount": lambda g, x: g.bincount(g.cast(x, "int64"), minlength=2, bound=9),
    "repeats": lambda g, x: g.repeat_interleave(
        x, g.cast(g.sum(g.cast(g.cast(x, "bool"), "int64"), axis=(1, 2)), "int32"), 400, axis=0
    ),
    "sorted": lambda g, x: [*g.sort(x, 1), *g.sort(x, 2, descending=True)],
}


#: Finders that differ from others in one step.
_VARIANTS = frozenset({"unique_of_long_rows", "unique_unsorted", "unique_axis_unsorted"})


@pytest.mark.parametrize(
    ("name", "options"),
    [
        pytest.param(
            name,
            options,
            marks=[pytest.mark.slow] if name in _VARIANTS and options is UNOPTIMISED else [],
            id=f"{name}-{'optimised' if options is OPTIMISED else 'plain'}",
        )
        for name in FINDERS
        for options in (OPTIMISED, UNOPTIMISED)
    ],
)
def test_finders(name: str, options: ost.CompileOptions, session: ost.Session) -> None:
    every = name in ("nonzero", "unique") and options is OPTIMISED
    several = options is OPTIMISED and name not in _VARIANTS
    some = ("float32", "bool", "int16") if several else ("float32",)
    for dtype in ANY if every else some:
        g = ost.Graph(name)
        x = g.input("x", (2, 3, N), dtype)
        rng = np.random.default_rng(len(name))
        feeds = [{"x": numbers(rng, (2, 3, size), dtype)} for size in (5, 1, 0, 17, 2)]
        check_runs(g, FINDERS[name](g, x), feeds, lambda g: session.compile(g, options=options))


@OPTIONS
@pytest.mark.parametrize("centered", [False, True])
def test_non_max_suppression(
    centered: bool, options: ost.CompileOptions, session: ost.Session
) -> None:
    g = ost.Graph("boxes")
    boxes, scores = g.input("boxes", (2, N, 4)), g.input("scores", (2, 3, N))
    most, overlap = g.input("most", (), "int64"), g.input("overlap", ())
    found = g.non_max_suppression(boxes, scores, most, overlap, 0.2, centered=centered)
    chosen = g.gather_nd(boxes, found[:, ::2])
    results = [found, chosen, g.mean(chosen, axis=1), g.concat([chosen, chosen * 2], axis=0)]
    rng = np.random.default_rng(0)
    feeds = [
        {
            "boxes": rng.uniform(0, 1, (2, size, 4)).astype(np.float32),
            "scores": rng.uniform(0, 1, (2, 3, size)).astype(np.float32),
            "most": np.array(count),
            "overlap": np.array(limit, np.float32),
        }
        for size, count, limit in ((9, 3, 0.3), (40, 100, 0.6), (0, 5, 0.5), (7, 0, 0.5), (1, 1, 0))
    ]
    check_runs(g, results, feeds, lambda g: session.compile(g, options=options))


@OPTIONS
@pytest.mark.parametrize("given", [False, True])
def test_boxes_with_one_number_for_both_limits(
    given: bool, options: ost.CompileOptions, session: ost.Session
) -> None:
    g = ost.Graph("boxes")
    boxes, scores = g.input("boxes", (1, N, 4)), g.input("scores", (1, 1, N))
    limit = g.input("limit", ()) if given else np.float32(0.4)
    found = g.non_max_suppression(boxes, scores, 10, limit, limit)
    rng = np.random.default_rng(0)
    feed = {
        "boxes": rng.uniform(0, 1, (1, 12, 4)).astype(np.float32),
        "scores": rng.uniform(0, 1, (1, 1, 12)).astype(np.float32),
    }
    feed |= {"limit": np.float32(0.4)} if given else {}
    check_runs(g, [found], [feed], lambda g: session.compile(g, options=options))


@OPTIONS
def test_computed_bounds(options: ost.CompileOptions, session: ost.Session) -> None:
    """Slices and ranges by bounds of every sign, as NumPy has them."""
    g = ost.Graph("bounds")
    x = g.input("x", (3, N))
    start, stop, step = (g.input(name, (), "int64") for name in ("start", "stop", "step"))
    half = g.cast(step, "float32") / 2
    results = [
        g.dynamic_range(x, start, stop, step, 1),
        g.counted_range(start, stop, step, 1000),
        g.counted_range(g.cast(start, "float32"), g.cast(stop, "float32"), half, 1000),
    ]
    g.set_outputs(results)
    compiled = session.compile(g, options=options)
    rng = np.random.default_rng(0)
    for _ in range(60):
        array = rng.normal(size=(3, rng.integers(0, 12))).astype(np.float32)
        first, last = (int(v) for v in rng.integers(-14, 15, 2))
        by = int(rng.choice([-5, -2, -1, 1, 2, 3]))
        feed = {"x": array, "start": np.array(first), "stop": np.array(last), "step": np.array(by)}
        part, whole, floats = compiled.run(feed)
        np.testing.assert_array_equal(part, array[:, first:last:by])
        np.testing.assert_array_equal(whole, np.arange(first, last, by))
        np.testing.assert_array_equal(floats, np.arange(first, last, by / 2, dtype=np.float32))
    feed["step"] = np.array(0)
    with pytest.raises(ost.VariableError, match="got -1"):
        compiled.run(feed)


# -- all other ops on tensors of such sizes --------------------------------------------------------


class Live(Symbolic):
    """Its length ``n`` is computed by the graph: inputs are cut to it."""

    def __init__(self) -> None:
        super().__init__()
        self.longest = self.n
        self.n = self.g.size_from(self.g.input("count", (), "int64"), self.longest, "live")  # type: ignore[assignment]

    def of(self, *shape: Any, dtype: str = "float32", low: float = -2, high: float = 2) -> Value:
        (live,) = symbols(self.n)
        whole = [ost.variables.substitute(dim, {live: self.longest}) for dim in shape]
        value = super().of(*whole, dtype=dtype, low=low, high=high)
        return self.g.slice(value, (0,) * value.ndim, shape)

    def arrays(self, sizes: Mapping[str, int], rng: np.random.Generator) -> dict[str, Array]:
        names = [name for name in self.g.inputs if name != "count"]
        made = {name: self._array(name, self.g.inputs[name], sizes, rng) for name in names}
        return {"count": np.array(sizes["live"]), **made}


#: Batch, length, and the part of it that is live.
SIZES = ((2, 17, 9), (5, 64, 64), (1, 1, 1), (3, 7, 5), (1, 31, 1), (4, 64, 16), (2, 8, 7))


#: A case that broadcasts the first row, which there may not be.
_NEED_A_ROW = frozenset({"reshapes"})

_LIVE = sorted(CASES.keys() - _NEED_A_ROW)


@pytest.mark.parametrize(
    ("options", "name"),
    # Without optimisation every third case: nodes have kernels of their own, which cases share.
    [*((OPTIMISED, name) for name in _LIVE), *((UNOPTIMISED, name) for name in _LIVE[::3])],
)
def test_ops_on_live_sizes(name: str, options: ost.CompileOptions, session: ost.Session) -> None:
    symbolic = Live()
    results = CASES[name](symbolic)
    rng = np.random.default_rng(1)
    feeds = [
        symbolic.arrays({"b": batch, "n": length, "live": live}, rng)
        for batch, length, live in SIZES
    ]
    compile_ = lambda g: session.compile(g, options=options)  # noqa: E731
    check_runs(symbolic.g, results, feeds, compile_)


@pytest.mark.parametrize("name", _LIVE)
def test_no_live_elements(name: str, session: ost.Session) -> None:
    """As for a fixed size of 0: results without elements, or the same refusal."""
    symbolic = Live()
    results = CASES[name](symbolic)
    symbolic.g.set_outputs(list(results) if isinstance(results, list | tuple) else [results])
    feed = symbolic.arrays({"b": 3, "n": 9, "live": 0}, np.random.default_rng(0))
    compiled = session.compile(symbolic.g)
    try:
        expected = ost.reference.evaluate(symbolic.g, feed)
    except ost.VariableError:
        with pytest.raises(ost.VariableError):
            compiled.run(feed)
        return
    for mine, truth in zip(compiled.run(feed), expected, strict=True):
        assert_close(mine, truth, str(symbolic.g))
