""":func:`ostinato.load_pt2` on small files that PyTorch wrote, and on damaged and hostile ones."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostinato as ost

FOLDER = Path(__file__).parent / "data"


def _changed(name: str, change: Callable[[str, bytes], bytes | None]) -> bytes:
    """A file with its entries changed one by one; ``None`` leaves one out."""
    written = io.BytesIO()
    with zipfile.ZipFile(FOLDER / name) as old, zipfile.ZipFile(written, "w") as new:
        for info in old.infolist():
            data = change(info.filename.partition("/")[2], old.read(info))
            if data is not None:
                new.writestr(info.filename, data)
    return written.getvalue()


def _edited(name: str, entry: str, edit: Callable[[Any], Any]) -> bytes:
    """A file with one JSON entry edited in place."""

    def change(found: str, data: bytes) -> bytes:
        if found != entry:
            return data
        document = json.loads(data)
        edit(document)
        return json.dumps(document).encode()

    return _changed(name, change)


def _expected(name: str) -> tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]]:
    arrays = np.load(FOLDER / f"{name}.npz")
    return tuple(  # type: ignore[return-value]
        [arrays[key] for key in arrays.files if key.startswith(kind)]
        for kind in ("input_", "after_", "result_")
    )


@pytest.mark.parametrize("name", ["counter", "branches", "halves"])
def test_results_are_those_of_eager(name: str) -> None:
    given, after, wanted = _expected(name)
    graph = ost.load_pt2(FOLDER / f"{name}.pt2")
    compiled = ost.Session("cpu").compile(graph)
    results = compiled.run(dict(zip(graph.inputs, given, strict=True)))
    named = dict(zip(graph.outputs, results, strict=True))
    for result, expected in zip(results, wanted, strict=False):
        assert result.shape == expected.shape and result.dtype == expected.dtype
        np.testing.assert_allclose(result, expected, rtol=1e-2 if name == "halves" else 1e-5)
    if name == "branches":  # what is written to an input is an output of the input's name
        np.testing.assert_allclose(named["memory"], after[1], rtol=1e-5)


def test_names_follow_the_arguments_and_results() -> None:
    graph = ost.load_pt2(FOLDER / "counter.pt2")
    assert list(graph.inputs) == ["x"]
    assert list(graph.outputs) == ["output_0.values", "output_0.indices", "output_1"]
    assert list(graph.states) == ["count"]
    assert graph.name == "counter"


def test_dims_may_be_given() -> None:
    path = FOLDER / "counter.pt2"
    assert ost.load_pt2(path, dims={"x": {0: 3}}).inputs["x"].shape == (3, 4)
    rows = ost.Variable("rows", 1, 9)
    assert ost.load_pt2(path, dims={"x": (rows, 4)}).inputs["x"].shape == (rows, 4)
    (variable,) = ost.load_pt2(path, dims={"x": {0: (2, 5)}}).variables.values()
    assert variable.bounds() == (2, 5)
    for dims in ({"y": {0: 1}}, {"x": {2: 1}}, {"x": {1: 5}}, {"x": (1, 2, 3)}, {"x": {0: "a"}}):
        with pytest.raises(ost.VariableError, match="dims"):
            ost.load_pt2(path, dims=dims)


def test_runs_check_the_bounds_of_the_export() -> None:
    graph = ost.load_pt2(FOLDER / "counter.pt2", dims={"x": {0: (1, 100)}})
    compiled = ost.Session("cpu").compile(graph)
    with pytest.raises(ost.VariableError, match="at most 64"):
        compiled.run({"x": np.zeros((65, 4), np.float32)})


def test_bytes_are_taken_too() -> None:
    data = (FOLDER / "counter.pt2").read_bytes()
    assert str(ost.load_pt2(data, name="counter")) == str(ost.load_pt2(FOLDER / "counter.pt2"))


def test_torch_is_not_imported() -> None:
    code = f"import sys, ostinato as ost; ost.load_pt2({str(FOLDER / 'counter.pt2')!r}); "
    subprocess.run([sys.executable, "-c", code + "assert 'torch' not in sys.modules"], check=True)


MODEL, WEIGHTS = "models/model.json", "data/weights/model_weights_config.json"


def _first_weight(document: Any) -> Any:
    return next(iter(document["config"].values()))


HOSTILE: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "is a pickled object": (WEIGHTS, lambda d: _first_weight(d).update(use_pickle=True)),
    "outside of the archive": (
        WEIGHTS,
        lambda d: _first_weight(d).update(path_name="../../passwd"),
    ),
    "is missing": (WEIGHTS, lambda d: _first_weight(d).update(path_name="weight_99")),
    "reaches to byte": (
        WEIGHTS,
        lambda d: _first_weight(d)["tensor_meta"].update(storage_offset={"as_int": 10**15}),
    ),
    "impossible sizes": (
        WEIGHTS,
        lambda d: _first_weight(d)["tensor_meta"].update(strides=[{"as_int": -4}, {"as_int": 1}]),
    ),
    "no dense tensor": (WEIGHTS, lambda d: _first_weight(d)["tensor_meta"].update(layout=1)),
    "has no elements in the archive": (WEIGHTS, lambda d: d["config"].clear()),
    "newer than": (MODEL, lambda d: d["schema_version"].update(major=99)),
    "used and not defined": (MODEL, lambda d: d["graph_module"]["graph"]["nodes"].pop(0)),
    "no size can be computed": (
        MODEL,
        lambda d: d["graph_module"]["graph"]["tensor_values"]["x"]["sizes"].__setitem__(
            0, {"as_expr": {"expr_str": "__import__('os').system('true')", "hint": None}}
        ),
    ),
    "'nodes' should be list": (MODEL, lambda d: d["graph_module"]["graph"].update(nodes=7)),
}


@pytest.mark.parametrize("words", HOSTILE)
def test_hostile_descriptions_are_refused(words: str) -> None:
    entry, edit = HOSTILE[words]
    with pytest.raises((ost.ModelFormatError, ost.UnsupportedOpError), match=words):
        ost.load_pt2(_edited("counter.pt2", entry, edit))


def test_unsupported_ops_are_listed_with_their_line() -> None:
    def edit(document: Any) -> None:
        for node in document["graph_module"]["graph"]["nodes"]:
            node["target"] = node["target"].replace("aten.linear", "aten.svd")

    with pytest.raises(ost.UnsupportedOpError, match=r"aten\.svd.*at .*\.py:\d+: no converter"):
        ost.load_pt2(_edited("counter.pt2", MODEL, edit))


def test_files_of_other_kinds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ost.ModelFormatError, match=r"no \.pt2 archive"):
        ost.load_pt2(b"GGUF" * 100)
    path = tmp_path / "old.pt2"
    with zipfile.ZipFile(path, "w") as old:
        old.writestr("serialized_exported_program.json", "{}")
    with pytest.raises(ost.ModelFormatError, match="never loaded; save it again"):
        ost.load_pt2(path)
    with pytest.raises(FileNotFoundError):
        ost.load_pt2(tmp_path / "missing.pt2")


def test_a_changed_weight_is_noticed() -> None:
    data = bytearray((FOLDER / "counter.pt2").read_bytes())
    with zipfile.ZipFile(io.BytesIO(bytes(data))) as file:
        info = next(i for i in file.infolist() if i.filename.endswith("weight_0"))
        weight = file.read(info)
    data[data.index(weight) + 2] ^= 1
    with pytest.raises(ost.ModelFormatError, match="cannot be read"):
        ost.load_pt2(bytes(data))


def _mutated(data: bytes, rng: np.random.Generator) -> bytes:
    """A file with some bytes flipped, cut out or repeated."""
    changed = bytearray(data)
    for _ in range(rng.integers(1, 6)):
        at = int(rng.integers(len(changed)))
        match rng.integers(4):
            case 0:
                changed[at] ^= 1 << int(rng.integers(8))
            case 1:
                changed[at] = int(rng.integers(256))
            case 2:
                del changed[at : at + int(rng.integers(1, 40))]
            case _:
                changed[at:at] = changed[at : at + int(rng.integers(1, 40))]
    return bytes(changed)


_VALUES = (None, -1, 0, 1, 3, 2**31, 10**30, 1e308, True, "", "x", "s77", "aten.add.Tensor", [], {})


def _changed_descriptions(data: bytes, rng: np.random.Generator) -> bytes:
    """A file with values of its descriptions replaced, removed or swapped, well-formed as JSON."""
    written = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(written, "w") as new:
        for info in old.infolist():
            content = old.read(info)
            if info.filename.endswith(".json"):
                document = json.loads(content)
                for _ in range(rng.integers(1, 4)):
                    _change_value(document, rng)
                content = json.dumps(document).encode()
            new.writestr(info.filename, content)
    return written.getvalue()


def _change_value(document: Any, rng: np.random.Generator) -> None:
    """Replace, remove or swap values of one object or list, picked by a walk from the root."""
    while True:
        keys = [*document] if isinstance(document, dict) else [*range(len(document))]
        if not keys:
            return
        key = keys[int(rng.integers(len(keys)))]
        inner = document[key]
        if isinstance(inner, dict | list) and inner and rng.random() < 0.9:
            document = inner
            continue
        match rng.integers(3):
            case 0:
                document[key] = _VALUES[int(rng.integers(len(_VALUES)))]
            case 1:
                del document[key]
            case _:
                other = keys[int(rng.integers(len(keys)))]
                document[key], document[other] = document[other], document[key]
        return


def _fuzz(count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    files = [(FOLDER / f"{name}.pt2").read_bytes() for name in ("counter", "branches", "halves")]
    for turn in range(count):
        data = files[turn % 3]
        data = (_mutated if turn % 2 else _changed_descriptions)(data, rng)
        try:
            graph = ost.load_pt2(data)
        except ost.OstinatoError:
            continue
        assert graph.nodes


def test_mutated_files_give_our_errors() -> None:
    _fuzz(150, 0)


@pytest.mark.slow
def test_many_mutated_files_give_our_errors() -> None:
    _fuzz(10_000, 1)
