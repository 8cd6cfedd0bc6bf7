"""Segments: small kernels as parts of one, in the emulator of two blocks, against the oracle."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from bench import decoder_step

import ostinato as ost
from ostinato.backends.cuda.abi import MOST_PARAMETER_BYTES, TENSOR_MAP_BYTES, TensorMap
from ostinato.backends.cuda.compiler import compile_text
from ostinato.backends.cuda.kernel import CudaLoopNest
from ostinato.backends.cuda.render.receipts import Receipts
from ostinato.backends.cuda.render.segment_forms import forms_of
from ostinato.backends.cuda.rules.attention_kernel import AttentionKernel
from ostinato.backends.cuda.rules.product import Matmul
from ostinato.backends.cuda.rules.segment_assembly import Segment
from ostinato.backends.cuda.rules.segment_kernel import SpaceKind
from ostinato.backends.cuda.target import SEGMENT_BLOCK, WARP, CudaTarget
from ostinato.backends.device import Device
from ostinato.dtypes import DType
from ostinato.plan.prepared import KernelCall
from ostinato.records import replace
from tests.backends.cuda.render.recipe_kernels import kernels_of
from tests.backends.cuda.rules.found_segments import segments_of
from tests.conformance.compare import check_against_oracle
from tests.conformance.draw import Draw
from tests.devices.cuda_emulation.backend import CudaSegmentsBackend
from tests.devices.registered import open_session
from tests.pairwise import pairwise

SLOW = pytest.mark.slow


@pytest.fixture(scope="module")
def session() -> ost.Session:
    return open_session("cudagrids")


def test_levels_follow_what_is_read_and_written(session: ost.Session) -> None:
    g = ost.Graph("levels")
    x = g.input("x", (3, 40))
    left, right = g.matmul(x, g.input("a", (40, 8))), g.matmul(x, g.input("b", (40, 8)))
    g.set_outputs([g.softmax(g.matmul(left, g.permute_dims(right, (1, 0)))), left, right])
    compiled = session.compile(g, options=ost.CompileOptions(segment_exchange=False))
    (segment,) = segments_of(compiled)
    levels = [part.level for part in segment.parts]
    assert levels == sorted(levels)
    assert levels[:2] == [0, 0]  # neither product waits for the other
    assert levels[2] == 1
    text = segment.source(CudaTarget.of_arch("sm_90"))
    table = text.split("_records[")[1].split("};")[0].splitlines()[1:]
    assert sum(row.split(", ")[1] == "1" for row in table if row) == levels[-1]


def test_parts_without_a_barrier_have_blocks_of_their_own(session: ost.Session) -> None:
    d = Draw(ost.Graph("apart"), np.random.default_rng(3))
    x, y, z = (d.of((7, 50), "float32") for _ in range(3))
    d.g.set_outputs([d.g.exp(x), d.g.sqrt(d.g.abs(y)), d.g.sum(z, axis=1)])
    check_against_oracle(d.g, d.arrays, [(session, ost.CompileOptions())])
    (segment,) = segments_of(session.compile(d.g))
    target = CudaTarget.of_arch("sm_90")
    launch, text = segment.launch(target), segment.source(target)
    inside = replace(target, block=SEGMENT_BLOCK, early_starts=False)
    assert launch.grid == sum(part.kernel.launch(inside).grid for part in segment.parts)
    assert (launch.cooperative, launch.programmatic) == (False, True)
    assert "arrive" not in text
    assert text.count("ost::wait_for_earlier_kernels();") == 1
    compile_text(text, "sm_90")


def test_results_are_those_of_the_kernels_alone(session: ost.Session) -> None:
    d = Draw(ost.Graph("segment"), np.random.default_rng(1))
    x, w, v = (d.of(shape, "float32") for shape in ((5, 33), (33, 70), (70, 33)))
    g = d.g
    y = g.rms_norm(x, d.of((33,), "float32"))
    for _ in range(3):
        y = g.rms_norm(g.add(y, g.matmul(g.silu(g.matmul(y, w)), v)), d.of((33,), "float32"))
    g.set_outputs([y, g.argmax(y, axis=1), g.sum(y, axis=0)])
    check_against_oracle(g, d.arrays, [(session, ost.CompileOptions())])
    assert segments_of(session.compile(g))
    plain = ost.CompileOptions(optimize=False)
    check_against_oracle(g, d.arrays, [(session, plain)])


@pytest.mark.parametrize(
    ("heads", "key_heads", "exchange"),
    [
        (6, 3, True),
        (6, 3, False),
        pytest.param(2, 1, True, marks=SLOW),
        pytest.param(2, 1, False, marks=SLOW),
    ],
)
def test_a_decoding_step_is_one_kernel(
    session: ost.Session, heads: int, key_heads: int, exchange: bool
) -> None:
    config = decoder_step.Config(
        vocabulary=64, width=32, heads=heads, key_heads=key_heads, head_dim=16, hidden=48
    )
    graph = decoder_step.decoder_graph(config, decoder_step.random_weights(config))
    options = ost.CompileOptions(segment_exchange=exchange)
    compiled = session.compile(graph, options=options)
    assert len(compiled.plan.kernels) == 1
    (segment,) = segments_of(compiled)
    barriers = segment.parts[-1].level
    assert barriers == 1 if exchange else barriers > config.layers * 8
    shared = [part.kernel for part in segment.parts if part.shares_of is not None]
    # What is received, rope of queries and of keys and the rows of two states are one part.
    assert len(shared) == (2 * config.layers if exchange and key_heads > 1 else 0)
    if exchange and key_heads > 1:  # the rows of cosines and sines are copied once
        alone = [p for p in segment.parts if p.everywhere and p.shares_of is None]
        assert sum(isinstance(p.kernel, CudaLoopNest) and len(p.arguments) == 2 for p in alone) == 2
    text = segment.source(CudaTarget.of_arch("sm_90"))
    compile_text(text, "sm_90")
    assert ("_touch(own" in text) is ("filled.fetch" in text)
    # Norm weights are stages of the ring.
    assert ("stage = ring.await();" in text) is (exchange and "filled.fetch" in text)
    expected = ost.Session("cpu").compile(graph)
    token = 1
    for position in range(4):
        values = {"token": token, "position": position, "kv_len": position + 1}
        (found,) = compiled.run({}, variables=values)
        (wanted,) = expected.run({}, variables=values)
        assert found[0] == wanted[0]
        token = int(found[0])


@pytest.mark.parametrize(("rows", "heads", "key_heads"), [(5, 4, 2), (8, 3, 3), (7, 2, 1)])
def test_several_sequences_share_the_work_before_attention(
    session: ost.Session, rows: int, heads: int, key_heads: int
) -> None:
    g, rng, width = ost.Graph("rows"), np.random.default_rng(5), 48
    position, live = ost.Variable("position", 0, 63), ost.Variable("live", 1, 64)

    def param(*shape: int) -> ost.Value:
        made = (rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)
        return g.param(f"w{len(g.params)}", shape, "float32", value=made)

    def projected(x: ost.Value, count: int) -> ost.Value:
        return g.reshape(g.matmul(x, param(width, count * 16)), (rows, count, 1, 16))

    x = g.input("x", (rows, width), "float32")
    for layer in range(2):
        seen = []
        for kind in ("keys", "values"):
            state = g.state(f"{layer}.{kind}", (rows, key_heads, 64, 16), "float32")
            row = projected(x, key_heads)
            row = g.tanh(row) if kind == "keys" else row
            grown = g.dynamic_update_slice(state, row, (0, 0, position, 0))
            g.assign(state, grown)
            seen.append(g.slice(grown, (0, 0, 0, 0), (rows, key_heads, live, 16)))
        mixed = g.attention(g.tanh(projected(x, heads)), *seen)
        x = g.add(x, g.matmul(g.reshape(mixed, (rows, heads * 16)), param(heads * 16, width)))
    g.set_outputs([x])
    compiled, expected = session.compile(g), ost.Session("cpu").compile(g)
    (segment,) = segments_of(compiled)
    attended = [i for i, p in enumerate(segment.parts) if isinstance(p.kernel, AttentionKernel)]
    for place in attended:  # each block runs them for its items, one behind the other
        own = [i for i, part in enumerate(segment.parts) if part.shares_of == place]
        assert own == [place - 1, place]  # queries, and the rows of two states, as one
        assert segment.parts[place].level == segment.parts[own[0] - 1].level
    compile_text(segment.source(CudaTarget.of_arch("sm_90")), "sm_90")
    for place in range(3):
        given = {"x": rng.standard_normal((rows, width)).astype(np.float32)}
        values = {"position": place, "live": place + 1}
        (found,), (wanted,) = (c.run(given, variables=values) for c in (compiled, expected))
        np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-5)


def test_large_kernels_stand_alone(session: ost.Session) -> None:
    g = ost.Graph("large")
    x = g.input("x", (64, 64))
    g.set_outputs([g.softmax(g.matmul(x, x))])
    assert not segments_of(session.compile(g))


@pytest.mark.parametrize("kind", ["decoder", "state"])
def test_parts_of_a_level_have_nothing_in_common(session: ost.Session, monkeypatch, kind) -> None:
    """No part writes what another one of its level touches, in whichever buffer it lies."""
    if kind == "decoder":
        config = decoder_step.Config(
            vocabulary=64, width=32, heads=2, key_heads=1, head_dim=16, hidden=48
        )
        graph = decoder_step.decoder_graph(config, decoder_step.random_weights(config))
    else:
        graph = ost.Graph("state")
        x, state = graph.input("x", (3, 40)), graph.state("s", (3, 40))
        before = graph.matmul(state, graph.input("a", (40, 8)))
        graph.assign(state, x)  # read by one part, and overwritten by one that reads no result
        graph.set_outputs([before, graph.softmax(x)])
    plan = session.compile(graph).plan
    segments = 0
    for op in plan.prepared_ops:
        segment = op.kernel.kernel if isinstance(op, KernelCall) else None
        if not isinstance(segment, Segment):
            continue
        segments += 1
        spans = [
            (id(b.storage), b.offset, b.offset + b.nbytes) if b.nbytes else None for b in op.buffers
        ]
        touched: dict[int, list[tuple[tuple[int, int, int], bool, int]]] = {}
        for number, part in enumerate(segment.parts):
            blocks = number if part.tiles_of is None else part.tiles_of
            for arg, position in zip(part.kernel.args, part.arguments, strict=True):
                span = None if segment.space(position) else spans[position]
                write = arg.writes and not part.everywhere  # all blocks write the same
                if span is None:
                    continue
                for (storage, start, end), writes, other in touched.get(part.level, ()):
                    apart = storage != span[0] or end <= span[1] or span[2] <= start
                    assert apart or other == blocks or not (writes or write)
                touched.setdefault(part.level, []).append((span, write, blocks))
    assert segments


@pytest.mark.parametrize(
    ("dtype", "rows", "size"),
    [
        *pairwise(["float32", "bfloat16", "float16"], [1, 3, 16], [(16, 7), (1040, 33), (2576, 9)]),
        pytest.param("float32", 3, (528, 50), marks=SLOW),
        pytest.param("bfloat16", 16, (528, 50), marks=SLOW),
        pytest.param("float16", 1, (528, 50), marks=SLOW),
    ],
)
def test_streamed_weights(
    session: ost.Session, dtype: str, rows: int, size: tuple[int, int]
) -> None:
    """Products of weights that come through the ring, and of those that do not."""
    depth, columns = size
    d = Draw(ost.Graph("streamed"), np.random.default_rng(rows + depth))
    g, x = d.g, d.of((rows, depth), dtype)
    scale, numpy_dtype = d.of((1, depth), dtype), x.dtype.numpy
    first, second = (
        g.param(name, (depth, n), dtype, value=(made / np.sqrt(depth)).astype(numpy_dtype))
        for name, n in (("first", columns), ("second", columns + 32))
        for made in [np.random.default_rng(n).standard_normal((depth, n))]
    )
    y = g.matmul(x, first)
    z = g.silu(g.matmul(g.multiply(x, scale), second))
    g.set_outputs([y, z, g.softmax(z)])
    plain = ost.CompileOptions(stream_weights=False)
    check_against_oracle(g, d.arrays, [(session, ost.CompileOptions()), (session, plain)])
    for options, streams in ((ost.CompileOptions(), True), (plain, False)):
        (segment,) = segments_of(session.compile(g, options=options))
        assert any(part.streams for part in segment.parts) is streams
        assert ("filled.fetch" in segment.source(CudaTarget.of_arch("sm_90"))) is streams
        assert "filled.fetch" not in segment.source(CudaTarget.of_arch("sm_80"))


@pytest.mark.parametrize(
    ("dtype", "rows", "depth"),
    [("bfloat16", 1, 2048), ("float16", 3, 3072), pytest.param("bfloat16", 8, 2048, marks=SLOW)],
)
def test_rows_stay_in_registers_for_all_tiles(
    session: ost.Session, dtype: str, rows: int, depth: int
) -> None:
    d = Draw(ost.Graph("kept"), np.random.default_rng(depth))
    g, x = d.g, d.of((rows, depth), dtype)
    made = np.random.default_rng(1).standard_normal((depth, 73)) / 50
    y = g.matmul(x, g.param("w", made.shape, dtype, value=made.astype(x.dtype.numpy)))
    g.set_outputs([y, g.softmax(y)])
    check_against_oracle(g, d.arrays, [(session, ost.CompileOptions())])
    (segment,) = segments_of(session.compile(g))
    assert "multiply_tiles_of_rows" in segment.source(CudaTarget.of_arch("sm_90"))


def test_more_weights_are_under_way_where_there_are_many_for_a_part() -> None:
    limits = []
    for columns in (1 << 10, 1 << 16):
        g = ost.Graph("many")
        x = g.input("x", (1, 2048), "bfloat16")
        weights = [g.param(name, (2048, columns), "bfloat16") for name in ("first", "second")]
        g.set_outputs([g.silu(g.matmul(g.silu(x), weight)) for weight in weights])
        (segment,) = (kernel for kernel in kernels_of(g) if isinstance(kernel, Segment))
        text = segment.source(CudaTarget.of_arch("sm_90"))
        found = re.findall(r"\b(?:count|spare|scarce|drained) = (\d+)[,;]", text)
        limits.append([int(number) for number in found])
    (slots, *few), (other_slots, *many) = limits
    assert few == [slots // 4, slots * 3 // 4, slots]
    assert many == [other_slots // 4, other_slots // 3, other_slots // 2]


@pytest.mark.parametrize("rows", [pytest.param(1, marks=SLOW), 3, pytest.param(12, marks=SLOW)])
def test_a_long_left_operand_is_awaited_stage_by_stage(session: ost.Session, rows: int) -> None:
    d = Draw(ost.Graph("stages"), np.random.default_rng(rows))
    g, x = d.g, d.of((rows, 32), "bfloat16")

    def product(value: ost.Value, name: str, columns: int) -> ost.Value:
        shape = (value.shape[1], columns)
        made = np.random.default_rng(columns).standard_normal(shape) / np.sqrt(shape[0])
        return g.matmul(value, g.param(name, shape, "bfloat16", value=made.astype(x.dtype.numpy)))

    y = product(g.silu(product(x, "up", 4112)), "down", 24)
    g.set_outputs([product(g.silu(y), "last", 32)])
    ways = [{}, {"stream_weights": False}, {"segment_exchange": False}]
    options = [ost.CompileOptions(**way) for way in ways]
    check_against_oracle(g, d.arrays, [(session, option) for option in options])
    for option, streams in zip(options[:2], (True, False), strict=True):
        (segment,) = segments_of(session.compile(g, options=option))
        for arch in ("sm_90", "sm_80"):
            text = segment.source(CudaTarget.of_arch(arch))
            first = streams and arch == "sm_90"
            assert ("ost::awaited<" in text) is not first  # all of it, in front of the product
            compile_text(text, arch)


def check_streams(session: ost.Session, d: Draw) -> None:
    """Compare products with and without the ring with the oracle; all of them can stream."""
    plain = ost.CompileOptions(stream_weights=False)
    check_against_oracle(d.g, d.arrays, [(session, ost.CompileOptions()), (session, plain)])
    for options, streams in ((ost.CompileOptions(), True), (plain, False)):
        (segment,) = segments_of(session.compile(d.g, options=options))
        products = [part for part in segment.parts if isinstance(part.kernel, Matmul)]
        assert len(products) == 2
        assert all(part.streams is streams for part in products)


@pytest.mark.parametrize(
    ("left", "right", "rows", "size"),
    pairwise(["int8", "uint8"], ["int8", "uint8"], [1, 3, 16], [(32, 7), (544, 50), (2080, 9)]),
)
def test_streamed_bytes(
    session: ost.Session, left: str, right: str, rows: int, size: tuple[int, int]
) -> None:
    """Tiles of which a stage has all of a column, those of several stages, and their last ones."""
    depth, columns = size
    d = Draw(ost.Graph("bytes"), np.random.default_rng(rows + depth))
    low = {"int8": -128, "uint8": 0}
    x = d.of((rows, depth), left, low[left], low[left] + 255)
    products = []
    for n in (columns, columns + 13):
        weight = d.rng.integers(low[right], low[right] + 256, (depth, n)).astype(right)
        products.append(d.g.integer_matmul(x, d.g.constant(weight)))
    d.g.set_outputs([products[0], d.g.cast(products[1], "float32") * 0.5])
    check_streams(session, d)


def test_an_instruction_copies_a_stage_of_weights_and_one_their_scales(
    session: ost.Session,
) -> None:
    """Of rows that are no multiple of a line, an instruction copies each line."""
    target = CudaTarget.of_arch("sm_90")
    for depth, narrow in ((2048, False), (2064, False), (2048, True)):
        d = Draw(ost.Graph("maps"), np.random.default_rng(6))
        x = d.of((1, depth), "float32")
        weight = d.g.constant(d.rng.standard_normal((depth, 64)).astype("float32"))
        d.g.set_outputs([d.g.softmax(d.g.matmul(x, weight)), d.g.exp(x)])
        graph = ost.quantize(d.g, "int4") if narrow else d.g
        (segment,) = segments_of(session.compile(graph))
        launch = segment.launch(target)
        assert launch.block == SEGMENT_BLOCK + WARP
        (weights, *scales) = [TensorMap(*fields) for fields in launch.maps]
        lines, columns = (depth // 256, 16) if narrow else (depth // 32, 8)
        if depth % 32:
            assert weights[2:] == (depth, 64, 1, 4 * depth, 32, columns, 1, True)
        else:
            copied = 8 if narrow else 16
            assert weights[2:] == (32, 64, lines, 128 * lines, 32, columns, copied, True)
        assert [found[2:] for found in scales] == [(32, 64, 1, 128, 32, columns, 1, False)] * narrow
        text = segment.source(target)
        assert f"tensor_maps<{1 + narrow}> maps" in text
        compile_text(text, "sm_90")
        older = CudaTarget.of_arch("sm_80")
        assert not segment.launch(older).maps
        if depth == 2048:
            compile_text(segment.source(older), "sm_80")


def test_weights_may_begin_within_an_argument(session: ost.Session) -> None:
    d = Draw(ost.Graph("begin"), np.random.default_rng(7))
    g, x = d.g, d.of((1, 64), "float32")
    weight = g.param("w", (80, 64), "float32", value=d.rng.standard_normal((80, 64), np.float32))
    y = g.matmul(x, g.permute_dims(weight[40:], (1, 0)))
    g.set_outputs([y, g.softmax(y)])
    check_against_oracle(g, d.arrays, [(session, ost.CompileOptions())])
    (segment,) = segments_of(session.compile(g))
    (fields,) = segment.launch(CudaTarget.of_arch("sm_90")).maps
    assert TensorMap(*fields).offset == 40 * 64 * 4


@pytest.mark.parametrize(
    ("products", "biased", "count"), [(230, False, 1), (230, True, 2), (280, False, 2)]
)
def test_arguments_of_a_segment_are_what_it_has_no_memory_for(
    session: ost.Session, products: int, biased: bool, count: int
) -> None:
    """Values that go from part to part are none; where there are too many, there are segments.

    A tensor map takes the room of 16 arguments.
    """
    d = Draw(ost.Graph("long"), np.random.default_rng(5))
    x = d.of((1, 8), "float32")
    for i in range(products):
        x = d.g.matmul(x, d.g.constant(np.eye(8, dtype=np.float32)[d.rng.permutation(8)]))
        if biased:
            x = d.g.add(x, d.g.constant(np.full(8, i, np.float32)))
    d.g.set_outputs([x])
    if biased:
        check_against_oracle(d.g, d.arrays, [(session, ost.CompileOptions())])
    segments = segments_of(session.compile(d.g))
    assert len(segments) == count
    assert sum(len(segment.args) for segment in segments) > products * (1 + biased)
    launches = [segment.launch(CudaTarget.of_arch("sm_90")) for segment in segments]
    maps = sum(len(launch.maps) for launch in launches)
    assert products - 3 < maps <= products  # equal weights have one
    for segment, launch in zip(segments, launches, strict=True):
        assert len(segment.args) < 500
        taken = TENSOR_MAP_BYTES * (1 + len(launch.maps)) + 8 * (1 + len(segment.args))
        assert taken <= MOST_PARAMETER_BYTES


def test_values_that_a_block_has_room_for_but_for_their_padding(session: ost.Session) -> None:
    """Three values of 16,160 bytes at a time fill its 48 KiB, 256 bytes behind each do not fit."""
    d = Draw(ost.Graph("held"), np.random.default_rng(8))
    g, x = d.g, d.of((1, 16), "float32")
    values = [g.matmul(x, d.of((16, 4040), "float32")) for _ in range(3)]
    first, second = (
        [g.matmul(value, weight) for value in values]
        for weight in (d.of((4040, 8), "float32"), d.of((4040, 8), "float32"))
    )
    last = g.softmax(first[0] + first[1] + first[2])
    g.set_outputs([second[0] + second[1] + (second[2] + last)])
    check_against_oracle(g, d.arrays, [(session, ost.CompileOptions())])
    (segment,) = segments_of(session.compile(g))
    assert segment.block_bytes < 48 << 10


def test_one_kernel_may_have_more_arguments_than_a_segment(session: ost.Session) -> None:
    d = Draw(ost.Graph("wide"), np.random.default_rng(4))
    parts = [d.of((1, 2), "float32") for _ in range(520)]
    d.g.set_outputs([d.g.softmax(d.g.concat(parts, axis=1)), d.g.exp(parts[0])])
    check_against_oracle(d.g, d.arrays, [(session, ost.CompileOptions())])


@pytest.mark.parametrize(
    ("scale", "group", "rows", "size"),
    [
        *pairwise(
            ["float32", "float16", "bfloat16"],
            [32, 64, 128],
            [1, 5, 16],
            [(8, 7), (24, 33), (72, 9)],
        ),
        pytest.param("float32", 32, 16, (64, 5), marks=SLOW),
        pytest.param("float16", 64, 5, (64, 5), marks=SLOW),
        pytest.param("bfloat16", 128, 1, (64, 5), marks=SLOW),
    ],
)
def test_streamed_codes(
    session: ost.Session, scale: str, group: int, rows: int, size: tuple[int, int]
) -> None:
    blocks, columns = size
    depth = blocks * group
    d = Draw(ost.Graph("codes"), np.random.default_rng(rows + depth))
    x, numpy_dtype = d.of((rows, depth), "float32"), DType.parse(scale).numpy
    products = []
    for n in (columns, columns + 13):
        codes = d.g.constant(d.rng.integers(0, 256, (depth // 2, n)).astype("uint8"))
        scales = d.g.constant(d.rng.uniform(0, 0.1, (blocks, n)).astype(numpy_dtype))
        products.append(d.g.int4_matmul(x, codes, scales, group=group))
    d.g.set_outputs([products[0], d.g.silu(products[1])])
    check_streams(session, d)


@pytest.mark.parametrize(
    ("rows", "columns"),
    [
        pytest.param(rows, columns, marks=[] if (i + j) % 2 else [SLOW])
        for i, rows in enumerate((1, 3))
        for j, columns in enumerate((2, 33, 50))
    ],
)
def test_what_stores_read_for_each_column_is_copied_ahead(
    session: ost.Session, rows: int, columns: int
) -> None:
    """Words, and 16-bit floats where all columns are in pairs; not a row's own elements."""
    d = Draw(ost.Graph("columns"), np.random.default_rng(columns))
    g, x = d.g, d.of((rows, 64), "bfloat16")
    results = []
    for n in (columns, columns + 16):
        weight = g.constant(d.rng.integers(-127, 128, (64, n)).astype(np.int8))
        scales = g.constant(d.rng.uniform(0, 0.1, n).astype(np.float32))
        y = g.quantized_matmul(x, weight, scales) + d.of((n,), "bfloat16")
        results.append(y * d.of((rows, n), "bfloat16"))
    g.set_outputs(results)
    check_streams(session, d)
    (segment,) = segments_of(session.compile(g))
    text = segment.source(CudaTarget.of_arch("sm_90"))
    compile_text(text, "sm_90")
    assert "ost::copy_word(early0" in text
    assert ("if (i % 2 == 0) ost::copy_word" in text) is (columns % 2 == 0)


