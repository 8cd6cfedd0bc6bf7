"""Parts of a segment that are one, values that their readers compute, and rows from packets."""

from __future__ import annotations

import numpy as np
import pytest

import ostinato as ost
from ostinato.backends.cuda.capabilities import lowering_options
from ostinato.backends.cuda.compiler import compile_text
from ostinato.backends.cuda.kernel import CudaLoopNest
from ostinato.backends.cuda.rules.inlined_values import with_inlined_values
from ostinato.backends.cuda.rules.joint_nests import JointNests
from ostinato.backends.cuda.rules.joint_products import JointProducts
from ostinato.backends.cuda.rules.packets import ReceivePackets
from ostinato.backends.cuda.rules.table import lower_for_cuda
from ostinato.backends.cuda.target import CudaTarget
from ostinato.lower.program import LoweredBuffer, Role
from ostinato.records import replace
from tests.backends.cuda.rules.found_segments import segment_of
from tests.conformance.compare import check_against_oracle
from tests.conformance.draw import Draw
from tests.devices.cuda_emulation import backend
from tests.devices.registered import open_session

APART = ost.CompileOptions(joint_parts=False)
SM_90 = CudaTarget.of_arch("sm_90")


@pytest.fixture(scope="module")
def session() -> ost.Session:
    return open_session("cudagrids")


