"""Elements of packed weights, on the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.errors import InputError
from ostinato.ops.namespace import NumpyNamespace
from ostinato.ops.packed.formats import FORMATS, BlockFormat, elements
from ostinato.ops.packed.grid_formats import GRID_FORMATS, GridFormat

if TYPE_CHECKING:
    from typing import TypeAlias

    from ostinato.dtypes import DType

__all__ = ["PackedFormat", "decode", "packed_format"]

Array = np.ndarray[Any, Any]
PackedFormat: TypeAlias = "BlockFormat | GridFormat"

#: Elements that are decoded at a time: their intermediate forms take some 30 bytes each.
_CHUNK = 1 << 18


def packed_format(name: str) -> PackedFormat:
    """The format of a name.

    Raises:
        InputError: there is none.
    """
    found = FORMATS.get(name) or GRID_FORMATS.get(name)
    if found is None:
        known = ", ".join(sorted([*FORMATS, *GRID_FORMATS]))
        raise InputError(f"no packed format {name!r:.80}; there are {known}")
    return found


def decode(packed: Array, name: str) -> Array:
    """The elements of packed weights, float32, as the format's standard computes them.

    Args:
        packed: uint8 ``[..., bytes]``, whole blocks along the last axis.
        name: of the format, such as ``"gguf:q4_k"``.

    Raises:
        InputError: no such format, or the bytes are not whole blocks.
    """
    form = packed_format(name)
    if packed.dtype != np.uint8 or packed.ndim == 0 or packed.shape[-1] % form.nbytes:
        raise InputError(
            f"{name} takes uint8 in blocks of {form.nbytes} bytes, got "
            f"{packed.dtype}{list(packed.shape)}"
        )
    shape = (*packed.shape[:-1], packed.shape[-1] // form.nbytes * form.size)
    blocks = packed.reshape(-1, form.nbytes)
    result = np.empty((len(blocks), form.size), np.float32)
    step = max(1, _CHUNK // form.size)
    with np.errstate(all="ignore"):  # infinite and NaN scales mean what they mean
        for start in range(0, len(blocks), step):
            chunk = blocks[start : start + step]
            result[start : start + step] = _decoded(chunk, form)
    return result.reshape(shape)


def _decoded(blocks: Array, form: PackedFormat) -> Array:
    if isinstance(form, GridFormat):
        return form.decode(blocks)
    found: Array = elements(_FLOAT32, blocks, form, _as_float16)
    return found


class _Float32Namespace(NumpyNamespace):
    """The oracle's functions in float32, in which formats are defined."""

    @staticmethod
    def cast(x: Any, dtype: DType) -> Array:
        return np.asarray(x).astype(dtype.numpy)


_FLOAT32 = _Float32Namespace()


def _as_float16(bits: Array) -> Array:
    return bits.view(np.float16)
