"""The cost of one call on a graph with next to nothing to compute, next to ONNX Runtime.

The graph is ``gelu(x[2,4] · w[4,3] + b)``; for ``variables=``, a Variable is added to x that has
another value in each of a thousand calls. Each side runs in turns of a few thousand calls, one
thread each, so that both see the same machine; reported is the least and the median turn.

    python bench/call_overhead.py [--json FILE]
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import ostinato as ost

CALLS = 4000
TURNS = 25

RNG = np.random.default_rng(0)
W, B, X = (RNG.standard_normal(s).astype(np.float32) for s in ((4, 3), (3,), (2, 4)))


def ours(*, stepped: bool = False) -> ost.CompiledGraph:
    g = ost.Graph("tiny")
    w, b = g.param("w", W.shape, value=W), g.param("b", B.shape, value=B)
    x = g.input("x", X.shape)
    if stepped:
        x = x + g.cast(g.dim_value(ost.Variable("step", 0, CALLS)), "float32")
    g.set_outputs({"y": g.gelu(g.matmul(x, w) + b)})
    return ost.Session("cpu", threads=1).compile(g)


def theirs() -> onnxruntime.InferenceSession:
    value = helper.make_tensor_value_info
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Add", ["m", "b"], ["a"]),
        helper.make_node("Gelu", ["a"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "tiny",
        [value("x", TensorProto.FLOAT, X.shape)],
        [value("y", TensorProto.FLOAT, (2, 3))],
        [numpy_helper.from_array(W, "w"), numpy_helper.from_array(B, "b")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options)


def ways() -> dict[str, Callable[[], object]]:
    """Every way of calling, by name; all are checked to agree."""
    compiled, stepped, session = ours(), ours(stepped=True), theirs()
    steps = itertools.cycle([*range(1, 1000), 0])
    out, feed = np.empty((2, 3), np.float32), {"x": X}
    binding = session.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_output("y", "cpu")
    bound = compiled.bind(feed, [out])
    bound()
    (expected,) = session.run(None, feed)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)
    for result in (compiled.run(feed), stepped.run(feed, variables={"step": 0})):
        np.testing.assert_allclose(result[0], expected, rtol=1e-5, atol=1e-6)
    return {
        "ostinato BoundCall": bound,
        "ostinato run": lambda: compiled.run(feed),
        "ostinato run out=": lambda: compiled.run(feed, out=[out]),
        "ostinato run variables=": lambda: stepped.run(feed, variables={"step": next(steps)}),
        "ostinato run_slots": lambda: compiled.run_slots(X),
        "onnxruntime IOBinding": lambda: session.run_with_iobinding(binding),
        "onnxruntime run": lambda: session.run(None, feed),
    }


def measure(calls: dict[str, Callable[[], object]]) -> dict[str, list[float]]:
    """The nanoseconds per call of every turn, by name."""
    turns: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(TURNS):
        for name, call in calls.items():
            start = time.perf_counter()
            for _ in range(CALLS):
                call()
            turns[name].append((time.perf_counter() - start) / CALLS * 1e9)
    return turns


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    turns = measure(ways())
    figures = {
        name: {"min_ns": min(times), "median_ns": statistics.median(times)}
        for name, times in turns.items()
    }
    peer = figures["onnxruntime IOBinding"]["median_ns"]
    for name, figure in figures.items():
        ratio = peer / figure["median_ns"]
        print(
            f"{name:<24} min {figure['min_ns']:8.0f} ns   median {figure['median_ns']:8.0f} ns   "
            f"{ratio:6.1f} × as fast as IOBinding"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
