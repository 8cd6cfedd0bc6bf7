"""The cache of kernels through sessions, threads and processes."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import ostinato as ost
from ostinato.backends.common import stored_program
from ostinato.backends.cpu import compilation
from ostinato.backends.cpu import image as cpu_image
from ostinato.backends.cpu.compiler import KernelCompiler
from ostinato.backends.cpu.llvm.machine import machine
from ostinato.backends.cpu.llvm.toolchain import TargetSpec
from ostinato.cache.fingerprint import object_key
from ostinato.cache.objects import ObjectCache

X = np.linspace(-1, 1, 3 * 37, dtype=np.float32).reshape(3, 37)


def graph(width: int = 37, dtype: str = "float32") -> ost.Graph:
    g = ost.Graph("cached")
    x = g.cast(g.input("x", (3, width)), dtype)
    w = g.constant(np.ones((width, 4), x.dtype.numpy))
    g.set_outputs([g.softmax(g.tanh(x)), g.relu(x @ w)])
    return g


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The number of compilations of each kernel."""
    counts: Counter[str] = Counter()
    build = KernelCompiler._build

    def counted(self, kernel, name):
        finish = build(self, kernel, name)

        def counted_finish():
            counts[name] += 1
            time.sleep(0.01)  # long enough for all threads to ask meanwhile
            return finish()

        return counted_finish

    monkeypatch.setattr(KernelCompiler, "_build", counted)
    return counts


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an unused cache."""
    fresh_process(tmp_path, monkeypatch)
    return tmp_path


def fresh_process(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the process had just started, with its cache in ``folder``."""
    use(ObjectCache(folder), monkeypatch)


