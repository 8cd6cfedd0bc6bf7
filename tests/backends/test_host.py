"""Fallbacks for calls that an operating system may lack."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from ostinato.backends.cpu.host import function_address, usable_processors

#: Every module is imported, and a graph compiled and run, as on a system without these calls.
PORTABLE = """
import os, pkgutil, importlib, logging, random
import numpy as np
for name in ("sched_getaffinity", "sched_setaffinity", "register_at_fork", "getuid", "O_NOFOLLOW"):
    delattr(os, name)
import ostinato as ost
for module in pkgutil.walk_packages(ost.__path__, "ostinato."):
    if not module.name.endswith("__main__"):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            if error.name != "torch":  # which parts of one front end are for
                raise
g = ost.Graph("g")
x = g.input("x", (64, 64))
g.set_outputs([g.exp(x @ x)])
x = np.zeros((64, 64), np.float32)
for _ in range(2):
    (y,) = ost.Session("cpu").compile(g).run({"x": x})
    assert (y == 1).all()
"""


def test_a_system_without_linux_calls(tmp_path):
    environment = os.environ | {"OSTINATO_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", PORTABLE], check=True, env=environment, timeout=300)


def test_the_number_of_processors(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 5, 6}, raising=False)
    assert usable_processors() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert usable_processors() == 8
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert usable_processors() == 1


@pytest.mark.skipif(sys.platform == "win32", reason="needs a process-wide name space")
def test_addresses_of_functions(monkeypatch):
    assert function_address("memcpy")
    assert function_address("no_such_function_anywhere") is None
    monkeypatch.setattr("ctypes.CDLL", lambda _: (_ for _ in ()).throw(TypeError))
    assert function_address("memcpy") is None
