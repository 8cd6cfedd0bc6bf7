"""Faults of a GPU, each in a process of its own, and the work that goes on then."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import ostinato as ost

ROOT = Path(__file__).parents[4]

pytestmark = pytest.mark.skipif(not ost.is_available("cuda"), reason="needs an NVIDIA GPU")

#: Graphs and kernels that the processes have at hand.
_HEAD = """
import numpy as np
import ostinato as ost
from ostinato.backends.cuda.abi import Launch
from ostinato.backends.cuda.compiler import compile_text
from ostinato.backends.cuda.gpu import Stream

X = np.arange(12, dtype=np.float32).reshape(3, 4)

def doubled(session):
    g = ost.Graph("doubled")
    g.set_outputs([g.input("x", (3, 4)) * 2.0])
    return session.compile(g)

def check(compiled):
    np.testing.assert_array_equal(compiled.run({"x": X})[0], 2 * X)

def launch(session, body):
    gpu = session._backend.gpu
    stream = Stream(gpu)
    image = compile_text('extern "C" __global__ void fault(int* p) {' + body + "}", gpu.target.arch)
    with gpu.current() as driver:
        function = driver.function(driver.load(image), "fault", 0)
        driver.launch(function, Launch(1, 32), [0], stream.handle)
        driver.synchronize(stream.handle)

session = ost.Session("cuda")
compiled = doubled(session)
check(compiled)
"""


def start(text: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _HEAD + text],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> str:
    """The output of a process, which has to succeed."""
    text, _ = process.communicate(timeout=120)
    assert process.returncode == 0, text
    return text


def test_two_contexts_at_once() -> None:
    graph = ost.Graph("sum")
    state = graph.state("total", (64,))
    after = state + graph.input("x", (64,))
    graph.assign(state, after)
    graph.set_outputs([after * 1.0])
    results: dict[int, np.ndarray] = {}

    def count(number: int) -> None:
        compiled = ost.Session("cuda").compile(graph)
        for _ in range(200):
            (found,) = compiled.run({"x": np.full(64, number, np.float32)})
        results[number] = found

    threads = [threading.Thread(target=count, args=(number,)) for number in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in (1, 2, 3):
        assert (results[number] == 200 * number).all()


def test_two_processes_at_once() -> None:
    text = "for _ in range(500): check(compiled)\nprint('done')"
    for process in [start(text), start(text)]:
        assert finish(process).endswith("done\n")


def test_too_little_memory_says_how_much_for_what_and_what_is_free() -> None:
    text = """
g = ost.Graph("huge")
x = g.state("cache", (1 << 20, 1 << 20), "uint8")
g.set_outputs([g.cast(x[:1, :4], "float32")])
try:
    session.compile(g).run({})
except ost.DeviceMemoryError as error:
    print(error)
check(compiled)
check(doubled(session))
print("done")
"""
    found = finish(start(text))
    assert "no 1,099,511,627,776 bytes for a compiled graph" in found
    assert "bytes are free" in found
    assert found.endswith("done\n")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("__trap();", "CUDA_ERROR_(ILLEGAL_INSTRUCTION|LAUNCH_FAILED|ASSERT)"),
        ("*(volatile int*)0x10 = 1;", "CUDA_ERROR_(ILLEGAL_ADDRESS|MISALIGNED_ADDRESS)"),
    ],
    ids=["trap", "address"],
)
def test_a_kernel_that_fails_loses_the_device_for_its_process(body: str, reason: str) -> None:
    text = f"""
import re
for attempt in ("launch", "run", "compile"):
    try:
        if attempt == "launch":
            launch(session, {body!r})
        elif attempt == "run":
            compiled.run({{"x": X}})
        else:
            check(doubled(ost.Session("cuda")))
    except ost.DeviceError as error:
        assert re.search({reason!r}, str(error)), error
        assert "was lost" in str(error), error
        print(attempt)
"""
    lines = finish(start(text)).split()
    assert lines == ["launch", "run", "compile"]
    assert finish(start("check(compiled)\nprint('done')")).endswith("done\n")