def test_a_ring_for_few_of_the_weights_is_not_worth_a_block(session: ost.Session) -> None:
    d = Draw(ost.Graph("few"), np.random.default_rng(9))
    g, x = d.g, d.of((1, 64), "float32")
    router = g.param("router", (64, 4), "float32", value=square(d)[:, :4])
    experts = d.rng.standard_normal((4, 64, 64)).astype(np.float32) / 8
    chosen = g.argmax(g.matmul(x, router), axis=1)
    matrix = g.take(g.param("experts", (4, 64, 64), "float32", value=experts), chosen, axis=0)
    g.set_outputs([g.matmul(g.reshape(x, (1, 1, 64)), matrix)])
    within = ost.CompileOptions(segment_experts=True)
    check_against_oracle(g, d.arrays, [(session, within), (session, ost.CompileOptions())])
    (segment,) = segments_of(session.compile(g, options=within))
    assert sum(isinstance(part.kernel, Matmul) for part in segment.parts) == 2
    assert not any(part.streams for part in segment.parts)
    parts = [part for found in segments_of(session.compile(g)) for part in found.parts]
    assert sum(isinstance(part.kernel, Matmul) for part in parts) < 2  # experts stay apart


def test_what_a_segment_writes_is_not_fetched_ahead(session: ost.Session) -> None:
    d = Draw(ost.Graph("written"), np.random.default_rng(2))
    g, x = d.g, d.of((3, 32), "float32")
    rows = g.matmul(d.of((20, 8), "float32"), d.of((8, 32), "float32"))
    g.set_outputs([g.matmul(x, g.permute_dims(rows, (1, 0)))])
    check_against_oracle(g, d.arrays, [(session, ost.CompileOptions())])
    for segment in segments_of(session.compile(g)):
        assert not any(part.streams for part in segment.parts)


