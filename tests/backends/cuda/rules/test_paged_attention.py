"""Paged attention by kernels of its own, in the emulator, against the oracle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ostinato as ost
from ostinato.backends.cuda.compiler import compile_text
from ostinato.backends.cuda.render import paged_groups, paged_tiles
from ostinato.backends.cuda.rules.paged_attention import PagedAttention
from ostinato.backends.cuda.rules.segment_assembly import Segment
from ostinato.backends.cuda.target import CudaTarget
from ostinato.ir.graph import Value
from ostinato.plan.prepared import KernelCall
from ostinato.records import replace
from ostinato.reference import evaluate
from tests.backends.cuda.render.recipe_kernels import kernels_of
from tests.devices.registered import open_session
from tests.paged_graphs import ROWS as ANY_ROWS
from tests.paged_graphs import arrays_of, attend, blank_unread

#: Few rows, or pools that are not for tensor cores.
ROWS: list[dict[str, Any]] = [
    {"rows": 1, "heads": (1, 1), "depth": (1, 1), "blocks": (1, 1), "table": (1, 1)},
    {"rows": 1, "heads": (8, 2), "depth": (64, 64), "blocks": (40, 64), "table": (2, 20)},
    {"rows": 3, "heads": (8, 2), "depth": (128, 128), "blocks": (70, 64), "table": (2, 35)},
    {"rows": 5, "heads": (6, 2), "depth": (96, 80), "window": 90, "sinks": True},
    {"heads": (3, 3), "depth": (64, 64), "pool": "float32", "window": 70},
    {"heads": (6, 1), "depth": (13, 5), "blocks": (7, 3), "pool": "float16", "sinks": True},
    {"rows": 5, "heads": (80, 1), "depth": (8, 130), "blocks": (5, 16), "softcap": 3.0},
    {"rows": 3, "heads": (16, 1), "depth": (576, 512), "blocks": (30, 64), "sinks": True},
    {"rows": 2, "dtype": "float64", "pool": "float64", "window": 300, "sinks": True},
    {"rows": 3, "dtype": "float64", "pool": "float64", "softcap": 5.0, "depth": (8, 8)},
    {"rows": 16, "dtype": "bfloat16", "blocks": (40, 16), "table": (2, 20)},
    {"rows": 4, "pool": "int8", "sinks": True, "window": 200},
    {"pool": "int8", "heads": (3, 1), "blocks": (9, 5), "depth": (20, 33)},
    {"rows": 0},
    {"rows": 3, "heads": (20, 1), "depth": (32, 64), "window": 70, "sinks": True},
    {"rows": 2, "heads": (6, 2), "depth": (64, 32), "softcap": 3.0, "blocks": (30, 16)},
    {"rows": 4, "dtype": "bfloat16", "heads": (2, 2), "depth": (64, 64), "window": 33},
    {"rows": 8, "heads": (4, 4), "depth": (32, 32), "blocks": (20, 64), "table": (1, 20)},
]

#: Many rows on tensor cores.
TILES: list[dict[str, Any]] = [
    {"heads": (2, 1), "depth": (16, 32), "table": (3, 2)},
    {"rows": 35, "heads": (4, 1), "depth": (64, 64), "table": (2, 2)},
    {"rows": 40, "heads": (3, 1), "depth": (32, 16), "blocks": (18, 16), "table": (2, 9)},
    {
        "rows": 17,
        "heads": (35, 1),
        "depth": (48, 32),
        "window": 100,
        "sinks": True,
        "table": (2, 3),
    },
    {"rows": 18, "heads": (2, 2), "depth": (256, 256), "table": (2, 2), "softcap": 4.0},
    {"heads": (2, 2), "depth": (16, 16), "blocks": (30, 5), "table": (3, 10), "sinks": True},
    {"rows": 20, "dtype": "bfloat16", "depth": (64, 64), "window": 1, "table": (2, 2)},
    {"rows": 24, "heads": (2, 2), "depth": (32, 32), "table": (2, 2), "scale": -0.7, "sinks": True},
]

#: Many rows, rounded, for groups of warps.
GROUPS: list[dict[str, Any]] = [
    {"rows": 20, "heads": (4, 1), "depth": (64, 64), "table": (2, 2)},
    {"rows": 22, "heads": (3, 1), "depth": (64, 64), "blocks": (18, 16), "table": (2, 9)},
    {"rows": 17, "heads": (5, 1), "depth": (48, 64), "window": 99, "sinks": True, "table": (2, 3)},
    {"rows": 18, "heads": (1, 1), "depth": (128, 128), "blocks": (3, 128), "table": (2, 1)},
    {"rows": 20, "dtype": "bfloat16", "depth": (64, 64), "window": 1, "table": (2, 2)},
    {"rows": 17, "depth": (80, 64), "scale": -0.7, "softcap": 4.0, "sinks": True, "table": (1, 2)},
    {"rows": 66, "heads": (1, 1), "depth": (16, 64), "blocks": (3, 256), "table": (1, 1)},
]

FEW_KEYS = {"rows": 18, "heads": (2, 1), "blocks": (2, 64), "table": (1, 1)}

#: Many rows whose results are converted, and whether rows are rounded.
NARROWED: list[tuple[dict[str, Any], str, bool]] = [
    ({**FEW_KEYS, "depth": (16, 16)}, "bfloat16", False),
    ({**FEW_KEYS, "depth": (16, 48), "rows": ANY_ROWS}, "float16", False),
    ({**FEW_KEYS, "depth": (13, 5)}, "float16", False),
    ({**FEW_KEYS, "depth": (16, 64)}, "bfloat16", True),
    ({**FEW_KEYS, "depth": (16, 64), "rows": 33, "sinks": True}, "float16", True),
]


@pytest.fixture(scope="module")
def session() -> ost.Session:
    return open_session("cudahost")


def check(session: ost.Session, case: dict[str, Any], seed: int = 3) -> None:
    g = attend(**case)
    compiled = session.compile(g)
    known = g.inputs["q"].shape[0]
    for rows in (known,) if isinstance(known, int) else (1, 7, 34):
        arrays = arrays_of(g, rows)
        (got,), (want,) = compiled.run(arrays), evaluate(g, arrays)
        tolerance = {"float32": 5e-5, "float64": 1e-12, "bfloat16": 1.5e-2}[got.dtype.name]
        exact = [np.asarray(x).astype(np.float64) for x in (got, want)]
        np.testing.assert_allclose(*exact, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("case", ROWS, ids=str)
def test_rows(session: ost.Session, case: dict[str, Any]) -> None:
    assert not any(map(is_tiled, kernels_of(attend(**case))))
    check(session, case)


@pytest.mark.parametrize("case", TILES, ids=str)
def test_tiles(session: ost.Session, case: dict[str, Any]) -> None:
    assert any(map(is_tiled, kernels_of(attend(**case))))
    check(session, case)


def in_groups(kernel: Any) -> bool:
    target = CudaTarget.of_arch("sm_90")
    return isinstance(kernel, PagedAttention) and paged_groups.fits(kernel, target)


ROUNDS = ost.CompileOptions(bfloat16_dots=True)


@pytest.mark.parametrize("case", GROUPS, ids=str)
def test_groups(session: ost.Session, case: dict[str, Any]) -> None:
    """Rows apart, runs of neighbouring positions, and rows that attend to nothing."""
    g = attend(**case)
    assert any(map(in_groups, kernels_of(g, rounds=True)))
    compiled = session.compile(g, options=ROUNDS)
    rows = case["rows"]
    arrays = arrays_of(g, rows)
    sequences, pages = g.inputs["table"].shape
    keys = pages * arrays["keys"].shape[1]
    counts = (rows // 5, rows // 5 * 3, rows - rows // 5 * 4)
    starts = (keys - counts[0], 0, -3)
    positions = [np.arange(n) + start for n, start in zip(counts, starts, strict=True)]
    arrays["position"] = np.concatenate(positions).astype(np.int32)
    arrays["position"][: counts[0] : 3] //= 2
    arrays["sequence"] = (np.arange(rows) >= counts[0]).astype(np.int32) % sequences
    blank_unread(arrays, case.get("window"))
    check_rounded(compiled, g, arrays)
    arrays["position"][:] = -1
    check_rounded(compiled, g, arrays)


@pytest.mark.parametrize("rounds", [True, False], ids=["groups", "tiles"])
@pytest.mark.parametrize("heads", [(8, 1), (4, 1), (2, 2)], ids=str)
def test_answers_in_front_of_prompts(
    session: ost.Session, heads: tuple[int, int], rounds: bool
) -> None:
    """Rows of several sequences, one or a few of each, some without keys; then many of one."""
    rows, sequences = 90, 12
    size: dict[str, Any] = {"depth": (64, 64), "blocks": (30, 64), "table": (sequences, 2)}
    g = attend(rows=rows, heads=heads, **size)
    fits = in_groups if rounds else is_tiled
    assert any(map(fits, kernels_of(g, rounds=rounds)))
    compiled = session.compile(g, options=ost.CompileOptions(bfloat16_dots=rounds))
    arrays = arrays_of(g, rows)
    answers = [(0, 127), (1, 3), (2, -1), (3, 64), (3, 65), (3, 66), (4, 0), (5, 99), (0, 12)]
    prompt = [(6, position) for position in range(30)] + [(7, p) for p in range(90, 120)]
    padding = [(0, -1)] * (rows - len(answers) - len(prompt))
    steps = (answers + prompt + padding, padding + prompt + answers, padding + answers[2:3])
    for step in steps:
        places = (step + padding * rows)[:rows]
        arrays["sequence"], arrays["position"] = np.array(places, np.int32).T.copy()
        checked = dict(arrays)
        blank_unread(checked, None)
        check_rounded(compiled, g, checked)


def check_rounded(compiled: ost.CompiledGraph, g: ost.Graph, arrays: dict[str, Any]) -> None:
    rounded = {**arrays}
    for name, array in arrays.items():
        if array.dtype == np.float32 and name == "q":
            rounded[name] = array.astype(ml_dtypes.bfloat16).astype(np.float32)
        elif name in ("keys", "values"):
            rounded[name] = np.nan_to_num(array.astype(np.float32)).astype(array.dtype)
    (got,), (want,) = compiled.run(arrays), evaluate(g, rounded)
    exact = [np.asarray(x).astype(np.float64) for x in (got, want)]
    np.testing.assert_allclose(*exact, rtol=1e-2, atol=1e-2)


def is_tiled(kernel: Any) -> bool:
    target = CudaTarget.of_arch("sm_90")
    return isinstance(kernel, PagedAttention) and paged_tiles.fits(kernel, target)


@pytest.mark.parametrize(
    ("case", "fits"),
    [
        ({"rows": 1}, True),
        ({"rows": 1, "heads": (9, 1), "blocks": (8, 16)}, True),
        ({"rows": 1, "pool": "float16"}, False),
        ({"rows": 1, "depth": (80, 64)}, False),
        ({"rows": 1, "blocks": (8, 24)}, False),
        ({"rows": 1, "depth": (256, 256)}, False),
    ],
    ids=str,
)
def test_few_rows_are_for_tensor_cores_where_pools_suit_them(
    session: ost.Session, case: dict[str, Any], fits: bool
) -> None:
    target = CudaTarget.of_arch("sm_90")
    g = attend(**{"depth": (64, 64), **case})
    calls = [op for op in session.compile(g).plan.prepared_ops if isinstance(op, KernelCall)]
    sources = "".join(call.kernel.kernel.source(target) for call in calls)
    assert ("multiply_tiles" in sources) is fits
    for other in (replace(target, fragments=False), CudaTarget.of_arch("sm_75")):
        assert all("multiply_tiles" not in call.kernel.kernel.source(other) for call in calls)


#: Enough rows for many warps of a block.
PROMPT = {"rows": 512, "heads": (32, 8), "depth": (64, 64), "blocks": (64, 64), "table": (2, 16)}


#: Cases whose kernels are compiled, and whether rows are rounded.
COMPILED: list[tuple[dict[str, Any], bool]] = [
    *((case, False) for case in (*ROWS[1:9:2], *TILES[::3], PROMPT)),
    *((case, True) for case in (*GROUPS[::3], PROMPT)),
]


@pytest.mark.parametrize(
    ("arch", "case", "rounds"),
    [
        pytest.param(arch, *compiled, marks=[] if number in fast else [pytest.mark.slow])
        for arch, fast in {
            "sm_80": range(0, len(COMPILED), 3),
            "sm_90": range(len(COMPILED)),
            "sm_100": range(1, len(COMPILED), 3),
        }.items()
        for number, compiled in enumerate(COMPILED)
    ],
    ids=str,
)
def test_kernels_compile(arch: str, case: dict[str, Any], rounds: bool) -> None:
    """For the other architectures, a segment, a tile and a group of warps."""
    for kernel in kernels_of(attend(**case), rounds=rounds):
        compile_text(kernel.source(CudaTarget.of_arch(arch)), arch)


@pytest.mark.parametrize(("rows", "depth"), [(5, 16), (5, 32), (24, 16)])
@pytest.mark.parametrize("window", [None, 90])
def test_what_no_row_attends_to_is_not_read(
    session: ost.Session, rows: int, depth: int, window: int | None
) -> None:
    """Not even with a weight of zero: blocks that were another sequence's may hold NaN."""
    g = attend(rows=rows, heads=(2, 1), depth=(depth, 32), window=window, table=(3, 4))
    arrays = arrays_of(g, rows)
    arrays["position"][:5] = [200, 0, 1, 63, 64]
    (wanted,) = evaluate(g, arrays)
    blank_unread(arrays, window)
    (got,) = session.compile(g).run(arrays)
    np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-5)


