"""Packed experts on devices that have no packed matmuls: 16 bits wide, in memory and in files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bench.synthetic_llama import Shape, write_llama

import ostinato as ost
from ostinato.dtypes import BFLOAT16, FLOAT16, FLOAT32
from ostinato.errors import InputError
from ostinato.llm.checkpoints import Checkpoint, open_checkpoint
from ostinato.llm.device_weights import computed_bytes, for_device
from ostinato.llm.encoder import Encoder
from ostinato.llm.expert_files import CheckpointExperts
from ostinato.llm.step import StepGraph
from ostinato.llm.step_sizes import StepLimits
from ostinato.records import replace
from tests.devices.registered import open_session
from tests.llm.greedy import forced, spread_blocks
from tests.llm.test_packed_experts import error_of, packed_model
from tests.llm.tiny_models import prompt
from tests.llm.widened import elements_of, widened

PARTS = ("gate", "up", "down")


@pytest.fixture(scope="module")
def cuda() -> ost.Session:
    """The CUDA device, with a driver in this process."""
    return open_session("cudahost")


def test_devices_with_packed_matmuls_take_them_as_they_are(tmp_path: Path) -> None:
    checkpoint = packed_model("mixtral_gguf", tmp_path)
    assert for_device(checkpoint, ost.Session("cpu").capabilities) is checkpoint


@pytest.mark.parametrize(
    ("kind", "dtype"), [("mixtral_gguf", FLOAT16), ("gpt_oss_mxfp4", BFLOAT16)]
)
def test_elements_are_rounded_to_16_bits(
    kind: str, dtype: ost.DType, cuda: ost.Session, tmp_path: Path
) -> None:
    """And read from their files by matrix; those of MXFP4 are exact."""
    checkpoint = packed_model(kind, tmp_path)
    floats = for_device(checkpoint, cuda.capabilities)
    for name, weight in floats.weights.items():
        if ".experts." not in name or not name.endswith(".weight"):
            assert weight is checkpoint.weights[name]
            continue
        assert (weight.format, weight.source.dtype) == (None, dtype)
        exact = elements_of(checkpoint.weights[name])
        found = weight.source.read()
        assert weight.shape == weight.source.shape == found.shape == exact.shape
        np.testing.assert_array_equal(found, exact.astype(dtype.numpy))
        in_files = weight.source.matrices(name)
        assert in_files is not None
        np.testing.assert_array_equal(in_files.read(), found)
    if dtype == BFLOAT16:
        np.testing.assert_array_equal(found.astype(np.float32), exact)
    without = replace(cuda.capabilities, dtypes=frozenset({FLOAT32}))
    assert for_device(checkpoint, without).weights == dict(checkpoint.weights)


@pytest.mark.parametrize("kind", ["mixtral_gguf", "gpt_oss_mxfp4"])
def test_answers_and_memory(kind: str, cuda: ost.Session, tmp_path: Path) -> None:
    """Of the params, and as the report says: half of what elements of 32 bits take, or less."""
    checkpoint = packed_model(kind, tmp_path)
    texts = [prompt(checkpoint.config.vocabulary, 5, 0)]
    (exact,) = Encoder(widened(checkpoint), context=64).rows(texts)
    encoder = Encoder(checkpoint, session=cuda, context=64)
    (found,) = encoder.rows(texts)
    assert error_of(found, exact) < 0.04
    wide = sum(
        4 * np.prod(weight.shape)
        for name, weight in checkpoint.weights.items()
        if ".experts." in name and name.endswith(".weight")
    )
    others = encoder.plan.memory.param_bytes - wide // 2
    assert 0 < others < 300_000


def layer(checkpoint: Checkpoint, rows: int) -> ost.Graph:
    """The experts of the first layer."""
    g = ost.Graph("layer")
    weights = [checkpoint.weights[f"0.experts.{part}.weight"] for part in PARTS]
    matrices = [
        g.param(weight.name, weight.source.shape, weight.source.dtype, value=weight.source)
        for weight in weights
    ]
    x, ids = g.input("x", (rows, weights[0].shape[1])), g.input("ids", (rows, 2), "int64")
    g.set_outputs([g.expert_mlp(x, ids, g.full((rows, 2), 0.5), *matrices)])
    return g


def test_a_budget_leaves_them_in_their_file(cuda: ost.Session, tmp_path: Path) -> None:
    checkpoint = for_device(packed_model("mixtral_gguf", tmp_path), cuda.capabilities)
    g = layer(checkpoint, 2)
    rng = np.random.default_rng(0)
    inputs = {"x": rng.standard_normal((2, g.inputs["x"].shape[1])).astype(np.float32)}
    inputs["ids"] = np.array([[4, 0], [2, 4]])
    whole = cuda.compile(g)
    assert "params: float16" in whole.explain()
    experts = CheckpointExperts(checkpoint)
    part = cuda.compile(layer(checkpoint, 2), experts=experts, expert_budget=160_000)
    (described,) = part.moe_layers
    assert described.slots is not None
    assert 0 <= described.slots < 5
    np.testing.assert_array_equal(part.run(inputs), whole.run(inputs))


def test_packed_matmuls_on_such_devices(cuda: ost.Session, tmp_path: Path) -> None:
    """Weights are decoded once, which the report says, and have no place in a file."""
    checkpoint = packed_model("mixtral_gguf", tmp_path)
    weight = checkpoint.weights["0.experts.up.weight"]
    g = ost.Graph("packed")
    w = g.param(weight.name, weight.source.shape, "uint8", value=weight.source)
    x, ids = g.input("x", (3, weight.shape[1])), g.input("ids", (3,), "int64")
    assert weight.format is not None
    g.set_outputs([g.packed_grouped_matmul(x, w, ids, weight.format)])
    assert "decoded packed weights to float32" in cuda.compile(g).explain()
    assert "decoded" not in ost.Session("cpu").compile(g).explain()
    with pytest.raises(InputError, match="that decodes packed matrices can not leave them there"):
        cuda.compile(g, experts=CheckpointExperts(checkpoint), expert_budget=1 << 20)


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """A llama whose matrices are blocks of four bits."""
    path = tmp_path_factory.mktemp("gguf") / "llama.gguf"
    shape = Shape(layers=1, width=128, heads=4, kv_heads=2, hidden=192, vocabulary=128, context=256)
    write_llama(path, "q4_0", shape)
    return open_checkpoint(path)


def test_packed_matrices_are_decoded_once(cuda: ost.Session, gguf: Checkpoint) -> None:
    """To bfloat16 where the model is compiled, for steps of all sizes; tables stay packed."""
    limits = StepLimits(rows=32, sequences=2, picks=2, blocks=4, context=128, adjustments=2)
    found = []
    for session in (ost.Session("cpu"), cuda):
        step = StepGraph(gguf, limits, session=session)
        spread_blocks(step)
        found.append(forced(step, prompt(128, 6, 0), [5], chunk=5)[1])
    assert error_of(found[1], found[0]) < 0.05
    kernels = [kernel.name for kernel in step.plan.kernels]
    assert not any("bitwise" in name and "matmul" in name for name in kernels)
    first, *others = members(step)
    assert others
    assert all(other._weight_form == first._weight_form for other in others)
    assert all(
        other.memory.weights.block.memory is first.memory.weights.block.memory for other in others
    )


def members(step: StepGraph) -> list[Any]:
    executable: Any = step._graph._execution.executable
    return [member.executable for member in executable._members.values()]


def test_matrices_stay_packed_where_memory_is_short(cuda: ost.Session, gguf: Checkpoint) -> None:
    wide = 2 * sum(
        weight.shape[0] * weight.shape[1]
        for weight in gguf.weights.values()
        if weight.format is not None
    )
    for free, dtype in ((2 * wide, BFLOAT16), (wide, None), (None, None)):
        made = for_device(gguf, cuda.capabilities, free)
        packed = [weight for weight in made.weights.values() if weight.format is not None]
        assert {weight.decoded for weight in packed} == {dtype}
        nbytes = sum(map(computed_bytes, packed))
        assert nbytes == (wide if dtype else wide // 2 // 32 * 18)
    cpu = ost.Session("cpu").capabilities
    assert for_device(gguf, cpu, 2 * wide).weights == gguf.weights