def square(d: Draw) -> np.ndarray[Any, Any]:
    return (d.rng.standard_normal((64, 64)) / 8).astype(np.float32)


def test_values_go_from_part_to_part_without_barriers(session: ost.Session) -> None:
    d = Draw(ost.Graph("ways"), np.random.default_rng(3))
    g, x = d.g, d.of((1, 64), "float32")
    weights = {
        name: g.param(name, (64, 64), "float32", value=square(d)) for name in ("gate", "up", "down")
    }
    h = g.rms_norm(x, d.of((64,), "float32"))  # by every block for itself
    gate = g.silu(g.matmul(h, weights["gate"]))  # read tile by tile
    gated = g.multiply(gate, g.matmul(h, weights["up"]))  # sent
    g.set_outputs([g.matmul(gated, weights["down"])])
    check_against_oracle(g, d.arrays, [(session, ost.CompileOptions())])
    (segment,) = segments_of(session.compile(g))
    assert segment.parts[-1].level == 1  # packets are emptied before
    assert any(part.everywhere for part in segment.parts)
    assert any(part.tiles_of is not None for part in segment.parts)
    assert {space.kind for space in segment.spaces} == {*SpaceKind}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_readers_compute_what_follows_from_another_result(session: ost.Session, dtype: str) -> None:
    d = Draw(ost.Graph("derived"), np.random.default_rng(8))
    g, x = d.g, d.of((1, 64), dtype)
    for name in ("first", "second"):
        made = square(d).astype(x.dtype.numpy)
        weight = g.param(name, (64, 64), dtype, value=made)
        product = g.matmul(g.rms_norm(x, d.of((64,), dtype)), weight)
        x = g.add(x, product)  # is read as it is, widened, and squared
    g.set_outputs([g.rms_norm(x, d.of((64,), dtype))])
    apart = ost.CompileOptions(segment_exchange=False)
    check_against_oracle(g, d.arrays, [(session, ost.CompileOptions()), (session, apart)])
    for options, most in ((ost.CompileOptions(), 1), (apart, 3)):
        (segment,) = segments_of(session.compile(g, options=options))
        stores = [len(p.kernel.stores) for p in segment.parts if isinstance(p.kernel, Matmul)]
        assert len(stores) == 2
        assert max(stores) <= most
        assert max(stores) > 1 or most == 1


