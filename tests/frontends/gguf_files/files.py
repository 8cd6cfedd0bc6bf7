"""GGUF files made byte by byte, so that any part of one can be wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tests.packed_blocks import SCALES, random_blocks

__all__ = ["File", "Tensor", "string", "uint", "write_everything"]


def uint(value: int, nbytes: int) -> bytes:
    return value.to_bytes(nbytes, "little")


def string(text: str | bytes) -> bytes:
    octets = text.encode() if isinstance(text, str) else text
    return uint(len(octets), 8) + octets


@dataclass
class Tensor:
    """An entry of the tensor table, its dims innermost first as files have them."""

    name: str | bytes = "t"
    dims: Sequence[int] = (4,)
    type: int = 0
    offset: int = 0

    def octets(self) -> bytes:
        dims = b"".join(uint(dim, 8) for dim in self.dims)
        rest = dims + uint(self.type, 4) + uint(self.offset, 8)
        return string(self.name) + uint(len(self.dims), 4) + rest


@dataclass
class File:
    """A file; each entry of metadata is a key, the number of a type, and the value's bytes."""

    metadata: Sequence[tuple[str | bytes, int, bytes]] = ()
    tensors: Sequence[Tensor] = ()
    data: bytes = b""
    magic: bytes = b"GGUF"
    version: bytes = uint(3, 4)
    counts: tuple[int | None, int | None] = (None, None)
    alignment: int = 32
    cut: int | None = field(default=None)

    def octets(self) -> bytes:
        tensors, entries = self.counts
        found = self.magic + self.version
        found += uint(len(self.tensors) if tensors is None else tensors, 8)
        found += uint(len(self.metadata) if entries is None else entries, 8)
        for key, kind, value in self.metadata:
            found += string(key) + uint(kind, 4) + value
        for tensor in self.tensors:
            found += tensor.octets()
        if self.tensors:
            found += b"\0" * (-len(found) % self.alignment) + self.data
        return found[: self.cut]

    def write(self, folder: Path) -> Path:
        path = folder / "file.gguf"
        path.write_bytes(self.octets())
        return path


def write_everything(path: Path, seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    """Write a file with every type of value and of tensor; gives the elements of each tensor."""
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_string("text", "naïve ☃")
    for name, value in (
        ("uint8", 200),
        ("uint16", 60000),
        ("uint32", 4 << 29),
        ("uint64", 1 << 63),
    ):
        getattr(writer, f"add_{name}")(name, value)
    for name, value in (("int8", -100), ("int16", -30000), ("int32", -(1 << 31)), ("int64", -9)):
        getattr(writer, f"add_{name}")(name, value)
    writer.add_float32("float32", 0.5)
    writer.add_float64("float64", 0.1)
    writer.add_bool("bool", True)
    writer.add_array("strings", ["a", "", "☃", "d"])
    writer.add_array("integers", [1, -2, 3])
    writer.add_array("floats", [0.5, -1.5])
    writer.add_array("flags", [True, False])
    expected: dict[str, np.ndarray[Any, Any]] = {}
    for name in ("float32", "float16", "float64", "int8", "int16", "int32", "int64"):
        array = (rng.standard_normal((3, 5)) * 20).astype(name)
        expected[name] = array
        writer.add_tensor(name, array)
    for name in SCALES:
        blocks = random_blocks(rng, name, 6, hard=False).reshape(3, -1)
        kind = gguf.GGMLQuantizationType[name.upper()]
        writer.add_tensor(name, blocks, raw_dtype=kind)
        expected[name] = gguf.dequantize(blocks, kind)
    bits = rng.integers(0, 1 << 15, (2, 8)).astype("<u2")
    writer.add_tensor("bf16", bits.view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)
    expected["bf16"] = (bits.astype("<u4") << 16).view("<f4")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return expected
