"""Prepacked weights that stay on disk from one process to the next, which maps them.

The whole block of an executable's weights is one entry of the store: params that are kept as they
are, and the panels that others were packed into. Its key has the form of the block (the packing
kernels, where they write, the version of this package by way of the kernels' keys) and what each
param contains, by the digest of its file. So executables of one model that differ in what a run
does with the weights, or in the numbers of rows that they take, map the same file.
"""

from __future__ import annotations

import hashlib
import math
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.backends.common.program_image import Slot
from ostinato.backends.cpu import _core
from ostinato.cache.mapped_store import process_blocks
from ostinato.ir.stored import StoredTensor
from ostinato.plan.buffer import bytes_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.backends.cpu.image import Image
    from ostinato.cache.mapped_store import BlockDraft
    from ostinato.ir.stored import ParamSource

__all__ = ["StoredWeights"]

#: Arrays that are no tensors of a file may be this part of the weights; their bytes are hashed.
_MOST_IN_MEMORY = 8


class StoredWeights:
    """The block of an executable's weights, as the store has it or is to have it.

    Args:
        key: of the block.
        nbytes: of the block.

    Attributes:
        block: the memory of the weights; ``None``: the store can not have them.
        complete: whether the block has its contents already.
    """

    def __init__(self, key: str, nbytes: int) -> None:
        self.key = key
        self._nbytes = nbytes
        self._draft: BlockDraft | None = None
        self.block = self._mapped(process_blocks().open(key, nbytes))
        self.complete = self.block is not None
        if self.complete:
            return
        self._draft = process_blocks().draft(key, nbytes)
        if self._draft is not None:
            self.block = _core.Arena.map_file(self._draft.descriptor, nbytes, shared=True)

    @staticmethod
    def of(image: Image, params: Mapping[str, ParamSource]) -> StoredWeights | None:
        """The stored weights of a program.

        Returns:
            ``None`` for a block that is not stored: one of params that are not, nearly all of them,
            tensors of files with a :attr:`StoredTensor.content_key`.
        """
        arrays = {n: p for n, p in params.items() if not isinstance(p, StoredTensor)}
        in_memory = sum(array.nbytes for array in arrays.values())
        in_all = sum(_nbytes(source) for source in params.values())
        if in_memory * _MOST_IN_MEMORY > in_all:
            return None
        contents = []
        for name, source in params.items():
            known = source.content_key if isinstance(source, StoredTensor) else _digest(source)
            if known is None:
                return None
            contents.append((name, source.dtype, source.shape, known))
        form = hashlib.sha256(repr((image.prepacking(), contents)).encode()).hexdigest()
        return StoredWeights(f"prepacked weights {form}", image.sizes[Slot.WEIGHTS])

    def keep(self) -> _core.Arena | None:
        """Store the block, which is complete now; return the memory that replaces it.

        Returns:
            ``None`` if it could not be stored.
        """
        return None if self._draft is None else self._mapped(self._draft.keep())

    def close(self) -> None:
        """Give up a file that was not kept; the memory stays."""
        if self._draft is not None:
            self._draft.close()
            self._draft = None

    def _mapped(self, descriptor: int | None) -> _core.Arena | None:
        """The block in a file of the store, which is closed."""
        if descriptor is None:
            return None
        try:
            return _core.Arena.map_file(descriptor, self._nbytes)
        except (OSError, ValueError):  # the memory, or the file, has got too small
            return None
        finally:
            os.close(descriptor)


def _nbytes(source: ParamSource) -> int:
    return math.prod(source.shape) * source.dtype.itemsize


def _digest(array: np.ndarray[Any, Any]) -> str:
    return hashlib.sha256(bytes_of(np.ascontiguousarray(array))).hexdigest()
