"""MLX: what its device promises beyond the suites of every device."""

from __future__ import annotations

import numpy as np
import pytest

import ostinato as ost
from ostinato.dtypes import FLOAT32

mx = pytest.importorskip("mlx.core")


@pytest.fixture(scope="module")
def session() -> ost.Session:
    return ost.Session("mlx")


def test_the_plan_shows_the_graph(session: ost.Session) -> None:
    g = ost.Graph("product")
    x, w = g.input("x", (4, 3)), g.param("w", (3, 2), value=np.ones((3, 2), np.float32))
    g.set_outputs([g.tanh(g.matmul(x, w))])
    (kernel,) = session.compile(g).plan.kernels
    assert kernel.source.startswith("digraph")
    assert "Matmul" in kernel.source


def test_functions_of_float64_are_left_to_the_host(session: ost.Session) -> None:
    """MLX computes them in float32; a line of the report says where they went instead."""
    g = ost.Graph("wide")
    x = g.input("x", (5,), "float64")
    g.set_outputs([g.exp(x) + x])
    compiled = session.compile(g)
    assert "on the host: exp" in compiled.explain()
    assert "on the host: add" not in compiled.explain()
    array = np.linspace(-3, 3, 5)
    np.testing.assert_allclose(compiled.run({"x": array})[0], np.exp(array) + array, rtol=1e-15)


def test_float32_stays_on_the_device(session: ost.Session) -> None:
    g = ost.Graph("narrow")
    g.set_outputs([g.exp(g.input("x", (5,)))])
    assert "on the host" not in session.compile(g).explain()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_every_op_rounds_floats_of_16_bits(dtype: str, session: ost.Session) -> None:
    g = ost.Graph("rounding")
    x, y, z = (g.input(name, (257,), dtype) for name in "xyz")
    g.set_outputs([(x * y + z) * y - x])
    rng = np.random.default_rng(0)
    arrays = {n: rng.normal(size=257).astype(ost.DType.parse(dtype).numpy) for n in "xyz"}
    (mine,) = session.compile(g).run(arrays)
    (truth,) = ost.reference.evaluate(g, arrays)
    np.testing.assert_array_equal(mine.view(np.uint16), truth.view(np.uint16))


def test_fused_functions_give_the_same() -> None:
    """As on a GPU, where functions are compiled by ``mx.compile``."""
    from ostinato.backends.array_api.mlx.framework import MlxFramework

    results = []
    for fuses in (False, True):
        framework = MlxFramework(fuses)
        xp = framework.xp

        def compute(x: object, y: object, xp: object = xp) -> list[object]:
            return [xp.exp(x) * y + 1.0]  # type: ignore[attr-defined]

        types = [(FLOAT32, (33,))] * 2
        with framework.scope():
            function = framework.compile(compute, types, ())
            rng = np.random.default_rng(0)
            arrays = [rng.normal(size=33).astype(np.float32) for _ in range(2)]
            found = function([framework.from_host(a, copy=True) for a in arrays])
            framework.wait(found)
            results.append(np.array(framework.to_host(found[0])))
    np.testing.assert_allclose(*results, rtol=1e-6)
