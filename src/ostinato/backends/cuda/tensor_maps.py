"""Tensor maps as a GPU takes them: the driver encodes what launches say of matrices."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from ostinato.backends.cuda.abi import TENSOR_MAP_BYTES, TensorMap

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["encoded_maps"]

#: Bytes from line to line, where rows are divided.
_LINE_BYTES = 128


def encoded_maps(
    api: Any,
    call: Callable[..., Any],
    maps: Sequence[Sequence[int]],
    addresses: Sequence[int],
) -> Any:
    """The maps of a launch one after the other, in memory that the result owns.

    Args:
        api: the module ``cuda.bindings.driver``.
        call: calls a function of it by name, and returns its result.
        maps: the fields of each :class:`~ostinato.backends.cuda.abi.TensorMap`.
        addresses: those of the arguments.

    Raises:
        DriverFailure: the driver does not take a map.
    """
    found = (ctypes.c_ubyte * (TENSOR_MAP_BYTES * len(maps)))()
    start = ctypes.addressof(found)
    for number, fields in enumerate(maps):
        encoded = _encoded(api, call, TensorMap._make(fields), addresses)
        ctypes.memmove(start + TENSOR_MAP_BYTES * number, encoded.getPtr(), TENSOR_MAP_BYTES)
    return found


def _encoded(api: Any, call: Callable[..., Any], found: TensorMap, addresses: Sequence[int]) -> Any:
    """One of them, in the memory of the bindings."""
    kind = "128B" if found.swizzled else "NONE"
    return call(
        "cuTensorMapEncodeTiled",
        api.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_INT32,
        3,
        addresses[found.argument] + found.offset,
        [api.cuuint64_t(extent) for extent in (found.words, found.rows, found.depth)],
        [api.cuuint64_t(found.row_bytes), api.cuuint64_t(_LINE_BYTES)],
        [
            api.cuuint32_t(extent)
            for extent in (found.copied_words, found.copied_rows, found.copied_depth)
        ],
        [api.cuuint32_t(1)] * 3,
        api.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        getattr(api.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{kind}"),
        api.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        api.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
