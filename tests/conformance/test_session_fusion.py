"""Fused kernels give the bits of the single ops, whatever the ops and dtypes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.dtypes import DType
from ostinato.ops import OPS
from ostinato.ops.base import Elementwise
from tests.devices.registered import open_session

pytestmark = pytest.mark.needs("single_ops")

MAPS = sorted(n for n, op in OPS.items() if isinstance(op, Elementwise) and n != "bitcast")

Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def ex(device: str) -> ost.GraphExecutor:
    return ost.GraphExecutor(open_session(device, threads=1).context)


def attributes(name: str, rng: np.random.Generator) -> dict[str, Any]:
    if name == "cast":
        return {"dtype": str(rng.choice(["float32", "int32", "bool", "float16"]))}
    given: dict[str, dict[str, Any]] = {
        "clip": {"min": -1, "max": 3},
        "thresholded_relu": {"alpha": 0.5},
        "polygamma": {"n": 2},
    }
    return given.get(name, {})


def program(s: ost.GraphSession, operands: list[ost.Buffer], seed: int) -> list[ost.Buffer]:
    """A dozen ops, mostly on what was computed last; gives the last two results."""
    rng = np.random.default_rng(seed)
    values = list(operands)
    for _ in range(12):
        name = str(rng.choice(MAPS))
        arity = OPS[name].arity  # type: ignore[attr-defined]
        recent = min(len(values), 4)
        chosen = [values[-1 - int(i)] for i in rng.integers(0, recent, arity)]
        try:
            values.append(getattr(s, name)(*chosen, **attributes(name, rng)))
        except ost.GraphError:  # not an op for these dtypes
            continue
    return values[-2:]


DTYPES = ("float32", "float16", "bfloat16", "float64", "int32", "uint8")


@pytest.mark.parametrize(
    ("dtype", "seeds"),
    [
        *((dtype, [1 + i % 3]) for i, dtype in enumerate(DTYPES)),  # each shape with two dtypes
        *(pytest.param(dtype, range(8), marks=pytest.mark.slow) for dtype in DTYPES),
    ],
)
def test_fusion_changes_no_bit(ex: ost.GraphExecutor, dtype: str, seeds: Sequence[int]) -> None:
    parsed = DType.parse(dtype)
    fused = 0
    for seed in seeds:
        rng = np.random.default_rng(seed)
        shape = ((7,), (3, 33), (130,))[seed % 3]
        drawn = (
            rng.uniform(0.1, 3, (3, *shape)) if parsed.is_float else rng.integers(0, 5, (3, *shape))
        )
        results: list[list[bytes]] = []
        for fuse in (False, True):
            operands = [ex.buffer(array.astype(parsed.numpy)) for array in drawn]
            s = ex.begin()
            kept = program(s, operands, seed)
            fused += s.finish(fuse=fuse).fused
            results.append([buffer.copyout().tobytes() for buffer in kept])
        assert results[0] == results[1], f"seed {seed}"
    assert fused > len(seeds)
