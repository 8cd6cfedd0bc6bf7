"""The backend suite of the ``onnx`` package: each case has the outcome that is written down.

``python -m tests.frontends.onnx_suite`` writes the outcomes anew.
"""

from __future__ import annotations

import pytest

from tests.frontends.onnx_suite import PASS, cases, expected, outcome

EXPECTED = expected()


@pytest.fixture(scope="session", autouse=True)
def models_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The suite writes the data of some models below ``ONNX_HOME``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ONNX_HOME", str(tmp_path_factory.mktemp("onnx")))
        yield


def test_every_case_is_listed() -> None:
    assert set(cases()) == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_case(name: str) -> None:
    assert outcome(name) == EXPECTED[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n, result in EXPECTED.items() if result == PASS])
def test_unoptimised(name: str) -> None:
    assert outcome(name, optimize=False) == PASS
