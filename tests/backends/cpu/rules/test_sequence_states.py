"""The kernels of linear attention and causal convolution: oracle, chunks, threads, states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.backends.cpu.rules.sequence_states import CausalConvolution, LinearAttention
from ostinato.ops.builder import Graph
from ostinato.ops.sequence_states import UPDATE_RULES
from ostinato.reference import evaluate
from ostinato.variables import Variable
from tests.backends.cpu.levels import across_levels

Array = np.ndarray[Any, Any]
Lowered = Callable[..., Any]

SLOTS = 3
#: Rows, heads, query heads of each, keys, columns.
SIZES = [
    (1, 1, 1, 1, 1),
    (7, 2, 2, 4, 5),
    (5, 1, 1, 33, 65),
    (9, 3, 2, 16, 16),
    (0, 1, 1, 2, 3),
    (4, 2, 1, 128, 130),
    (3, 1, 3, 7, 31),
]
CONV_SIZES = [(1, 1, 1), (7, 5, 4), (9, 33, 4), (0, 4, 3), (6, 130, 3), (5, 64, 2)]


def attention(
    rows: Any, heads: int, group: int, depth: int, features: int, rule: str, *, by_key: bool = False
) -> Graph:
    """A graph of linear attention with a state."""
    g = Graph("attention")
    options = {}
    if "gated" in rule:
        options["decay"] = g.input("decay", (rows, heads, depth) if by_key else (rows, heads))
    if "delta" in rule:
        options["beta"] = g.input("beta", (rows, heads))
    state = g.state("state", (SLOTS, heads, depth, features))
    y, new = g.linear_attention(
        g.input("q", (rows, heads * group, depth)),
        g.input("k", (rows, heads, depth)),
        g.input("v", (rows, heads, features)),
        state,
        g.input("sequence", (rows,), "int32"),
        g.input("position", (rows,), "int32"),
        update_rule=rule,
        **options,
    )
    g.assign(state, new)
    g.set_outputs({"y": y})
    return g


def convolution(rows: Any, channels: int, taps: int) -> Graph:
    """A graph of a causal convolution with a state."""
    g = Graph("convolution")
    state = g.state("state", (SLOTS, channels, taps - 1))
    y, new = g.causal_conv_with_state(
        g.input("x", (rows, channels)),
        g.input("weight", (channels, taps)),
        state,
        g.input("sequence", (rows,), "int32"),
        g.input("position", (rows,), "int32"),
        g.input("bias", (channels,)),
        activation="silu",
    )
    g.assign(state, new)
    g.set_outputs({"y": y})
    return g


def arrays_for(g: Graph, rows: int, seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    sequence = np.sort(rng.integers(0, SLOTS, rows))
    arrays: dict[str, Array] = {}
    for name, value in g.inputs.items():
        shape = tuple(size if isinstance(size, int) else rows for size in value.shape)
        arrays[name] = (rng.standard_normal(shape) * 0.5).astype(value.dtype.numpy)
    if "decay" in arrays:
        arrays["decay"] = -np.abs(arrays["decay"])
    arrays["sequence"] = sequence.astype(np.int32)
    arrays["position"] = (np.arange(rows) - np.searchsorted(sequence, sequence)).astype(np.int32)
    return arrays


def loose(g: Graph) -> Graph:
    """``g`` with the state as an input and an output."""
    free = Graph(g.name)
    values = {}
    for node in g.nodes:
        if node.op.name == "state":
            (value,) = node.outputs
            values[value] = free.input("state", value.shape, value.dtype)
            continue
        made = free.adopt(node, [values[v] for v in node.inputs])
        values.update(zip(node.outputs, made, strict=True))
    free.set_outputs({"y": values[g.outputs["y"]], "new": values[g.assignments["state"]]})
    return free


def compare(lowered: Lowered, level: str, g: Graph, rows: int) -> None:
    g = loose(g)
    arrays = arrays_for(g, rows)
    for got, want in zip(lowered(g, level)(arrays), evaluate(g, arrays), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("rule", UPDATE_RULES)
@pytest.mark.parametrize(("level", "sizes"), across_levels(SIZES), indirect=["level"])
def test_linear_attention(
    lowered: Lowered, level: str, sizes: tuple[int, int, int, int, int], rule: str
) -> None:
    by_key = sizes[0] % 2 == 1
    compare(lowered, level, attention(*sizes, rule, by_key=by_key), sizes[0])


@pytest.mark.parametrize(("level", "sizes"), across_levels(CONV_SIZES), indirect=["level"])
def test_causal_convolution(lowered: Lowered, level: str, sizes: tuple[int, int, int]) -> None:
    compare(lowered, level, convolution(*sizes), sizes[0])


def session(threads: int) -> ost.Session:
    return ost.Session("cpu", threads=threads)


@pytest.mark.parametrize("kind", ["attention", "convolution"])
def test_bits_depend_on_neither_chunks_nor_threads_nor_neighbours(kind: str) -> None:
    n = Variable("n", 1, 64)
    g = attention(n, 2, 2, 17, 37, "gated_delta") if kind == "attention" else convolution(n, 37, 4)
    whole = arrays_for(g, 50)
    (together,) = session(2).compile(g).run(whole)
    for chunk in (1, 7, 50):
        compiled = session(1).compile(g)
        for slot in (2, 0, 1):
            own = np.flatnonzero(whole["sequence"] == slot)
            for start in range(0, len(own), chunk):
                part = own[start : start + chunk]
                arrays = {
                    name: array if name in ("weight", "bias") else array[part]
                    for name, array in whole.items()
                }
                (y,) = compiled.run(arrays)
                assert np.array_equal(y, together[part])


def test_states_are_updated_in_place() -> None:
    n = Variable("n", 1, 64)
    for g in (attention(n, 2, 2, 16, 32, "delta"), convolution(n, 32, 4)):
        plan = session(1).compile(g).plan
        assert len(plan.kernels) == 1, [kernel.name for kernel in plan.kernels]


def test_a_slot_out_of_range_touches_no_other_memory() -> None:
    g = loose(attention(4, 1, 1, 8, 8, "linear"))
    arrays = arrays_for(g, 4)
    arrays["sequence"][:] = (99, -99, 2, -1)
    compiled = session(1).compile(g)
    for got, want in zip(compiled.run(arrays), evaluate(g, arrays), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


def test_kernels_have_their_kinds(lowered: Lowered, level: str) -> None:
    found = lowered(loose(attention(2, 1, 1, 8, 8, "linear")), level).kernels
    assert any(isinstance(kernel, LinearAttention) for kernel in found)
    found = lowered(loose(convolution(2, 8, 4)), level).kernels
    assert any(isinstance(kernel, CausalConvolution) for kernel in found)
