"""Every runtime builds the same functions: small models of each kind, all sides held together."""

from __future__ import annotations

import numpy as np
import pytest
from bench.compare.networks import Network, Recogniser
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


class SmallNetwork(Network):
    """Every kind of layer."""

    image = (1, 3, 16, 16)

    def build(self, x: str) -> str:
        x = self.pool("max_pool", self.conv(x, 16, 3, padding=1), 3, 2, 1)
        x = self.map("relu6", self.affine(x))
        x = self.shuffle(self.depthwise(x, 3, then="hard_swish"), 4)
        low, high = self.split(x, 8)
        x = self.concat(low, self.map("add", high, self.conv(high, 8, then="silu")))
        x = self.map("multiply", x, self.conv(self.global_pool(x), 16, then="hard_sigmoid"))
        x = self.upsample(self.pool("avg_pool", x, 3, 2, 1))
        x = self.map("sigmoid", self.conv(x, 32, 3, (2, 1), groups=2))
        bins = self.expect(self.flatten(x), 16)
        return self.concat(bins, bins, axis=2)


class SmallRecogniser(Recogniser):
    """The layers of a recogniser's end."""

    image, symbols = (1, 12, 1, 9), 11

    def build(self, x: str) -> str:
        return self.map("softmax", self.linear(self.columns(x), self.symbols))


SMALL: dict[str, Workload] = {
    "network": SmallNetwork(),
    "recogniser": SmallRecogniser(),
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
        ("mobilenet_v2", 0.6015e9, 14.56e6),
        ("densenet121", 5.668e9, 32.5e6),
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
