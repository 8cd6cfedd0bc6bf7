"""Random graphs in the emulator with segments, which find what graphs of single ops do not."""

from __future__ import annotations

import pytest

from tests.conformance.stages import Settings, Suites
from tests.devices.cuda_emulation.toolchain import COMPILER

#: Graphs of one test.
CHUNK = 100


@pytest.mark.slow
@pytest.mark.skipif(COMPILER is None, reason="needs gcc and g++")
@pytest.mark.parametrize("first", range(0, 1000, CHUNK))
def test_random_graphs(first: int) -> None:
    device = ("cudasegments", "cudagrids")[first // CHUNK % 2]
    stage = Suites(Settings(device, graphs=CHUNK, first=first)).fuzz()
    assert stage.good, f"{stage.problem}\n{stage.failures}"
    assert stage.passed == CHUNK