def test_results_and_long_values_stay_in_memory(session: ost.Session) -> None:
    d = Draw(ost.Graph("kept"), np.random.default_rng(4))
    g, x = d.g, d.of((8, 64), "float32")
    values = d.rng.standard_normal((64, 2048)).astype(np.float32) / 64
    w = g.param("w", (64, 2048), "float32", value=values)
    h = g.rms_norm(x, d.of((64,), "float32"))
    y = g.matmul(h, w)  # too long for packets
    g.set_outputs([h, g.matmul(y, g.permute_dims(w, (1, 0)))])  # `h` is a result
    check_against_oracle(g, d.arrays, [(session, ost.CompileOptions())])
    (segment,) = segments_of(session.compile(g))
    assert not segment.spaces
    assert segment.parts[-1].level == 2


@pytest.mark.parametrize(
    ("rows", "dtype"),
    [
        pytest.param(rows, dtype, marks=[] if (i + j) % 3 == 1 else [SLOW])
        for i, rows in enumerate((1, 5, 13))
        for j, dtype in enumerate(("float32", "bfloat16", "float16"))
    ],
)
def test_several_rows_go_from_part_to_part_without_barriers(
    session: ost.Session, rows: int, dtype: str
) -> None:
    """The norms are long enough that blocks share their rows, and send them to all products."""
    d = Draw(ost.Graph("rows"), np.random.default_rng(rows))
    g, width = d.g, 640
    x = d.of((rows, width), dtype)

    def weight(count: int, columns: int) -> ost.Value:
        values = (d.rng.standard_normal((count, columns)) / np.sqrt(count)).astype(np.float32)
        made = values.astype(x.dtype.numpy)
        return g.param(f"w{len(g.params)}", values.shape, dtype, value=made)

    for _ in range(2):
        h = g.rms_norm(x, d.of((width,), dtype))
        mixed = g.multiply(g.silu(g.matmul(h, weight(width, 48))), g.matmul(h, weight(width, 48)))
        x = g.add(x, g.matmul(mixed, weight(48, width)))
    g.set_outputs([g.rms_norm(x, d.of((width,), dtype))])
    plain = ost.CompileOptions(segment_exchange=False)
    check_against_oracle(g, d.arrays, [(session, ost.CompileOptions()), (session, plain)])
    (segment,) = segments_of(session.compile(g))
    (other,) = segments_of(session.compile(g, options=plain))
    fits = rows * width * x.dtype.itemsize <= 32 << 10
    assert (segment.parts[-1].level == 1) is fits
    assert segment.parts[-1].level < other.parts[-1].level
    # Residuals that blocks do not hold are copied ahead; packets of them may not be there yet.
    text = segment.source(CudaTarget.of_arch("sm_90"))
    assert ("ost::settled(early" in text) is (rows * width > 8 << 10)
    for arch in ("sm_80", "sm_90"):
        compile_text(segment.source(CudaTarget.of_arch(arch)), arch)


