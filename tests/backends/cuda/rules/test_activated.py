"""Small products and their activations share a kernel, in place of a library's and another one."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import ostinato as ost
from ostinato.backends.common.lowered_graph import lower_graph
from ostinato.backends.cuda.capabilities import CAPABILITIES, lowering_options
from ostinato.backends.cuda.rules.library import LibraryProduct
from ostinato.backends.cuda.rules.matmul import TiledMatmul
from ostinato.backends.cuda.rules.paired_products import PairedMatmul
from ostinato.backends.cuda.rules.table import lower_for_cuda
from ostinato.backends.cuda.target import CudaTarget
from ostinato.backends.device import Device
from ostinato.lower.loopir.kernel import Kernel
from ostinato.records import replace
from tests.conformance.compare import check_against_oracle
from tests.devices.registered import open_session


def network(
    rows: int,
    *,
    bias: bool = True,
    dtype: str = "float16",
    output: bool = False,
    activation: str = "gelu",
) -> ost.Graph:
    """Two products, an activation between them."""
    g = ost.Graph("network")
    x = g.input("x", (rows, 768), dtype)
    up = g.matmul(x, g.param("up", (768, 3072), dtype))
    if bias:
        up = g.add(up, g.param("bias", (3072,), dtype))
    inner = getattr(g, activation)(up)
    g.set_outputs([g.matmul(inner, g.param("down", (3072, 768), dtype)), *[up] * output])
    return g


def kernels(graph: ost.Graph, *, bulk_tiles: bool = False, **switches: bool) -> list[Kernel]:
    options = ost.CompileOptions(**switches)
    settings = lowering_options(options, has_products=True, bulk_tiles=bulk_tiles)
    lower = partial(lower_for_cuda, settings=settings)
    lowered = lower_graph(graph, options, Device("CUDA"), CAPABILITIES, lower)
    return [call.kernel for call in lowered.program.calls]


@pytest.mark.parametrize("bias", [False, True])
def test_an_activation_joins_a_small_product(bias: bool) -> None:
    own, library = kernels(network(128, bias=bias))
    assert isinstance(own, TiledMatmul)
    assert own.fixed_right
    assert isinstance(library, LibraryProduct)
    source = own.source(CudaTarget.of_arch("sm_90"))
    assert source.index("load_right(number)") < source.index("wait_for_earlier_kernels")
    assert source.index("wait_for_earlier_kernels") < source.index("load_left(number)")


@pytest.mark.parametrize(
    ("rows", "dtype", "output"),
    [(1024, "float16", False), (128, "float32", False), (128, "float16", True)],
    ids=["large", "float32", "needed"],
)
def test_products_that_stay_with_the_library(rows: int, dtype: str, output: bool) -> None:
    found = kernels(network(rows, dtype=dtype, output=output))
    assert [isinstance(kernel, LibraryProduct) for kernel in found] == [True, False, True]


def gated(
    dtype: str,
    *,
    wide: bool = False,
    activation: str = "silu",
    same: bool = True,
    bias: bool = False,
) -> ost.Graph:
    """Two products of the same rows, one times what an activation makes of the other."""
    g = ost.Graph("gated")
    product = g.widening_matmul if wide else g.matmul
    x, y = (g.input(name, (2048, 512), dtype) for name in "xy")
    gate = product(x, g.param("gate", (512, 1024), dtype))
    if bias:
        gate = gate + g.param("bias", (1024,), dtype)
    up = product(x if same else y, g.param("up", (512, 1024), dtype))
    inner = g.cast(getattr(g, activation)(gate) * up, dtype)
    g.set_outputs([product(inner, g.param("down", (1024, 512), dtype))])
    return g


@pytest.mark.parametrize(
    "graph",
    [
        network(1024),
        network(1024, activation="relu"),
        gated("float16"),
        gated("float16", activation="gelu", bias=True),
        gated("bfloat16", wide=True),
    ],
)
def test_an_activation_joins_a_large_product_whose_operands_are_copied_in_bulk(
    graph: ost.Graph,
) -> None:
    own, last = kernels(graph, bulk_tiles=True)
    assert isinstance(last, LibraryProduct)
    assert isinstance(own, PairedMatmul if graph.name == "gated" else TiledMatmul)
    target = replace(CudaTarget.of_arch("sm_90"), bulk_tiles=True)
    assert "ost::copy_tensor(" in own.source(target)


@pytest.mark.parametrize(
    ("rows", "dtype", "output"),
    [(256, "float16", False), (1024, "float32", False), (1024, "float16", True)],
    ids=["few tiles", "float32", "needed"],
)
def test_large_products_that_stay_with_the_library(rows: int, dtype: str, output: bool) -> None:
    graph = network(rows, dtype=dtype, output=output, activation="relu")
    found = kernels(graph, bulk_tiles=True)
    assert [isinstance(kernel, LibraryProduct) for kernel in found] == [True, False, True]


@pytest.mark.parametrize(
    ("graph", "products"),
    [(gated("float16", same=False), True), (gated("float16"), False)],
    ids=["other rows", "switched off"],
)
def test_products_that_are_no_pair(graph: ost.Graph, products: bool) -> None:
    found = kernels(graph, bulk_tiles=True, product_fusion=products)
    assert [isinstance(kernel, LibraryProduct) for kernel in found] == [True, True, False, True]


def test_without_epilogues_products_are_alone() -> None:
    found = kernels(network(128), epilogue_fusion=False)
    assert sum(isinstance(kernel, LibraryProduct) for kernel in found) == 2


def test_weights_that_a_run_writes_are_not_loaded_first() -> None:
    g = ost.Graph("written")
    x, w = g.input("x", (256, 128), "float16"), g.param("w", (128, 256), "float16")
    made = g.exp(w)
    g.set_outputs([g.relu(g.matmul(x, made)), made])
    products = [kernel for kernel in kernels(g) if isinstance(kernel, TiledMatmul)]
    assert [kernel.fixed_right for kernel in products] == [False]


@pytest.mark.parametrize(
    "sizes", [(65, 64, 200), (200, 72, 64), (128, 192, 136), (70, 1032, 80)], ids=str
)
def test_weights_that_are_loaded_first(sizes: tuple[int, int, int]) -> None:
    m, k, n = sizes
    rng = np.random.default_rng(m)
    g = ost.Graph("weights")
    x = g.input("x", (m, k), "bfloat16")
    weights = rng.standard_normal((k, n)).astype(ost.DType.parse("bfloat16").numpy)
    g.set_outputs([g.tanh(g.matmul(x, g.param("w", (k, n), "bfloat16", value=weights)))])
    arrays = {"x": rng.standard_normal((m, k)).astype(weights.dtype)}
    session = open_session("cudaemu")
    check_against_oracle(g, arrays, [(session, ost.CompileOptions())])
