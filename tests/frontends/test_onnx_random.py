"""Random numbers: the generator's own test vectors, and the shape of its distributions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import ostinato as ost


def compiled(op_type: str, *inputs: Any, name: str = "noise", **attributes: Any) -> Any:
    names = [f"x{i}" for i in range(len(inputs))]
    node = helper.make_node(op_type, names, ["y"], name=name, **attributes)
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in zip(names, inputs, strict=True)
    ]
    graph = helper.make_graph([node], "g", infos, [helper.make_empty_tensor_value_info("y")])
    opsets = [helper.make_opsetid("", 22)]
    loaded = ost.load_onnx(helper.make_model(graph, opset_imports=opsets, ir_version=10))
    program = ost.Session("cpu").compile(loaded)
    feeds = dict(zip(names, inputs, strict=True))
    return lambda: program.run(feeds)[0]


def philox(counter: list[int], key: list[int]) -> list[int]:
    """Philox4x32-10, one block."""
    mask = (1 << 32) - 1
    for _ in range(10):
        a, b = counter[0] * 0xD2511F53, counter[2] * 0xCD9E8D57
        first, third = (b >> 32) ^ counter[1] ^ key[0], (a >> 32) ^ counter[3] ^ key[1]
        counter = [first, b & mask, third, a & mask]
        key = [(key[0] + 0x9E3779B9) & mask, (key[1] + 0xBB67AE85) & mask]
    return counter


def test_the_published_vectors() -> None:
    """Of the authors' ``kat_vectors``."""
    zeros = [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    ones = [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]
    assert philox([0] * 4, [0] * 2) == zeros
    assert philox([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2) == ones


@pytest.mark.parametrize("shape", [(1,), (7,), (3, 5)])
def test_words_are_those_of_the_generator(shape) -> None:
    run = compiled("RandomUniform", shape=shape, seed=0.0, dtype=TensorProto.DOUBLE)
    size = int(np.prod(shape))
    for number in range(3):
        blocks = [philox([i, 0, number, 0], [0, 0]) for i in range(-(-size // 4))]
        expected = np.array([word for block in blocks for word in block][:size]) * 2.0**-32
        np.testing.assert_array_equal(run(), expected.reshape(shape))


def test_nodes_and_seeds_differ_and_programs_repeat() -> None:
    runs = [
        compiled("RandomUniform", shape=[50], seed=1.0),
        compiled("RandomUniform", shape=[50], seed=2.0),
        compiled("RandomUniform", shape=[50], name="a"),
        compiled("RandomUniform", shape=[50], name="b"),
    ]
    results = [run() for run in runs]
    assert len({r.tobytes() for r in results}) == 4
    again = compiled("RandomUniform", shape=[50], name="b")
    np.testing.assert_array_equal(again(), results[3])
    assert (again() != results[3]).any()


@pytest.mark.parametrize("dtype", [TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE])
def test_uniform_numbers(dtype) -> None:
    x = compiled("RandomUniform", shape=[20000], low=-1.0, high=3.0, dtype=dtype)()
    x = x.astype(np.float64)
    assert x.min() >= -1
    assert x.max() <= 3
    assert abs(x.mean() - 1) < 0.05
    assert abs(x.std() - 4 / np.sqrt(12)) < 0.05


def test_normal_numbers() -> None:
    like = np.zeros((100, 101), np.float32)
    x = compiled("RandomNormalLike", like, mean=2.0, scale=3.0)()
    assert x.shape == like.shape
    assert abs(x.mean() - 2) < 0.1
    assert abs(x.std() - 3) < 0.1
    assert abs(((x - 2) / 3 > 1).mean() - 0.1587) < 0.02


def test_classes_are_drawn_by_their_probabilities() -> None:
    logits = np.log(np.float32([[0.1, 0.6, 0.3], [1e-9, 1e-9, 1]]))
    x = compiled("Multinomial", logits, sample_size=4000, dtype=TensorProto.INT64)()
    assert x.dtype == np.int64
    np.testing.assert_allclose(np.bincount(x[0]) / 4000, [0.1, 0.6, 0.3], atol=0.05)
    assert (x[1] == 2).all()


def test_a_share_of_the_elements_is_dropped() -> None:
    node = helper.make_node("Dropout", ["x", "ratio", "training"], ["y", "mask"], seed=5)
    infos = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [4000]),
        helper.make_tensor_value_info("ratio", TensorProto.FLOAT, []),
        helper.make_tensor_value_info("training", TensorProto.BOOL, []),
    ]
    empty = [helper.make_empty_tensor_value_info(name) for name in ("y", "mask")]
    model = helper.make_model(helper.make_graph([node], "g", infos, empty), ir_version=10)
    graph = ost.load_onnx(model, constants={"ratio": 0.25, "training": True})
    x = np.ones(4000, np.float32)
    y, mask = ost.Session("cpu").compile(graph).run({"x": x})
    assert abs(mask.mean() - 0.75) < 0.03
    np.testing.assert_allclose(y, np.where(mask, 1 / 0.75, 0), rtol=1e-6)
