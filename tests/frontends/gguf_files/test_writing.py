"""GGUF files that are written: read back by our reader and by the ``gguf`` package's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from ostinato.errors import InputError
from ostinato.frontends.gguf import GGUFFile
from ostinato.frontends.gguf.tensor_types import TENSOR_TYPES
from ostinato.frontends.gguf.writer import GGUFWriter, TensorEntry, encoded_value

VALUES: dict[str, Any] = {
    "general.architecture": "llama",
    "flag": True,
    "count": 7,
    "large": 1 << 40,
    "negative": -3,
    "ratio": 0.5,
    "names": ["a", "naïve ☃", ""],
    "numbers": np.arange(5, dtype=np.int16),
    "flags": np.array([True, False]),
    "double": np.float64(1e-300),
    "nothing": [],
}


def encoded() -> dict[str, bytes]:
    return {key: encoded_value(value) for key, value in VALUES.items()}


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = [
        rng.standard_normal((3, 5), dtype=np.float32),
        rng.standard_normal(7).astype(np.float16),
        rng.integers(0, 256, (2, 34), np.uint8),
        np.empty((0, 4), np.float32),
        np.array(2.5, np.float32),
    ]
    kinds = (0, 1, 8, 0, 0)
    sizes: tuple[tuple[int, ...], ...] = ((3, 5), (7,), (2, 32), (0, 4), ())
    entries = [
        TensorEntry(f"t{number}", size, TENSOR_TYPES[kind])
        for number, (size, kind) in enumerate(zip(sizes, kinds, strict=True))
    ]
    path = tmp_path / "a.gguf"
    with GGUFWriter(path, encoded(), entries) as writer:
        for array in arrays:
            for row in array if array.ndim > 1 else [array]:
                writer.write(np.ascontiguousarray(row))
        assert not path.exists()
    file = GGUFFile(path)
    for key, value in VALUES.items():
        assert np.array_equal(file.metadata[key], value), key
        assert file.encoded_value(key) == encoded_value(value)
    for entry, array in zip(entries, arrays, strict=True):
        assert file.tensors[entry.name].stored.tobytes() == array.tobytes()
    theirs = gguf.GGUFReader(path)
    assert [tensor.name for tensor in theirs.tensors] == [entry.name for entry in entries]
    assert theirs.tensors[0].data.tobytes() == arrays[0].tobytes()
    assert [p.name for p in tmp_path.iterdir()] == ["a.gguf"]


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(b"before")
    entries = [TensorEntry("t", (4,), TENSOR_TYPES[0])]
    with pytest.raises(InputError, match="not written"), GGUFWriter(path, {}, entries):
        pass
    with pytest.raises(InputError, match="more than"), GGUFWriter(path, {}, entries) as writer:
        writer.write(np.zeros(5, np.float32))
    with pytest.raises(KeyError), GGUFWriter(path, {}, entries):
        raise KeyError
    assert path.read_bytes() == b"before"
    assert [p.name for p in tmp_path.iterdir()] == ["a.gguf"]


def test_what_no_file_has_is_refused(tmp_path: Path) -> None:
    for value in (None, [1, "a"], np.zeros((2, 2)), object(), np.array(["a"])):
        with pytest.raises(InputError, match="no values"):
            encoded_value(value)
    path = tmp_path / "a.gguf"
    with pytest.raises(InputError, match="blocks of 32"):
        GGUFWriter(path, {}, [TensorEntry("t", (2, 33), TENSOR_TYPES[2])])
    with pytest.raises(InputError, match="same name"):
        GGUFWriter(path, {}, [TensorEntry("t", (2,), TENSOR_TYPES[0])] * 2)
    assert list(tmp_path.iterdir()) == []
