"""Matmuls of 8-bit floats by the device's own kernels, in the emulator, against the oracle."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

import ostinato as ost
from ostinato.backends.cuda.render import tensor_tiles
from ostinato.backends.cuda.rules.matmul import FewRowsMatmul, TiledMatmul
from ostinato.backends.cuda.rules.product import Matmul
from ostinato.backends.cuda.target import CudaTarget
from ostinato.dtypes import DType
from tests.conformance.compare import check_against_oracle
from tests.conformance.draw import Draw
from tests.devices.registered import open_session
from tests.pairwise import every_second

E4M3, E5M2 = "float8_e4m3fn", "float8_e5m2"


@pytest.fixture(scope="module")
def session() -> ost.Session:
    return open_session("cudaemu")


def check(session: ost.Session, d: Draw, output: ost.Value) -> list[Matmul]:
    """Compare with the oracle; the kernels of matmuls."""
    d.g.set_outputs([output])
    check_against_oracle(d.g, d.arrays, [(session, ost.CompileOptions(verify=True))])
    kernels = session.compile(d.g).plan.kernels
    return [k.kernel for k in kernels if isinstance(k.kernel, Matmul)]


#: Rows, depth and columns: one, primes, tails of warps and of tiles, many rows.
SIZES = ((1, 16, 1), (1, 48, 33), (5, 37, 7), (16, 64, 24), (17, 32, 3), (70, 80, 66))


@pytest.mark.parametrize(
    ("formats", "size"),
    every_second([(E4M3, E4M3), (E5M2, E4M3), (E5M2, E5M2), (E4M3, E5M2)], SIZES),
)
def test_products_of_every_format(
    session: ost.Session, formats: tuple[str, str], size: tuple[int, int, int]
) -> None:
    (m, k, n), (a, b) = size, formats
    number = zlib.crc32(f"{size} {formats}".encode())
    d = Draw(ost.Graph("float8"), np.random.default_rng(number))
    x = d.of((m, k), a)
    numbers = d.rng.normal(0, 2, (k, n)).astype(DType.parse(b).numpy)
    w = d.g.param("w", (k, n), b, value=numbers) if number % 2 else d.holding(numbers)
    x_scale = d.of((m, 1) if number % 3 else (), "float32", 0.1, 1)
    w_scale = d.of((n,) if number % 5 else (), "float32", 0.1, 1)
    dtype = ("float32", "bfloat16", "float16")[number % 3]
    found = check(session, d, d.g.scaled_matmul(x, w, x_scale, w_scale, dtype))
    if n > 1:
        (matmul,) = found
        assert type(matmul) is (FewRowsMatmul if m <= 16 else TiledMatmul)
        by_tensor_cores = tensor_tiles.fits(matmul, CudaTarget.of_arch("sm_80"))
        assert by_tensor_cores == (m > 16)


def test_an_epilogue_and_rows_made_on_the_way(session: ost.Session) -> None:
    d = Draw(ost.Graph("layer"), np.random.default_rng(1))
    q, scale = d.g.quantize_rows(d.of((3, 40), "bfloat16"))
    w = d.rng.normal(0, 100, (40, 24)).astype(DType.parse(E4M3).numpy)
    y = d.g.scaled_matmul(q, d.g.constant(w), scale, d.of((24,), "float32", 0.1, 1), "bfloat16")
    assert len(check(session, d, d.g.relu(y + d.of((24,), "bfloat16")))) == 1


@pytest.mark.parametrize("rows", [1, 3, 16])
def test_segments_stream_weights(rows: int) -> None:
    """A chain of two layers, whose rows become 8-bit floats on the way, as one kernel."""
    d = Draw(ost.Graph("chain"), np.random.default_rng(rows))
    y = d.of((rows, 160), "bfloat16")
    for depth, columns, dtype in ((160, 96, E4M3), (96, 72, E5M2)):
        q, scale = d.g.quantize_rows(y, dtype)
        w = d.g.constant(d.rng.normal(0, 9, (depth, columns)).astype(DType.parse(E4M3).numpy))
        w_scale = d.g.constant(d.rng.uniform(0.01, 0.1, columns).astype(np.float32))
        y = d.g.scaled_matmul(q, w, scale, w_scale, "bfloat16")
    session = open_session("cudasegments")
    d.g.set_outputs([y])
    check_against_oracle(d.g, d.arrays, [(session, ost.CompileOptions(verify=True))])
    (kernel,) = session.compile(d.g).plan.kernels
    assert "streams" in kernel.source


def test_without_optimisation_they_are_loop_nests(session: ost.Session) -> None:
    d = Draw(ost.Graph("plain"), np.random.default_rng(2))
    y = d.g.scaled_matmul(d.of((3, 5), E4M3), d.of((5, 4), E5M2), 0.5, d.of((4,), "float32"))
    d.g.set_outputs([y])
    options = ost.CompileOptions(optimize=False, verify=True)
    check_against_oracle(d.g, d.arrays, [(session, options)])
