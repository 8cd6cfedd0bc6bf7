"""The devices that tests run on, by name, sample and ability; and the refusals that they show."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import ostinato as ost
from ostinato.backends.base import Capabilities
from ostinato.dtypes import ALL_DTYPES, BFLOAT16, FLOAT32, FLOAT64, INT8, NARROW_DTYPES
from ostinato.ir.leaves import LEAVES
from ostinato.ops import OPS
from ostinato.passes.pipeline import run_passes
from tests.conformance.stages import TESTS

from . import selection
from .catalogue import ABILITIES, CATALOGUE, TRAITS, abilities
from .refusals import refused

ROOT = Path(__file__).parents[2]

pytest_plugins = "pytester"

SUITE = """
import pytest

def test_plain(device):
    assert device in ("cpu", "loops")

@pytest.mark.needs("capture")
def test_that_records(device):
    assert device == "cpu"

@pytest.mark.parametrize("number", range(100))
def test_many(device, number):
    pass

def test_without_a_device():
    pass

@pytest.mark.parametrize(("device", "kind"), [("nowhere", 3)])
def test_with_a_list_of_its_own(device, kind):
    pass
"""


class Run:
    """A run of pytest on one file, in this process.

    Attributes:
        status: the exit status.
        outcomes: of each test.
        text: the reasons of skips, and errors.
        modules: those that were imported at its end.
    """

    def __init__(self, pytester: pytest.Pytester, text: str, *options: str) -> None:
        pytester.makepyfile(text)
        self.modules: dict[str, ModuleType] = {}
        record = pytester.inline_run(*options, plugins=[selection, self])
        reports = [
            report
            for report in record.getreports("pytest_runtest_logreport")
            if report.when == "call" or not report.passed
        ]
        self.status = record.ret
        self.outcomes = {each.nodeid.partition("::")[2]: each.outcome for each in reports}
        self.text = "\n".join(str(each.longrepr) for each in reports if each.longrepr)

    def pytest_unconfigure(self) -> None:
        self.modules = dict(sys.modules)


@pytest.fixture
def modules() -> Iterator[dict[str, ModuleType]]:
    """Modules to keep, though pytester forgets what was imported during its life.

    Objects of the project refer to them: importing one again would make its classes twice.
    """
    kept: dict[str, ModuleType] = {}
    yield kept
    sys.modules.update({**kept, **sys.modules})


@pytest.fixture
def run(modules: dict[str, ModuleType], pytester: pytest.Pytester) -> Callable[..., Run]:
    """A call that runs pytest on a text, with options."""

    def call(text: str, *options: str) -> Run:
        result, own = Run(pytester, text, *options), str(pytester.path)
        modules.update(
            (name, module)
            for name, module in result.modules.items()
            if not str(getattr(module, "__file__", "")).startswith(own)
        )
        sys.modules.update({**modules, **sys.modules})  # a second run uses those of the first
        return result

    return call


def test_named_devices_run_everything_that_takes_one(run: Callable[..., Run]) -> None:
    result = run(SUITE, "--devices", "cpu,loops")
    assert result.status == 0, result.text
    found = result.outcomes
    assert len(found) == 2 * 102
    assert found.pop("test_that_records[loops]") == "skipped"
    assert "loops lacks capture" in result.text
    assert {*found.values()} == {"passed"}
    assert not [test for test in found if "own" in test or "without" in test]


def test_a_plain_run_takes_a_sample_of_others(run: Callable[..., Run]) -> None:
    result = run(SUITE, "-k", "cpu or loops or without or own")
    assert result.status == 0, result.text
    assert sum("[cpu" in test for test in result.outcomes) == 102
    assert 2 <= sum("[loops" in test for test in result.outcomes) < 40
    assert result.outcomes["test_without_a_device"] == "passed"
    assert result.outcomes["test_with_a_list_of_its_own[nowhere-3]"] == "passed"


def test_a_sample_is_the_same_each_time(run: Callable[..., Run]) -> None:
    runs = [run(SUITE, "--devices", "cpu", "--sample", "10").outcomes for _ in range(2)]
    assert 2 <= len(runs[0]) < 40
    assert runs[0] == runs[1]


def test_a_device_that_is_not_here_skips_and_says_so(run: Callable[..., Run]) -> None:
    result = run(SUITE, "--devices", "nowhere")
    assert result.status == 0, result.text
    assert {*result.outcomes.values()} == {"skipped"}
    assert "unknown device NOWHERE:0" in result.text


def test_an_ability_that_does_not_exist(
    run: Callable[..., Run], capsys: pytest.CaptureFixture[str]
) -> None:
    result = run(SUITE.replace('"capture"', '"captre"'), "--devices", "cpu")
    assert result.status != 0
    assert "needs unknown {'captre'}" in capsys.readouterr().out


def test_every_trait_is_an_ability_and_each_device_has_known_ones() -> None:
    assert all(entry.traits <= TRAITS.keys() for entry in CATALOGUE.values())
    assert abilities("cpu") <= ABILITIES
    assert "single_ops" in abilities("loops") - abilities("cudaemu")


def test_every_suite_is_in_a_stage() -> None:
    listed = {path for paths in TESTS.values() for path in paths}
    files = {f"tests/conformance/{p.name}" for p in (ROOT / "tests/conformance").glob("test_*.py")}
    assert files == {path for path in listed if path.startswith("tests/conformance")}
    assert all((ROOT / path).exists() for path in listed)


# -- refusals --------------------------------------------------------------------------------------

EVERYTHING = frozenset(OPS) | LEAVES.keys()


def test_a_refusal_follows_from_capabilities_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    g = ost.Graph("wide")
    g.set_outputs([g.exp(g.input("x", (2,), "float64"))])
    narrow = Capabilities(EVERYTHING, frozenset({FLOAT32}))
    with pytest.raises(ost.UnsupportedOpError, match="exp") as by_passes:
        run_passes(g, capabilities=narrow)
    with pytest.raises(ost.UnsupportedOpError) as by_device:
        raise ost.UnsupportedOpError("no exp here")
    assert not selection.is_refusal("cpu", by_passes.value)  # which takes everything
    monkeypatch.setattr(selection, "abilities", lambda name: frozenset())
    assert selection.is_refusal("narrow", by_passes.value)
    assert not selection.is_refusal("narrow", by_device.value)


def test_a_node_of_dtypes_that_a_device_lacks_is_refused_though_it_takes_every_op() -> None:
    g = ost.Graph("narrow")
    g.set_outputs([g.cast(g.input("x", (2,), "float8_e5m2"), "float32")])
    with pytest.raises(ost.UnsupportedOpError) as error:
        run_passes(g, capabilities=Capabilities(EVERYTHING, frozenset(ALL_DTYPES)))
    assert "every_op" in abilities("loops")
    assert selection.is_refusal("loops", error.value)
    assert not selection.is_refusal("cpu", error.value)  # which takes 8-bit floats


def test_refusals_by_op_and_dtype() -> None:
    whole = Capabilities(EVERYTHING, frozenset({*ALL_DTYPES, *NARROW_DTYPES}))
    assert refused(whole) == {}
    wide = Capabilities(EVERYTHING, frozenset(ALL_DTYPES))
    assert set(refused(wide)) == {"scaled_matmul"}  # which has no other dtypes
    excluding = Capabilities(
        EVERYTHING, frozenset({*ALL_DTYPES} - {FLOAT64}), excluded=frozenset({("cumsum", INT8)})
    )
    assert refused(excluding)["cumsum"] == ["int8"]
    assert "exp" not in refused(excluding)  # the dtype is refused altogether
    lacking = Capabilities(EVERYTHING - {"topk"}, frozenset(ALL_DTYPES))
    assert "topk" in refused(lacking)
    assert "sum" not in refused(lacking)


def test_an_op_whose_dtype_is_excluded_is_refused_or_decomposed() -> None:
    g = ost.Graph("excluded")
    x = g.input("x", (3, 4), "bfloat16")
    g.set_outputs([g.mean(x, axis=1)])
    some = Capabilities(EVERYTHING, frozenset(ALL_DTYPES), excluded=frozenset({("mean", BFLOAT16)}))
    rewritten, _ = run_passes(g, capabilities=some)
    assert "mean" not in {node.op.name for node in rewritten.nodes}
    inputs = {"x": np.ones((3, 4), BFLOAT16.numpy)}
    np.testing.assert_array_equal(ost.reference.evaluate(rewritten, inputs)[0], [1, 1, 1])
