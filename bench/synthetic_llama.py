"""A GGUF file of a llama with random weights: as large as wanted, in any packed format.

``python -m bench.synthetic_llama q4_0 /tmp/llama-q4_0.gguf`` writes 1.1 billion weights, the sizes
of TinyLlama: more than any cache holds, and read by llama.cpp as well. Codes of blocks are random
bytes; scales are those of weights with a standard deviation of about 0.02.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ostinato.frontends.gguf.tensor_types import TENSOR_TYPES, TensorType
from ostinato.frontends.gguf.writer import GGUFWriter, TensorEntry, encoded_value
from ostinato.ops.packed.decoding import decode

__all__ = ["FORMATS", "Shape", "write_llama"]

#: By name: the number of the type of tensors.
_NUMBERS = {
    "q4_0": 2,
    "q4_1": 3,
    "q5_0": 6,
    "q5_1": 7,
    "q8_0": 8,
    "q2_k": 10,
    "q3_k": 11,
    "q4_k": 12,
    "q5_k": 13,
    "q6_k": 14,
    "iq4_nl": 20,
    "iq4_xs": 23,
    "bf16": 30,
}
FORMATS = tuple(_NUMBERS)

_DEVIATION = 0.02
_CHUNK = 1 << 22

#: Bytes of a block that hold float16 scales, by format; other bytes are random.
_SCALES = {
    "q4_0": (0,),
    "q4_1": (0, 2),
    "q5_0": (0,),
    "q5_1": (0, 2),
    "q8_0": (0,),
    "q2_k": (80, 82),
    "q3_k": (108,),
    "q4_k": (0, 2),
    "q5_k": (0, 2),
    "q6_k": (208,),
    "iq4_nl": (0,),
    "iq4_xs": (0,),
}


@dataclass(frozen=True)
class Shape:
    """The sizes of a llama; by default 1.1 billion weights."""

    layers: int = 22
    width: int = 2048
    heads: int = 32
    kv_heads: int = 4
    hidden: int = 5632
    vocabulary: int = 32000
    context: int = 4096

    @property
    def matrices(self) -> dict[str, tuple[int, int]]:
        """Rows and columns of all matrices, by name."""
        keys = self.width // self.heads * self.kv_heads
        found = {"token_embd.weight": (self.vocabulary, self.width)}
        for layer in range(self.layers):
            for name, size in (
                ("attn_q", (self.width, self.width)),
                ("attn_k", (keys, self.width)),
                ("attn_v", (keys, self.width)),
                ("attn_output", (self.width, self.width)),
                ("ffn_gate", (self.hidden, self.width)),
                ("ffn_up", (self.hidden, self.width)),
                ("ffn_down", (self.width, self.hidden)),
            ):
                found[f"blk.{layer}.{name}.weight"] = size
        found["output.weight"] = (self.vocabulary, self.width)
        return found


def write_llama(path: Path, form: str, shape: Shape = Shape(), seed: int = 0) -> None:
    """Write such a file.

    Args:
        path: of the file.
        form: the format of the matrices, one of :data:`FORMATS`.
        shape: of the model.
        seed: of the weights.
    """
    rng = np.random.default_rng(seed)
    kind, floats = TENSOR_TYPES[_NUMBERS[form]], TENSOR_TYPES[0]
    entries = []
    for name, sizes in shape.matrices.items():
        if name.endswith("attn_q.weight"):
            prefix = name.removesuffix("attn_q.weight")
            entries += [
                TensorEntry(f"{prefix}{norm}.weight", (shape.width,), floats)
                for norm in ("attn_norm", "ffn_norm")
            ]
        entries.append(TensorEntry(name, sizes, kind))
    entries.append(TensorEntry("output_norm.weight", (shape.width,), floats))
    pattern = _blocks(form, kind, rng)
    with GGUFWriter(path, _metadata(shape), entries) as writer:
        for entry in entries:
            if entry.type is floats:
                writer.write(np.ones(entry.sizes, np.float32))
                continue
            left = entry.nbytes
            while left:
                # Each part starts elsewhere in the pattern, at a block.
                start = int(rng.integers(0, len(pattern) // 2))
                part = pattern[start:].reshape(-1)[:left]
                writer.write(part)
                left -= len(part)


def _blocks(form: str, kind: TensorType, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Some megabytes of blocks, uint8 ``[blocks, bytes]``."""
    count = _CHUNK // kind.nbytes
    if form == "bf16":
        floats = rng.standard_normal(count, dtype=np.float32) * _DEVIATION
        found: np.ndarray[Any, Any] = floats.view(np.uint32) >> 16
        return found.astype(np.uint16).view(np.uint8).reshape(-1, 2)
    blocks = rng.integers(0, 256, (count, kind.nbytes), np.uint8)
    _set_scales(blocks, form, 1.0, 0.0)
    assert kind.format is not None
    sample = blocks[:4096].copy()
    codes = decode(sample, kind.format)
    scale = _DEVIATION / float(codes.std())
    minimum = 0.0
    if len(_SCALES[form]) > 1:
        _set_scales(sample, form, 0.0, 1.0)
        minimum = -float(codes.mean()) * scale / float(decode(sample, kind.format).mean())
    _set_scales(blocks, form, scale, minimum)
    return blocks


def _set_scales(blocks: np.ndarray[Any, Any], form: str, scale: float, minimum: float) -> None:
    for byte, value in zip(_SCALES[form], (scale, minimum), strict=False):
        blocks[:, byte : byte + 2] = np.array([value], np.float16).view(np.uint8)


def _metadata(shape: Shape) -> dict[str, bytes]:
    special = ["<unk>", "<s>", "</s>"]
    octets = [f"<0x{octet:02X}>" for octet in range(256)]
    words = [f"▁w{number}" for number in range(shape.vocabulary - len(special) - len(octets))]
    kinds = [2, 3, 3] + [6] * len(octets) + [1] * len(words)
    scores = np.zeros(shape.vocabulary, np.float32)
    scores[len(special) + len(octets) :] = -np.arange(len(words), dtype=np.float32)
    values: dict[str, Any] = {
        "general.architecture": "llama",
        "general.name": "synthetic llama",
        "llama.block_count": shape.layers,
        "llama.context_length": shape.context,
        "llama.embedding_length": shape.width,
        "llama.feed_forward_length": shape.hidden,
        "llama.attention.head_count": shape.heads,
        "llama.attention.head_count_kv": shape.kv_heads,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10000.0,
        "llama.rope.dimension_count": shape.width // shape.heads,
        "llama.vocab_size": shape.vocabulary,
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": [*special, *octets, *words],
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": np.array(kinds, np.int32),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    return {key: encoded_value(value) for key, value in values.items()}


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("format", choices=FORMATS)
    parser.add_argument("path", type=Path)
    arguments = parser.parse_args()
    write_llama(arguments.path, arguments.format)
    print(f"{arguments.path}: {arguments.path.stat().st_size:,} bytes")


if __name__ == "__main__":
    _main()
