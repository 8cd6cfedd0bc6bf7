"""Comparisons of sort keys, as WGSL: unsigned integers of one or two words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.webgpu.render.dialect import held
from ostinato.dtypes import FLOAT32, INT32, INT64, UINT32, UINT64

if TYPE_CHECKING:
    from ostinato.dtypes import DType

__all__ = ["above", "is_wide", "key_of", "same"]


def is_wide(dtype: DType) -> bool:
    """Whether the keys of elements have two words."""
    return held(dtype) in (INT64, UINT64)


def above(left: str, right: str, wide: bool) -> str:
    """A condition: the left key is the better one."""
    return f"less_u64({right}, {left})" if wide else f"{left} > {right}"


def same(left: str, right: str, wide: bool) -> str:
    """A condition: the keys are equal."""
    return f"equal_u64({left}, {right})" if wide else f"{left} == {right}"


def key_of(dtype: DType, *, largest: bool) -> str:
    """The function of the library that gives an element's sort key."""
    kinds = {FLOAT32: "f32", INT32: "i32", UINT32: "u32", INT64: "i64", UINT64: "u64"}
    return f"{'greatest' if largest else 'least'}_key_{kinds[held(dtype)]}"
