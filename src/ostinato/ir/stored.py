"""Initial values of params: arrays, or tensors that stay in files until needed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ostinato.errors import ModelFormatError
from ostinato.ir.files import FileRange
from ostinato.records import dataclass

if TYPE_CHECKING:
    from ostinato.dtypes import DType
    from ostinato.ir.files import OpenFile
    from ostinato.ir.types import TensorType

__all__ = [
    "ExpertSource",
    "ExpertTensor",
    "MatrixLayout",
    "ParamSource",
    "ParamValues",
    "StoredTensor",
    "elements",
]

Array = np.ndarray[Any, Any]


class StoredTensor(ABC):
    """A tensor whose elements are fetched at each use, so that a model need not be in memory.

    Attributes:
        shape: its sizes.
        dtype: its element type.
    """

    shape: tuple[int, ...]
    dtype: DType

    @abstractmethod
    def read(self) -> Array:
        """Its elements: C-contiguous, not to be written.

        Raises:
            ModelFormatError: they are no longer where they were.
        """

    @property
    def content_key(self) -> str | None:
        """Text that differs for different elements, found without reading them each time.

        Weights whose sources all have one are stored in their prepacked form, from which another
        process starts. ``None``: they are packed by each process.
        """
        return None

    @property
    def in_file(self) -> FileRange | None:
        """The place of the elements in a file; ``None``: no file has them as they are."""
        return None

    def matrices(self, name: str) -> ExpertTensor | None:
        """The matrices that the tensor's last two axes hold, in their files.

        Args:
            name: for messages.

        Returns:
            ``None``: no file has them as they are.
        """
        place = self.in_file
        if place is None or len(self.shape) not in (2, 3):
            return None
        count, rows, columns = (1, *self.shape)[-3:]
        pitch = columns * self.dtype.itemsize
        nbytes = rows * pitch
        places = (FileRange(place.file, place.offset + i * nbytes, nbytes) for i in range(count))
        layout = MatrixLayout((pitch,))
        return ExpertTensor(name, self.dtype, (count, rows, columns), layout, (tuple(places),))

    def release(self) -> None:  # noqa: B027  # most have nothing to give back
        """Give back memory that :meth:`read` has taken and that can be read again."""


@dataclass(frozen=True)
class MatrixLayout:
    """The layout of a matrix in files: lines of one length, one below the other.

    Attributes:
        pitches: bytes from one line to the next. Two of them: lines of MXFP4 blocks are apart in
            their elements, two neighbours in each byte, and their scales.
        transposed: whether a line is a column of the matrix, rather than a row.
        step: elements from one of a line to the next.
    """

    pitches: tuple[int, ...]
    transposed: bool = False
    step: int = 1

    @property
    def apart(self) -> bool:
        """Whether elements of blocks and their scales are in ranges of their own."""
        return len(self.pitches) > 1

    def lines(self, matrix: tuple[int, int]) -> tuple[int, int]:
        """Lines of a matrix of so many rows and columns, and elements of each."""
        rows, columns = matrix
        return (columns, rows) if self.transposed else (rows, columns)


@dataclass(frozen=True, eq=False)
class ExpertTensor(StoredTensor):
    """The matrices of a layer's experts, ``[experts, rows, columns]``, in ranges of files.

    Attributes:
        name: for messages.
        dtype: of the elements; uint8 for the bytes of packed rows.
        shape: of the whole.
        layout: of each matrix in its range, or its ranges.
        ranges: by expert, in each range of the layout.
    """

    name: str
    dtype: DType
    shape: tuple[int, int, int]
    layout: MatrixLayout
    ranges: tuple[tuple[FileRange, ...], ...]

    @property
    def files(self) -> list[OpenFile]:
        """The files that the matrices are in."""
        return list(dict.fromkeys(place.file for part in self.ranges for place in part))

    def octets(self, expert: int) -> list[bytes]:
        """The bytes of an expert's matrix in each of its ranges.

        Raises:
            ModelFormatError: a file is no longer what it was.
        """
        found = []
        for part in self.ranges:
            place = part[expert]
            data = place.file.read(place.offset, place.nbytes)
            if len(data) != place.nbytes or not place.file.unchanged:
                raise self.changed(place.file)
            found.append(data)
        return found

    def matrix(self, expert: int) -> Array:
        """An expert's matrix ``[rows, columns]``.

        Those in several ranges are of a class that joins them.

        Raises:
            ModelFormatError: a file is no longer what it was.
        """
        (data,), layout = self.octets(expert), self.layout
        shape, size = layout.lines(self.shape[1:]), self.dtype.itemsize
        strides = layout.pitches[0], layout.step * size
        lines: Array = np.ndarray(shape, self.dtype.numpy, data, strides=strides)
        return lines.T if layout.transposed else lines

    def read(self) -> Array:
        whole = np.empty(self.shape, self.dtype.numpy)
        for expert in range(len(whole)):
            whole[expert] = self.matrix(expert)
        return whole

    def changed(self, file: OpenFile) -> ModelFormatError:
        """The error for a file that is no longer what it was."""
        return ModelFormatError(
            f"{self.name!r}: the file {file.name!r} was written, or could not be read, since "
            "it was opened; open it again"
        )


class ExpertSource(ABC):
    """A source of the matrices of experts, in files."""

    @abstractmethod
    def tensors(self, params: Mapping[str, TensorType]) -> Mapping[str, ExpertTensor]:
        """The tensors of the source among ``params``, with their position.

        Raises:
            InputError: it has none, or one of another shape or dtype, or something is missing.
        """


#: The source of the elements of a param.
ParamSource: TypeAlias = "Array | StoredTensor"


def elements(source: ParamSource) -> Array:
    """The elements of a source.

    Raises:
        ModelFormatError: see :meth:`StoredTensor.read`.
    """
    return source.read() if isinstance(source, StoredTensor) else source


class ParamValues(MutableMapping[str, Array]):
    """Arrays by param. Looking up a tensor in a file reads it, each time.

    Attributes:
        written: the params that were written since the graph was built.
    """

    def __init__(self) -> None:
        self._sources: dict[str, ParamSource] = {}
        self.written: set[str] = set()

    @property
    def sources(self) -> Mapping[str, ParamSource]:
        """The sources by param, with nothing read."""
        return self._sources

    def put(self, name: str, source: ParamSource) -> None:
        """Set the source of a param."""
        self._sources[name] = source

    def __getitem__(self, name: str) -> Array:
        return elements(self._sources[name])

    def __setitem__(self, name: str, array: Array) -> None:
        self._sources[name] = array
        self.written.add(name)

    def __delitem__(self, name: str) -> None:
        del self._sources[name]

    def __contains__(self, name: object) -> bool:
        return name in self._sources

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)

    def __repr__(self) -> str:
        return f"<values of {', '.join(self._sources) or 'no params'}>"
