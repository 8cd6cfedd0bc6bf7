"""Prepacked weights on disk: the same results, nothing packed again, and private once written."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

import ostinato as ost
from ostinato.backends.common.weights import Weights
from ostinato.backends.cpu import executable as executable_module
from ostinato.backends.cpu import stored_weights
from ostinato.backends.options import CompileOptions
from ostinato.cache.mapped_store import MappedStore
from ostinato.cache.objects import ObjectCache
from ostinato.frontends.gguf import GGUFFile
from ostinato.ops.packed.encoding import encode

Array = np.ndarray[Any, Any]

ROWS, DEPTH = 96, 256


def write_file(path: Path, seed: int = 0) -> Path:
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, "llama")
    packed = encode(rng.standard_normal((ROWS, DEPTH), dtype=np.float32), "gguf:q4_0")
    writer.add_tensor("w", packed, raw_dtype=gguf.GGMLQuantizationType.Q4_0)
    writer.add_tensor("scale", rng.standard_normal(ROWS, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.utime(path, (1e9, 1e9))
    return path


def model(path: Path, rows: int = 3) -> ost.Graph:
    """A tied embedding and head: the param is gathered from and multiplied with."""
    file = GGUFFile(path)
    g = ost.Graph("tied")
    ids = g.input("ids", (rows,), "int32")
    w = g.param("w", file.tensors["w"].shape, "uint8", value=file.tensors["w"])
    scale = g.param("scale", (ROWS,), "float32", value=file.tensors["scale"])
    x = g.packed_embedding(ids, w, "gguf:q4_0", "float32")
    g.set_outputs({"y": g.packed_matmul(x, w, "gguf:q4_0") * scale})
    return g


def run(compiled: ost.CompiledGraph, rows: int = 3) -> Array:
    (y,) = compiled.run({"ids": np.arange(rows, dtype=np.int32)})
    return np.array(y)


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[int]]:
    """A store of its own for blocks of any size; the list grows by one with each packing."""
    found: list[int] = []
    write_first = Weights.write_first

    def counted(self: Any, params: Any, perform: Any) -> None:
        found.append(len(params))
        write_first(self, params, perform)

    monkeypatch.setattr(Weights, "write_first", counted)
    monkeypatch.setattr(executable_module, "_LEAST_STORED", 0)

    def store() -> MappedStore:
        return MappedStore(tmp_path / "cache", 1 << 30, ObjectCache(tmp_path / "cache"))

    monkeypatch.setattr(stored_weights, "process_blocks", store)
    yield found


def stored_files(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache" / "weights").glob("*"))


def test_a_second_start_packs_nothing(packed: list[int], tmp_path: Path) -> None:
    path = write_file(tmp_path / "a.gguf")
    session = ost.Session("cpu")
    expected = run(session.compile(model(path), options=CompileOptions(stored_weights=False)))
    assert stored_files(tmp_path) == []
    first = session.compile(model(path))
    assert np.array_equal(run(first), expected)
    assert len(packed) == 2
    second = ost.Session("cpu").compile(model(path))
    assert np.array_equal(run(second), expected)
    assert len(packed) == 2
    assert len(stored_files(tmp_path)) == 1


def test_other_numbers_of_rows_share_a_file(packed: list[int], tmp_path: Path) -> None:
    path = write_file(tmp_path / "a.gguf")
    n = [ost.Session("cpu").compile(model(path, rows)) for rows in (32, 40)]
    assert len(stored_files(tmp_path)) <= len(n)
    assert np.array_equal(run(n[0], 32), run(n[1], 40)[:32])


def test_a_copy_of_the_file_shares_and_other_contents_do_not(
    packed: list[int], tmp_path: Path
) -> None:
    path = write_file(tmp_path / "a.gguf")
    twin = tmp_path / "b.gguf"
    twin.write_bytes(path.read_bytes())
    one, two = (ost.Session("cpu").compile(model(p)) for p in (path, twin))
    assert len(packed) == 1
    assert np.array_equal(run(one), run(two))
    write_file(path, seed=1)  # of the same size and time of writing
    other = ost.Session("cpu").compile(model(path))
    assert len(packed) == 2
    assert not np.array_equal(run(other), run(one))


def test_damaged_files_are_made_again(packed: list[int], tmp_path: Path) -> None:
    path = write_file(tmp_path / "a.gguf")
    expected = run(ost.Session("cpu").compile(model(path)))
    (file,) = stored_files(tmp_path)
    whole = file.read_bytes()
    for damaged in (whole[:100], b"", whole[:-1], b"\1" + whole[1:], bytes(len(whole))):
        file.write_bytes(damaged)
        assert np.array_equal(run(ost.Session("cpu").compile(model(path))), expected)
        assert file.read_bytes() == whole


def test_written_params_are_private(packed: list[int], tmp_path: Path) -> None:
    path = write_file(tmp_path / "a.gguf")
    one = ost.Session("cpu").compile(model(path))
    expected = run(one)
    (file,) = stored_files(tmp_path)
    whole = file.read_bytes()
    for writer in (one, ost.Session("cpu").compile(model(path))):
        twin = writer.clone()
        writer.set_params({"scale": np.zeros(ROWS, np.float32)})
        writer.set_params({"w": GGUFFile(path).tensors["w"].read()[::-1].copy()})
        assert not run(writer).any()
        assert np.array_equal(run(twin), expected)
    assert file.read_bytes() == whole
    assert np.array_equal(run(ost.Session("cpu").compile(model(path))), expected)


def test_a_plan_shows_what_it_reads(packed: list[int], tmp_path: Path) -> None:
    path = write_file(tmp_path / "a.gguf")
    for _ in range(2):
        graph = model(path)
        buffer = ost.Session("cpu").compile(graph).plan.buffer(graph.params["w"])
        assert buffer is not None
        assert np.array_equal(buffer.copyout(), GGUFFile(path).tensors["w"].read())


def test_arrays_and_small_blocks_stay_in_memory(
    packed: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_file(tmp_path / "a.gguf")
    graph = model(path)
    graph.param_values["w"] = GGUFFile(path).tensors["w"].read()
    ost.Session("cpu").compile(graph)
    assert stored_files(tmp_path) == []
    monkeypatch.setattr(executable_module, "_LEAST_STORED", 32 << 20)
    ost.Session("cpu").compile(model(path))
    assert stored_files(tmp_path) == []


def test_a_folder_that_can_not_be_written_costs_only_time(
    packed: list[int], tmp_path: Path
) -> None:
    path = write_file(tmp_path / "a.gguf")
    expected = run(ost.Session("cpu").compile(model(path)))
    (tmp_path / "cache" / "weights").chmod(0o755)
    assert np.array_equal(run(ost.Session("cpu").compile(model(path))), expected)
    assert len(packed) == 2


def test_another_process_maps_the_file(tmp_path: Path) -> None:
    """Without anything replaced: 36 MiB of weights, gathered from and multiplied with.

    In memory are the panels and some rows of the table, in the first process too.
    """
    path = tmp_path / "large.gguf"
    rows, row_bytes = 1 << 15, 34 * 34
    writer = gguf.GGUFWriter(path, "llama")
    packed = np.zeros((rows, row_bytes), np.uint8)
    writer.add_tensor("w", packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    code = f"""
