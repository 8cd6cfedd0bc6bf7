"""A sample of :mod:`tests.peers.torch.dynamo_operators`."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("expecttest")  # PyTorch's table of operators needs it

from tests.peers.torch.dynamo_operators import differences, operators, run

#: By name in PyTorch's table; one of each kind of arithmetic, aliasing and writing.
SAMPLE = {
    "add": True,
    "cumsum": True,
    "nn_functional_layer_norm": True,
    "softmax": True,
    "transpose": False,
    "index_put": True,
    "linalg_qr": False,
    "rand_like": False,
    "view_as": False,
    "scatter_add": True,
}


@pytest.mark.parametrize("name", SAMPLE)
def test_samples_agree_with_eager(name):
    torch.set_num_threads(1)
    native = 0
    for op, dtype in operators():
        if op.formatted_name == name:
            outcome = run(op, dtype)
            assert not outcome.wrong, outcome.wrong
            native += outcome.native
    assert bool(native) >= SAMPLE[name]


def test_differences_are_found():
    x = torch.arange(6.0).reshape(2, 3)
    assert not differences((x, 1), (x.clone(), 1))
    for other in (x + 1, x.double(), x.reshape(3, 2), x.t().contiguous().t()):
        assert differences(other, x)
    assert differences((x,), x)
