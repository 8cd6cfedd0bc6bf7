"""The report of a compiled graph on how it was compiled, and on its plan."""

from __future__ import annotations

import re

import numpy as np
import pytest

import ostinato as ost
from ostinato.lower.fusion.regions import Refusal
from ostinato.passes.base import Event
from ostinato.plan.report import CompileReport, KernelNote, NodeNote

from .block import block_graph
from .graphs import B, W, tiny_graph


def layers(count: int) -> ost.Graph:
    """The same layer over and over, with a norm that is rewritten and a bias that fuses."""
    g = ost.Graph("layers")
    x = g.input("x", (8, 32))
    for i in range(count):
        w, b = g.param(f"w{i}", (32, 32)), g.param(f"b{i}", (32,))
        x = g.gelu(g.matmul(x, w) + b)
        x = g.layer_norm(x, g.param(f"s{i}", (32,)), g.param(f"t{i}", (32,)))
    g.set_outputs([x])
    return g


@pytest.mark.needs("llvm")
def test_the_tiny_graph(compiled):
    text = compiled.explain()
    assert text.startswith("matmul_bias_gelu on CPU:0: 1 kernels a run")
    assert "fused: 3 nodes in 1 kernels" in text
    for op in ("matmul", "add", "gelu"):
        assert re.search(rf"native: 3 nodes \(.*{op}", text)
    assert "rewritten: 0 nodes" in text


@pytest.mark.needs("lowers")
def test_alike_kernels_are_counted_not_listed(session):
    apart = ost.CompileOptions(segments=False)
    text = session.compile(layers(20), options=apart).explain()
    assert len(text.splitlines()) < 40
    assert "layer_norm ×20" in text
    assert re.search(r"×20 +matmul\+add\+gelu", text)
    assert "17 more" in text
    assert "rewritten: 20 nodes (layer_norm ×20)" in text


@pytest.mark.needs("lowers")
def test_nothing_fuses_when_told_so(session):
    options = ost.CompileOptions(
        elementwise_fusion=False, epilogue_fusion=False, rowwise_fusion=False, segments=False
    )
    text = session.compile(tiny_graph(), {"w": W, "b": B}, options=options).explain()
    assert "3 kernels a run" in text
    assert "fused: 0 nodes" in text


@pytest.mark.needs("lowers")
def test_refused_fusions_come_with_their_reason(session):
    text = session.compile(block_graph(12)).explain()
    assert "not fused:" in text
    refused = text[text.index("not fused:") :].splitlines()[1:-1]
    assert refused
    assert all(re.search(r"\S: \S", line) for line in refused)


def test_a_report_by_hand():
    report = CompileReport(
        "g",
        "CPU:0",
        passes=[Event("recover", "recovered gelu", ("a", "b")), Event("x", "y", ("c",), "too odd")],
        native=[NodeNote("m0", "matmul"), NodeNote("m1", "matmul"), NodeNote("e", "exp")],
        rewritten=[NodeNote("n", "softmax")],
        kernels=[
            KernelNote("matmul+exp", ("m0", "e"), "k1"),
            KernelNote("copy", ("m1",), "k2"),
            *(KernelNote("matmul+exp", (f"m{i}", "e"), "k1") for i in range(2, 9)),
        ],
        refused=[Refusal("a", "b", "too large"), *(Refusal("c", str(i), "odd") for i in range(9))],
        compiled=2,
        seconds={"code": 0.25},
    )
    assert len(report.fused) == 8
    text = str(report)
    for line in (
        "g on CPU:0: 9 kernels a run, 0 once per write of a param",
        "  recover: recovered gelu ×2",
        "native: 3 nodes (matmul ×2, exp)",
        "rewritten: 1 nodes (softmax)",
        "fused: 16 nodes in 8 kernels",
        "  ×9    odd: c+0, c+1, c+2, 6 more",
        "2 kernels compiled, 0 from the cache; code 250 ms",
    ):
        assert line in text.splitlines(), text
    assert re.search(r"×8 +matmul\+exp +m0\+e, m2\+e, m3\+e, 5 more", text)
    assert "once per write of a param:" not in text, "an empty section is left out"
    assert text.index("odd") < text.index("too large"), "the most frequent reason first"


def test_reports_of_two_graphs_are_their_own(session):
    first = session.compile(tiny_graph(), {"w": W, "b": B})
    before = first.explain()
    session.compile(layers(2))
    assert first.explain() == before


@pytest.mark.needs("llvm")
def test_kernels_come_from_the_cache_the_second_time(session):
    session.compile(layers(3))
    text = session.compile(layers(3)).explain()
    assert re.search(r"^0 kernels compiled, [1-9]\d* from the cache", text, re.MULTILINE)


@pytest.mark.needs("llvm")
def test_the_plan_in_text(session):
    g = layers(2)
    params = {n: np.ones(v.shape, np.float32) for n, v in g.params.items()}
    plan = session.compile(g, params).plan
    assert plan.device == ost.Device.CPU
    assert len(plan.kernels) >= 4
    assert plan.prepared_kernels
    text = str(plan)
    for kernel in plan.kernels:
        assert kernel.name in text
        assert kernel.source
    assert str(plan.memory) in text


@pytest.mark.parametrize("optimize", [True, False])
def test_every_node_is_accounted_for(session, optimize):
    """Each node of a graph that needs no rewriting is in some kernel."""
    g = tiny_graph()
    compiled = session.compile(g, {"w": W, "b": B}, options=ost.CompileOptions(optimize=optimize))
    computed = {node.label for node in g.nodes if node.inputs}
    text = compiled.explain()
    assert all(re.search(rf"\b{re.escape(label)}\b", text) for label in computed)