def test_blocks_that_share_a_norm_all_take_its_weights_from_the_ring(session: ost.Session) -> None:
    """The first norm is every block's; of the last one, the same code, each has some rows."""
    d = Draw(ost.Graph("norms"), np.random.default_rng(21))
    g, x, width = d.g, d.of((5, 512), "float32"), 512
    gain = g.param("gain", (width,), "float32", value=d.rng.uniform(0.5, 1.5, width).astype("f4"))
    for number in range(2):
        made = d.rng.standard_normal((2, 64, width)).astype("f4") / 16
        down, up = (
            g.param(f"w{number}{i}", m.shape, "float32", value=m) for i, m in enumerate(made)
        )
        x = g.matmul(g.matmul(g.rms_norm(x, gain), g.permute_dims(down, (1, 0))), up)
    g.set_outputs([g.rms_norm(x, gain)])
    check_against_oracle(g, d.arrays, [(session, ost.CompileOptions())])
    norms = [p for p in segments_of(session.compile(g))[0].parts if len(p.arguments) == 3]
    norms = [part for part in norms if type(part.kernel) is CudaLoopNest]
    assert norms[1].everywhere
    assert not norms[2].everywhere
    assert norms[1].kernel.name == norms[2].kernel.name


def test_values_that_do_not_fit_in_a_block_stay_in_memory(session: ost.Session) -> None:
    d = Draw(ost.Graph("wide"), np.random.default_rng(5))
    g, rows, width = d.g, 8, 1024
    x, gain = d.of((rows, width), "float32"), d.of((width,), "float32")
    norms = [g.rms_norm(g.multiply(x, float(i)), gain) for i in range(1, 4)]  # of 32 KiB each
    w = g.param("w", (width, 8), "float32", value=d.rng.random((width, 8)).astype(np.float32))
    products = [g.matmul(norm, w) for norm in norms]
    g.set_outputs([*products, g.matmul(g.add(*norms[:2]), w)])
    check_against_oracle(g, d.arrays, [(session, ost.CompileOptions())])
    (segment,) = segments_of(session.compile(g))
    assert 0 < segment.block_bytes <= 48 << 10  # one of them fits


