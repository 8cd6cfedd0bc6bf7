"""What params hold until they are written: arrays, or tensors that stay in a file until needed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from ostinato.dtypes import DType

__all__ = ["ParamSource", "ParamValues", "StoredTensor", "elements"]

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


#: Where the elements of a param come from.
ParamSource: TypeAlias = "Array | StoredTensor"


def elements(source: ParamSource) -> Array:
    """The elements of a source.

    Raises:
        ModelFormatError: see :meth:`StoredTensor.read`.
    """
    return source.read() if isinstance(source, StoredTensor) else source


class ParamValues(MutableMapping[str, Array]):
    """Arrays by param. Looking up a tensor that is stored elsewhere reads it, each time."""

    def __init__(self) -> None:
        self._sources: dict[str, ParamSource] = {}

    @property
    def sources(self) -> Mapping[str, ParamSource]:
        """The same, with nothing read."""
        return self._sources

    def put(self, name: str, source: ParamSource) -> None:
        """Set what a param holds."""
        self._sources[name] = source

    def __getitem__(self, name: str) -> Array:
        return elements(self._sources[name])

    def __setitem__(self, name: str, array: Array) -> None:
        self._sources[name] = array

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