def use(cache: ObjectCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have sessions use this cache."""
    for module in (compilation, cpu_image, stored_program):
        monkeypatch.setattr(module, "process_cache", lambda: cache)


def entries(folder: Path) -> list[Path]:
    return sorted((folder / "objects").glob("*.obj"))


def results(compiled: ost.CompiledGraph) -> list[bytes]:
    return [array.tobytes() for array in compiled.run({"x": X})]


def test_once_for_all_sessions_and_graphs(folder, builds):
    first = ost.Session("cpu").compile(graph())
    kernels = len(builds)
    assert kernels >= 2
    assert first._execution.executable.report.compiled == kernels
    again = ost.Session("cpu", threads=1).compile(graph())
    assert builds == Counter(dict.fromkeys(builds, 1))
    assert len(builds) == kernels
    assert (
        again._execution.executable.report.compiled,
        again._execution.executable.report.cached,
    ) == (0, kernels)
    assert results(first) == results(again)


def test_once_when_many_threads_ask_at_the_same_time(folder, builds):
    start, got = threading.Barrier(8), []

    def compile_and_run():
        session = ost.Session("cpu", threads=1)
        start.wait()
        got.append(results(session.compile(graph())))

    threads = [threading.Thread(target=compile_and_run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 8
    assert all(one == got[0] for one in got)
    assert set(builds.values()) == {1}


@pytest.mark.parametrize(
    ("change", "options"),
    [
        (lambda: graph(38), {}),
        (lambda: graph(dtype="float64"), {}),
        (graph, {"target": "sse2"}),
        (graph, {"rowwise_fusion": False}),
    ],
    ids=["shape", "dtype", "target", "options"],
)
def test_what_differs_is_compiled_anew(folder, builds, change, options):
    session = ost.Session("cpu")
    session.compile(graph())
    before = len(builds)
    try:
        session.compile(change(), options=ost.CompileOptions(**options))
    except ost.DeviceUnavailableError as error:
        pytest.skip(str(error))
    assert len(builds) > before
    assert set(builds.values()) == {1}


def test_the_next_process_compiles_nothing(folder, builds, monkeypatch):
    want = results(ost.Session("cpu").compile(graph()))
    builds.clear()
    fresh_process(folder, monkeypatch)
    compiled = ost.Session("cpu").compile(graph())
    assert not builds
    assert compiled._execution.executable.report.compiled == 0
    assert results(compiled) == want


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[: len(data) // 2],
        lambda data: data[:60] + bytes([data[60] ^ 255]) + data[61:],
        lambda data: data[:-1] + bytes([data[-1] ^ 1]),
        lambda data: os.urandom(len(data)),
        lambda data: data * 2,
    ],
    ids=["empty", "cut", "one byte", "last bit", "noise", "doubled"],
)
def test_damaged_entries_are_rebuilt(folder, builds, monkeypatch, damage):
    want = results(ost.Session("cpu").compile(graph()))
    kernels = len(builds)
    for path in entries(folder):
        path.write_bytes(damage(path.read_bytes()))
    builds.clear()
    fresh_process(folder, monkeypatch)
    assert results(ost.Session("cpu").compile(graph())) == want
    assert len(builds) == kernels
    builds.clear()
    fresh_process(folder, monkeypatch)
    ost.Session("cpu").compile(graph())
    assert not builds, "the rebuilt entries are good"


def test_entries_under_each_others_names_are_rebuilt(folder, builds, monkeypatch):
    want = results(ost.Session("cpu").compile(graph()))
    paths = entries(folder)
    contents = [path.read_bytes() for path in paths]
    for path, data in zip(paths, contents[1:] + contents[:1], strict=True):
        path.write_bytes(data)
    builds.clear()
    fresh_process(folder, monkeypatch)
    assert results(ost.Session("cpu").compile(graph())) == want
    assert builds


def test_entries_of_another_user_are_rebuilt(folder, builds, monkeypatch):
    want = results(ost.Session("cpu").compile(graph()))
    builds.clear()
    monkeypatch.setattr(os, "getuid", lambda: 54321)
    fresh_process(folder, monkeypatch)
    assert results(ost.Session("cpu").compile(graph())) == want
    assert builds


def test_entries_that_others_may_write_are_rebuilt(folder, builds, monkeypatch):
    ost.Session("cpu").compile(graph())
    for path in entries(folder):
        path.chmod(0o666)
    builds.clear()
    fresh_process(folder, monkeypatch)
    ost.Session("cpu").compile(graph())
    assert builds


def test_a_processor_with_other_features_has_other_entries():
    host = TargetSpec.host()
    others = [
        dataclasses.replace(host, features=host.features + ",-fma"),
        dataclasses.replace(host, cpu="generic"),
        dataclasses.replace(host, vector_bytes=host.vector_bytes // 2),
        dataclasses.replace(host, triple="aarch64-unknown-linux-gnu"),
    ]
    keys = {object_key("kernel", target.identity) for target in (host, *others)}
    assert len(keys) == 5


def test_another_compiler_version_has_other_entries(monkeypatch):
    import llvmlite

    target = TargetSpec.host()
    keys = {object_key("kernel", target.identity)}
    monkeypatch.setattr(llvmlite, "__version__", "0.0.1")
    machine.cache_clear()
    keys.add(object_key("kernel", target.identity))
    monkeypatch.undo()
    machine.cache_clear()
    keys.add(object_key("kernel", target.identity))
    assert len(keys) == 2


def test_what_llvm_says_of_the_machine_is_remembered_as_it_is(monkeypatch):
    import llvmlite.binding

    machine.cache_clear()
    known = machine()
    assert known["cpu"] == llvmlite.binding.get_host_cpu_name()
    assert known["features"] == llvmlite.binding.get_host_cpu_features().flatten()
    monkeypatch.setattr(llvmlite.binding, "get_host_cpu_name", lambda: "another")
    machine.cache_clear()
    assert machine() == known
    machine.cache_clear()


def test_the_folder_stays_within_its_bound(tmp_path, monkeypatch):
    cache = ObjectCache(tmp_path, max_bytes=40_000)
    use(cache, monkeypatch)
    session = ost.Session("cpu", threads=1)
    for width in range(20, 32):
        compiled = session.compile(graph(width))
        compiled.run({"x": np.ones((3, width), np.float32)})
        assert sum(path.stat().st_size for path in entries(tmp_path)) <= 40_000
    assert entries(tmp_path)


def test_a_folder_that_vanishes_is_no_error(folder, builds, monkeypatch):
    session = ost.Session("cpu")
    want = results(session.compile(graph()))
    shutil.rmtree(folder)
    assert results(session.compile(graph())) == want
    session.compile(graph(40))
    fresh_process(folder, monkeypatch)
    assert results(session.compile(graph())) == want


PROGRAM = """
import sys
import numpy as np, ostinato as ost
g = ost.Graph("shared")
outputs = [g.tanh(g.input(f"x{n}", (3, n))) + n for n in range(2, 12)]
g.set_outputs(outputs)
session = ost.Session("cpu", threads=1)
sys.stdin.readline()  # all processes go on together
compiled = session.compile(g)
results = compiled.run({f"x{n}": np.ones((3, n), np.float32) for n in range(2, 12)})
assert all(np.allclose(r, np.tanh(1) + n) for n, r in enumerate(results, 2))
print(compiled._execution.executable.report.compiled)
"""


def test_processes_share_a_folder_at_the_same_time(tmp_path):
    environment = {**os.environ, "OSTINATO_CACHE_DIR": str(tmp_path)}

    def start() -> subprocess.Popen[str]:
        command = [sys.executable, "-c", PROGRAM]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True)

    processes = [start() for _ in range(3)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    assert all(process.returncode == 0 for process in processes)
    assert sum(int(output) for output in outputs) >= 10  # each kernel at least once, by one of them
    assert not list((tmp_path / "objects").glob("*.tmp"))
    late = start()
    assert late.communicate("\n", timeout=120)[0].strip() == "0"
