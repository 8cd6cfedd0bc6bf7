"""Matmuls and convolutions of the CUDA device, in the emulator, against the oracle."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

import ostinato as ost
from ostinato.backends.cuda.capabilities import CAPABILITIES
from ostinato.backends.cuda.compiler import compile_text
from ostinato.backends.cuda.rules.matmul import TiledMatmul
from ostinato.backends.cuda.rules.paired_products import PairedMatmul
from ostinato.backends.cuda.rules.table import CudaLowering, lower_for_cuda
from ostinato.backends.cuda.target import CudaTarget
from ostinato.ir.graph import Value
from ostinato.lower.lowering import LoweringOptions
from ostinato.lower.program import Call
from ostinato.passes.pipeline import run_passes
from ostinato.records import replace
from tests.conformance.compare import assert_close, check_against_oracle
from tests.conformance.draw import Draw
from tests.devices.cuda_emulation import backend
from tests.devices.cuda_emulation.backend import TARGET
from tests.devices.registered import open_session
from tests.pairwise import pairwise

#: Tiles in registers, tiles for tensor cores, and sums that wrap; the others take longer.
DTYPES = (
    "float32",
    "bfloat16",
    "int8",
    *(
        pytest.param(dtype, marks=pytest.mark.slow)
        for dtype in ("float64", "float16", "uint16", "int32", "int64")
    ),
)

#: Shapes of both operands: few rows, tiles with and without tails, batches that broadcast.
SHAPES = {
    "vectors": ((7,), (7,)),
    "one row": ((1, 64), (64, 48)),
    "few rows": ((3, 33), (33, 17)),
    "sixteen rows": ((16, 40), (40, 24)),
    "no rows": ((0, 8), (8, 8)),
    "no depth": ((5, 0), (0, 3)),
    "no columns": ((5, 3), (3, 0)),
    "tile": ((64, 16), (16, 64)),
    "tails": ((67, 35), (35, 70)),
    "a column": ((37, 20), (20, 1)),
    "batch": ((3, 1, 20, 9), (2, 9, 21)),
    "batch of few rows": ((2, 2, 16), (2, 16, 8)),
    "rows of batches": ((2, 5, 7, 11), (11, 13)),
}


def lowered(graph: ost.Graph, *, bulk_tiles: bool = False) -> list[Call]:
    """The calls that the device makes of a graph."""
    explicit, _ = run_passes(graph, capabilities=CAPABILITIES)
    return lower_for_cuda(explicit, CudaLowering(bulk_tiles=bulk_tiles))[0].calls


@pytest.fixture(scope="module")
def session() -> ost.Session:
    return open_session("cudaemu")


def check(session: ost.Session, draw: Draw, *outputs: Value) -> None:
    draw.g.set_outputs(list(outputs))
    check_against_oracle(draw.g, draw.arrays, [(session, ost.CompileOptions(verify=True))])


def drawn(name: str) -> Draw:
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    return Draw(ost.Graph("matmul"), rng)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_matmul(session: ost.Session, dtype: str, shape: str) -> None:
    d = drawn(f"{shape} {dtype}")
    left, right = (d.of(size, dtype) for size in SHAPES[shape])
    check(session, d, d.g.matmul(left, right))


#: Sizes of rows, depth and columns for operands that are stored otherwise.
STORED = ((1, 64, 40), (9, 48, 24), (5, 33, 7), (66, 40, 72))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
@pytest.mark.parametrize("size", STORED)
def test_operands_stored_otherwise(
    session: ost.Session, dtype: str, size: tuple[int, int, int]
) -> None:
    m, k, n = size
    d = drawn(f"{size} {dtype}")
    left = d.g.permute_dims(d.of((k, m), dtype), (1, 0))
    right = d.g.permute_dims(d.of((n, k), dtype), (1, 0))
    strided = d.of((2 * k, n), dtype)[::2]
    check(session, d, d.g.matmul(left, right), d.g.matmul(left, d.g.flip(strided, (1,))))


def test_left_operands_whose_indices_take_several_statements(session: ost.Session) -> None:
    """Rows in an order that takes divisions, beside a weight that is read along ``k``."""
    d = drawn("interleaved")
    k, n = 32, 11
    left = d.g.reshape(d.g.permute_dims(d.of((k, 2, 4), "float32"), (2, 1, 0)), (8, k))
    right = d.g.permute_dims(d.of((n, k), "float32"), (1, 0))
    check(session, d, d.g.matmul(left, right))


#: Rows, depth and columns for each tile of groups of warps, with tails and without.
GROUPED = ((70, 64, 64), (130, 72, 72), (190, 72, 136), (130, 136, 200))


@pytest.mark.parametrize(
    ("dtype", "size", "by_rows"), pairwise(["float16", "bfloat16"], GROUPED, [False, True])
)
def test_groups_of_warps(
    session: ost.Session, dtype: str, size: tuple[int, int, int], by_rows: bool
) -> None:
    m, k, n = size
    d = drawn(f"groups {size} {dtype}")
    left = d.of((m, k), dtype)
    right = d.of((k, n), dtype) if by_rows else d.g.permute_dims(d.of((n, k), dtype), (1, 0))
    result = d.g.relu(d.g.add(d.g.matmul(left, right), d.of((n,), dtype)))
    check(session, d, result)
    (call,) = lowered(d.g)
    assert isinstance(call.kernel, TiledMatmul)
    text = call.kernel.source(replace(TARGET, shared_bytes_per_block=227 << 10))
    assert f"multiply_group<{str(by_rows).lower()}>" in text
    compile_text(text, "sm_90")
    assert "multiply_group" not in call.kernel.source(replace(TARGET, warp_groups=False))


#: Rows, depth and columns of products whose operands are copied in bulk: tiles of 256, 192 and 128
#: columns, several of these for a block.
BULK = ((130, 200, 248), (140, 200, 192), (250, 72, 136))


@pytest.fixture
def bulk(monkeypatch: pytest.MonkeyPatch) -> CudaTarget:
    """The emulated GPU with such kernels."""
    target = replace(TARGET, bulk_tiles=True)
    monkeypatch.setattr(backend, "TARGET", target)
    return target


def in_bulk(text: str) -> bool:
    return "ost::copy_tensor(" in text


@pytest.mark.parametrize(
    ("dtype", "size", "by_rows", "elements"),
    pairwise(["float16", "bfloat16"], BULK, [False, True], [False, True]),
)
def test_operands_copied_in_bulk(
    session: ost.Session,
    bulk: CudaTarget,
    dtype: str,
    size: tuple[int, int, int],
    by_rows: bool,
    elements: bool,
) -> None:
    """A weight that is on its way early, and an epilogue that reads rows, columns and elements."""
    m, k, n = size
    d = drawn(f"bulk {size} {dtype}")
    shape = (k, n) if by_rows else (n, k)
    made = np.random.default_rng(n).standard_normal(shape) / np.sqrt(k)
    weight = d.g.param("weight", shape, dtype, value=made.astype(ost.DType.parse(dtype).numpy))
    product = d.g.matmul(
        d.of((m, k), dtype), weight if by_rows else d.g.permute_dims(weight, (1, 0))
    )
    result = d.g.gelu(product + d.of((n,), dtype)) * d.of((m, 1), dtype)
    check(session, d, result + d.of((m, n), dtype) if elements else result)
    (call,) = lowered(d.g)
    assert isinstance(call.kernel, TiledMatmul)
    assert in_bulk(call.kernel.source(bulk))
    assert not in_bulk(call.kernel.source(TARGET))
    target = replace(CudaTarget.of_arch("sm_90"), multiprocessors=2, bulk_tiles=True)
    compile_text(call.kernel.source(target), "sm_90")


@pytest.mark.parametrize(("operands", "held"), [(["float16"], 1), (["float32"] * 4, 0)])
def test_columns_beside_the_sums_are_read_before_these(
    session: ost.Session, bulk: CudaTarget, operands: list[str], held: int
) -> None:
    """And where they would need too many registers, when they are used."""
    d = drawn(f"held {len(operands)}")
    result = d.g.cast(
        d.g.matmul(d.of((130, 200), "float16"), d.of((200, 184), "float16")), "float32"
    )
    for dtype in operands:
        result = result * d.g.cast(d.of((184,), dtype), "float32")
    check(session, d, d.g.cast(result, "float16"))
    (call,) = lowered(d.g)
    before, _, behind = call.kernel.source(bulk).partition("ost::group_begin")
    assert before.count("held0[tile] = ost::pack<unsigned short, 2>::load(b2 + ") == held
    assert behind.count("2>::load(b") == len(operands) - held


#: Rows, depth and columns of pairs: tiles of 128, 96 and 64 columns.
PAIRS = ((130, 200, 136), (140, 72, 192), (70, 64, 64))


@pytest.mark.parametrize(
    ("dtype", "size", "by_rows", "wide", "elements"),
    pairwise(["float16", "bfloat16"], PAIRS, [False, True], [False, True], [False, True]),
)
def test_pairs_copied_in_bulk(
    session: ost.Session,
    bulk: CudaTarget,
    dtype: str,
    size: tuple[int, int, int],
    by_rows: bool,
    wide: bool,
    elements: bool,
) -> None:
    """Two products of the same rows, one times what an activation makes of the other."""
    m, k, n = size
    d = drawn(f"pair {size} {dtype}")
    x = d.of((m, k), dtype)

    def product() -> Value:
        weight = d.of((k, n) if by_rows else (n, k), dtype)
        right = weight if by_rows else d.g.permute_dims(weight, (1, 0))
        return d.g.widening_matmul(x, right) if wide else d.g.matmul(x, right)

    gate, up = product() + d.of((n,), dtype), product()
    result = d.g.silu(gate) * up
    check(session, d, d.g.cast(result + d.of((m, n), dtype) if elements else result, dtype))
    (call,) = lowered(d.g, bulk_tiles=True)
    assert isinstance(call.kernel, PairedMatmul)
    target = replace(CudaTarget.of_arch("sm_90"), multiprocessors=2, bulk_tiles=True)
    compile_text(call.kernel.source(target), "sm_90")


def test_views_copied_in_bulk(session: ost.Session, bulk: CudaTarget) -> None:
    """Operands that begin within an array, whose rows are further apart than they are long."""
    d = drawn("bulk views")
    left, right = d.of((300, 200), "bfloat16")[7:140, 16:144], d.of((140, 400), "bfloat16")
    check(session, d, d.g.matmul(left, right[3:131, 72:280]))
    (call,) = lowered(d.g)
    assert in_bulk(call.kernel.source(bulk))


@pytest.mark.parametrize(
    ("left", "right"),
    [((130, 71), (71, 136)), ((2, 130, 72), (2, 72, 136)), ((130, 72), (72, 132))],
    ids=str,
)
def test_other_operands_are_not_copied_in_bulk(
    session: ost.Session, bulk: CudaTarget, left: tuple[int, ...], right: tuple[int, ...]
) -> None:
    """Rows that begin anywhere, and batches."""
    d = drawn(f"no bulk {left}")
    check(session, d, d.g.matmul(d.of(left, "float16"), d.of(right, "float16")))
    (call,) = lowered(d.g)
    assert not in_bulk(call.kernel.source(bulk))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("size", STORED)
def test_epilogues(session: ost.Session, dtype: str, size: tuple[int, int, int]) -> None:
    m, k, n = size
    d = drawn(f"epilogue {size} {dtype}")
    product = d.g.matmul(d.of((m, k), dtype), d.of((k, n), dtype))
    row = d.g.gelu(product + d.of((n,), dtype)) * d.of((m, 1), dtype)
    check(session, d, d.g.cast(row, "float32"), d.g.permute_dims(product, (1, 0)))


@pytest.mark.parametrize("rows", [3, 40])
def test_weights_that_are_converted_on_the_way(session: ost.Session, rows: int) -> None:
    d = drawn(f"converted {rows}")
    weights, scales = d.of((32, 24), "int8"), d.of((24,), "float32")
    wide = d.g.cast(weights, "float32") * scales
    check(session, d, d.g.matmul(d.of((rows, 32), "float32"), wide))


def test_a_left_operand_that_is_read_less_at_once(session: ost.Session) -> None:
    """Rows of the right one are vectors of eight; of the left one there are no such."""
    d = drawn("narrow and wide")
    left, right = d.of((13, 8), "float32"), d.of((9, 8), "float16")
    columns = d.g.permute_dims(d.g.cast(right, "float32"), (1, 0))
    check(session, d, d.g.matmul(left, columns))


def test_8_bit_integers(session: ost.Session) -> None:
    d = drawn("bytes")
    left, right = d.of((20, 33), "uint8"), d.of((33, 9), "int8")
    check(session, d, d.g.integer_matmul(left, right), d.g.integer_matmul(left[:2], right))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("groups", [1, 2, 6])
def test_convolutions(session: ost.Session, dtype: str, groups: int) -> None:
    d = drawn(f"convolution {dtype} {groups}")
    x = d.of((2, 6, 9, 11), dtype)
    w, bias = d.of((12, 6 // groups, 3, 2), dtype), d.of((12,), dtype)
    plain = d.g.conv(x, w, bias, groups=groups)
    wide = d.g.conv(x, w, groups=groups, stride=2, padding=1, dilation=2)
    check(session, d, d.g.relu(plain), wide)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("groups", [1, 2])
def test_convolutions_of_images_with_their_channels_last(
    session: ost.Session, dtype: str, groups: int
) -> None:
    d = drawn(f"channels last {dtype} {groups}")
    x = d.of((3, 16, 7, 9), dtype)
    first, bias = d.of((32, 16, 3, 3), dtype), d.of((32,), dtype)
    second, third = d.of((16, 32 // groups, 3, 2), dtype), d.of((24, 16, 1, 1), dtype)
    inner = d.g.relu(d.g.conv(x, first, bias, padding=1))
    inner = d.g.add(d.g.conv(inner, second, stride=2, groups=groups), d.of((1, 16, 1, 1), dtype))
    check(session, d, d.g.conv(d.g.max_pool(inner, 2), third, padding=1))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_convolutions_of_few_results_and_long_sums(session: ost.Session, dtype: str) -> None:
    d = drawn(f"long sums {dtype}")
    x, bias = d.of((2, 32, 7, 6), dtype), d.of((24,), dtype)
    draw, kind = np.random.default_rng(1), ost.DType.parse(dtype).numpy
    first, second = (
        d.g.constant((0.1 * draw.normal(size=shape)).astype(kind))
        for shape in ((120, 32, 1, 1), (24, 120, 3, 3))
    )
    inner = d.g.relu(d.g.conv(x, first))
    check(session, d, d.g.relu(d.g.conv(inner, second, bias, padding=1)))
    titles = [call.title for call in lowered(d.g)]
    assert titles[-2:] == ["conv of sections", "conv+relu"]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("channels", [2, 3, 7])
def test_convolutions_of_a_few_channels(session: ost.Session, dtype: str, channels: int) -> None:
    d = drawn(f"few channels {dtype} {channels}")
    x = d.of((2, channels, 9, 10), dtype)
    weights = np.random.default_rng(channels).normal(size=(20, channels, 3, 3))
    w = d.g.constant(weights.astype(ost.DType.parse(dtype).numpy))
    check(session, d, d.g.relu(d.g.conv(x, w, d.of((20,), dtype), stride=2, padding=1)))
    (call,) = [c for c in lowered(d.g) if isinstance(c.kernel, TiledMatmul)]
    assert [buffer.type.shape[1] for buffer in call.buffers[:2]] == [8, 8]


@pytest.mark.parametrize("stride", [1, 2])
def test_one_filter_of_a_few_channels(session: ost.Session, stride: int) -> None:
    d = drawn(f"one filter {stride}")
    x = d.of((1, 2, 9, 10), "bfloat16")
    w = d.g.constant(np.random.default_rng(0).normal(size=(1, 2, 2, 3)).astype("bfloat16"))
    check(session, d, d.g.gelu(d.g.conv(x, w, stride=stride, padding=1)))
    buffers = {buffer.name for call in lowered(d.g) for buffer in call.buffers}
    assert not any(name.endswith(".channels") for name in buffers)  # sums read no chunks


def test_one_filter_over_an_image_with_its_channels_last(session: ost.Session) -> None:
    d = drawn("one filter, channels last")
    draw = np.random.default_rng(2)
    first, second = (
        d.g.constant((0.2 * draw.normal(size=shape)).astype(np.float16))
        for shape in ((32, 16, 3, 3), (1, 32, 3, 3))
    )
    inner = d.g.relu(d.g.conv(d.of((2, 16, 7, 9), "float16"), first, padding=1))
    check(session, d, d.g.relu(d.g.conv(inner, second, padding=1)))


def test_a_convolution_reads_chunks_of_channels() -> None:
    g = ost.Graph("chunks")
    x, w = g.input("x", (2, 16, 20, 20), "float16"), g.param("w", (32, 16, 3, 3), "float16")
    v = g.param("v", (16, 32, 3, 3), "float16")
    g.set_outputs({"y": g.conv(g.relu(g.conv(x, w)), v)})
    *_, last = [call.kernel for call in lowered(g) if isinstance(call.kernel, TiledMatmul)]
    text = last.source(CudaTarget.of_arch("sm_90"))
    assert all(f"{side}_from[i] + {side}_offset" in text for side in ("left", "right"))
    compile_text(text, "sm_90")
    without = CudaLowering(LoweringOptions(channels_last=False))
    (*_, last) = lower_for_cuda(g, without)[0].calls
    assert "left_offset" not in last.kernel.source(CudaTarget.of_arch("sm_90"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("most", [8, 100])
def test_open_sizes(session: ost.Session, dtype: str, most: int) -> None:
    g = ost.Graph("open")
    rows = ost.Variable("rows", 0, most)
    left, right = g.input("a", (rows, 24), dtype), g.input("b", (24, 40), dtype)
    g.set_outputs([g.relu(g.matmul(left, right)), g.matmul(left, g.permute_dims(left, (1, 0)))])
    compiled = session.compile(g)
    rng = np.random.default_rng(most)
    for size in (0, 1, 7, most):
        arrays = {"a": rng.normal(size=(size, 24)), "b": rng.normal(size=(24, 40))}
        inputs = {name: array.astype(left.dtype.numpy) for name, array in arrays.items()}
        expected = ost.reference.evaluate(g, inputs)
        for mine, truth in zip(compiled.run(inputs), expected, strict=True):
            assert_close(np.asarray(mine), truth, f"{size} rows")


def test_without_templates(session: ost.Session) -> None:
    """Plain loop nests give the same results."""
    d = drawn("plain")
    d.g.set_outputs([d.g.matmul(d.of((20, 9), "float32"), d.of((9, 13), "float32"))])
    check_against_oracle(d.g, d.arrays, [(session, ost.CompileOptions(optimize=False))])
