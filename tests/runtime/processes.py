"""Scripts run in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent


def run_script(script: str, **environment: str) -> str:
    """Run a script, which may import the modules of this folder and must succeed; its output."""
    paths = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "script.py"
        file.write_text(script)
        done = subprocess.run(
            [sys.executable, file],
            check=False,
            capture_output=True,
            text=True,
            timeout=120,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)} | environment,
        )
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stderr}"
    return done.stdout
