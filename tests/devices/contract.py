"""The devices that the tests of the runtime's contract run on, and those that a test leaves out.

A folder's ``conftest.py`` imports the fixture :func:`device`; its tests get sessions by
``open_session``. A test about one device alone, or about recording, carries a mark.
"""

from __future__ import annotations

import pytest

import ostinato as ost

__all__ = ["CPU_ALONE", "PRESENT", "RECORDING", "device"]

#: A GPU, where there is one.
PRESENT = ["cuda"] if ost.is_available("cuda") else []

#: The CUDA device's runtime, on a driver in this process.
_HOSTED = pytest.param("cudahost", marks=pytest.mark.slow)

#: A plain run leaves slow ones out.
_DEVICES = ["cpu", pytest.param("loops", marks=pytest.mark.slow), _HOSTED, *PRESENT]

#: For tests of what only the CPU has or promises: threads, kernels by name, native calls.
CPU_ALONE = pytest.mark.parametrize("device", ["cpu"], scope="session")

#: For tests of recording.
RECORDING = pytest.mark.parametrize("device", ["cpu", _HOSTED, *PRESENT], scope="session")


@pytest.fixture(scope="session", params=_DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    """The name of each device in turn."""
    name: str = request.param
    return name
