"""Convert and compare all models, or those that are named, each in a process of its own.

The results are written to ``results.txt``, one line each: the kind of model, its name, and the
greatest error, or the reason why there is none.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

_FILE = Path(__file__).parent / "results.txt"
_SECONDS = 300
_REASON = 300

__all__ = ["models", "read_results"]

KINDS = ("hand-written", "compiled", "dynamic", "small", "vision")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.peers.torch.models", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="MODEL", help="by default, all")
    parser.add_argument("--kind", choices=KINDS, help="by default, all")
    parser.add_argument("--failed", action="store_true", help="those alone that failed before")
    arguments = parser.parse_args()
    results = read_results()
    for kind, name in models():
        if arguments.kind not in (None, kind) or (arguments.names and name not in arguments.names):
            continue
        before = results.get((kind, name))
        if arguments.failed and before is not None and before[:1].isdigit():
            continue
        results[kind, name] = _one(kind, name)
        _write(results)
        print(f"{kind} {name}: {results[kind, name]}", flush=True)


def models() -> list[tuple[str, str]]:
    """The kind and the name of each model."""
    from tests.peers.torch.models.hand_written import HAND_WRITTEN
    from tests.peers.torch.models.small import MODEL_TYPES
    from tests.peers.torch.models.vision import VISION

    texts = [name for name, a in HAND_WRITTEN.items() if "length" in a.exported_sizes]
    small = [name for name in MODEL_TYPES if name not in HAND_WRITTEN]
    return [
        *(("hand-written", name) for name in HAND_WRITTEN),
        *(("compiled", name) for name in HAND_WRITTEN),
        *(("dynamic", name) for name in texts),
        *(("vision", name) for name in VISION),
        *(("small", name) for name in small),
    ]


def _one(kind: str, name: str) -> str:
    command = [sys.executable, "-m", "tests.peers.torch.models.one", kind, name]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=_SECONDS, env=environment
        )
    except subprocess.TimeoutExpired:
        return f"failed: takes more than {_SECONDS} s"
    lines = (done.stdout if not done.returncode else done.stderr).strip().splitlines()
    last = lines[-1] if lines else f"status {done.returncode}"
    return (last if not done.returncode else f"failed: {last}")[:_REASON]


def read_results() -> dict[tuple[str, str], str]:
    """By kind and name: the error, or the reason why there is none."""
    if not _FILE.exists():
        return {}
    lines = (line.split(" ", 2) for line in _FILE.read_text().splitlines())
    return {(kind, name): result for kind, name, result in lines}


def _write(results: dict[tuple[str, str], str]) -> None:
    lines = (
        f"{kind} {name} {results[kind, name]}\n"
        for kind, name in models()
        if (kind, name) in results
    )
    _FILE.write_text("".join(lines))


if __name__ == "__main__":
    main()
