"""Products whose results are rounded where they are made."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ostinato as ost
from ostinato.backends.cuda.compiler import compile_text
from ostinato.backends.cuda.kernel import CudaKernel
from ostinato.backends.cuda.rules.rounded_products import RoundedProduct
from ostinato.backends.cuda.target import CudaTarget
from tests.backends.cuda.rules.found_segments import segment_of
from tests.devices.registered import open_session

APART = ost.CompileOptions(joint_parts=False)


@pytest.fixture(scope="module")
def session() -> ost.Session:
    return open_session("cudagrids")


def rounded(compiled: ost.CompiledGraph) -> list[CudaKernel]:
    """The kernels of such products."""
    kernels = [part.kernel for part in segment_of(compiled).parts]
    return [kernel for kernel in kernels if isinstance(kernel, RoundedProduct)]


def gated(width: int, hidden: int, dtype: str, group: int = 32) -> tuple[ost.Graph, dict[str, Any]]:
    """Two gated layers with weights of 4 bits, and a row."""
    g, rng = ost.Graph("gated"), np.random.default_rng(width + hidden)
    x = g.input("x", (1, width), dtype)
    of_dtype = x.dtype.numpy

    def matmul(left: ost.Value, rows: int, columns: int) -> ost.Value:
        codes = g.constant(rng.integers(0, 256, (rows // 2, columns)).astype(np.uint8))
        scales = rng.uniform(0, 0.02, (rows // group, columns)).astype(of_dtype)
        return g.int4_matmul(left, codes, g.constant(scales), group=group)

    y: ost.Value = x
    for _ in range(2):
        gate, up = (matmul(y, width, hidden) for _ in range(2))
        y = g.add(y, matmul(g.multiply(g.silu(gate), up), hidden, width))
    g.set_outputs([y])
    return g, {"x": rng.standard_normal((1, width)).astype(of_dtype)}


@pytest.mark.parametrize(
    ("width", "hidden", "dtype"),
    [
        (128, 224, "float32"),  # groups that are no multiple of four
        (256, 512, "bfloat16"),
        (512, 1056, "float16"),  # more tiles than blocks have at a time
    ],
)
def test_tiles_are_rounded_where_they_are_made(
    session: ost.Session, width: int, hidden: int, dtype: str
) -> None:
    graph, given = gated(width, hidden, dtype)
    compiled = session.compile(graph)
    assert len(rounded(compiled)) == 2
    compile_text(segment_of(compiled).source(CudaTarget.of_arch("sm_90")), "sm_90")
    apart = session.compile(graph, options=APART)
    assert not rounded(apart)
    np.testing.assert_array_equal(compiled.run(given)[0], apart.run(given)[0])
    expected = ost.Session("cpu").compile(graph).run(given)[0]
    tolerance = 4 * float(ml_dtypes.finfo(expected.dtype).eps)
    np.testing.assert_allclose(
        compiled.run(given)[0].astype("f8"),
        expected.astype("f8"),
        rtol=tolerance,
        atol=tolerance * float(np.abs(expected).max()),
    )


@pytest.mark.parametrize(("group", "way"), [(32, "__syncwarp();"), (64, "")])
def test_the_warp_that_has_a_tile_rounds_it(session: ost.Session, group: int, way: str) -> None:
    """Threads of a warp meet where those of the block would."""
    graph, _ = gated(256, 512, "bfloat16", group)
    compiled = session.compile(graph)
    assert len(rounded(compiled)) == 2 * bool(way)
    assert way in segment_of(compiled).source(CudaTarget.of_arch("sm_90"))


def test_tiles_that_are_no_groups_are_rounded_by_all_blocks(session: ost.Session) -> None:
    graph, given = gated(512, 512, "bfloat16", group=64)
    compiled = session.compile(graph)
    assert not rounded(compiled)
    found, expected = (c.run(given)[0] for c in (compiled, ost.Session("cpu").compile(graph)))
    np.testing.assert_allclose(found.astype("f8"), expected.astype("f8"), rtol=0.05, atol=0.05)


@pytest.mark.parametrize(
    ("ends", "apart"),
    [
        ((-127, 90), False),
        ((-128, 90), True),
        ((-127, 200), True),
    ],
)
def test_bytes_are_sent_if_none_is_the_least(
    session: ost.Session, ends: tuple[int, int], apart: bool
) -> None:
    """Scales that are too small bring numbers to the ends of what there is."""
    g, rng = ost.Graph("bytes"), np.random.default_rng(8)
    codes = [
        g.constant(rng.integers(0, 256, (rows // 2, columns)).astype(np.uint8))
        for rows, columns in ((128, 256), (256, 128))
    ]
    scales = [
        g.constant(rng.uniform(0, 0.1, (rows // 32, columns)).astype(np.float32))
        for rows, columns in ((128, 256), (256, 128))
    ]
    made = g.int4_matmul(g.input("x", (1, 128)), codes[0], scales[0], group=32)
    groups = g.reshape(made, (1, 8, 32))
    sizes = g.divide(g.max(g.abs(groups), axis=-1, keepdims=True), 100.0)
    whole = g.clip(g.round(g.divide(groups, sizes)), *ends)
    row = g.reshape(g.cast(whole, "int8"), (1, 256))
    g.set_outputs(
        [g.blockwise_matmul(row, g.reshape(sizes, (1, 8)), codes[1], scales[1], group=32)]
    )
    compiled = session.compile(g)
    assert bool(rounded(compiled)) is not apart
    given = {"x": rng.standard_normal((1, 128)).astype(np.float32)}
    expected = ost.Session("cpu").compile(g).run(given)[0]
    np.testing.assert_allclose(compiled.run(given)[0], expected, rtol=1e-5, atol=1e-5)


def test_a_segment_without_a_ring_rounds_in_every_block(session: ost.Session) -> None:
    """Most of its weights follow from an input, so that none come through a ring."""
    g, given = gated(256, 512, "bfloat16")
    weights = g.exp(g.input("w", (256, 3000), "float32"))
    (y,) = g.outputs.values()
    g.set_outputs([y, g.matmul(g.cast(y, "float32"), weights)])
    rng = np.random.default_rng(3)
    given["w"] = rng.standard_normal((256, 3000)).astype(np.float32) / 9
    compiled = session.compile(g)
    assert not rounded(compiled)
    for found, expected in zip(
        compiled.run(given), ost.Session("cpu").compile(g).run(given), strict=True
    ):
        np.testing.assert_allclose(
            found.astype("f8"), expected.astype("f8"), rtol=0.02, atol=1e-4 * np.abs(expected).max()
        )
