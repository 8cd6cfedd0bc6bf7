"""The kernel of paged attention: against the oracle, and the same bits in any company."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.backends.cpu.rules.paged_attention import PagedAttentionKernel
from ostinato.backends.cpu.rules.spans import SpanMergeKernel
from ostinato.dtypes import DType
from ostinato.ops.builder import Graph
from ostinato.reference import evaluate
from ostinato.variables import Variable
from tests.backends.cpu.levels import across_levels
from tests.paged_graphs import ROWS, arrays_of, attend, blank_unread

Array = np.ndarray[Any, Any]
Lowered = Callable[..., Any]

CASES: list[dict[str, Any]] = [
    {},
    {"rows": 1, "heads": (1, 1), "depth": (1, 1), "blocks": (1, 1), "table": (1, 1)},
    {"heads": (3, 3), "depth": (64, 64), "pool": "float32", "window": 70},
    {"heads": (6, 1), "depth": (13, 5), "blocks": (7, 3), "pool": "float16", "sinks": True},
    {"heads": (80, 1), "depth": (8, 130), "blocks": (5, 16), "softcap": 3.0, "scale": 0.3},
    {"dtype": "float64", "pool": "float64", "window": 300, "sinks": True},
    {"dtype": "bfloat16", "rows": 33, "blocks": (40, 16), "table": (2, 20)},
    {"pool": "int8", "sinks": True, "window": 200},
    {"pool": "int8", "heads": (3, 1), "blocks": (9, 5), "depth": (20, 33)},
    {"rows": 0},
    {"blocks": (80, 64), "table": (2, 40), "window": 1100, "sinks": True},
    {"blocks": (70, 64), "table": (2, 35), "heads": (4, 1), "pool": "int8", "depth": (20, 33)},
    {"rows": 3, "blocks": (20, 64), "table": (1, 20), "dtype": "float64", "pool": "float64"},
    {"rows": 9, "blocks": (130, 16), "table": (1, 130), "dtype": "bfloat16"},
]


@pytest.mark.parametrize(("level", "case"), across_levels(CASES), indirect=["level"])
def test_paged_attention(lowered: Lowered, level: str, case: dict[str, Any]) -> None:
    g = attend(**case)
    run = lowered(g, level)
    kinds = (PagedAttentionKernel, SpanMergeKernel)
    assert all(isinstance(kernel, kinds) for kernel in run.kernels)
    known = g.inputs["q"].shape[0]
    for rows in (known,) if isinstance(known, int) else (1, 7, 80):
        arrays = arrays_of(g, rows)
        (got,) = run(arrays) if isinstance(known, int) else run(arrays, n=rows)
        (want,) = evaluate(g, arrays)
        tolerance = {"float32": 1e-5, "float64": 1e-12, "bfloat16": 1.5e-2}[got.dtype.name]
        exact = [x.astype(np.float64) for x in (got, want)]
        np.testing.assert_allclose(*exact, rtol=tolerance, atol=tolerance)


def test_blocks_and_places_that_no_row_attends_to_are_not_read(lowered: Lowered) -> None:
    """Not even with a weight of zero: blocks that were another sequence's may hold NaN."""
    for window in (None, 90):
        g = attend(rows=5, table=(3, 8), window=window)
        arrays = arrays_of(g, 5)
        arrays["sequence"][:] = [0, 1, 1, 2, 2]
        arrays["position"][:] = [400, 0, 1, 63, 64]
        (wanted,) = evaluate(g, arrays)
        blank_unread(arrays, window)
        arrays["table"][1, 1:] = -(2**31)  # only what is needed is looked up
        (got,) = lowered(g, "host")(arrays)
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("level", "options"),
    across_levels([
        {},
        {"heads": (9, 3), "window": 130, "sinks": True},
        {"heads": (8, 1), "softcap": 4.0, "pool": "float32", "depth": (40, 64)},
        {"heads": (4, 4), "pool": "int8"},
        {"heads": (3, 1), "blocks": (120, 64), "table": (3, 40)},
        {"blocks": (120, 64), "table": (3, 40), "window": 1030, "sinks": True, "depth": (8, 70)},
    ]),
    indirect=["level"],
    ids=str,
)  # fmt: skip
def test_a_row_has_the_same_bits_in_any_company(
    lowered: Lowered, level: str, options: dict[str, Any]
) -> None:
    """Alone, in chunks of its sequence, beside other sequences, in whatever blocks."""
    g = attend(**options)
    run = lowered(g, level)
    arrays = arrays_of(g, 80)
    arrays["sequence"][:] = 1
    first = 300 if g.inputs["table"].shape[1] < 10 else 2000
    arrays["position"][:] = np.arange(first, first + 80)

    def chunk(rows: Any, **instead: Array) -> Array:
        by_row = ("q", "sequence", "position")
        given = {**arrays, **{name: arrays[name][rows] for name in by_row}, **instead}
        (result,) = run(given, n=len(given["q"]))
        return np.asarray(result)

    alone = np.concatenate([chunk(slice(row, row + 1)) for row in range(80)])
    for size in (2, 7, 64, 80):
        chunks = [chunk(slice(at, at + size)) for at in range(0, 80, size)]
        np.testing.assert_array_equal(np.concatenate(chunks), alone)
    # Beside rows of other sequences, at other places of its tile.
    others = arrays["sequence"].copy()
    others[:11], others[40:43] = 0, 2
    mixed = chunk(slice(0, 80), sequence=others)
    np.testing.assert_array_equal(mixed[others == 1], alone[others == 1])
    # In other blocks.
    order = np.random.default_rng(1).permutation(len(arrays["keys"]))
    pools = ("keys", "values", "key_scales", "value_scales")
    moved = {name: arrays[name][order] for name in pools if name in arrays}
    table = np.argsort(order)[arrays["table"]].astype(np.int32)
    np.testing.assert_array_equal(chunk(slice(0, 80), table=table, **moved), alone)