def test_a_segment_moves_the_bytes_of_its_parts(session: ost.Session) -> None:
    """A row that is appended to a large state counts as a row."""
    rows, width = 4096, 64
    g = ost.Graph("append")
    row, position = g.input("row", (1, width)), g.input("at", (), "int64")
    cache = g.state("cache", (rows, width))
    new = g.dynamic_update_slice(cache, row, (position, 0))
    g.assign(cache, new)
    g.set_outputs([g.dynamic_slice(new, (position, 0), (1, width)) + 0.0])
    plan = session.compile(g).plan
    assert any(isinstance(kernel.kernel, Segment) for kernel in plan.kernels)
    assert all(record.bytes < rows * width // 10 for record in plan.execute_profiled())


@pytest.mark.parametrize("form", ["int8", "int4", "float8_e4m3fn"])
def test_a_decoding_step_with_narrow_weights_is_one_kernel(
    session: ost.Session, monkeypatch, form: str
) -> None:
    config = decoder_step.Config(
        vocabulary=64, width=64, heads=2, key_heads=1, head_dim=32, hidden=96, layers=1
    )
    graph = decoder_step.decoder_graph(config, decoder_step.random_weights(config))
    narrow = ost.quantize(graph, form, min_elements=64)
    assert len(narrow.quantized) == 8
    compiled, expected = session.compile(narrow), ost.Session("cpu").compile(narrow)
    assert len(compiled.plan.kernels) == 1
    for position, token in enumerate((1, 17, 40)):
        values = {"token": token, "position": position, "kv_len": position + 1}
        assert compiled.run({}, variables=values)[0] == expected.run({}, variables=values)[0]


def test_scales_of_columns_are_left_to_the_epilogues_that_read_them(session: ost.Session) -> None:
    """Even where there are as many columns as the row has elements, whose statistic a scale is."""
    d = Draw(ost.Graph("square"), np.random.default_rng(11))
    g, y = d.g, d.of((1, 64), "float32")
    for columns in (64, 64, 48):
        codes = g.constant(d.rng.integers(-127, 128, (64, columns)).astype("int8"))
        scales = g.constant(d.rng.uniform(0.1, 1, columns).astype(np.float32))
        y = g.quantized_matmul(y, codes, scales)
    g.set_outputs([y])
    check_against_oracle(g, d.arrays, [(session, ost.CompileOptions())])
    (segment,) = segments_of(session.compile(g))
    nests = [part.kernel for part in segment.parts if isinstance(part.kernel, CudaLoopNest)]
    assert len(nests) == 3
    for nest in nests:  # a row becomes codes, their scale and their zero point
        assert [arg.writes for arg in nest.args].count(False) == 1


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_values_of_which_all_bits_are_ones_arrive(session: ost.Session, dtype: str) -> None:
    """They would look as if they were not there yet."""
    d = Draw(ost.Graph("ones"), np.random.default_rng(12))
    g, numpy_dtype = d.g, DType.parse(dtype).numpy
    w = square(d).astype(numpy_dtype)
    z = g.matmul(d.of((1, 64), dtype), g.param("w", (64, 64), dtype, value=w))
    g.set_outputs([g.matmul(g.softmax(z), g.param("v", (64, 64), dtype, value=w))])
    x = np.full((1, 64), -1, f"int{8 * w.itemsize}").view(numpy_dtype)
    compiled = session.compile(g)
    (segment,) = segments_of(compiled)
    assert any(space.kind is SpaceKind.PACKETS for space in segment.spaces)
    (found,) = compiled.run(dict.fromkeys(d.arrays, x))
    assert np.isnan(found.astype(np.float32)).all()


def test_keys_that_blocks_gather_as_a_whole_have_room(session: ost.Session) -> None:
    """Attention reads them head by head, but what gathers them by a table is not divided so."""
    d = Draw(ost.Graph("pages"), np.random.default_rng(14))
    g = d.g
    q, keys, values = d.of((7, 4, 4), "float32"), *(d.of((6, 16, 2, n), "float16") for n in (4, 1))
    table, sequence = d.of((3, 3), "int64", 0, 5), d.of((7,), "int64", 0, 2)
    result = g.paged_attention(q, keys, values, table, sequence, d.of((7,), "int32", 0, 40))
    g.set_outputs([g.subtract(result, g.mean(result, axis=2, keepdims=True)), result])
    check_against_oracle(g, d.arrays, [(session, ost.CompileOptions())])


def test_values_are_received_in_front_of_their_first_reader(session: ost.Session) -> None:
    """It may be a later call than one that waits for more."""
    d = Draw(ost.Graph("early"), np.random.default_rng(15))
    g = d.g
    entropy = g.entr(d.of((4, 17), "bfloat16", 0, 1))
    share = g.sigmoid(entropy)
    gate = g.tanh(share)
    flat = g.reshape(entropy, (68,))
    cell = g.reshape(g.getitem(flat, slice(41, 42)), (1, 1))
    four, five = (g.constant(np.int64(n)) for n in (4, 5))
    placed = g.dynamic_update_slice(gate, cell, (four, five))
    column = g.tanh(g.clip(g.reshape(g.getitem(flat, slice(21, 28)), (7, 1)), -3, 3))
    total = g.sum(column, axis=1, keepdims=True)
    g.set_outputs([g.add(g.add(column, column), total), g.gelu(share), g.add(placed, gate)])
    check_against_oracle(g, d.arrays, [(session, ost.CompileOptions())])


@pytest.mark.parametrize(("heads", "key_heads", "exchange"), [(3, 1, False), (4, 2, True)])
def test_layers_are_a_loop_over_their_code(
    session: ost.Session, heads: int, key_heads: int, exchange: bool
) -> None:
    config = decoder_step.Config(
        vocabulary=40,
        width=32,
        layers=4,
        heads=heads,
        key_heads=key_heads,
        head_dim=16,
        hidden=48,
        length=32,
    )
    graph = decoder_step.decoder_graph(config, decoder_step.random_weights(config))
    steps = []
    for layers in (True, False):
        options = ost.CompileOptions(segment_exchange=exchange, segment_layers=layers)
        steps.append(session.compile(graph, options=options))
        (segment,) = segments_of(steps[-1])
        text = segment.source(CudaTarget.of_arch("sm_90"))
        assert ("layer < " in text) is layers
    token = 1
    for position in range(3):
        values = {"token": token, "position": position, "kv_len": position + 1}
        found, wanted = (step.run({}, variables=values)[0] for step in steps)
        np.testing.assert_array_equal(found, wanted)
        token = int(found[0])


def test_parts_of_layers_are_not_run_by_records() -> None:
    config = decoder_step.Config(layers=6, width=512, hidden=512, heads=8, head_dim=64)
    graph = decoder_step.decoder_graph(config, decoder_step.random_weights(config))
    lowered = CudaSegmentsBackend(Device("CUDA")).lower(graph, ost.CompileOptions())
    (kernel,) = (call.kernel for call in lowered.program.calls)
    assert isinstance(kernel, Segment)
    text = kernel.source(CudaTarget.of_arch("sm_90"))
    assert "layer < 6" in text
    loop = text.split("layer < 6")[1].split("records + i *")[0]
    called = re.compile(r"segment_[0-9a-f]+_\d+(?=\()")
    parts = text.split("switch (")[-1]
    in_layers, by_record = (set(called.findall(code)) for code in (loop, parts))
    assert len(in_layers - by_record) > len(in_layers & by_record)  # those on other blocks
    assert not re.search(r"\brecord\[", loop)


def test_arrays_of_open_size_are_read_as_far_as_they_go(session: ost.Session) -> None:
    """A row that a part in front chooses: no more rows are brought ahead than there are."""
    rng, n = np.random.default_rng(0), ost.Variable("n", 16, 32)
    g = ost.Graph("chosen")
    x, y = g.input("x", (n, 64)), g.input("y", (1, 64))
    weights = [(rng.standard_normal((64, size)) / 8).astype(np.float32) for size in (16, 64)]
    router, w = (g.param(f"w{i}", each.shape, value=each) for i, each in enumerate(weights))
    row = g.take(x, g.argmax(g.matmul(y, router), axis=1), axis=0)
    g.set_outputs([g.matmul(g.tanh(g.matmul(g.softmax(row), w)), w)])
    compiled = session.compile(g)
    assert len(segments_of(compiled)) == 1
    for rows in (17, 32, 16):
        given = [rng.standard_normal(shape).astype(np.float32) for shape in ((rows, 64), (1, 64))]
        (found,) = compiled.run(dict(zip("xy", given, strict=True)))
        powers = np.exp(given[0][np.argmax(given[1] @ weights[0])].astype(np.float64))
        truth = np.tanh(powers / powers.sum() @ weights[1]) @ weights[1]
        np.testing.assert_allclose(found[0], truth, rtol=1e-4, atol=1e-5)


def test_results_of_open_size_are_not_awaited_whole(session: ost.Session) -> None:
    """Sections of a long reduction are as many as there are rows: others are never written."""
    g, rows, columns = ost.Graph("sections"), ost.Variable("rows", 1, 5), 70_001
    x = g.matmul(g.input("x", (rows, 8)), g.input("w", (8, columns)))
    g.set_outputs([x - g.max(x, axis=1, keepdims=True)])
    compiled = session.compile(g)
    assert segments_of(compiled)
    rng = np.random.default_rng(0)
    w = rng.standard_normal((8, columns), np.float32)
    for count in (5, 1, 2):
        given = rng.standard_normal((count, 8), np.float32)
        (found,) = compiled.run({"x": given, "w": w})
        wanted = given.astype(float) @ w.astype(float)
        np.testing.assert_allclose(found, wanted - wanted.max(1, keepdims=True), atol=1e-4)


def test_short_inputs_that_several_parts_read_are_copied_by_each_block(
    session: ost.Session,
) -> None:
    """Numbers of three bytes and a vector; not what two parts read, nor what products read."""
    g, rng = ost.Graph("copied"), np.random.default_rng(0)
    x, mask = g.input("x", (3, 64)), g.input("mask", (3, 1), "bool")
    shift, other, after = (g.input(name, (64,)) for name in ("shift", "other", "after"))
    long = g.input("long", (3, 1024))
    for layer in range(4):
        w = g.constant((rng.standard_normal((64, 64)) / 8).astype(np.float32))
        x = g.where(mask, g.softmax(x) * shift, 0.5) + long[:, :64]
        x = x * other if layer < 2 else x
        x = g.matmul(x, w) + after
    g.set_outputs([x])
    compiled = session.compile(g)
    (segment,) = segments_of(compiled)
    assert sorted(nbytes for _, nbytes in segment.copied) == [3, 256]
    assert segment.source(CudaTarget.of_arch("sm_90")).count("ost::copy_bytes(") == 2
    target = replace(CudaTarget.of_arch("sm_90"), block=SEGMENT_BLOCK, early_starts=False)
    receipts = Receipts.of(segment.parts, target)
    forms = forms_of(segment, receipts, target, streams=True)
    for part, form in zip(receipts.parts, forms, strict=True):  # nothing fetches them from memory
        assert not {part.arguments[number] for number in form.lasting} & dict(segment.copied).keys()
    plain = session.compile(g, options=ost.CompileOptions(segment_exchange=False))
    assert not any(each.copied for each in segments_of(plain))
    for seed in range(3):
        draw = np.random.default_rng(seed)
        given = {n: draw.standard_normal(v.shape).astype(np.float32) for n, v in g.inputs.items()}
        given["mask"] = draw.random((3, 1)) < 0.5
        (found,), (wanted,) = compiled.run(given), plain.run(given)
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("depth", [6656, 10240])
def test_a_tile_may_have_more_stages_than_a_ring_has_slots(
    session: ost.Session, depth: int
) -> None:
    d = Draw(ost.Graph("deep"), np.random.default_rng(depth))
    x = d.g.tanh(d.of((1, depth), "float32", -1, 1))
    weights = [
        d.g.constant(d.rng.standard_normal((depth, columns)).astype(np.float32))
        for columns in (20, 37)
    ]
    d.g.set_outputs([d.g.matmul(x, weight) for weight in weights])
    check_streams(session, d)
