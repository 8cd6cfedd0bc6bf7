"""The backend suite of the ``onnx`` package, and the results expected of it.

``python -m tests.frontends.onnx_suite`` runs all of it and writes the expected results anew, with
a summary of what changed.
"""

from __future__ import annotations

import functools
import math
import os
import re
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import SkipTest
from unittest.mock import patch

from ostinato import CompileOptions, OstinatoError, UnsupportedOpError
from tests.frontends.onnx_cases import node_cases

if TYPE_CHECKING:
    from collections.abc import Callable

#: By case: ``pass``, or ``refused: `` and the reason.
EXPECTED_FILE = Path(__file__).with_name("onnx_suite.txt")

PASS, REFUSED = "pass", "refused: "

#: Cases whose stored results are off by more than the suite's tolerance, or are drawn at random.
_TOLERANCES = {
    "test_dft_inverse": 1e-6,
    "test_dft_inverse_opset19": 1e-6,
    "test_bernoulli": math.inf,
    "test_bernoulli_double": math.inf,
    "test_bernoulli_double_expanded": math.inf,
    "test_bernoulli_expanded": math.inf,
    "test_bernoulli_seed": math.inf,
    "test_bernoulli_seed_expanded": math.inf,
    "test_training_dropout": math.inf,
    "test_training_dropout_default": math.inf,
    "test_training_dropout_default_mask": math.inf,
    "test_training_dropout_mask": math.inf,
}


@functools.cache
def cases(*, optimize: bool = True) -> dict[str, Callable[[], None]]:
    """The suite's CPU cases by name.

    A case returns, raises ``AssertionError`` for a wrong result, or one of our errors.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test import BackendTest, loader

        from ostinato.frontends.onnx.backend import OstinatoBackend

        class Backend(OstinatoBackend):
            """Ours with the options of the run; what is refused says so itself."""

            @classmethod
            def is_compatible(cls, model, device="CPU", **kwargs):
                return True

            @classmethod
            def prepare(cls, model, device="CPU", **kwargs):
                options = CompileOptions(optimize=optimize)
                return super().prepare(model, device, options=options, **kwargs)

        nodes = node_cases()
        with patch.object(loader, "load_node_model_tests", lambda: nodes):
            runner = BackendTest(Backend)
    return {
        (case := name.removesuffix("_cpu")): functools.partial(
            item.func, None, **_tolerance(case, optimize=optimize)
        )
        for items in runner._test_items.values()
        for name, item in items.items()
        if name.endswith("_cpu")
    }


def _tolerance(case: str, *, optimize: bool) -> dict[str, float]:
    if case in _TOLERANCES:
        return {"atol": _TOLERANCES[case]}
    # Unoptimised, a model of float16 rounds after each of its ops: two units in the last place.
    return {} if optimize or "fp16" not in case else {"rtol": 2**-9}


def outcome(name: str, *, optimize: bool = True) -> str:
    """``pass``, or ``refused: `` and why; a wrong result and any other error are raised.

    ``close: `` is for stored results with rounding errors of their own, ``random: `` for those of
    another generator of random numbers: the shapes and dtypes of these are compared.
    """
    case = cases(optimize=optimize)[name]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            case()
    except OstinatoError as error:  # of a graph that is built at the run, the cause says why
        cause = error if isinstance(error, UnsupportedOpError) else error.__cause__
        if not isinstance(cause, UnsupportedOpError):
            raise
        return REFUSED + _reason(str(cause))
    except SkipTest as skipped:
        return REFUSED + str(skipped)
    except TypeError as error:
        if "Unable to compare" not in str(error):
            raise
        return "uncompared: the suite takes the length of a scalar in a sequence"
    tolerance = _TOLERANCES.get(name, 0.0)
    if tolerance == math.inf:
        return "random: the stored results are of another generator"
    return f"close: the stored results are off by up to {tolerance:g}" if tolerance else PASS


def _reason(message: str) -> str:
    """The ops that a message blames, each with its reason, or its only line."""
    blamed = re.findall(r"^  - '[^\n]*?' \(([\w.]+)\): ([^\n]*)", message, re.MULTILINE)
    if not blamed:
        return message.splitlines()[0]
    return "; ".join(sorted({f"{op}: {reason}" for op, reason in blamed}))


def expected() -> dict[str, str]:
    """The outcome that :data:`EXPECTED_FILE` holds for each case."""
    lines = EXPECTED_FILE.read_text().splitlines()
    return {name: result for name, _, result in (line.partition(" ") for line in lines)}


def main() -> None:
    """Run everything, list what changed, and write the outcomes down; failures stay out."""
    os.environ.setdefault("ONNX_HOME", tempfile.mkdtemp())  # data of some models is written there
    before = expected() if EXPECTED_FILE.exists() else {}
    after = {}
    failed = []
    for name in sorted(cases()):
        try:
            after[name] = outcome(name)
        except Exception as error:
            failed.append(f"{name}: {type(error).__name__}: {str(error)[:300]}")
            after[name] = before.get(name, PASS)
        if after[name] != before.get(name):
            print(f"{name}: {before.get(name)} -> {after[name]}")
    EXPECTED_FILE.write_text("".join(f"{name} {result}\n" for name, result in after.items()))
    print(*failed, sep="\n")
    counts = Counter(result.partition(":")[0] for result in after.values())
    print(", ".join(f"{count} {result}" for result, count in counts.items()), end=", ")
    print(f"{len(failed)} failed")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
