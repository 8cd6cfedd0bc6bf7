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


def test_8_bit_floats_that_nothing_reads(session: ost.Session) -> None:
    """MLX has no such arrays: they may be inputs and params of what is not computed."""
    g = ost.Graph("unread")
    x, p = g.input("x", (2, 3), "float8_e4m3fn"), g.param("p", (3, 4), "float8_e4m3fn")
    y = g.input("y", (5,))
    g.scaled_matmul(x, p)
    g.set_outputs([g.exp(y)])
    arrays = {"x": np.ones((2, 3), x.dtype.numpy), "y": np.zeros(5, np.float32)}
    compiled = session.compile(g, {"p": np.ones((3, 4), x.dtype.numpy)})
    for _ in range(3):
        np.testing.assert_array_equal(compiled.run(arrays)[0], np.ones(5))


def test_8_bit_floats_are_no_results(session: ost.Session) -> None:
    g = ost.Graph("results")
    x = g.input("x", (2, 3), "float8_e4m3fn")
    g.assign(g.state("seen", (2, 3), "float8_e4m3fn"), x)
    g.state("kept", (2, 3), "float8_e5m2")
    g.set_outputs({"same": x})
    with pytest.raises(ost.UnsupportedOpError) as error:
        session.compile(g)
    assert "output 'same' (f8e4m3fn[2,3])" in str(error.value)
    assert "state 'seen'" in str(error.value)
    assert "state 'kept'" in str(error.value)


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


def test_constants_with_negative_strides(session: ost.Session) -> None:
    """Of single elements, too: NumPy calls them contiguous."""
    g = ost.Graph("reversed")
    constant = np.arange(6, dtype=np.float32).reshape(6, 1)[::-1, ::-1]
    single = np.arange(3, dtype=np.float32).reshape(1, 3)[::-1]
    g.set_outputs([g.input("x", (6, 1)) + g.constant(constant), g.constant(single) * 2.0])
    options = ost.CompileOptions(optimize=False)
    found = session.compile(g, options=options).run({"x": np.ones((6, 1), np.float32)})
    np.testing.assert_array_equal(found[0], constant + 1)
    np.testing.assert_array_equal(found[1], single * 2)
