"""Tensors of folders in MXFP4, whose blocks and scales are joined as GGUF files have them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.dtypes import BFLOAT16, UINT8
from ostinato.errors import ModelFormatError
from ostinato.ir.stored import StoredTensor
from ostinato.llm.weight_sources import Decoded
from ostinato.llm.weights import FileTensor
from ostinato.moe.mxfp4 import BLOCK_BYTES, BLOCKS, FORMAT, SCALES, block_matrices, fits, joined

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.ir.stored import ExpertTensor

__all__ = ["joined_blocks"]

Array = np.ndarray[Any, Any]


def joined_blocks(tensors: Mapping[str, FileTensor], source: str) -> dict[str, FileTensor]:
    """The tensors with scales joined to blocks, as the format ``gguf:mxfp4`` has them.

    Args:
        tensors: of the files, by name.
        source: the files, for messages.

    Raises:
        ModelFormatError: blocks lack scales, or their shapes or dtypes do not fit.
    """
    found = dict(tensors)
    for name in tensors:
        stem = name.removesuffix(BLOCKS)
        if stem == name or tensors[name].source.dtype != UINT8:
            continue
        blocks, scales = found.pop(name), found.pop(stem + SCALES, None)
        if scales is None:
            raise ModelFormatError(f"{source!r} lacks the tensor {stem + SCALES!r:.120}")
        shape = blocks.shape
        if scales.source.dtype != UINT8 or not fits(shape, scales.shape):
            raise ModelFormatError(
                f"{source!r}: tensors {name!r:.120} {shape} and {stem + SCALES!r:.120} "
                f"{scales.source.dtype}{list(scales.shape)} are no blocks of 16 bytes with a scale"
            )
        packed = _Joined(blocks.source, scales.source)
        experts, outputs, count, _ = shape
        found[stem] = FileTensor(
            name=stem,
            source=packed,
            shape=(experts, 32 * count, outputs),
            format=FORMAT,
            widened=partial(Decoded, packed, FORMAT, BFLOAT16, swapped=True),
            by_column=True,
        )
    return found


class _Joined(StoredTensor):
    """Packed rows, from blocks and their scales."""

    def __init__(self, blocks: StoredTensor, scales: StoredTensor) -> None:
        experts, outputs, count, _ = blocks.shape
        self._blocks, self._scales = blocks, scales
        self.shape = (experts, outputs, BLOCK_BYTES * count)
        self.dtype = UINT8

    @property
    def content_key(self) -> str | None:
        blocks, scales = self._blocks.content_key, self._scales.content_key
        return None if blocks is None or scales is None else f"{FORMAT} of {[blocks, scales]}"

    def matrices(self, name: str) -> ExpertTensor | None:
        blocks, scales = self._blocks.in_file, self._scales.in_file
        if blocks is None or scales is None:
            return None
        return block_matrices(name, self._blocks.shape, blocks, scales)

    def release(self) -> None:
        self._blocks.release()
        self._scales.release()

    def read(self) -> Array:
        blocks, scales = self._blocks.read(), self._scales.read()
        whole = np.empty(self.shape, np.uint8)
        for expert, parts in enumerate(zip(blocks, scales, strict=True)):
            whole[expert] = joined(*parts)
        return whole