def test_rows_may_be_rounded(session: ost.Session) -> None:
    """By the option that rounds rows beside bfloat16 weights, too; by many warps."""
    case = {**PROMPT, "rows": 64, "heads": (16, 1), "depth": (16, 16), "table": (2, 3)}
    g = attend(**case)
    arrays = arrays_of(g, 64)
    arrays["position"] = np.arange(64, dtype=np.int32) + 60
    options = [ost.CompileOptions(bfloat16_dots=on) for on in (False, True)]
    exact, rounded = (session.compile(g, options=each).run(arrays)[0] for each in options)
    (want,) = evaluate(g, arrays)
    np.testing.assert_allclose(exact, want, rtol=5e-5, atol=5e-5)
    np.testing.assert_allclose(rounded, want, rtol=2e-2, atol=2e-2)
    assert not np.array_equal(exact, rounded)


@pytest.mark.parametrize("rows", [3, 20])
def test_numbers_out_of_range_are_those_of_take(session: ost.Session, rows: int) -> None:
    g = attend(rows=rows, depth=(32, 32), blocks=(24, 16), table=(3, 8))
    arrays = arrays_of(g, rows)
    arrays["sequence"][:3] = [-1, 99, -99]
    arrays["position"][:3] = [10_000, -1, -(2**31)]
    arrays["table"][0, :2] = [-1, 1000]
    (got,), (want,) = session.compile(g).run(arrays), evaluate(g, arrays)
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)
    assert not np.asarray(got)[1:3].any()