def test_two_threads_give_the_bits_of_one() -> None:
    g = attend(heads=(9, 3), depth=(64, 64))
    arrays = arrays_of(g, 80)
    results = [ost.Session("cpu", threads=count).compile(g).run(arrays)[0] for count in (1, 2)]
    np.testing.assert_array_equal(*results)


def test_two_threads_give_the_bits_of_one_for_a_long_row() -> None:
    """Few rows have spans of keys computed apart, many do not; both merge them in one order."""
    g = attend(heads=(3, 1), blocks=(80, 64), table=(2, 40))
    arrays = arrays_of(g, 40)
    arrays["sequence"][:] = 1
    arrays["position"][:] = np.arange(2040, 2080)
    results = []
    for threads in (1, 2):
        compiled = ost.Session("cpu", threads=threads).compile(g)
        rows = {name: arrays[name] for name in ("q", "sequence", "position")}
        for size in (1, 5, 7, 8, 9, 40):
            parts = [
                compiled.run(arrays | {name: x[at : at + size] for name, x in rows.items()})[0]
                for at in range(0, 40, size)
            ]
            results.append(np.concatenate(parts).tobytes())
    assert len(set(results)) == 1


def test_pools_and_tables_of_any_size() -> None:
    """Sizes that are Variables change no bit; blocks beyond the live ones count as the last."""
    fixed = attend(blocks=(50, 64), table=(2, 20))
    arrays = arrays_of(fixed, 9)
    blocks, sequences, pages = (Variable(name, 1, 64) for name in ("blocks", "sequences", "pages"))
    arrays["table"][1, 3] = 60
    results = [
        ost.Session("cpu", threads=2).compile(g).run(arrays)[0].tobytes()
        for g in (fixed, attend(blocks=(blocks, 64), table=(sequences, pages)))
    ]
    assert results[0] == results[1]


def test_pools_are_read_in_place(lowered: Lowered) -> None:
    """One kernel: no copy of a pool, none in another dtype."""
    run = lowered(attend(pool="bfloat16"), "host")
    (kernel,) = run.kernels
    assert kernel.args[kernel.spec.k.buffer].dtype == DType.parse("bfloat16")


def test_rows_are_written_into_pools_in_place() -> None:
    """Between the rows and the result there is no copy of a pool, nor memory for one."""
    g = Graph()
    rows = g.input("rows", (ROWS, 2, 64))
    place = g.input("place", (ROWS, 2), "int64")
    pools = []
    for name in ("keys", "values"):
        pool = g.state(name, (64, 64, 2, 64), "bfloat16")
        pools.append(g.scatter_nd(pool, place, g.cast(rows, "bfloat16")))
        g.assign(pool, pools[-1])
    numbers = [g.input(name, shape, "int32") for name, shape in (("t", (1, 8)), ("s", (ROWS,)))]
    g.set_outputs([g.paged_attention(rows, *pools, *numbers, g.input("p", (ROWS,), "int32"))])
    compiled = ost.Session("cpu").compile(g)
    names = [kernel.name for kernel in compiled.plan.kernels]
    assert names.count("scatter_nd") == 2
    assert names[-1] == "paged_attention"
    assert not any("copy" in name for name in names)
    assert compiled.plan.memory.arena_bytes < 64 * 64 * 2 * 64 * 2
    assert compiled.plan.memory.state_bytes == 2 * 64 * 64 * 2 * 64 * 2


def test_pools_across_memory_are_copied(lowered: Lowered) -> None:
    g = Graph()
    pools = [g.permute_dims(g.input(name, (2, 8, 4, 16)), (0, 3, 1, 2)) for name in ("k", "v")]
    g.set_outputs(
        [
            g.paged_attention(
                g.input("q", (3, 8, 4)),
                *pools,
                *(g.input(name, shape, "int32") for name, shape in (("t", (1, 2)), ("s", (3,)))),
                g.input("p", (3,), "int32"),
            )
        ]
    )
    rng = np.random.default_rng(0)
    arrays = {name: rng.standard_normal((2, 8, 4, 16)).astype(np.float32) for name in ("k", "v")}
    arrays |= {"q": rng.standard_normal((3, 8, 4)).astype(np.float32)}
    arrays |= {"t": np.array([[1, 0]], np.int32), "s": np.zeros(3, np.int32)}
    arrays |= {"p": np.array([0, 17, 31], np.int32)}
    (got,), (want,) = lowered(g, "host")(arrays), evaluate(g, arrays)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
