"""Safetensors files: round trips, and errors for damaged files."""

from __future__ import annotations

import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ostinato as ost
from ostinato.moe.safetensors import SafetensorsFile, write_safetensors


def test_what_is_written_is_read(tmp_path):
    arrays = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "none": np.empty((0, 4), np.int8),
        "scalar": np.float64(7).reshape(()),
        "b": np.arange(4).astype(ml_dtypes.bfloat16)[::2],
        "flags": np.array([True, False]),
    }
    write_safetensors(tmp_path / "f", arrays)
    read = SafetensorsFile(tmp_path / "f")
    assert list(read.tensors) == list(arrays)
    for name, found in read.tensors.items():
        data = read.file.read(found.offset, arrays[name].nbytes)
        array = np.frombuffer(data, found.dtype.numpy).reshape(found.shape)
        np.testing.assert_array_equal(array, arrays[name])


def test_the_package_agrees(tmp_path):
    safetensors = pytest.importorskip("safetensors.numpy")
    arrays = {"x": np.arange(5, dtype=np.int16), "y": np.ones((2, 2), np.float16)}
    write_safetensors(tmp_path / "ours", arrays)
    for name, array in safetensors.load_file(tmp_path / "ours").items():
        np.testing.assert_array_equal(array, arrays[name])
    safetensors.save_file(arrays, tmp_path / "theirs", metadata={"format": "np"})
    assert SafetensorsFile(tmp_path / "theirs").tensors.keys() == arrays.keys()


def test_what_the_format_has_no_name_for(tmp_path):
    for name, array in (("x", np.zeros(2, np.complex64)), ("__metadata__", np.zeros(2))):
        with pytest.raises(ost.OstinatoError):
            write_safetensors(tmp_path / "f", {name: array})


def encoded(header: Any, data: bytes = bytes(16)) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(**changes: Any) -> dict[str, Any]:
    return {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16], **changes}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"1234567",
        (1 << 63).to_bytes(8, "little"),
        encoded(b"\xff\xfe"),
        encoded(b"[" * 100_000),
        encoded(b'{"a": 1, "a": 1}'),
        encoded([1]),
        encoded({"a": 5}),
        *(
            encoded({"a": entry(**changes)})
            for changes in (
                {"shape": [2, 3]},
                {"shape": [-2, -2]},
                {"shape": [2.0, 2]},
                {"shape": [True, 4]},
                {"shape": None},
                {"shape": [1 << 40] * 70},
                {"dtype": 5},
                {"dtype": "F64"},
                {"data_offsets": [0, 17]},
                {"data_offsets": [16, 0]},
                {"data_offsets": [1 << 70, (1 << 70) + 16]},
                {"data_offsets": [0]},
                {"data_offsets": "ab"},
            )
        ),
    ],
)
def test_damaged_files(tmp_path, content):
    (tmp_path / "f").write_bytes(content)
    with pytest.raises(ost.ModelFormatError, match="no safetensors file"):
        SafetensorsFile(tmp_path / "f")


def test_tensors_of_dtypes_that_are_unknown_here_are_left_out(tmp_path):
    header = {"__metadata__": {"k": "v"}, "a": entry(), "b": entry(dtype="F8_E9M9")}
    (tmp_path / "f").write_bytes(encoded(header))
    assert list(SafetensorsFile(tmp_path / "f").tensors) == ["a"]


@settings(max_examples=200, deadline=None)
@given(position=st.integers(0, 120), value=st.integers(0, 255), cut=st.integers(0, 140))
def test_any_change_of_a_byte_is_read_or_refused(tmp_path_factory, position, value, cut):
    content = bytearray(encoded({"a": entry(), "b": entry(shape=[4])}))
    content[position % len(content)] = value
    path = tmp_path_factory.mktemp("file") / "f"
    path.write_bytes(content[: len(content) - cut] if cut < len(content) else content)
    try:
        found = SafetensorsFile(path)
    except ost.ModelFormatError:
        return
    for tensor in found.tensors.values():
        nbytes = int(np.prod(tensor.shape)) * tensor.dtype.itemsize
        assert len(found.file.read(tensor.offset, nbytes)) == nbytes