@pytest.mark.parametrize("pool", ["float32", "bfloat16"])
@pytest.mark.parametrize("rows", [1, 3])
def test_a_segment_writes_new_rows_and_attends_to_them(pool: str, rows: int) -> None:
    """Of one row, a block writes the part of the head that it reads; of several, all of them."""
    rng, width, heads, groups, depth = np.random.default_rng(0), 64, 8, 4, 16
    g = ost.Graph("layers")
    x = g.input("x", (rows, width))
    table, sequence = g.input("table", (2, 3), "int32"), g.input("sequence", (rows,), "int32")
    position = g.input("position", (rows,), "int32")
    place = g.input("place", (rows, 2), "int32")
    arrays = {
        "x": rng.standard_normal((rows, width), np.float32),
        "table": np.array([[4, 1, 5], [0, 2, 3]], np.int32),
        "sequence": np.arange(rows, dtype=np.int32) % 2,
        "position": np.array([37, 5, 38], np.int32)[:rows],
    }
    owners = arrays["table"][arrays["sequence"], arrays["position"] // 16]
    arrays["place"] = np.stack([owners, arrays["position"] % 16], 1).astype(np.int32)
    for layer in range(2):
        found = {}
        for name, count in (("q", heads), ("k", groups), ("v", groups)):
            w = rng.standard_normal((width, count * depth), np.float32) / 8
            made = g.matmul(x, g.param(f"{layer}.{name}", w.shape, value=w))
            found[name] = g.reshape(made, (rows, count, depth))
        for name in ("k", "v"):
            shape = (6, 16, groups, depth)
            arrays[f"{layer}.{name}.pool"] = rng.standard_normal(shape).astype(pool_dtype(pool))
            kept = g.inout(f"{layer}.{name}.pool", shape, pool)
            new = g.cast(g.tanh(found[name]) if name == "k" else found[name], pool)
            found[name] = g.scatter_nd(kept, place, new, unique=True)
            g.assign(kept, found[name])
        mixed = g.paged_attention(found["q"], found["k"], found["v"], table, sequence, position)
        w = rng.standard_normal((heads * depth, width), np.float32) / 16
        o = g.param(f"{layer}.o", w.shape, value=w)
        x = x + g.matmul(g.reshape(mixed, (rows, heads * depth)), o)
    g.set_outputs([x])
    results = []
    for session in (ost.Session("cpu"), open_session("cudagrids")):
        given = {name: array.copy() for name, array in arrays.items()}
        compiled = session.compile(g)
        (result,) = compiled.run(given)
        results.append([result, *(given[name] for name in given if name.endswith("pool"))])
    for exact, got in zip(*results, strict=True):
        wide = [np.asarray(array).astype(np.float32) for array in (got, exact)]
        np.testing.assert_allclose(*wide, rtol=2e-2 if pool == "bfloat16" else 1e-4, atol=1e-3)
    kernels = [op.kernel.kernel for op in compiled.plan.prepared_ops if isinstance(op, KernelCall)]
    parts = [part for kernel in kernels if isinstance(kernel, Segment) for part in kernel.parts]
    shares = [part for part in parts if part.shares_of is not None]
    assert any(part.kernel.args[1].writes for part in shares) == (rows == 1)


def pool_dtype(name: str) -> Any:
    return ost.DType.parse(name).numpy


def narrowed(case: dict[str, Any], dtype: str, *, flat: bool = True) -> ost.Graph:
    """The heads of a row side by side, in 16 bits, as a product reads them."""
    g = attend(**case)
    (value,) = g.outputs.values()
    shape = (value.shape[0], value.shape[1] * value.shape[2])
    g.set_outputs([g.cast(g.reshape(value, shape) if flat else value, dtype)])
    return g


@pytest.mark.parametrize(("case", "dtype", "rounds"), NARROWED, ids=str)
def test_results_of_many_rows_are_stored_in_16_bits(
    session: ost.Session, case: dict[str, Any], dtype: str, rounds: bool
) -> None:
    """The same bits as those of a kernel that converts them."""
    g = narrowed(case, dtype, flat=dtype == "bfloat16")
    options = ost.CompileOptions(bfloat16_dots=rounds)
    apart = replace(options, epilogue_fusion=False)
    one, two = (session.compile(g, options=each) for each in (options, apart))
    assert len(one.plan.prepared_ops) == 1 < len(two.plan.prepared_ops)
    known = g.inputs["q"].shape[0]
    for rows in (known,) if isinstance(known, int) else (1, 7, 34):
        arrays = arrays_of(g, rows)
        (got,), (want,) = one.run(arrays), two.run(arrays)
        assert got.tobytes() == want.tobytes()
        assert got.dtype == want.dtype == dtype


OTHERS: dict[str, Callable[[ost.Graph, Value], list[Value]]] = {
    "a result": lambda g, value: [value, g.cast(value, "float16")],
    "two readers": lambda g, value: [g.cast(value, "float16"), g.cast(value, "bfloat16")],
    "a wider dtype": lambda g, value: [g.cast(value, "float64")],
    "integers": lambda g, value: [g.cast(value, "int8")],
    "another order": lambda g, value: [g.cast(g.permute_dims(value, (1, 0, 2)), "float16")],
    "another function": lambda g, value: [g.cast(g.exp(value), "float16")],
    "behind it": lambda g, value: [g.exp(g.cast(value, "float16"))],
}


@pytest.mark.parametrize(
    ("case", "dtype"),
    [
        ({**FEW_KEYS, "rows": 3, "table": (1, 2), "blocks": (2, 128)}, "float16"),
        ({**FEW_KEYS, "depth": (16, 16), "dtype": "bfloat16"}, "float16"),
    ],
    ids=["parts of the keys", "a result that is rounded"],
)
def test_results_that_are_rounded_by_kernels_of_their_own(
    session: ost.Session, case: dict[str, Any], dtype: str
) -> None:
    """The parts of few rows are added up first; a result of 16 bits is rounded twice."""
    g = narrowed(case, dtype)
    apart = ost.CompileOptions(epilogue_fusion=False)
    one, two = session.compile(g), session.compile(g, options=apart)
    assert len(one.plan.prepared_ops) == len(two.plan.prepared_ops) > 1
    arrays = arrays_of(g, case["rows"])
    assert one.run(arrays)[0].tobytes() == two.run(arrays)[0].tobytes()


@pytest.mark.parametrize("name", OTHERS)
def test_other_readers_have_kernels_of_their_own(session: ost.Session, name: str) -> None:
    g = attend(**TILES[0])
    (value,) = g.outputs.values()
    g.set_outputs(OTHERS[name](g, value))
    compiled = session.compile(g)
    assert len(compiled.plan.prepared_ops) > 1
    arrays = arrays_of(g, 20)
    for got, want in zip(compiled.run(arrays), evaluate(g, arrays), strict=True):
        exact = [np.asarray(x).astype(np.float64) for x in (got, want)]
        np.testing.assert_allclose(*exact, rtol=1.5e-2, atol=1.5e-2)
