"""The archive: its entries, and the tensors among them.

A ``.pt2`` file is a ZIP file. Nothing is extracted, and nothing is unpickled: entries are read by
name into memory, up to bounds that follow from what the archive says of itself, and their
checksums are compared.
"""

from __future__ import annotations

import io
import math
import os
import zipfile
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from ostinato.errors import ModelFormatError
from ostinato.frontends.torch.element_types import COMPLEX, ELEMENT_TYPES
from ostinato.frontends.torch.pt2.record import Record

if TYPE_CHECKING:
    from ostinato.dtypes import DType
    from ostinato.ir.stored import Array

__all__ = ["SCALAR_TYPES", "Archive"]

#: The names of element types by their numbers in the format.
SCALAR_TYPES = {
    1: "uint8",
    2: "int8",
    3: "int16",
    4: "int32",
    5: "int64",
    6: "float16",
    7: "float32",
    8: "float64",
    9: "complex32",
    10: "complex64",
    11: "complex128",
    12: "bool",
    13: "bfloat16",
    28: "uint16",
    29: "float8_e4m3fn",
    30: "float8_e5m2",
    31: "float8_e4m3fnuz",
    32: "float8_e5m2fnuz",
    33: "float8_e8m0fnu",
    34: "uint32",
    35: "uint64",
}

_STRIDED = 7

#: No description of a model is longer; one that is is made to exhaust memory.
_LONGEST_TEXT = 1 << 29

#: Compressed entries are at most so many times as long as their bytes in the file.
_GREATEST_RATIO = 1100  # DEFLATE cannot do better


