"""Starts of processes: what they import, and what they compile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]

#: Limits: import below 0.3 s; MiniLM compiled within 3 s cold and 1 s warm. Exact figures come from
#: ``bench/compile_time.py``; a test shares its machine, so it allows twice as much.


def test_import_is_lazy() -> None:
    code = (
        "import sys, ostinato; "
        "print(sorted({'llvmlite', 'onnx', 'rich', 'typer', 'ml_dtypes'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_benchmark_of_starts(minilm: Path) -> None:
    """In fresh processes: with an empty cache, then with what that one left in it."""
    script = ROOT / "bench" / "compile_time.py"
    command = [sys.executable, str(script), str(minilm), "--json"]
    environment = {k: v for k, v in os.environ.items() if k != "OSTINATO_CACHE_DIR"}
    found = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    report = json.loads(found.stdout)
    assert report["cold"]["compiled"] > 0
    assert report["cold"]["cached"] == 0
    assert report["warm"]["compiled"] == 0
    assert report["warm"]["cached"] > 0