import re, sys
import numpy as np, ostinato as ost
from pathlib import Path
from ostinato.backends.common.weights import Weights
from ostinato.frontends.gguf import GGUFFile
packed = []
real = Weights.write_first
Weights.write_first = lambda self, *rest: (packed.append(1), real(self, *rest))
tensor = GGUFFile({str(path)!r}).tensors["w"]
g = ost.Graph("large")
ids = g.input("ids", (1,), "int32")
w = g.param("w", tensor.shape, "uint8", value=tensor)
x = g.packed_embedding(ids, w, tensor.format, "float32")
g.set_outputs({{"y": g.packed_matmul(x, w, tensor.format)}})
(y,) = ost.Session("cpu", threads=1).compile(g).run({{"ids": np.zeros(1, np.int32)}})
resident = 0
if sys.platform == "linux":
    maps = Path("/proc/self/smaps").read_text()
    pattern = r"(?:/weights/|large.gguf).*\\n(?:.*\\n)?.*\\n.*\\nRss: +(\\d+) kB"
    resident = sum(int(found) for found in re.findall(pattern, maps)) << 10
print(len(packed), not y.any(), resident)
"""
    environment = {**os.environ, "OSTINATO_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-c", code]
    for expected in ("1", "0"):
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        assert done.stderr == ""
        packings, zero, resident = done.stdout.split()
        assert (packings, zero) == (expected, "True")
        assert int(resident) < 1.2 * rows * row_bytes
        if sys.platform == "linux":
            assert int(resident) > 0.9 * rows * row_bytes
