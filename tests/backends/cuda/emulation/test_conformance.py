"""Each op on one dtype, in the emulator: a part of the conformance suite, which runs whole as slow.

The suites of ``tests/conformance`` and ``tests/control`` have the device ``cudaemu`` among theirs.
"""

from __future__ import annotations

import zlib

import pytest

import ostinato as ost
from tests.conformance.build import OPTIMISED, UNOPTIMISED, Case
from tests.conformance.compare import check_against_oracle
from tests.conformance.test_ops import RECIPES, make_case
from tests.devices.cuda_emulation.backend import build_ahead
from tests.devices.cuda_emulation.toolchain import COMPILER
from tests.devices.registered import open_session

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs gcc and g++")


def _draw(name: str, dtypes: tuple[str, ...]) -> tuple[str, str, ost.CompileOptions]:
    """A dtype and options for an op, the same in every run."""
    number = zlib.crc32(name.encode())
    return name, dtypes[number % len(dtypes)], (OPTIMISED, UNOPTIMISED)[number // 64 % 2]


CASES = [_draw(name, dtypes) for name, (_, dtypes) in RECIPES.items()]


@pytest.fixture(scope="module")
def cases() -> dict[str, Case]:
    made = {name: make_case(name, dtype) for name, dtype, _ in CASES}
    build_ahead((made[name].graph, options) for name, _, options in CASES)
    return made


@pytest.mark.parametrize(("name", "dtype", "options"), CASES, ids=[f"{n}-{d}" for n, d, _ in CASES])
def test_op(name: str, dtype: str, options: ost.CompileOptions, cases: dict[str, Case]) -> None:
    case = cases[name]
    check_against_oracle(case.graph, case.inputs, [(open_session("cudaemu"), options)])
