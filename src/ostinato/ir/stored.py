"""Initial values of params: arrays, or tensors that stay in a file until needed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ostinato.errors import ModelFormatError
from ostinato.records import dataclass

if TYPE_CHECKING:
    from ostinato.dtypes import DType
    from ostinato.ir.files import FileRange, OpenFile
    from ostinato.ir.types import TensorType

__all__ = [
    "ExpertSource",
    "ExpertTensor",
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

    def release(self) -> None:  # noqa: B027  # most have nothing to give back
        """Give back memory that :meth:`read` has taken and that can be read again."""


@dataclass(frozen=True, eq=False)
class ExpertTensor(StoredTensor):
    """The matrices of a layer's experts, ``[experts, rows, columns]``, each a range of a file.

    Attributes:
        name: for messages.
        file: which, kept open.
        dtype: of the elements.
        shape: of the whole.
        offsets: by expert, the first byte of its matrix.
        transposed: whether the file has each matrix column by column.
    """

    name: str
    file: OpenFile
    dtype: DType
    shape: tuple[int, int, int]
    offsets: tuple[int, ...]
    transposed: bool = False

    def read(self) -> Array:
        _, rows, columns = self.shape
        matrix = (columns, rows) if self.transposed else (rows, columns)
        whole = np.empty(self.shape, self.dtype.numpy)
        nbytes = rows * columns * self.dtype.itemsize
        for expert, offset in enumerate(self.offsets):
            data = self.file.read(offset, nbytes)
            if len(data) != nbytes or not self.file.unchanged:
                raise self.changed()
            part = np.frombuffer(data, self.dtype.numpy).reshape(matrix)
            whole[expert] = part.T if self.transposed else part
        return whole

    def changed(self) -> ModelFormatError:
        """The error for a file that is no longer what it was."""
        return ModelFormatError(
            f"{self.name!r}: the file {self.file.name!r} was written, or could not be read, since "
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
