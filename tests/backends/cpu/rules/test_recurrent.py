"""The ``recurrent_scan`` kernel against the oracle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ostinato.backends.cpu.rules.recurrent import RecurrentKernel
from ostinato.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, INT32, DType
from ostinato.lower.loopir.text import kernel_text
from ostinato.ops.builder import Graph
from ostinato.ops.recurrent import DEFAULT_ACTIVATIONS, GATES, RECURRENT_SCAN, WEIGHT_PARTS
from ostinato.reference import evaluate
from ostinato.variables import Variable
from tests.backends.cpu.levels import across_levels

Array = np.ndarray[Any, Any]
Lowered = Callable[..., Any]

TOLERANCE = {FLOAT64: 1e-12, FLOAT32: 2e-5, FLOAT16: 2e-3, BFLOAT16: 1.5e-2}
KINDS = [("lstm", False), ("gru", False), ("gru", True), ("rnn", False)]
SIZES = [
    (1, 1, 1),
    (3, 2, 16),
    (2, 5, 17),
    (4, 3, 33),
    (0, 3, 8),
    (3, 9, 15),
    (2, 1, 100),
    (2, 3, 5),
]


def scan(
    kind: str,
    after_reset: bool,
    sizes: tuple[Any, Any, int],
    dtype: DType = FLOAT32,
    *,
    given: tuple[str, ...] = (),
    wanted: tuple[int, ...] = (0, 1, 2),
    **options: Any,
) -> Graph:
    """A graph of one scan."""
    seq, batch, hidden = sizes
    shapes = {
        "xproj": (seq, batch, GATES[kind] * hidden),
        "r": (GATES[kind] * hidden, hidden),
        "h0": (batch, hidden),
        "c0": (batch, hidden),
        "sequence_lens": (batch,),
        **{name: (parts * hidden,) for name, parts in WEIGHT_PARTS.items()},
    }
    attrs = {
        "kind": kind,
        "reverse": False,
        "activations": DEFAULT_ACTIVATIONS[kind],
        "clip": None,
        "linear_before_reset": after_reset,
        "given": given,
        **options,
    }
    required, _ = RECURRENT_SCAN.operand_names(attrs)
    g = Graph("scan")
    operands = [
        g.input(name, shapes[name], INT32 if name == "sequence_lens" else dtype)
        for name in (*required, *given)
    ]
    results = g.apply(RECURRENT_SCAN, tuple(operands), attrs)
    g.set_outputs({f"out{i}": r for i, r in enumerate(results) if i in wanted})
    return g


def inputs_of(g: Graph, seed: int = 0, **sizes: int) -> dict[str, Array]:
    from ostinato.variables import evaluate as size_of

    rng = np.random.default_rng(seed)
    arrays: dict[str, Array] = {}
    for name, value in g.inputs.items():
        shape = tuple(size_of(dim, sizes) for dim in value.shape)
        if name == "sequence_lens":
            longest = size_of(g.inputs["xproj"].shape[0], sizes)
            arrays[name] = rng.integers(0, longest + 1, shape).astype(np.int32)
        else:
            arrays[name] = (rng.standard_normal(shape) * 0.7).astype(value.dtype.numpy)
    return arrays


def check(lowered: Lowered, level: str, g: Graph, dtype: DType = FLOAT32) -> None:
    compare(lowered(g, level), g, inputs_of(g), dtype)


def compare(
    run: Any, g: Graph, arrays: dict[str, Array], dtype: DType = FLOAT32, **sizes: int
) -> None:
    for got, want in zip(run(arrays, **sizes), evaluate(g, arrays), strict=True):
        assert got.dtype == want.dtype
        tolerance = TOLERANCE[dtype]
        np.testing.assert_allclose(
            got.astype(np.float64), want.astype(np.float64), rtol=tolerance, atol=tolerance
        )


@pytest.mark.parametrize(("kind", "after_reset"), KINDS)
@pytest.mark.parametrize(("level", "sizes"), across_levels(SIZES), indirect=["level"])
def test_sizes(
    lowered: Lowered, level: str, kind: str, after_reset: bool, sizes: tuple[int, int, int]
) -> None:
    check(lowered, level, scan(kind, after_reset, sizes))


@pytest.mark.parametrize(("kind", "after_reset"), KINDS)
@pytest.mark.parametrize("dtype", [FLOAT64, FLOAT16, BFLOAT16], ids=str)
def test_dtypes(lowered: Lowered, level: str, kind: str, after_reset: bool, dtype: DType) -> None:
    check(lowered, level, scan(kind, after_reset, (3, 5, 19), dtype), dtype)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("kind", "after_reset"), KINDS)
def test_lengths(lowered: Lowered, level: str, kind: str, after_reset: bool, reverse: bool) -> None:
    g = scan(kind, after_reset, (5, 7, 20), given=("sequence_lens",), reverse=reverse)
    check(lowered, level, g)


def test_optional_weights(lowered: Lowered, level: str) -> None:
    check(lowered, level, scan("lstm", False, (4, 3, 21), given=("peepholes",)))
    check(lowered, level, scan("gru", True, (4, 3, 21), given=("recurrent_bias",)))
    g = scan("lstm", False, (4, 3, 18), given=("peepholes", "sequence_lens"), reverse=True)
    check(lowered, level, g)


@pytest.mark.parametrize("clip", [None, 0.4])
def test_activations_and_clip(lowered: Lowered, level: str, clip: float | None) -> None:
    check(lowered, level, scan("rnn", False, (3, 4, 9), activations=("relu",), clip=clip))
    activations = ("sigmoid", "relu", "tanh")
    check(lowered, level, scan("lstm", False, (3, 4, 9), activations=activations, clip=clip))
    check(lowered, level, scan("gru", False, (3, 4, 9), activations=("tanh", "relu"), clip=clip))


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 2)])
def test_results_that_nobody_reads_are_not_stored(
    lowered: Lowered, wanted: tuple[int, ...]
) -> None:
    g = scan("lstm", False, (3, 4, 16), wanted=wanted)
    check(lowered, "host", g)


@pytest.mark.parametrize(("kind", "after_reset"), KINDS)
def test_symbolic_sizes(lowered: Lowered, level: str, kind: str, after_reset: bool) -> None:
    seq, batch = Variable("S", 0, 6), Variable("B", 0, 40)
    g = scan(kind, after_reset, (seq, batch, 18), given=("sequence_lens",))
    run = lowered(g, level)
    for steps, rows in [(6, 40), (0, 3), (2, 1), (3, 7), (1, 0), (4, 13)]:
        arrays = inputs_of(g, steps, S=steps, B=rows)
        compare(run, g, arrays, S=steps, B=rows)


def test_large_batches_are_cut_into_blocks(lowered: Lowered) -> None:
    g = scan("lstm", False, (2, 70, 64))
    run = lowered(g, "host")
    compare(run, g, inputs_of(g))
    (kernel,) = (k for k in run.kernels if isinstance(k, RecurrentKernel))
    assert isinstance(kernel.extent, int)
    assert kernel.extent >= 7


def test_weights_in_params_are_packed_once(lowered: Lowered) -> None:
    g = Graph("layer")
    x = g.input("x", (5, 2, 3), FLOAT32)
    w, r = g.param("w", (2, 48, 3), FLOAT32), g.param("r", (2, 48, 12), FLOAT32)
    scans = []
    for index in range(2):
        xproj = g.matmul(x, g.permute_dims(w[index], (1, 0)))
        zeros = g.full((2, 12), 0.0, FLOAT32)
        attrs = {
            "kind": "lstm",
            "reverse": index == 1,
            "activations": DEFAULT_ACTIVATIONS["lstm"],
            "clip": None,
            "linear_before_reset": False,
            "given": (),
        }
        scans.append(g.apply(RECURRENT_SCAN, (xproj, r[index], zeros, zeros), attrs)[0])
    g.set_outputs({"y": g.concat(scans, axis=2)})
    run = lowered(g, "host")
    assert sum(call.title == "pack" for call in run.program.prepare) == 4
    rng = np.random.default_rng(2)
    params = {name: rng.standard_normal(v.shape).astype(np.float32) for name, v in g.params.items()}
    array = rng.standard_normal((5, 2, 3)).astype(np.float32)
    (got,) = run({"x": array, **params})
    (want,) = evaluate(g, {"x": array}, params)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_text_tells_kernels_apart(lowered: Lowered) -> None:
    variants: list[dict[str, Any]] = [
        {}, {"reverse": True}, {"clip": 1.0}, {"activations": ("tanh", "tanh", "tanh")},
        {"given": ("peepholes",)}, {"given": ("sequence_lens",)}, {"wanted": (0,)},
    ]  # fmt: skip
    sizes = (3, 2, 16)
    graphs = [scan("lstm", False, sizes, **options) for options in (*variants, {})]
    texts = [kernel_text(lowered(g, "host").kernels[-1]) for g in graphs]
    assert len(set(texts)) == len(variants)
    assert texts[0] == texts[-1]