def attending(heads: int, key_heads: int, size: int, width: int = 32) -> ost.Graph:
    """Attention of one row, its queries and keys turned, with states of keys and values."""
    g, rng = ost.Graph("attending"), np.random.default_rng(7)
    position, live = ost.Variable("position", 0, 15), ost.Variable("live", 1, 16)

    def projected(x: ost.Value, rows: int, count: int) -> ost.Value:
        made = (rng.standard_normal((rows, count * size)) / np.sqrt(rows)).astype(np.float32)
        weight = g.param(f"w{len(g.params)}", made.shape, "float32", value=made)
        return g.reshape(g.matmul(x, weight), (1, count, 1, size))

    tables = rng.standard_normal((2, 16, size // 2)).astype(np.float32)
    turns = [
        g.dynamic_slice(
            g.param(f"turn{n}", table.shape, "float32", value=table), (position, 0), (1, size // 2)
        )
        for n, table in enumerate(tables)
    ]
    x = g.input("x", (1, width), "float32")
    seen = []
    for kind in ("keys", "values"):
        row = projected(x, width, key_heads)
        row = g.rope(row, *turns) if kind == "keys" else row
        state = g.state(kind, (1, key_heads, 16, size), "float32")
        grown = g.dynamic_update_slice(state, row, (0, 0, position, 0))
        g.assign(state, grown)
        seen.append(g.slice(grown, (0, 0, 0, 0), (1, key_heads, live, size)))
    mixed = g.attention(g.rope(projected(x, width, heads), *turns), *seen)
    last = g.reshape(mixed, (1, heads * size))
    g.set_outputs([g.reshape(projected(last, heads * size, 1), (1, size))])
    return g


@pytest.mark.parametrize(("heads", "key_heads", "size"), [(3, 3, 10), (20, 2, 32)], ids=str)
def test_what_stands_in_front_of_attention_is_one_part(
    session: ost.Session, heads: int, key_heads: int, size: int
) -> None:
    graph = attending(heads, key_heads, size)
    compiled, apart = session.compile(graph), session.compile(graph, options=APART)
    plain = ost.Session("cpu").compile(graph)
    (joint,) = (p.kernel for p in segment_of(compiled).parts if isinstance(p.kernel, JointNests))
    received, *nests = joint.kernels
    assert isinstance(received, ReceivePackets)
    assert all(type(nest) is CudaLoopNest for nest in nests)
    assert not any(isinstance(part.kernel, JointNests) for part in segment_of(apart).parts)
    assert len(segment_of(apart).parts) >= len(segment_of(compiled).parts) + len(nests)
    compile_text(segment_of(compiled).source(SM_90), "sm_90")
    rng = np.random.default_rng(1)
    for place in range(3):
        given = {"x": rng.standard_normal((1, 32)).astype(np.float32)}
        values = {"position": place, "live": place + 1}
        runs = [c.run(given, variables=values)[0] for c in (compiled, apart, plain)]
        np.testing.assert_array_equal(runs[0], runs[1])
        np.testing.assert_allclose(runs[0], runs[2], rtol=2e-4, atol=2e-5)


def test_shares_of_one_array_may_be_apart_by_different_strides(session: ost.Session) -> None:
    """Queries and keys of a head are parts of one array, of different sizes: no joint part."""
    g = ost.Graph("views")
    x = g.abs(g.input("x", (900,), "float32"))
    queries = g.sin(g.reshape(g.slice(x, (618,), (746,)), (2, 2, 4, 8)))
    keys = g.sin(g.reshape(g.slice(x, (44,), (780,)), (2, 2, 23, 8)))
    values = g.input("values", (2, 2, 23, 8), "float32")
    g.set_outputs([g.attention(queries, keys, values)])
    rng = np.random.default_rng(65)
    arrays = {
        name: rng.standard_normal(value.shape, np.float32) for name, value in g.inputs.items()
    }
    parts = segment_of(session.compile(g)).parts
    assert sum(part.shares_of is not None for part in parts) == 3
    check_against_oracle(g, arrays, [(session, ost.CompileOptions())])


def test_positions_in_bounds_are_not_clamped(session: ost.Session) -> None:
    graph = attending(4, 2, 16)
    clamps = [
        segment_of(session.compile(graph, options=options)).source(SM_90).count("minimum(n")
        + segment_of(session.compile(graph, options=options)).source(SM_90).count("minimum(t")
        for options in (ost.CompileOptions(), APART)
    ]
    assert clamps[0] < clamps[1]


def test_rounded_rows_come_from_packets_and_norms_write_them_once(session: ost.Session) -> None:
    g, rng = ost.Graph("rounded"), np.random.default_rng(3)
    x = g.input("x", (1, 256), "bfloat16")
    for number in range(2):
        gain = rng.uniform(0.5, 1.5, 256).astype(x.dtype.numpy)
        normed = g.rms_norm(x, g.param(f"gain{number}", (256,), "bfloat16", value=gain))
        for name in ("a", "b"):  # the second one rounds what other blocks have computed
            made = (rng.standard_normal((256, 256)) / 16).astype(x.dtype.numpy)
            weight = g.param(f"{name}{number}", (256, 256), "bfloat16", value=made)
            normed = g.matmul(normed, weight)
        x = g.add(x, normed)
    g.set_outputs([x])
    graph = ost.quantize(g, "int4", min_elements=64)
    compiled = session.compile(graph)
    apart = session.compile(graph, options=ost.CompileOptions(segment_exchange=False))
    parts = segment_of(compiled).parts
    nests = [part.kernel for part in parts if type(part.kernel) is CudaLoopNest]
    norms = [nest for nest in nests if len(nest.args) == 3 and nest.args[1].dtype == x.dtype]
    assert all(sum(arg.writes for arg in norm.args) == 1 for norm in norms)
    assert "ost::received<" in segment_of(compiled).source(SM_90)
    given = {"x": rng.standard_normal((1, 256)).astype(x.dtype.numpy)}
    np.testing.assert_array_equal(compiled.run(given)[0], apart.run(given)[0])


def chain() -> tuple[ost.Graph, ost.CompileOptions]:
    """Three elementwise nests, one behind the other, and a nest that does not read them."""
    g = ost.Graph("chain")
    x = g.input("x", (3, 7), "float32")
    g.set_outputs([g.sin(g.sqrt(g.exp(x))), g.sum(x)])
    return g, ost.CompileOptions(elementwise_fusion=False)


def test_values_of_a_chain_are_computed_by_its_last_nest(session: ost.Session) -> None:
    graph, options = chain()
    compiled = session.compile(graph, options=options)
    assert len(segment_of(compiled).parts) == 2
    apart = session.compile(graph, options=replace(options, joint_parts=False))
    assert len(segment_of(apart).parts) == 4
    x = np.linspace(-2, 2, 21, dtype=np.float32).reshape(3, 7)
    for found, expected in zip(compiled.run({"x": x}), apart.run({"x": x}), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_a_chain_whose_value_nothing_reads() -> None:
    graph, options = chain()
    settings = replace(lowering_options(options), segments=False)
    program, _ = lower_for_cuda(graph, settings)
    unread = {
        buffer: LoweredBuffer(buffer.type, Role.TEMP, buffer.name)
        for call in program.calls
        for buffer in call.writes()
    }
    calls = [
        replace(call, buffers=tuple(unread.get(b, b) for b in call.buffers))
        for call in program.calls[:3]
    ]
    assert len(calls) == 3
    assert len(with_inlined_values(calls, set())) == 1


def test_gathers_of_a_chain_keep_their_positions(session: ost.Session) -> None:
    """Each kernel numbers the positions that data give from 0."""
    g, rng = ost.Graph("gathers"), np.random.default_rng(2)
    arrays: dict[str, np.ndarray] = {}
    total = g.input("x", (9, 4), "float32")
    arrays["x"] = rng.standard_normal((9, 4), np.float32)
    for n in range(3):
        table, rows = g.input(f"t{n}", (30, 4), "float32"), g.input(f"i{n}", (9,), "int64")
        arrays[f"t{n}"] = rng.standard_normal((30, 4), np.float32)
        arrays[f"i{n}"] = rng.integers(0, 30, 9)
        total = g.add(total, g.take(table, rows, axis=0))
    g.set_outputs([total, g.sum(total)])
    apart = ost.CompileOptions(elementwise_fusion=False)
    assert len(segment_of(session.compile(g, options=apart)).parts) < 7
    (found, _) = session.compile(g, options=apart).run(arrays)
    expected = arrays["x"] + sum(arrays[f"t{n}"][arrays[f"i{n}"]] for n in range(3))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def projected(g: ost.Graph, x: ost.Value, sizes: list[int]) -> list[ost.Value]:
    """Products of the same rows by matrices of their own."""
    results = []
    for number, size in enumerate(sizes):
        rng = np.random.default_rng(len(g.params) + number)
        made = rng.standard_normal((x.shape[1], size)) / np.sqrt(x.shape[1])
        weight = g.param(f"w{len(g.params)}", made.shape, x.dtype, value=made.astype(x.dtype.numpy))
        results.append(g.matmul(x, weight))
    return results


@pytest.mark.parametrize(
    ("rows", "dtype", "depth", "sizes"),
    [
        (1, "bfloat16", 1024, [128, 64, 64]),
        (3, "float16", 1536, [8, 80, 16]),
        (1, "float32", 64, [64, 24]),
    ],
)
def test_products_of_the_same_rows_are_one_part(
    session: ost.Session, rows: int, dtype: str, depth: int, sizes: list[int]
) -> None:
    d = Draw(ost.Graph("joint"), np.random.default_rng(rows))
    g, x = d.g, d.of((rows, depth), dtype)
    found = projected(g, g.rms_norm(x, d.of((depth,), dtype)), sizes)
    g.set_outputs([*found, g.softmax(found[0])])
    check_against_oracle(g, d.arrays, [(session, ost.CompileOptions()), (session, APART)])
    parts = segment_of(session.compile(g)).parts
    (joint,) = (part for part in parts if isinstance(part.kernel, JointProducts))
    assert joint.streams
    assert len(joint.kernel.kernels) == len(sizes)
    segment = segment_of(session.compile(g))
    compile_text(segment.source(SM_90), "sm_90")
    assert segment.source(SM_90).count("ost::counted_on(own, all, ") == len(sizes)
    compile_text(segment.source(CudaTarget.of_arch("sm_80")), "sm_80")  # without a ring
    apart = segment_of(session.compile(g, options=APART))
    assert not any(isinstance(part.kernel, JointProducts) for part in apart.parts)


def test_products_of_codes_are_one_part_and_those_with_scales_of_their_own_are_not(
    session: ost.Session,
) -> None:
    for form, joint in (("int4", True), ("int8", False)):
        d = Draw(ost.Graph("narrow"), np.random.default_rng(4))
        x = d.of((1, 256), "bfloat16")
        d.g.set_outputs([d.g.silu(y) for y in projected(d.g, d.g.silu(x), [96, 32, 32])])
        graph = ost.quantize(d.g, form, min_elements=64)
        given = {"x0": d.arrays["x0"]} if "x0" in d.arrays else dict(d.arrays)
        compiled, apart = session.compile(graph), session.compile(graph, options=APART)
        kernels = [part.kernel for part in segment_of(compiled).parts]
        assert any(isinstance(kernel, JointProducts) for kernel in kernels) is joint
        for mine, theirs in zip(compiled.run(given), apart.run(given), strict=True):
            np.testing.assert_array_equal(mine, theirs)


def test_products_of_the_same_rows_without_a_ring(session: ost.Session) -> None:
    """Most weights cannot come through one, since they are inputs as they are in memory."""
    d = Draw(ost.Graph("plain"), np.random.default_rng(5))
    g, x = d.g, d.of((2, 64), "float32")
    found = projected(g, g.silu(x), [40, 48])
    large = g.matmul(g.silu(x), d.of((64, 300), "float32"))
    g.set_outputs([*found, large, g.softmax(found[1])])
    check_against_oracle(g, d.arrays, [(session, ost.CompileOptions()), (session, APART)])
    parts = segment_of(session.compile(g)).parts
    (joint,) = (part for part in parts if isinstance(part.kernel, JointProducts))
    assert not joint.streams
    grids = [product.launch(SM_90).grid for product in joint.kernel.kernels]
    assert joint.kernel.launch(SM_90).grid == sum(grids)  # each has blocks of its own
    text = segment_of(session.compile(g)).source(SM_90)
    assert f"ost::counted_on(whole, all, {grids[0]})" in text


def test_blocks_without_a_tile_of_any_product_fetch_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "TARGET", replace(backend.TARGET, multiprocessors=4))
    monkeypatch.setattr(backend.CudaGridsBackend, "blocks", 4)
    d = Draw(ost.Graph("few"), np.random.default_rng(8))
    g, x = d.g, d.of((1, 1536), "bfloat16")
    found = projected(g, g.silu(x), [8, 16])
    g.set_outputs(projected(g, g.concat([*found, *found, *found], axis=1), [64, 64]))
    check_against_oracle(g, d.arrays, [(open_session("cudagrids"), ost.CompileOptions())])
