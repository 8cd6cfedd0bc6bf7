"""The time from a fresh process to the first result of a ``.pt2`` file, and its peak memory.

    python -m bench.pt2_start [--rounds N] [--json FILE]

Needs PyTorch and transformers, to write the file: a BERT of six layers, 55 MB. The processes that
are timed import neither. The first of them compiles, the others find its kernels in the cache.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_START = r"""
import re, sys
import numpy as np
import ostinato as ost
graph = ost.load_pt2(sys.argv[1])
compiled = ost.Session("cpu", threads=2).compile(graph)
ids = np.ones((1, 128), np.int64)
compiled.run(dict.fromkeys(graph.inputs, ids))
assert "torch" not in sys.modules
# ru_maxrss would count the process that this one was forked from
print(int(re.search(r"VmHWM:\s+(\d+)", open("/proc/self/status").read())[1]) << 10)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bert.pt2"
        _write(path)
        environment = {**os.environ, "OSTINATO_CACHE_DIR": f"{folder}/cache"}
        times, peaks = [], []
        for _ in range(given.rounds + 1):
            start = time.perf_counter()
            command = [sys.executable, "-c", _START, str(path)]
            done = subprocess.run(command, check=True, capture_output=True, env=environment)
            times.append(time.perf_counter() - start)
            peaks.append(int(done.stdout))
        nbytes = path.stat().st_size
    row = {
        "file_bytes": nbytes,
        "cold_s": times[0],
        "warm_s": statistics.median(times[1:]),
        "cold_peak_bytes": peaks[0],
        "warm_peak_bytes": max(peaks[1:]),
    }
    peaks_mb = f"{peaks[0] / 1e6:.0f} and {max(peaks[1:]) / 1e6:.0f}"
    print(
        f"{nbytes / 1e6:.0f} MB: first result of a process in {row['cold_s']:.2f} s, with kernels "
        f"in the cache {row['warm_s']:.2f} s; peaks {peaks_mb} MB"
    )
    if given.json is not None:
        given.json.write_text(json.dumps(row, indent=2) + "\n")


def _write(path: Path) -> None:
    import torch
    import transformers

    config = transformers.BertConfig(
        vocab_size=8000,
        hidden_size=384,
        num_hidden_layers=6,
        num_attention_heads=6,
        intermediate_size=1536,
    )
    model = transformers.BertModel(config).eval()
    ids = torch.randint(5, 900, (1, 128))
    kwargs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    with torch.no_grad():
        torch.export.save(torch.export.export(model, (), kwargs), path)


if __name__ == "__main__":
    main()
