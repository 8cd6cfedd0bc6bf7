"""The time that two ways of doing less at a start save: late dataclasses, and deferred graphs.

    python -m bench.start_savings [--rounds 15]

Each side is a process that loads a small ONNX model, compiles and runs it, with a cache that knows
the model (``warm``) or knows nothing (``cold``). They take turns; processor time is measured, the
least and the median of all rounds.

- ``ours``: as it is.
- ``standard dataclasses``: ``ostinato.records`` stands for :mod:`dataclasses`.
- ``graphs at once``: a graph is built when its file is loaded, whether or not it is looked at.

Processes have the bytecode of all modules, as those of an installed package.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

START = """
import sys
import numpy as np
import ostinato as ost
graph = ost.load_onnx(sys.argv[1])
compiled = ost.Session("cpu", threads=1).compile(graph)
compiled.run({s.name: np.ones(s.shape, s.dtype.numpy) for s in compiled.inputs.values()})
"""

STANDARD = """
import dataclasses, sys, types
records = types.ModuleType("ostinato.records")
records.dataclass, records.field = dataclasses.dataclass, dataclasses.field
records.replace = dataclasses.replace
records.field_names = lambda record: tuple(f.name for f in dataclasses.fields(record))
sys.modules["ostinato.records"] = records
"""

SIDES = {
    "ours": START,
    "standard dataclasses": STANDARD + START,
    "graphs at once": START.replace("compiled = ", "graph.nodes\ncompiled = ", 1),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("warm", "cold"):
            _compare(kind, Path(folder), rounds)


def _compare(kind: str, folder: Path, rounds: int) -> None:
    from bench.start_models import write_model

    path, cache = write_model("mlp_b1", folder), folder / "cache"
    times: dict[str, list[float]] = {side: [] for side in SIDES}
    for round_ in range(rounds + 1):  # the first brings files into memory
        for side, script in SIDES.items():
            if kind == "cold":
                shutil.rmtree(cache, ignore_errors=True)
            seconds = _processor_time(script, path, cache)
            if round_:
                times[side].append(seconds)
    for side, found in times.items():
        least, median = 1e3 * min(found), 1e3 * statistics.median(found)
        print(f"{kind} {side:<22}{least:8.1f} ms least {median:8.1f} ms median", flush=True)


def _processor_time(script: str, path: Path, cache: Path) -> float:
    environment = os.environ | {
        "OSTINATO_CACHE_DIR": str(cache),
        "PYTHONPYCACHEPREFIX": str(cache.with_name("bytecode")),
    }
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-c", script, str(path)],
        check=True,
        env=environment,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
