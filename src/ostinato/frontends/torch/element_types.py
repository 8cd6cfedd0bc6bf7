"""PyTorch's element types and ours, and how PyTorch promotes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.dtypes import (
    ALL_DTYPES,
    BOOL,
    FLOAT8,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT64,
    DType,
    promote,
)
from ostinato.ir.graph import Value

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["COMPLEX", "ELEMENT_TYPES", "result_type"]

#: By PyTorch's name, the dtype.
ELEMENT_TYPES: dict[str, DType] = {dtype.name: dtype for dtype in (*ALL_DTYPES, *FLOAT8)}

#: By PyTorch's name of a complex type, the dtype of its parts.
COMPLEX: dict[str, DType] = {"complex32": FLOAT16, "complex64": FLOAT32, "complex128": FLOAT64}


def result_type(operands: Iterable[Any]) -> DType:
    """The dtype in which PyTorch computes with ``operands`` (``torch.result_type``).

    Tensors with dims come before those without, and these before Python's numbers: a later one
    counts only where it is of a higher category (bool, integer, float).
    """
    ranks: list[list[DType]] = [[], [], []]
    for operand in operands:
        if isinstance(operand, Value):
            ranks[0 if operand.ndim else 1].append(operand.dtype)
        elif isinstance(operand, bool):
            ranks[2].append(BOOL)
        elif isinstance(operand, float):
            ranks[2].append(FLOAT32)
        elif operand is not None:
            ranks[2].append(INT64)
    found: DType | None = None
    for dtypes in ranks:
        if not dtypes:
            continue
        dtype = dtypes[0]
        for other in dtypes[1:]:
            dtype = promote(dtype, other)
        if found is None or _category(dtype) > _category(found):
            found = dtype
    return found or FLOAT32


def _category(dtype: DType) -> int:
    return 0 if dtype.is_bool else 1 if dtype.is_integer else 2
