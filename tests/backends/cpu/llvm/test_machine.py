"""LLVM's description of the machine, and loading LLVM before it is asked."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SCRIPT = """
import sys, threading
import ostinato as ost

def mapped():
    with open("/proc/self/maps") as file:
        return "libllvmlite" in file.read()

session = ost.Session("cpu")
for thread in threading.enumerate():
    if thread.name == "ostinato-load":
        thread.join()
before, imported = mapped(), "llvmlite.binding" in sys.modules
g = ost.Graph("g")
g.set_outputs([g.exp(g.input("x", (3,)))])
compiled = session.compile(g)
print(before, imported, mapped())
"""

FORKS = """
import os
import numpy as np
import ostinato as ost

session = ost.Session("cpu", threads=1)
child = os.fork()
g = ost.Graph("g")
g.set_outputs([g.exp(g.input("x", (3,)))])
(result,) = session.compile(g).run({"x": np.zeros(3, np.float32)})
assert result.tolist() == [1, 1, 1]
if child:
    assert os.waitpid(child, 0)[1] == 0
    print("done")
"""


def run(script: str, cache: object) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"OSTINATO_CACHE_DIR": str(cache)},
    )
    return done.stdout.strip()


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
def test_llvm_is_loaded_ahead_where_it_will_be_needed(tmp_path):
    assert run(SCRIPT, tmp_path) == "True False True"
    assert run(SCRIPT, tmp_path) == "False False False"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_forked_while_llvm_is_loaded_can_compile(tmp_path):
    for attempt in range(5):
        assert run(FORKS, tmp_path / str(attempt)) == "done"
