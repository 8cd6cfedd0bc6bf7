"""Rows that stay in registers between the stages of a nest."""

from __future__ import annotations

import ostinato as ost
from ostinato.backends.cuda.kernel import CudaLoopNest
from ostinato.backends.cuda.rules.segment_kernel import SegmentKernel
from ostinato.backends.cuda.target import SEGMENT_BLOCK, CudaTarget
from ostinato.lower.loopir.text import kernel_text
from ostinato.records import replace
from tests.backends.cuda.render.recipe_kernels import kernels_of

TARGET = replace(CudaTarget.of_arch("sm_90"), block=SEGMENT_BLOCK, early_starts=False)


def norm(rows: int, width: int) -> CudaLoopNest:
    """The kernel of a norm whose result is rounded to bytes."""
    g = ost.Graph()
    x, gain = g.input("x", (rows, width), "bfloat16"), g.input("gain", (width,), "bfloat16")
    weight, scales = g.input("weight", (width, 64), "int8"), g.input("scales", (64,), "float32")
    g.set_outputs([g.quantized_matmul(g.rms_norm(x, gain), weight, scales)])
    (segment,) = kernels_of(g)
    assert isinstance(segment, SegmentKernel)
    kernel = segment.parts[0].kernel
    assert isinstance(kernel, CudaLoopNest)
    return kernel


def test_a_row_is_loaded_once_and_temps_need_no_memory() -> None:
    kernel = norm(1, 2048)
    text = kernel.source(TARGET)
    assert text.count("ost::load_row<2048, 2048>(") == 1
    assert "temps" not in text
    assert kernel.launch(TARGET).shared_bytes == 0
    apart = replace(TARGET, kept_rows=False)
    assert "ost::load_row<" not in kernel.source(apart)
    assert kernel.launch(apart).shared_bytes > 0


def test_stages_take_as_many_neighbours_to_keep_a_row() -> None:
    """The sum alone would take four of float32, the stage that rounds takes eight."""
    g = ost.Graph()
    x, gain = g.input("x", (1, 2048)), g.input("gain", (2048,))
    weight = g.input("weight", (2048, 64), "bfloat16")
    g.set_outputs([g.matmul(g.cast(g.rms_norm(x, gain), "bfloat16"), weight)])
    (segment,) = kernels_of(g)
    assert isinstance(segment, SegmentKernel)
    kernel = segment.parts[0].kernel
    assert isinstance(kernel, CudaLoopNest)
    text = kernel.source(TARGET)
    assert text.count("ost::load_row<2048, 2048>(") == 1
    assert kernel.whole_rows(TARGET) == {0: 2048}


def test_whole_rows_are_those_of_a_single_point() -> None:
    assert norm(1, 2048).whole_rows(TARGET) == {0: 2048}
    assert norm(1, 1032).whole_rows(TARGET) == {0: 1032}
    assert norm(2, 2048).whole_rows(TARGET) == {}
    assert norm(1, 2048).whole_rows(replace(TARGET, kept_rows=False)) == {}


def test_long_rows_are_loaded_by_each_stage() -> None:
    assert "ost::load_row<" not in norm(1, 4096).source(TARGET)


def test_a_block_that_has_all_points_takes_them_at_once() -> None:
    """Groups of 32 of 8,192 numbers: one to a thread, instead of a quarter of one four times."""
    g = ost.Graph()
    x, gate = (g.input(name, (1, 8192), "bfloat16") for name in ("x", "gate"))
    codes, scales = g.input("codes", (4096, 64), "uint8"), g.input("scales", (256, 64), "bfloat16")
    g.set_outputs([g.int4_matmul(g.multiply(x, gate), codes, scales, group=32)])
    (segment,) = kernels_of(g)
    assert isinstance(segment, SegmentKernel)
    (kernel,) = (p.kernel for p in segment.parts if "round" in kernel_text(p.kernel))
    assert isinstance(kernel, CudaLoopNest)
    assert "ost::load_row<32, 32>(" in kernel.source(TARGET)
    alone = replace(TARGET, alone=True)
    assert "[4];" in kernel.source(alone)
    assert "ost::load_row<8, 32>(" in kernel.source(alone)
    assert kernel.whole_rows(alone) == {}
