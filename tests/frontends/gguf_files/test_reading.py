"""GGUF files as the ``gguf`` package writes them, and their tensors as params."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

import ostinato as ost
from ostinato.frontends.gguf import GGUFFile
from ostinato.ops.packed.decoding import decode
from tests.packed_blocks import random_blocks

from .files import File, Tensor, string, uint, write_everything

Array = np.ndarray[Any, Any]


def test_metadata(tmp_path: Path) -> None:
    path = tmp_path / "everything.gguf"
    write_everything(path)
    found = GGUFFile(path)
    assert found.version == 3
    assert found.metadata["general.architecture"] == "llama"
    wanted = {
        "text": "naïve ☃", "uint8": 200, "uint16": 60000, "uint32": 4 << 29, "uint64": 1 << 63,
        "int8": -100, "int16": -30000, "int32": -(1 << 31), "int64": -9, "float32": 0.5,
        "float64": 0.1, "bool": True, "strings": ["a", "", "☃", "d"],
    }  # fmt: skip
    for key, value in wanted.items():
        assert found.metadata[key] == value
        assert type(found.metadata[key]) is type(value)
    for key, array in (("integers", [1, -2, 3]), ("floats", [0.5, -1.5]), ("flags", [True, False])):
        np.testing.assert_array_equal(found.metadata[key], array)
        assert not found.metadata[key].flags.writeable
    assert found.metadata["flags"].dtype == np.bool_
    with pytest.raises(TypeError):
        found.metadata["text"] = 1  # type: ignore[index]


def test_tensors(tmp_path: Path) -> None:
    path = tmp_path / "everything.gguf"
    expected = write_everything(path)
    found = GGUFFile(path)
    assert list(found.tensors) == list(expected)
    for name, array in expected.items():
        tensor, whole = found.tensors[name], found.tensors[name].widened()
        elements = whole.read()
        assert tensor.sizes == whole.shape == elements.shape == array.shape, name
        assert whole.dtype.numpy == elements.dtype
        np.testing.assert_array_equal(elements.astype(np.float64), array.astype(np.float64))
        stored = tensor.read()
        assert stored.shape == tensor.shape
        assert stored.dtype == tensor.dtype.numpy
        if tensor.format is not None:
            np.testing.assert_array_equal(decode(stored, tensor.format), array)
    by_format = {name for name, tensor in found.tensors.items() if tensor.format is not None}
    assert {"q4_0", "q6_k", "mxfp4", "iq4_xs"} <= by_format
    assert not by_format & {"iq2_xxs", "iq1_m", "tq1_0", "nvfp4", "float16"}


def test_tensors_are_mapped(tmp_path: Path) -> None:
    """A read gives the memory of the file, not to be written."""
    path = tmp_path / "mapped.gguf"
    tensor = Tensor(dims=(8, 3), type=0)
    path.write_bytes(File(tensors=[tensor], data=np.arange(24, dtype="f4").tobytes()).octets())
    found = GGUFFile(path).tensors["t"]
    one, other = found.read(), found.read()
    assert one.shape == (3, 8)
    assert np.shares_memory(one, other)
    assert not one.flags.writeable
    np.testing.assert_array_equal(one.reshape(-1), np.arange(24))


def test_the_reader_of_the_gguf_package_agrees(tmp_path: Path) -> None:
    path = tmp_path / "everything.gguf"
    write_everything(path, seed=1)
    found, theirs = GGUFFile(path), gguf.GGUFReader(path)
    for tensor in theirs.tensors:
        ours = found.tensors[tensor.name]
        assert ours.offset == tensor.data_offset
        assert ours.nbytes == tensor.n_bytes


def test_version_2_alignment_and_odd_values(tmp_path: Path) -> None:
    nested = uint(9, 4) + uint(2, 8) + (uint(5, 4) + uint(1, 8) + uint(7, 4)) * 2
    file = File(
        [
            ("general.alignment", 4, uint(8, 4)),
            ("nested", 9, nested),
            ("octets", 8, string(b"\xff\xfe")),
            ("", 0, b"\1"),
        ],
        [Tensor("", (), 24), Tensor("second", (2, 2), 25, 8), Tensor("none", (0, 7), 0, 16)],
        b"\x85" + b"\0" * 7 + np.arange(4, dtype="<i2").tobytes(),
        version=uint(2, 4),
        alignment=8,
    )
    found = GGUFFile(file.write(tmp_path))
    assert found.version == 2
    assert [array.tolist() for array in found.metadata["nested"]] == [[7], [7]]
    assert found.metadata["octets"].encode("utf-8", "surrogateescape") == b"\xff\xfe"
    assert found.metadata[""] == 1
    assert found.tensors[""].read() == -123
    np.testing.assert_array_equal(found.tensors["second"].read(), [[0, 1], [2, 3]])
    assert found.tensors["none"].read().shape == (7, 0)


def test_tensors_as_params(tmp_path: Path) -> None:
    """A model whose weights stay in the file until they are packed."""
    rng = np.random.default_rng(2)
    packed, wide = (random_blocks(rng, name, 6, hard=False) for name in ("q4_k", "iq2_xxs"))
    data = packed.tobytes() + b"\0" * (-packed.nbytes % 32) + wide.tobytes()
    table = [Tensor("a", (512, 3), 12), Tensor("b", (512, 3), 16, -(-packed.nbytes // 32) * 32)]
    found = GGUFFile(File(tensors=table, data=data).write(tmp_path))
    g = ost.Graph("layer")
    x = g.input("x", (2, 512))
    a, b = found.tensors["a"], found.tensors["b"]
    assert (a.format, b.format) == ("gguf:q4_k", None)
    params = {
        name: g.param(name, tensor.shape, tensor.dtype, value=tensor)
        for name, tensor in found.tensors.items()
    }
    g.set_outputs(
        [
            g.packed_matmul(x, params["a"], str(a.format)),
            g.matmul(x, g.permute_dims(params["b"], (1, 0))),
        ]
    )
    compiled = ost.Session("cpu").compile(g)
    data_in = rng.standard_normal((2, 512)).astype(np.float32)
    actual = compiled.run({"x": data_in})
    exact = data_in @ a.widened().read().T
    np.testing.assert_allclose(actual[0], exact, atol=0.02 * np.abs(exact).max())
    np.testing.assert_allclose(actual[1], data_in @ b.read().T, rtol=1e-3, atol=1e-4)


def test_a_file_that_was_written_since(tmp_path: Path) -> None:
    path = File(tensors=[Tensor()], data=b"\0" * 16).write(tmp_path)
    found = GGUFFile(path)
    with path.open("r+b") as file:
        file.seek(0, os.SEEK_END)
        file.write(b"more")
    with pytest.raises(ost.ModelFormatError, match=r"'t': the file 'file.gguf' was written"):
        found.tensors["t"].read()


def test_the_file_may_be_deleted(tmp_path: Path) -> None:
    path = File(tensors=[Tensor()], data=b"\0" * 16).write(tmp_path)
    found = GGUFFile(path)
    path.unlink()
    np.testing.assert_array_equal(found.tensors["t"].read(), np.zeros(4))
    array = found.tensors["t"].read()
    del found
    np.testing.assert_array_equal(array, np.zeros(4))


def test_nothing_imports_the_gguf_package() -> None:
    """It writes files for tests; the reader does without."""
    import subprocess
    import sys

    code = "import sys, ostinato.frontends.gguf; sys.exit('gguf' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
