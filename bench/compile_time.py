"""The time until a model is ready, in fresh processes: cold, then with cached objects.

    python bench/compile_time.py [MODEL] [--dim name=size ...] [--json]

The model is MiniLM at batch 8 and length 128 unless another is named; ``compile`` is the time that
the project promises to stay within 3 s cold and 1 s warm for it, ``import`` within 0.3 s.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STEPS = ("import", "load", "compile", "first run")
MINILM_DIMS = ["batch=8", "seq=128"]

#: Run by a fresh interpreter with the model's path and its dims as JSON; prints a JSON object.
CHILD = """
import json, re, sys, time
clock = [time.perf_counter()]
import ostinato as ost
clock.append(time.perf_counter())
graph = ost.load_onnx(sys.argv[1], dims=json.loads(sys.argv[2]))
clock.append(time.perf_counter())
compiled = ost.Session("cpu").compile(graph)
clock.append(time.perf_counter())
import numpy as np
compiled.run({s.name: np.ones(s.shape, s.dtype.numpy) for s in compiled.inputs.values()})
clock.append(time.perf_counter())
seconds = [b - a for a, b in zip(clock, clock[1:])]
last = compiled.explain().splitlines()[-1]
pattern = r"(\\d+) kernels compiled, (\\d+) from the cache; (.*)"
fresh, cached, stages = re.fullmatch(pattern, last).groups()
print(json.dumps({
    **dict(zip(("import", "load", "compile", "first run"), seconds)),
    "stages": stages, "compiled": int(fresh), "cached": int(cached),
}))
"""


def measure(model: Path, dims: dict[str, int], cache: Path) -> dict[str, object]:
    """One fresh process that keeps its objects in ``cache``."""
    command = [sys.executable, "-c", CHILD, str(model), json.dumps(dims)]
    environment = {**os.environ, "OSTINATO_CACHE_DIR": str(cache)}
    child = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found: dict[str, object] = json.loads(child.stdout)
    return found


def minilm() -> Path:
    """The file that ``make demo`` writes, written if it is not there."""
    path = ROOT / "demo-output" / "minilm.onnx"
    if not path.exists():
        subprocess.run([sys.executable, ROOT / "examples" / "minilm_onnx.py", path], check=True)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--dim", action="append", metavar="NAME=SIZE")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    named = (text.partition("=") for text in given.dim or MINILM_DIMS)
    dims = {name: int(size) for name, _, size in named}
    model = given.model or minilm()
    with tempfile.TemporaryDirectory() as cache:
        found = {kind: measure(model, dims, Path(cache)) for kind in ("cold", "warm")}
    if given.json:
        print(json.dumps(found, indent=2))
        return
    for kind, report in found.items():
        steps = ", ".join(f"{step} {report[step]:.3f} s" for step in STEPS)
        print(f"{kind}: {steps}\n      {report['compiled']} kernels compiled: {report['stages']}")


if __name__ == "__main__":
    main()
