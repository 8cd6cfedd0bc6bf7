"""Every runtime builds the same functions: small models of each kind, all sides held together."""

from __future__ import annotations

import numpy as np
import pytest
from bench.compare.peers import MODULES, OURS, PEERS, load, version
from bench.compare.workloads import WORKLOADS, Decode, Encoder, Mlp, Moe, Rowwise, Tiny, Workload


class SmallDecode(Decode):
    layers, hidden, heads, kv_heads, ff, vocabulary = 2, 32, 4, 2, 48, 40
    context, head_dim = 9, 8
    output_shapes = ((1, vocabulary),)


class SmallRowwise(Rowwise):
    rows, columns = 5, 70
    output_shapes = ((rows, columns),)


class SmallMoe(Moe):
    hidden, ff, experts, top = 16, 24, 4, 2


SMALL: dict[str, Workload] = {
    "tiny": Tiny(),
    "mlp": Mlp(3),
    "encoder": Encoder(2, 32, 4, 48, batch=2, length=5),
    "decode": SmallDecode(),
    "rowwise": SmallRowwise(),
    "one token": SmallMoe(1),
    "many tokens": SmallMoe(7),
}
#: Those that the environment of `make test` has; the others are compared by each run of the bench.
HERE = tuple(side for side in ("onnxruntime", "openvino") if version(side))


@pytest.mark.parametrize("side", HERE)
@pytest.mark.parametrize("workload", SMALL.values(), ids=SMALL)
def test_small_models_agree_with_ours(workload: Workload, side: str) -> None:
    results = []
    for name in (OURS, side):
        prepared = load(name).prepare(workload, 1)
        for _ in range(2):  # a cache that is written holds the same rows again
            prepared.call()
        results.append(prepared.outputs())
    for ours, theirs, shape in zip(*results, workload.output_shapes, strict=True):
        assert ours.shape == theirs.shape == shape
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_weights_and_inputs_are_the_same_everywhere() -> None:
    first, second = Mlp(3), Mlp(3)
    for name, array in first.weights.items():
        np.testing.assert_array_equal(array, second.weights[name])
        assert array.dtype == np.float32
        assert array.std() > 0
    np.testing.assert_array_equal(first.inputs["x"], second.inputs["x"])


@pytest.mark.parametrize(
    "name, flops, read",
    [
        ("mlp_b1", 1.337e6, 2.68e6),
        ("bert_1x128", 22.35e9, 340.6e6),
        ("resnet50", 8.18e9, 103e6),
        ("decode", 0.361e9, 710e6),
        ("moe_1", 44.06e6, 88.1e6),
        ("moe_64", 2.82e9, 352.6e6),
    ],
)
def test_counted_work(name: str, flops: float, read: float) -> None:
    workload = WORKLOADS[name]
    assert workload.flops == pytest.approx(flops, rel=2e-3)
    assert workload.memory_read == pytest.approx(read, rel=2e-3)


def test_sides_have_modules_and_versions() -> None:
    assert OURS in MODULES
    assert set(PEERS) == set(MODULES) - {OURS}
    assert version(OURS)
    assert version("no such runtime") is None
