"""The backend suite of the ``onnx`` package: each case has the outcome that is written down.

``python -m tests.frontends.onnx_suite`` writes the outcomes anew.
"""

from __future__ import annotations

from itertools import groupby

import pytest

from tests.frontends.onnx_suite import PASS, cases, expected, outcome

EXPECTED = expected()

#: Of the cases that spell a function out in its nodes, by the first word of their name, those that
#: the fast suite runs: every sixth.
_SPELLED = {
    name
    for _, family in groupby(
        sorted(name for name in EXPECTED if "_expanded" in name), lambda name: name.split("_")[1]
    )
    for name in [*family][::6]
}


@pytest.fixture(scope="session", autouse=True)
def models_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The suite writes the data of some models below ``ONNX_HOME``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ONNX_HOME", str(tmp_path_factory.mktemp("onnx")))
        yield


def test_every_case_is_listed() -> None:
    assert set(cases()) == set(EXPECTED)


#: Networks that tests of models run with random weights, here they have fills; and four whose
#: layers are those of others: of inception_v2 (two of them), and of AlexNet.
_ELSEWHERE = {
    *("test_inception_v2", "test_resnet50", "test_shufflenet", "test_squeezenet"),
    *("test_densenet121", "test_inception_v1", "test_vgg19", "test_zfnet512"),
}

#: Parts of the names of two cases of the same op and attributes: their heads are an axis or not,
#: their operands differ, or one has a further result.
_DIFFERENCES = (
    ("attention_3d_", "attention_4d_"),
    ("_example", "_random"),
    ("_mean", "_mean_log_prob"),
    ("_ii", "_ii_log_prob"),
)


def _second_halves() -> set[str]:
    """One case of each pair that differs so, the first and the second in turn."""
    left_out: set[str] = set()
    for first, second in _DIFFERENCES:
        pairs = [
            (name, other)
            for name in sorted(EXPECTED)
            if first in name and (other := name.replace(first, second)) in EXPECTED
        ]
        left_out.update(pair[number % 2] for number, pair in enumerate(pairs))
    return left_out


_LEFT_OUT = _second_halves()


def is_slow(name: str) -> bool:
    """Whether a case is left to ``make test-slow``, as others prove nearly the same."""
    if "_expanded" in name:
        return name not in _SPELLED
    return name in _ELSEWHERE or name in _LEFT_OUT


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if is_slow(n) else []) for n in EXPECTED]
)
def test_case(name: str) -> None:
    assert outcome(name) == EXPECTED[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n, result in EXPECTED.items() if result == PASS])
def test_unoptimised(name: str) -> None:
    assert outcome(name, optimize=False) == PASS
