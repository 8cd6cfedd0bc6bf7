"""The cost of one call of a graph with next to nothing to compute, on a GPU.

    python -m bench.cuda_calls [--json FILE]

The graph is ``gelu(x[2,4] · w[4,3] + b)``. ``driver`` is the least that such a call takes: the
launch of a CUDA graph with one empty kernel and a wait, by the driver's calls alone. Times are
medians, in microseconds, of the host's clock, each call waited for. Then the milliseconds of a run
with 16 MB of inputs and of outputs: three matmuls of float32, run one by one and pipelined.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import ostinato as ost
from ostinato.backends.cuda.abi import Launch
from ostinato.backends.cuda.compiler import compile_text
from ostinato.backends.cuda.gpu import Stream

CALLS = 5000


def tiny_graph() -> ost.Graph:
    rng = np.random.default_rng(0)
    w, b = (rng.standard_normal(shape, dtype=np.float32) for shape in ((4, 3), (3,)))
    g = ost.Graph("tiny")
    weight, bias = g.param("w", w.shape, value=w), g.param("b", b.shape, value=b)
    g.set_outputs({"y": g.gelu(g.matmul(g.input("x", (2, 4)), weight) + bias)})
    return g


def median_us(call: Callable[[], object]) -> float:
    for _ in range(200):
        call()
    times = []
    for _ in range(CALLS):
        start = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - start)
    return statistics.median(times) / 1e3


def least(backend: object) -> Callable[[], None]:
    """Launch a graph of an empty kernel, and wait."""
    gpu = backend.gpu  # type: ignore[attr-defined]
    stream = Stream(gpu)
    image = compile_text('extern "C" __global__ void nothing() {}', gpu.target.arch)
    with gpu.current() as driver:
        function = driver.function(driver.load(image), "nothing", 0)
        driver.begin_capture(stream.handle)
        driver.launch(function, Launch(1, 32), [], stream.handle)
        graph = driver.end_capture(stream.handle)

    def call() -> None:
        with gpu.current() as driver:
            driver.launch_graph(graph, stream.handle)
            driver.synchronize(stream.handle)

    return call


def pipelined() -> dict[str, float]:
    """The milliseconds of a run whose arrays are large, one by one and many at once."""
    g = ost.Graph("wide")
    x = g.input("x", (1024, 4096))
    w = np.random.default_rng(0).standard_normal((4096, 4096), np.float32) * np.float32(0.01)
    for i in range(3):
        x = g.relu(g.matmul(x, g.param(f"w{i}", w.shape, value=w)))
    g.set_outputs([x])
    compiled = ost.Session("cuda").compile(g)
    sets = [{"x": np.full((1024, 4096), i, np.float32)} for i in range(12)]
    alone = [compiled.run(each)[0] for each in sets]
    for mine, (other,) in zip(alone, compiled.run_pipelined(sets), strict=True):
        np.testing.assert_array_equal(mine, other)

    def best(call: Callable[[], object]) -> float:
        times = []
        for _ in range(4):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
        return 1e3 * min(times) / len(sets)

    return {
        "one by one, ms": best(lambda: [compiled.run(each) for each in sets]),
        "pipelined, ms": best(lambda: compiled.run_pipelined(sets)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    from ostinato.backends.registry import open_backend

    x, y = np.ones((2, 4), np.float32), np.empty((2, 3), np.float32)
    compiled = ost.Session("cuda").compile(tiny_graph())
    compiled.run({"x": x}, out=[y])
    (expected,) = ost.reference.evaluate(tiny_graph(), {"x": x})
    np.testing.assert_allclose(y, expected, rtol=1e-5)
    bound = compiled.bind({"x": x}, [y])
    y[:] = 0
    bound()
    np.testing.assert_allclose(y, expected, rtol=1e-5)
    found = {
        "driver": median_us(least(open_backend("cuda"))),
        "BoundCall": median_us(bound),
        "run out=": median_us(lambda: compiled.run({"x": x}, out=[y])),
        "run": median_us(lambda: compiled.run({"x": x})),
    }
    for name, us in found.items():
        print(f"{name:12} {us:8.2f} µs")
    found |= pipelined()
    print(f"{found['one by one, ms']:.3f} ms one by one, {found['pipelined, ms']:.3f} pipelined")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
