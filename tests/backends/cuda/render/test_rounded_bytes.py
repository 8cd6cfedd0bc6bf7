"""Numbers that are rounded, brought within limits and made bytes, by one function."""

from __future__ import annotations

import numpy as np
import pytest

import ostinato as ost
from ostinato.backends.cuda.target import CudaTarget
from tests.devices.cuda_emulation.toolchain import COMPILER
from tests.devices.registered import open_session

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs g++")


@pytest.fixture(scope="module")
def session() -> ost.Session:
    return open_session("cudaemu")


@pytest.mark.parametrize(
    ("dtype", "to", "limits", "function"),
    [
        ("float32", "int8", (-127, 127), "byte_of_quotient<signed char, -127, 127>"),
        ("float32", "uint8", (0, 255), "byte_of_quotient<unsigned char, 0, 255>"),
        ("float32", "int8", (-128.0, 300.0), ""),  # beyond what a byte has
        ("float32", "uint8", (-1, 255), ""),
        ("float32", "int8", (-0.5, 127), ""),
        ("float32", "int16", (-127, 127), ""),
        ("bfloat16", "int8", (-127, 127), ""),  # each op rounds to 16 bits
        ("float16", "uint8", (0, 255), ""),
    ],
)
def test_quotients(
    session: ost.Session, dtype: str, to: str, limits: tuple[float, float], function: str
) -> None:
    g = ost.Graph("quotients")
    x, y = (g.input(name, (4, 1001), dtype) for name in "xy")
    bytes_ = g.cast(g.clip(g.round(g.divide(x, y)), min=limits[0], max=limits[1]), to)
    g.set_outputs([bytes_])
    rng = np.random.default_rng(0)
    scale = rng.uniform(0.01, 100, (4, 1001)).astype(x.dtype.numpy)
    given = {"x": (rng.integers(-400, 400, scale.shape) / 2 * scale).astype(scale.dtype)}
    given["x"][0, :4] = np.nan, np.inf, -np.inf, 0
    given["y"] = scale
    compiled, plain = (s.compile(g) for s in (session, ost.Session("cpu")))
    (kernel,) = compiled.plan.kernels
    source = kernel.kernel.source(CudaTarget.of_arch("sm_90"))
    assert ("ost::byte_of" in source) == bool(function)
    assert function in source
    np.testing.assert_array_equal(compiled.run(given)[0], plain.run(given)[0])


def test_what_is_no_quotient_and_what_others_read(session: ost.Session) -> None:
    g = ost.Graph("rounded")
    x = g.input("x", (3, 100), "float32")
    whole = g.round(g.add(x, 0.25))
    g.set_outputs([g.cast(g.clip(whole, min=-8, max=7), "int8"), whole])
    given = {"x": np.linspace(-20, 20, 300, dtype=np.float32).reshape(3, 100)}
    found, expected = (s.compile(g).run(given) for s in (session, ost.Session("cpu")))
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)