class Archive:
    """An open ``.pt2`` file.

    Args:
        source: a path, or the bytes of the file.

    Raises:
        ModelFormatError: it is no such file, or damaged.
        OSError: it cannot be read.
    """

    def __init__(self, source: Any) -> None:
        if isinstance(source, bytes | bytearray | memoryview):
            data = bytes(source)
            self.name, self._nbytes = f"<{len(data)} bytes>", len(data)
            self._file: IO[bytes] = io.BytesIO(data)
        else:
            self.name = os.fspath(source)
            self._file = Path(self.name).open("rb")  # noqa: SIM115 - closed with the archive
            self._nbytes = os.fstat(self._file.fileno()).st_size
        try:
            self._zip = zipfile.ZipFile(self._file)
            self._entries = {info.filename: info for info in self._zip.infolist()}
        except Exception as error:  # zipfile raises whatever a damaged directory leads it to
            self._file.close()
            raise ModelFormatError(f"{self.name} is no .pt2 archive: {error}") from error
        if len(self._entries) != len(self._zip.infolist()):
            raise self._damaged("it has two entries of one name")
        self._root = self._prefix()

    def close(self) -> None:
        """Close the file."""
        self._zip.close()
        self._file.close()

    def _damaged(self, problem: str) -> ModelFormatError:
        return ModelFormatError(f"{self.name}: {problem}")

    def _prefix(self) -> str:
        """The folder that all entries are in."""
        for name in self._entries:
            root, slash, rest = name.partition("/")
            if slash and rest in ("archive_format", "models/model.json"):
                return root + slash
        if any(name.endswith("serialized_exported_program.json") for name in self._entries):
            raise self._damaged(
                "it was saved by PyTorch 2.7 or older, whose weights are pickled objects, which "
                "are never loaded; save it again with PyTorch 2.8 or newer"
            )
        raise self._damaged("it is a ZIP file, but no .pt2 archive")

    # -- entries ----------------------------------------------------------------------------

    def __contains__(self, name: object) -> bool:
        return f"{self._root}{name}" in self._entries

    def listed(self, folder: str) -> list[str]:
        """The names of the entries right within ``folder``."""
        start = f"{self._root}{folder}/"
        names = (name[len(start) :] for name in self._entries if name.startswith(start))
        return sorted(name for name in names if name and "/" not in name)

    def read(self, name: str, most: int = _LONGEST_TEXT) -> memoryview:
        """The bytes of an entry.

        Raises:
            ModelFormatError: it is missing, damaged, or has more than ``most`` bytes.
        """
        info = self._entries.get(f"{self._root}{name}")
        if info is None:
            raise self._damaged(f"the entry {name!r} is missing")
        size = info.file_size
        if size > most:
            raise self._damaged(f"the entry {name!r} has {size} bytes, expected at most {most}")
        if info.compress_size > self._nbytes or size > _GREATEST_RATIO * (info.compress_size + 64):
            raise self._damaged(f"the entry {name!r} has more bytes than the file can hold")
        data = np.empty(size, np.uint8)
        view = data.data
        try:
            with self._zip.open(info) as stream:
                read = 0
                while read < size and (part := stream.read(min(size - read, 1 << 24))):
                    view[read : read + len(part)] = part
                    read += len(part)
        except Exception as error:  # a wrong checksum among them
            raise self._damaged(f"the entry {name!r} cannot be read: {error}") from error
        if read != size:
            raise self._damaged(f"the entry {name!r} ends after {read} of {size} bytes")
        return view

    def text(self, name: str, most: int = 4096) -> str:
        """The text of a short entry, without white space around it."""
        return bytes(self.read(name, most)).decode("utf-8", "replace").strip()

    def record(self, name: str) -> Record:
        """The contents of a JSON entry.

        Raises:
            ModelFormatError: it is missing or damaged.
        """
        return Record.parse(bytes(self.read(name)), f"{self.name}: {name.rpartition('/')[2]}")

    # -- tensors ----------------------------------------------------------------------------

    def tensors(self, folder: str, config: str) -> dict[str, Array]:
        """The tensors that ``config`` lists in ``folder``, by qualified name.

        Those of complex numbers have the parts along a last axis of size 2. Tensors that share an
        entry share memory.

        Raises:
            ModelFormatError: one is pickled, missing, damaged, or of a type without an equivalent.
        """
        found: dict[str, Array] = {}
        if f"{folder}/{config}" not in self:
            return found
        storages: dict[str, memoryview] = {}
        for name, payload in self.record(f"{folder}/{config}").record("config").records():
            path = payload.text("path_name")
            if payload.flag("use_pickle"):
                raise self._damaged(f"{name!r} is a pickled object, which is never loaded")
            if "/" in path or "\\" in path or path in (".", ".."):
                raise self._damaged(f"{name!r} is at {path!r}, outside of the archive's folder")
            if path not in storages:
                storages[path] = self.read(f"{folder}/{path}", self._nbytes * _GREATEST_RATIO)
            found[name] = self._tensor(name, payload.record("tensor_meta"), storages[path])
        return found

    def _tensor(self, name: str, meta: Record, storage: memoryview) -> Array:
        number = meta.integer("dtype")
        word = SCALAR_TYPES.get(number, f"type {number}")
        pairs = word in COMPLEX
        dtype: DType | None = COMPLEX.get(word) or ELEMENT_TYPES.get(word)
        if dtype is None:
            raise ModelFormatError(f"{self.name}: {name!r} has {word} elements, without equivalent")
        if meta.integer("layout") != _STRIDED:
            raise self._damaged(f"{name!r} is no dense tensor")
        shape = [item.integer("as_int") for item in meta.each("sizes")]
        strides = [item.integer("as_int") for item in meta.each("strides")]
        offset = meta.record("storage_offset").integer("as_int")
        itemsize = dtype.itemsize * (2 if pairs else 1)
        if len(shape) != len(strides) or min([0, offset, *shape, *strides]) < 0:
            raise self._damaged(f"{name!r} has impossible sizes {shape} and strides {strides}")
        if 0 in shape:
            return np.empty((*shape, 2) if pairs else shape, dtype.numpy)
        last = offset + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
        if (last + 1) * itemsize > len(storage) or math.prod(shape) * itemsize > 64 * len(storage):
            raise self._damaged(
                f"{name!r} reaches to byte {(last + 1) * itemsize} of {len(storage)}"
            )
        flat = np.frombuffer(storage, np.uint8)[: len(storage) // itemsize * itemsize]
        whole = flat.view(dtype.numpy)
        part = dtype.itemsize
        sizes = (*shape, 2) if pairs else tuple(shape)
        steps = (*(s * itemsize for s in strides), part) if pairs else [s * part for s in strides]
        start = whole[offset * (2 if pairs else 1) :]
        result = np.lib.stride_tricks.as_strided(start, sizes, steps, writeable=False)
        return result if result.flags.c_contiguous else np.ascontiguousarray(result)
