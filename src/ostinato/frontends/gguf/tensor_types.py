"""The types of tensors in GGUF files, by their numbers there."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from ostinato.dtypes import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    UINT8,
    DType,
)
from ostinato.ops.packed.decoding import packed_format
from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["TENSOR_TYPES", "TensorType"]


@dataclass(frozen=True)
class TensorType:
    """A type of tensors: elements side by side, or packed in blocks.

    Attributes:
        dtype: of what is in memory: elements, or the bytes of blocks.
        format: of the blocks, as ONNX has it; ``None``: there are none.
        size: elements of a block; ``nbytes``, its bytes.
    """

    dtype: DType
    format: str | None
    size: int
    nbytes: int

    @property
    def name(self) -> str:
        """The name for messages: ``q4_k``, ``f32``."""
        return self.dtype.short if self.format is None else self.format.removeprefix("gguf:")


def _elements(dtype: DType) -> TensorType:
    return TensorType(dtype, None, 1, dtype.itemsize)


def _blocks(name: str) -> TensorType:
    form = packed_format(f"gguf:{name}")
    return TensorType(UINT8, form.name, form.size, form.nbytes)


#: By number.
TENSOR_TYPES: Final[Mapping[int, TensorType]] = MappingProxyType(
    {
        0: _elements(FLOAT32),
        1: _elements(FLOAT16),
        2: _blocks("q4_0"),
        3: _blocks("q4_1"),
        6: _blocks("q5_0"),
        7: _blocks("q5_1"),
        8: _blocks("q8_0"),
        10: _blocks("q2_k"),
        11: _blocks("q3_k"),
        12: _blocks("q4_k"),
        13: _blocks("q5_k"),
        14: _blocks("q6_k"),
        16: _blocks("iq2_xxs"),
        17: _blocks("iq2_xs"),
        18: _blocks("iq3_xxs"),
        19: _blocks("iq1_s"),
        20: _blocks("iq4_nl"),
        21: _blocks("iq3_s"),
        22: _blocks("iq2_s"),
        23: _blocks("iq4_xs"),
        24: _elements(INT8),
        25: _elements(INT16),
        26: _elements(INT32),
        27: _elements(INT64),
        28: _elements(FLOAT64),
        29: _blocks("iq1_m"),
        30: _elements(BFLOAT16),
        34: _blocks("tq1_0"),
        35: _blocks("tq2_0"),
        39: _blocks("mxfp4"),
        40: _blocks("nvfp4"),
    }
)
