"""GGUF files written again in another format, next to what the ``gguf`` package makes of them."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

import ostinato as ost
from ostinato.frontends.gguf import GGUFFile
from ostinato.llm.quantize import quantize_file

TYPES = gguf.GGMLQuantizationType
TARGETS = {
    "q8_0": TYPES.Q8_0,
    "q4_0": TYPES.Q4_0,
    "q4_1": TYPES.Q4_1,
    "q5_0": TYPES.Q5_0,
    "q5_1": TYPES.Q5_1,
    "int8": TYPES.Q8_0,
    "int4": TYPES.Q4_0,
    "bfloat16": TYPES.BF16,
}


def write_source(path: Path, seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    """A file of every kind of tensor that there is to convert; gives the elements of each."""
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, "llama", use_temp_file=False)
    writer.add_uint32("llama.block_count", 2)
    writer.add_file_type(1)
    writer.add_token_list(["a", "b", "☃"])
    matrix = rng.standard_normal((6, 64), dtype=np.float32)
    found = {
        "token_embd.weight": matrix,
        "blk.0.attn_q.weight": matrix[::-1].copy(),
        "blk.0.attn_norm.weight": matrix[0],
        "blk.0.ffn_gate_inp.weight": matrix,
        "blk.0.odd.weight": rng.standard_normal((5, 33), dtype=np.float32),
        "blk.0.ffn_up_exps.weight": rng.standard_normal((3, 4, 96), dtype=np.float32),
    }
    for name, array in found.items():
        writer.add_tensor(name, array)
    writer.add_tensor("half", matrix.astype(np.float16))
    found["half"] = matrix.astype(np.float16).astype(np.float32)
    packed = gguf.quantize(matrix, TYPES.Q8_0)
    writer.add_tensor("packed", packed, raw_dtype=TYPES.Q8_0)
    found["packed"] = gguf.dequantize(packed, TYPES.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return found


@pytest.mark.parametrize("to", TARGETS)
def test_matrices_are_those_of_the_package(tmp_path: Path, to: Any) -> None:
    source, target = tmp_path / "a.gguf", tmp_path / "b.gguf"
    elements = write_source(source)
    seen = []
    result = quantize_file(source, target, to, progress=lambda *step: seen.append(step))
    before, after = GGUFFile(source), GGUFFile(target)
    kept = {"blk.0.attn_norm.weight", "blk.0.ffn_gate_inp.weight"}
    if to != "bfloat16":
        kept.add("blk.0.odd.weight")
    for tensor in gguf.GGUFReader(target).tensors:
        name = tensor.name
        if name in kept or (name == "packed" and TARGETS[to] == TYPES.Q8_0):
            assert after.tensors[name].stored.tobytes() == before.tensors[name].stored.tobytes()
        else:
            assert tensor.tensor_type == TARGETS[to]
            expected = gguf.quantize(elements[name], TARGETS[to])
            assert tensor.data.tobytes() == expected.tobytes(), name
    assert list(after.tensors) == list(before.tensors)
    assert after.metadata["tokenizer.ggml.tokens"] == ["a", "b", "☃"]
    assert after.encoded_value("llama.block_count") == before.encoded_value("llama.block_count")
    names = {tensor.name: tensor for tensor in result.tensors}
    assert names["half"].source == "f16"
    assert result.target_bytes == target.stat().st_size
    assert seen[-1][0] == "quantize"
    assert seen[-1][1] == seen[-1][2]
    assert "tensors converted" in str(result)


def test_skipped_tensors_stay(tmp_path: Path) -> None:
    source, target = tmp_path / "a.gguf", tmp_path / "b.gguf"
    write_source(source)
    quantize_file(source, target, "q4_0", skip=["token_*", "half"])
    types = {name: tensor.type.name for name, tensor in GGUFFile(target).tensors.items()}
    assert types["token_embd.weight"] == "f32"
    assert types["half"] == "f16"
    assert types["blk.0.attn_q.weight"] == "q4_0"


def test_a_file_may_replace_itself(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    write_source(path)
    quantize_file(path, path, "q8_0")
    once = path.read_bytes()
    quantize_file(path, path, "q8_0")
    assert path.read_bytes() == once


def test_what_is_wrong_is_said_and_nothing_is_written(tmp_path: Path) -> None:
    source, target = tmp_path / "a.gguf", tmp_path / "b.gguf"
    write_source(source)
    wrong: Any = "q3_k"
    with pytest.raises(ost.InputError, match="not to 'q3_k'"):
        quantize_file(source, target, wrong)
    with pytest.raises(ost.InputError, match="sequence of patterns"):
        quantize_file(source, target, "q8_0", skip="half")
    with pytest.raises(ost.ModelFormatError):
        quantize_file(Path(__file__), target, "q8_0")
    with pytest.raises(OSError, match="absent"):
        quantize_file(source, tmp_path / "absent" / "b.gguf", "q8_0")
    writer = gguf.GGUFWriter(source, "llama")
    writer.add_tensor("nan", np.full((2, 32), np.nan, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ost.InputError, match=r"'nan'.*NaN"):
        quantize_file(source, target, "q8_0")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.gguf"]


def test_a_large_tensor_is_never_in_memory(tmp_path: Path) -> None:
    source, target = tmp_path / "a.gguf", tmp_path / "b.gguf"
    writer = gguf.GGUFWriter(source, "llama")
    writer.add_tensor("w", np.ones((1 << 13, 1 << 10), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    tracemalloc.start()
    quantize_file(source, target, "q4_0")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 24 << 20
