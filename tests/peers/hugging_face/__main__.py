"""Export and compare all architectures, or those that are named.

Each export and each comparison is a process of its own, with limits on time and memory. The results
are written to ``tests/peers/hugging_face.txt``, one line each: the architecture, the exporter, the
sizes of the two runs, and the largest relative difference, or the reason why there is none.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.peers.hugging_face.architectures import ARCHITECTURES, Architecture
from tests.peers.hugging_face.results import EXPORTERS, read_results, write_results

_SECONDS = 600
_BYTES = 6 << 30

#: Characters of a reason that are kept.
_REASON = 240


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.peers.hugging_face", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="ARCHITECTURE", help="by default, all")
    parser.add_argument("--exporter", choices=EXPORTERS, help="by default, both")
    parser.add_argument("--models", type=Path, help="a folder that keeps exports for the next call")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.names) - set(ARCHITECTURES))
    if unknown:
        parser.error(f"no architecture is called {', '.join(unknown)}")
    results = read_results()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.models or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for name in arguments.names or ARCHITECTURES:
            for exporter in [arguments.exporter] if arguments.exporter else EXPORTERS:
                before = results.get((name, exporter))
                result = _result(ARCHITECTURES[name], exporter, folder)
                results[name, exporter] = result
                write_results(results)
                changed = "" if result == before or before is None else f"  (was: {before})"
                print(f"{name} {exporter}: {result}{changed}", flush=True)


def _result(architecture: Architecture, exporter: str, folder: Path) -> str:
    name = architecture.name
    path, report = folder / f"{name}-{exporter}.onnx", folder / f"{name}-{exporter}.txt"
    report.unlink(missing_ok=True)
    if not path.exists() and (problem := _process("exporting", name, exporter, path, report)):
        return f"not exported: {problem}"[:_REASON]
    return _process("comparison", name, path, report)[:_REASON]


def _process(module: str, *arguments: object) -> str:
    """Run a module of this package, and give the text of its report, the last argument."""
    report = arguments[-1]
    assert isinstance(report, Path)
    command = [sys.executable, "-m", f"tests.peers.hugging_face.{module}", *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    try:
        done = subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            preexec_fn=_limit_memory,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        return f"{module} takes more than {_SECONDS} s"
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:]
        return f"{module} ends with status {done.returncode}: {' '.join(last)}"
    return report.read_text() if report.exists() else ""


def _limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (_BYTES, _BYTES))


if __name__ == "__main__":
    main()
