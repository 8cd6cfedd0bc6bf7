"""The backend suite of the ``onnx`` package, and the results expected of it.

``python -m tests.frontends.onnx_suite`` runs all of it and writes the expected results anew, with
a summary of what changed.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import SkipTest

from ostinato import CompileOptions, UnsupportedOpError

if TYPE_CHECKING:
    from collections.abc import Callable

#: By case: ``pass``, or ``refused: `` and the reason.
EXPECTED_FILE = Path(__file__).with_name("onnx_suite.txt")

PASS, REFUSED = "pass", "refused: "


@functools.cache
def cases(*, optimize: bool = True) -> dict[str, Callable[[], None]]:
    """The suite's CPU cases by name. Collecting them takes seconds.

    A case returns, raises ``AssertionError`` for a wrong result, or one of our errors.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test import BackendTest

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

        runner = BackendTest(Backend)
    return {
        name.removesuffix("_cpu"): functools.partial(item.func, None)
        for items in runner._test_items.values()
        for name, item in items.items()
        if name.endswith("_cpu")
    }


def outcome(case: Callable[[], None]) -> str:
    """``pass``, or ``refused: `` and why; a wrong result and any other error are raised."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            case()
    except UnsupportedOpError as error:
        return REFUSED + _reason(str(error))
    except SkipTest as skipped:
        return REFUSED + str(skipped)
    return PASS


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
    for name, case in sorted(cases().items()):
        try:
            after[name] = outcome(case)
        except Exception as error:
            failed.append(f"{name}: {type(error).__name__}: {str(error)[:300]}")
            after[name] = before.get(name, PASS)
        if after[name] != before.get(name):
            print(f"{name}: {before.get(name)} -> {after[name]}")
    EXPECTED_FILE.write_text("".join(f"{name} {result}\n" for name, result in after.items()))
    print(*failed, sep="\n")
    print(Counter("pass" if result == PASS else "refused" for result in after.values()), end=" ")
    print(f"{len(failed)} failed")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
