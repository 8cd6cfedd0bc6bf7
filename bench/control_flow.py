"""Time an iteration of a loop, and a recurrent network as a Scan against ONNX Runtime.

``python -m bench.control_flow``
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import ostinato as ost

FLOAT = TensorProto.FLOAT


def fastest(call: Callable[[], object], rounds: int = 7) -> float:
    """The seconds of one call: the least of some rounds of about 50 ms."""
    start = time.perf_counter()
    call()
    count = max(1, int(0.05 / (time.perf_counter() - start + 1e-9)))
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(count):
            call()
        best = min(best, (time.perf_counter() - start) / count)
    return best


def empty_loop() -> tuple[float, float]:
    """Nanoseconds of an iteration without a kernel of its own, and of one that adds four floats."""
    return iteration(lambda b, y, x: y), iteration(lambda b, y, x: b.add(y, x))


def iteration(step: Callable[..., Any]) -> float:
    """The nanoseconds of an iteration that does ``step(graph, y, x)``."""
    g = ost.Graph()
    x, count = g.input("x", (4,)), g.input("count", (), "int64")
    flag = g.input("flag", (), "bool")
    g.set_outputs(
        g.while_loop(lambda b, i, y: (flag, step(b, y, x)), [x], trips=count, condition=flag)
    )
    compiled = ost.Session("cpu").compile(g)
    out = np.empty(4, np.float32)
    times = []
    for trips in (1_000, 101_000):
        feeds = {"x": np.ones(4, np.float32), "count": np.array(trips), "flag": np.array(True)}
        times.append(fastest(compiled.bind(feeds, [out])))
    return (times[1] - times[0]) / 100_000 * 1e9


def recurrent_scan(steps: int, hidden: int) -> onnx.ModelProto:
    """An Elman network as a Scan: a matmul, an add and a tanh in each step."""

    def info(name: str, *shape: int) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, FLOAT, shape)

    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["h", "w"], ["hw"]),
            helper.make_node("Add", ["hw", "x"], ["sum"]),
            helper.make_node("Tanh", ["sum"], ["new"]),
            helper.make_node("Identity", ["new"], ["out"]),
        ],
        "body",
        [info("h", 1, hidden), info("x", 1, hidden)],
        [info("new", 1, hidden), info("out", 1, hidden)],
    )
    w = np.random.default_rng(0).normal(size=(hidden, hidden)).astype(np.float32) / hidden**0.5
    graph = helper.make_graph(
        [helper.make_node("Scan", ["h0", "xs"], ["h", "hs"], body=body, num_scan_inputs=1)],
        "scan",
        [info("h0", 1, hidden), info("xs", steps, 1, hidden)],
        [info("h", 1, hidden), info("hs", steps, 1, hidden)],
        [numpy_helper.from_array(w, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def main() -> None:
    empty, adding = empty_loop()
    print(f"an iteration: {empty:.0f} ns without a kernel, {adding:.0f} ns with an add of 4 floats")
    try:
        import onnxruntime as ort
    except ImportError:
        ort = None
    print(f"{'scan':>16} {'Ostinato':>12} {'ONNX Runtime':>14}")
    for steps, hidden in ((100, 32), (100, 128), (100, 512)):
        proto = recurrent_scan(steps, hidden)
        rng = np.random.default_rng(1)
        feeds = {
            "h0": np.zeros((1, hidden), np.float32),
            "xs": rng.normal(size=(steps, 1, hidden)).astype(np.float32),
        }
        compiled = ost.Session("cpu").compile(ost.load_onnx(proto))
        ours = fastest(lambda: compiled.run(feeds)) / steps * 1e6  # noqa: B023
        line = f"{f'{steps} x {hidden}':>16} {ours:>9.2f} µs"
        if ort is not None:
            session = ort.InferenceSession(proto.SerializeToString())
            theirs = fastest(lambda: session.run(None, feeds)) / steps * 1e6  # noqa: B023
            line += f" {theirs:>11.2f} µs"
        print(f"{line} per step")


if __name__ == "__main__":
    main()
