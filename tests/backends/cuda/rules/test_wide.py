"""Large products with epilogues, by weights in tiles, in the emulator."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import ostinato as ost
from ostinato.backends.common.lowered_graph import LoweredGraph, lower_graph
from ostinato.backends.cuda.capabilities import lowering_options
from ostinato.backends.cuda.rules import activated, library
from ostinato.backends.cuda.rules.table import lower_for_cuda
from ostinato.backends.cuda.rules.wide import WideMatmul, tile_columns
from ostinato.backends.options import CompileOptions
from ostinato.dtypes import BFLOAT16, FLOAT16
from ostinato.ir.graph import BaseGraph
from ostinato.lower.program import Program
from ostinato.plan.prepared import KernelCall
from ostinato.records import replace
from tests.conformance.compare import check_against_oracle
from tests.devices.cuda_emulation.backend import CudaEmulationBackend
from tests.devices.registered import registered


class WideBackend(CudaEmulationBackend):
    """The emulator, with the kernels of a GPU that has a library."""

    def lower(self, graph: BaseGraph, options: CompileOptions) -> LoweredGraph[Program]:
        settings = lowering_options(options, has_products=True)
        settings = replace(settings, segments=False, wide_products=4)
        lower = partial(lower_for_cuda, settings=settings)
        return lower_graph(graph, options, self.device, self.capabilities, lower)


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> ost.Session:
    small = {FLOAT16: (FLOAT16, 1), BFLOAT16: (BFLOAT16, 1)}
    monkeypatch.setattr(library, "_DTYPES", small)
    monkeypatch.setattr(activated, "_MOST_OPERATIONS", 0)
    with registered(cudawide=f"{__name__}:WideBackend"):
        return ost.Session("cudawide")


def wide_of(compiled: ost.CompiledGraph) -> list[WideMatmul]:
    calls = [op for op in compiled.plan.prepared_ops if isinstance(op, KernelCall)]
    found = [call.kernel.kernel for call in calls]
    return [kernel for kernel in found if isinstance(kernel, WideMatmul)]


def random(shape: tuple[int, ...], dtype: str, seed: int) -> np.ndarray:
    made = np.random.default_rng(seed).standard_normal(shape) / 4
    return made.astype(ost.DType.parse(dtype).numpy)


@pytest.mark.parametrize(
    ("dtype", "m", "k", "n"),
    [("float16", 300, 128, 128), ("bfloat16", 257, 64, 384), ("float16", 100, 320, 256)],
)
def test_activations(session: ost.Session, dtype: str, m: int, k: int, n: int) -> None:
    g = ost.Graph("wide")
    x = g.input("x", (m, k), dtype)
    up = g.add(
        g.matmul(x, g.param("up", (k, n), dtype, value=random((k, n), dtype, 1))),
        g.param("bias", (n,), dtype, value=random((n,), dtype, 2)),
    )
    down = g.param("down", (n, 1), dtype, value=random((n, 1), dtype, 3))
    g.set_outputs([g.matmul(g.gelu(up), down)])
    assert len(wide_of(session.compile(g))) == 1
    check_against_oracle(g, {"x": random((m, k), dtype, 0)}, [(session, ost.CompileOptions())])


def test_tiles_end_in_as_few_rounds_as_they_can() -> None:
    assert tile_columns(1024, 3072, 132) == 192
    assert tile_columns(2048, 8192, 132, 2) == 256
    assert tile_columns(256, 100, 132) is None
