"""Layers of experts on the CUDA device."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

import ostinato as ost
from ostinato.backends.cuda.rules.table import CudaLowering, lower_for_cuda
from tests.conformance.compare import check_against_oracle
from tests.conformance.draw import Draw
from tests.devices.registered import open_session


def test_matrices_are_read_as_they_are_stored() -> None:
    g = ost.Graph("experts")
    x, ids = g.input("x", (3, 16), "bfloat16"), g.input("ids", (3, 2), "int64")
    weights = g.input("weights", (3, 2), "bfloat16")
    up, gate = (g.param(name, (4, 16, 8), "bfloat16") for name in ("up", "gate"))
    down = g.param("down", (4, 8, 16), "bfloat16")
    g.set_outputs([g.expert_mlp(x, ids, weights, gate, up, down)])
    program, _ = lower_for_cuda(g, CudaLowering())
    assert not program.prepare
    assert len(program.calls) == 2


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh", "relu"])
def test_activations(activation: str, gated: bool) -> None:
    rng = np.random.default_rng(zlib.crc32(f"{activation} {gated}".encode()))
    d = Draw(ost.Graph("experts"), rng)
    tokens, experts, features, hidden = 5, 3, 7, 11
    x, ids = d.of((tokens, features), "float32"), d.ids((tokens, 2), experts, beyond=False)
    weights = d.of((tokens, 2), "float32")
    up = d.of((experts, features, hidden), "float32")
    gate = d.of((experts, features, hidden), "float32") if gated else None
    down = d.of((experts, hidden, 13), "float32")
    result = d.g.expert_mlp(x, ids, weights, gate, up, down, activation=activation)
    d.g.set_outputs([result * 2.0])
    session = open_session("cudaemu")
    check_against_oracle(d.g, d.arrays, [(session, ost.CompileOptions(verify=True))])
