"""The time from the start of a process to its first output, and its peak memory.

    python -m bench.cold_start [--only NAME …] [--rounds N] [--openvino PYTHON] [--json FILE]

Every runtime loads the same ONNX file in a process of its own and runs it once, in turns. Ours
starts twice a round: with a cache of kernels that is empty, and with the one it left behind.
OpenVINO may live in another environment: ``--openvino`` names its interpreter.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

MODELS = ("mlp_b1", "minilm_32", "bert_1x128")
SIDES = ("ours_cold", "ours_warm", "onnxruntime", "openvino")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--openvino", default=sys.executable, metavar="PYTHON")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for name in given.only:
            found.append(_compare(name, Path(folder), given.openvino, given.rounds))
            _show(found[-1])
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=2) + "\n")


def _compare(name: str, folder: Path, openvino: str, rounds: int) -> dict[str, Any]:
    from bench.start_models import write_model

    path = write_model(name, folder)
    cache = folder / "cache"
    starts: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    for _ in range(rounds + 1):  # the first brings files into memory and compiles Python's modules
        for side in SIDES:
            if side == "ours_cold":
                shutil.rmtree(cache, ignore_errors=True)
            python = openvino if side == "openvino" else sys.executable
            started = _start(python, side.partition("_")[0], path, cache, folder)
            if started is not None:
                starts[side].append(started)
    return {"model": name} | {
        side: {key: statistics.median(one[key] for one in all_[1:]) for key in all_[0]}
        for side, all_ in starts.items()
        if all_
    }


def _start(
    python: str, side: str, path: Path, cache: Path, folder: Path
) -> dict[str, float] | None:
    """Seconds and megabytes of one process; ``None`` where the runtime is not installed."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environment["OSTINATO_CACHE_DIR"] = str(cache)
    environment["PYTHONPYCACHEPREFIX"] = str(folder / "pyc")
    begin = time.perf_counter()
    process = subprocess.run(
        [python, __file__, "--child", side, str(path)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.perf_counter() - begin
    if process.returncode == 3:
        return None
    process.check_returncode()
    return {"seconds": seconds, **json.loads(process.stdout.splitlines()[-1])}


def _show(found: dict[str, Any]) -> None:
    parts = [
        f"{side} {times['seconds']:.3f} s, {times['peak_mb']:.0f} MB"
        for side, times in found.items()
        if side != "model"
    ]
    print(f"{found['model']}: {'; '.join(parts)}", flush=True)


# -- in the process --------------------------------------------------------------------------------


def _child(side: str, path: str) -> None:
    try:
        first_output = _RUNTIMES[side](path)
    except ImportError:
        raise SystemExit(3) from None
    assert np.isfinite(first_output).all()
    usage = resource.getrusage(resource.RUSAGE_SELF)
    cpu = usage.ru_utime + usage.ru_stime
    print(json.dumps({"peak_mb": _peak_megabytes(), "cpu_seconds": cpu}), flush=True)
    os._exit(0)  # how long a runtime takes to shut down is not the question


def _peak_megabytes() -> float:
    """The peak memory of this program alone; that of ``getrusage`` may be its parent's."""
    status = Path("/proc/self/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) / 1024


def _ours(path: str) -> np.ndarray:
    import ostinato as ost

    compiled = ost.Session("cpu").compile(ost.load_onnx(path))
    return compiled.run({n: _ones(spec.shape) for n, spec in compiled.inputs.items()})[0]


def _onnxruntime(path: str) -> np.ndarray:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = len(os.sched_getaffinity(0))
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return session.run(None, {i.name: _ones(i.shape) for i in session.get_inputs()})[0]


def _openvino(path: str) -> np.ndarray:
    import openvino

    core = openvino.Core()
    threads = len(os.sched_getaffinity(0))
    settings = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
    model = core.compile_model(path, "CPU", settings)
    results = model({i.any_name: _ones(list(i.shape)) for i in model.inputs})
    return np.asarray(next(iter(results.values())))


def _ones(shape: Any) -> np.ndarray:
    return np.full(shape, 0.1, np.float32)


_RUNTIMES: dict[str, Callable[[str], np.ndarray]] = {
    "ours": _ours,
    "onnxruntime": _onnxruntime,
    "openvino": _openvino,
}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        _child(*sys.argv[2:])
    else:
        main()
