"""Ways of coding that options switch off: the same bits, by other instructions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.backends.cpu.llvm.toolchain import TargetSpec

HOST = TargetSpec.host()


def functions() -> ost.Graph:
    """Rows of many vectors, divided by one number, and maps of long functions."""
    g = ost.Graph("functions")
    x = g.input("x", (3, 1031))
    g.set_outputs([g.gelu(x), g.softmax(g.tanh(x)), g.layer_norm(x, g.exp(x[0]), x[1])])
    return g


def attention() -> ost.Graph:
    g = ost.Graph("attention")
    q, k, v = (g.input(name, (1, 2, 37, 24)) for name in "qkv")
    g.set_outputs([g.attention(q, k, v)])
    return g


def activated() -> ost.Graph:
    """A matmul whose epilogue is long."""
    g = ost.Graph("activated")
    x = g.input("x", (7, 33))
    w = np.random.default_rng(0).standard_normal((33, 129)).astype(np.float32)
    g.set_outputs([g.gelu(g.matmul(x, g.param("w", w.shape, value=w)))])
    return g


def compiled(g: ost.Graph, **options: Any) -> ost.CompiledGraph:
    made = ost.CompileOptions(stored_programs=False, **options)
    return ost.Session("cpu", threads=1).compile(g, options=made)


def sources(found: ost.CompiledGraph) -> list[str]:
    return [kernel.source for kernel in found.plan.kernels]


@pytest.mark.parametrize("make", [functions, attention, activated])
def test_results_have_the_same_bits(make: Any) -> None:
    g, rng = make(), np.random.default_rng(1)
    data = {
        name: rng.standard_normal(value.shape).astype(np.float32)
        for name, value in g.inputs.items()
    }
    whole = compiled(g)
    expected = whole.run(data)
    for option in ("interleave", "reciprocal_division"):
        other = compiled(g, **{option: False})
        for mine, theirs in zip(other.run(data), expected, strict=True):
            np.testing.assert_array_equal(mine.view(np.int32), theirs.view(np.int32))
        if option == "interleave":
            assert sources(other) != sources(whole)


@pytest.mark.skipif(HOST.vector_bytes < 64, reason="divides by one instruction")
def test_rows_are_divided_where_reciprocals_are_off() -> None:
    g = functions()
    assert sources(compiled(g, reciprocal_division=False)) != sources(compiled(g))


def test_nothing_of_it_without_optimisation() -> None:
    plain = TargetSpec.of(ost.CompileOptions(optimize=False))
    assert not (plain.interleaves or plain.reciprocals or plain.byte_pairs)
    targets = [TargetSpec.of(ost.CompileOptions()), plain]
    targets += [
        TargetSpec.of(ost.CompileOptions(**{option: False}))
        for option in ("interleave", "reciprocal_division", "byte_pairs")
    ]
    assert len({target.identity for target in targets}) == len(targets)
