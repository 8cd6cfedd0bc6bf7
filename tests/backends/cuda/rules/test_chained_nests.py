"""Nests that every block runs, one of which reads what the other one writes, as one part."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.backends.cuda.compiler import compile_text
from ostinato.backends.cuda.kernel import CudaLoopNest
from ostinato.backends.cuda.render.segment_layers import SegmentLayers
from ostinato.backends.cuda.render.segment_layout import SegmentLayout
from ostinato.backends.cuda.rules.chained_nests import ChainedNests
from ostinato.backends.cuda.target import CudaTarget
from ostinato.lower.loopir.nodes import Stage, Store
from ostinato.records import replace
from tests.backends.cuda.render.recipe_kernels import kernels_of
from tests.backends.cuda.rules.found_segments import segment_of
from tests.devices.registered import open_session

APART = ost.CompileOptions(joint_parts=False)
SM_90 = CudaTarget.of_arch("sm_90")

#: The barrier between two nests.
BARRIER = "    }\n    OST_SYNC();\n    {"

#: A block that has all of a part, as the functions of a segment are made.
INSIDE = replace(SM_90, block=256, alone=True, early_starts=False)


@pytest.fixture(scope="module")
def session() -> ost.Session:
    return open_session("cudagrids")


def chained(compiled: ost.CompiledGraph) -> list[ChainedNests]:
    kernels = [part.kernel for part in segment_of(compiled).parts]
    return [kernel for kernel in kernels if isinstance(kernel, ChainedNests)]


def residual(width: int, dtype: str, layers: int = 2) -> tuple[ost.Graph, dict[str, Any]]:
    """Layers of a norm and two products, by way of few columns, with weights of 4 bits."""
    g, rng = ost.Graph("residual"), np.random.default_rng(width)
    x = g.input("x", (1, width), dtype)
    of_dtype = x.dtype.numpy
    y: ost.Value = x
    for layer in range(layers):
        gain = g.constant(rng.uniform(0.5, 1.5, width).astype(of_dtype))
        normed = g.rms_norm(y, gain)
        for name, shape in (("a", (width, 64)), ("b", (64, width))):
            made = (rng.standard_normal(shape) / shape[0] ** 0.5).astype(of_dtype)
            normed = g.matmul(normed, g.param(f"{name}{layer}", shape, dtype, value=made))
        y = g.add(y, normed)
    g.set_outputs([y])
    given = {"x": rng.standard_normal((1, width)).astype(of_dtype)}
    return ost.quantize(g, "int4", min_elements=64), given


def centred(width: int, group: int) -> tuple[ost.Graph, dict[str, Any]]:
    """Two layers of a norm of a row, less the means of groups, with the row, and a product."""
    g, rng = ost.Graph("centred"), np.random.default_rng(width)
    x = g.input("x", (1, width), "bfloat16")
    y: ost.Value = x
    for _ in range(2):
        gain = g.constant(rng.uniform(0.5, 1.5, width).astype(x.dtype.numpy))
        groups = g.reshape(g.rms_norm(y, gain), (width // group, group))
        less = g.subtract(groups, g.mean(groups, axis=-1, keepdims=True))
        groups = g.add(less, g.reshape(y, groups.shape))  # the second nest reads the row, too
        row = g.reshape(groups, (1, width))
        for shape in ((width, 64), (64, width)):
            weight = (rng.standard_normal(shape) / shape[0] ** 0.5).astype(x.dtype.numpy)
            row = g.matmul(row, g.constant(weight))
        y = g.add(y, row)
    g.set_outputs([y])
    return g, {"x": rng.standard_normal((1, width)).astype(x.dtype.numpy)}


@pytest.mark.parametrize(
    ("width", "dtype", "met"),
    [
        (2048, "bfloat16", False),  # each thread has eight numbers of both nests
        (2048, "float16", False),
        (256, "bfloat16", True),  # some threads have none
        (1024, "float32", True),  # four numbers of one, eight of the other
        (96, "float32", True),
    ],
)
def test_a_norm_and_what_rounds_its_result_are_one_part(
    session: ost.Session, width: int, dtype: str, met: bool
) -> None:
    graph, given = residual(width, dtype)
    compiled, apart = session.compile(graph), session.compile(graph, options=APART)
    found = chained(compiled)
    assert found
    assert not chained(apart)
    assert len(segment_of(apart).parts) >= len(segment_of(compiled).parts) + len(found)
    texts = [kernel.body(INSIDE).text for kernel in found]
    assert any(BARRIER in text for text in texts) == met
    compile_text(segment_of(compiled).source(SM_90), "sm_90")
    np.testing.assert_array_equal(compiled.run(given)[0], apart.run(given)[0])


def test_elements_that_are_stored_elsewhere_are_behind_a_barrier(session: ost.Session) -> None:
    """A norm whose result is a pack further on: a thread reads what another one has written."""
    (found, *_) = chained(session.compile(residual(2048, "bfloat16")[0]))
    nest, other = found.kernels

    def moved(stage: Stage) -> Stage:
        statements = (
            replace(each, index=each.index + 8) if isinstance(each, Store) else each
            for each in stage.statements
        )
        return replace(stage, statements=tuple(statements))

    turned = replace(nest, stages=tuple(map(moved, nest.stages)))
    texts = [replace(found, kernels=(k, other)).body(INSIDE).text for k in (nest, turned)]
    assert [BARRIER in text for text in texts] == [False, True]


def test_rows_that_leave_threads_without_any_are_behind_a_barrier(session: ost.Session) -> None:
    """Threads of a second row, whose elements do not begin at eight times their numbers."""
    (found, *_) = chained(session.compile(residual(2048, "bfloat16")[0]))
    (nest, other), texts = found.kernels, []
    for rows, width in ((2, 1024), (2, 1000)):
        g = ost.Graph("rows")
        gain = g.input("gain", (width,), "float32")
        g.set_outputs([g.rms_norm(g.input("x", (rows, width), "bfloat16"), gain)])
        (several,) = kernels_of(g)
        assert isinstance(several, CudaLoopNest)
        assert [arg.writes for arg in several.args] == [arg.writes for arg in nest.args]
        texts.append(replace(found, kernels=(several, other)).body(INSIDE).text)
    assert [BARRIER in text for text in texts] == [False, True]


def test_arrays_of_both_have_names_of_their_own(session: ost.Session) -> None:
    """Several warps add up a row, and each group of what was made of it."""
    graph, given = centred(1024, 512)
    compiled = session.compile(graph)
    bodies = [kernel.body(INSIDE) for kernel in chained(compiled)]
    names = [[array.name for array in body.arrays] for body in bodies]
    assert all(len({*of_part}) == len(of_part) for of_part in names)
    assert any(name.startswith("chained_") for of_part in names for name in of_part)
    apart = session.compile(graph, options=APART)
    np.testing.assert_array_equal(compiled.run(given)[0], apart.run(given)[0])


def test_a_row_that_both_read_is_not_received_by_one(session: ost.Session) -> None:
    (both, one) = chained(session.compile(centred(1024, 512)[0]))
    rows = [kernel.whole_rows(INSIDE) for kernel in (both, both.kernels[0], one, one.kernels[0])]
    assert rows == [{}, {0: 1024}, {0: 1024}, {0: 1024}]


def test_threads_that_have_met_do_not_meet_again(session: ost.Session) -> None:
    """Behind a part that ends with a barrier, in blocks that have run it."""
    segment = segment_of(session.compile(residual(256, "bfloat16", layers=6)[0]))
    layout = SegmentLayout(segment, SM_90)
    ends = [layout.brought(function) is not None for function in layout.functions]
    counts = []
    for none in (False, True):  # whether no block runs such parts
        layers = SegmentLayers(layout, "layers")
        pairs = zip(layers.blocks, ends, strict=True)
        layers.blocks = [(first, 0 if none and met else count) for (first, count), met in pairs]
        counts.append("\n".join(layers.lines()).count("OST_SYNC();"))
    assert layers.found is not None
    of_layer = sum(ends[number] for number in layers.found.first)
    assert of_layer > 0
    assert counts[1] == counts[0] + of_layer


def test_nothing_is_a_kernel_of_its_own(session: ost.Session) -> None:
    (first, *_) = chained(session.compile(residual(256, "bfloat16")[0]))
    with pytest.raises(ost.OstinatoError, match="for themselves"):
        first.source(SM_90)
