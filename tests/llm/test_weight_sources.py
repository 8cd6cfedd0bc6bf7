"""Keys of weights that follow from tensors of files: different where their elements are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ostinato.dtypes import FLOAT32
from ostinato.frontends.gguf import GGUFFile
from ostinato.frontends.gguf.tensor_types import TENSOR_TYPES
from ostinato.frontends.gguf.writer import GGUFWriter, TensorEntry
from ostinato.ir.stored import StoredTensor
from ostinato.llm.weights import FileTensor, RowOrder, Stored, Weight, converted, located

SHAPE = (4, 32)


def write(path: Path, seed: int) -> dict[str, StoredTensor]:
    rng = np.random.default_rng(seed)
    names = ("a", "b")
    entries = [TensorEntry(name, SHAPE, TENSOR_TYPES[0]) for name in names]
    with GGUFWriter(path, {}, entries) as writer:
        for _ in names:
            writer.write(rng.standard_normal(SHAPE, dtype=np.float32))
    return dict(GGUFFile(path).tensors)


def weights(tensors: dict[str, StoredTensor]) -> dict[str, Weight]:
    files = {n: FileTensor(name=n, source=t, shape=SHAPE) for n, t in tensors.items()}
    found: dict[str, Weight] = {}

    def add(label: str, shape: tuple[int, ...], **place: Any) -> None:
        stored = {"w": Stored(names=("a",), **place)}
        found[label] = located(files, stored, {"w": shape}, "file", lambda _: True)["w"]

    add("whole", SHAPE)
    add("some rows", (2, 32), rows=slice(0, 2), total=4)
    add("other rows", (2, 32), rows=slice(2, 4), total=4)
    add("in another order", SHAPE, rows=RowOrder(shape=(2, 2), axes=(1, 0)), total=4)
    add("transposed", (32, 4), transposed=True)
    add("one more", SHAPE, offset=1.0)
    both = {"w": Stored(names=("a", "b"))}
    found["both"] = located(files, both, {"w": (2, *SHAPE)}, "file", lambda _: True)["w"]
    for width in ("bfloat16", "int8", "int4"):
        found[width] = converted({"w": found["whole"]}, width)["w"]  # type: ignore[arg-type]
    return found


def test_equal_keys_have_equal_elements(tmp_path: Path) -> None:
    one, same, other = (
        weights(write(tmp_path / f"{name}.gguf", seed))
        for name, seed in (("one", 0), ("same", 0), ("other", 1))
    )
    keys = [source.content_key for weight in one.values() for source in [weight.source]]
    assert None not in keys
    assert len(set(keys)) == len(keys)
    for label, weight in one.items():
        assert weight.source.content_key == same[label].source.content_key
        assert weight.source.content_key != other[label].source.content_key
        elements = weight.source.read()
        weight.source.release()  # and is read again
        np.testing.assert_array_equal(elements, same[label].source.read())


def test_what_has_no_key_gives_none(tmp_path: Path) -> None:
    class Computed(StoredTensor):
        shape, dtype = SHAPE, FLOAT32

        def read(self) -> np.ndarray[Any, Any]:
            return np.zeros(SHAPE, np.float32)

    tensors = write(tmp_path / "a.gguf", 0)
    mixed = weights({"a": tensors["a"], "b": Computed()})
    assert mixed["both"].source.content_key is None
    assert mixed["int8"].source.content_key is not None
    mixed["both"].source.release()
