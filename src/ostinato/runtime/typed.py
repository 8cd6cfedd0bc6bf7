"""Elements as raw bytes: from any dtype to the one that is wanted, exactly, and back.

*Exactly* means that no value is ever replaced by a different one, save for the one rounding that
a float format makes unavoidable:

* to a float: the nearest value, ties to even, rounded once. Infinities and NaNs stay what they
  are. A finite value beyond the largest finite one of the format is refused, not made infinite.
* to an integer: the same whole number; a fraction, a NaN or a number out of range is refused.
* to ``bool``: 0 is false and 1 is true; all else is refused.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.dtypes import BFLOAT16, BOOL, DType
from ostinato.errors import GraphError, InputError
from ostinato.ir.binding import solve_dims
from ostinato.runtime.arrays import shape_text
from ostinato.variables import evaluate, symbols

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ostinato.runtime.arrays import TensorSpec
    from ostinato.variables import Dim

__all__ = ["check_typed_inputs", "check_typed_param", "convert_exactly", "to_bytes"]

Array = np.ndarray[Any, Any]

#: Below this, every integer is a float64.
_EXACT_INTEGERS = 1 << 53

#: Bits of a 64-bit integer, beyond :data:`_EXACT_INTEGERS`, that no narrower float can tell apart.
_STICKY_BITS = 12


def check_typed_param(spec: TensorSpec, data: object, dtype: object) -> Array:
    """An array of the dtype and shape that a param declares, from raw elements.

    Raises:
        InputError: too few or too many bytes, an unknown dtype, or a value that the declared dtype
            can not hold.
    """
    what = f"param {spec.name!r}"
    flat = from_bytes(what, data, parse_dtype(what, dtype))
    shapes = _shapes_of("param", {spec.name: spec.shape}, {spec.name: flat})
    return convert_exactly(what, flat.reshape(shapes[spec.name]), spec.dtype)


def check_typed_inputs(items: object, specs: Mapping[str, TensorSpec]) -> dict[str, Array]:
    """Arrays of the declared dtypes and of the shapes that their numbers of elements give.

    Args:
        items: ``(name, bytes, dtype)`` for each input.
        specs: the inputs of the graph.

    Raises:
        InputError: an item is no such triple; its name is unknown or comes twice; its bytes are not
            whole elements, or too few or too many; or a value has no counterpart in the input's
            dtype. Also where a shape with several Variables does not follow from a number of
            elements.
    """
    flat: dict[str, Array] = {}
    for item in items if isinstance(items, list | tuple) else [items]:
        if not isinstance(item, tuple | list) or len(item) != 3:
            raise InputError(f"expected a list of (name, bytes, dtype), got {item!r:.80}")
        name, data, dtype = item
        if not isinstance(name, str) or name not in specs or name in flat:
            known = ", ".join(map(repr, specs)) or "none"
            wrong = "given twice" if isinstance(name, str) and name in flat else "unknown"
            raise InputError(f"input {name!r:.80} is {wrong}; the graph has {known}")
        what = f"input {name!r}"
        flat[name] = from_bytes(what, data, parse_dtype(what, dtype))
    shapes = _shapes_of("input", {name: specs[name].shape for name in flat}, flat)
    return {
        name: convert_exactly(f"input {name!r}", array.reshape(shapes[name]), specs[name].dtype)
        for name, array in flat.items()
    }


def parse_dtype(what: str, dtype: object) -> DType:
    """The dtype that a caller named.

    Raises:
        InputError: there is none of that name.
    """
    try:
        return DType.parse(dtype)  # type: ignore[arg-type]  # refused in there
    except GraphError as error:
        raise InputError(f"{what}: {error}") from None


def from_bytes(what: str, data: object, dtype: DType) -> Array:
    """Little-endian elements as a flat array in native byte order; it may share their memory.

    Raises:
        InputError: ``data`` is no contiguous buffer of whole elements, or a bool is neither 0 or 1.
    """
    try:
        raw = np.frombuffer(memoryview(data).cast("B"), np.uint8)  # type: ignore[arg-type]
    except (TypeError, ValueError, BufferError) as error:
        got = type(data).__name__
        raise InputError(f"{what}: expected contiguous bytes, got {got}: {error}") from None
    if raw.size % dtype.itemsize:
        raise InputError(
            f"{what}: {raw.size} bytes are no whole number of {dtype} elements "
            f"({dtype.itemsize} bytes each)"
        )
    if dtype == BOOL and raw.size and raw.max() > 1:
        raise InputError(f"{what}: a bool is a byte of 0 or 1, got {int(raw.max())}")
    words = raw.view(f"<u{dtype.itemsize}")
    return words.astype(f"=u{dtype.itemsize}", copy=False).view(dtype.numpy)


def to_bytes(array: Array) -> bytes:
    """The elements in C order, little-endian."""
    size = array.dtype.itemsize
    return np.ascontiguousarray(array).view(f"=u{size}").astype(f"<u{size}", copy=False).tobytes()


def convert_exactly(what: str, array: Array, dtype: DType) -> Array:
    """``array`` in ``dtype``; the same array where it has that dtype already.

    Raises:
        InputError: a value has no counterpart in ``dtype``; names it and where it stands.
    """
    source = DType.parse(array.dtype)
    if source == dtype:
        return array
    with np.errstate(all="ignore"):
        result = _converted(array, source, dtype)
        kept = _kept(array, result, source, dtype)
    if not kept.all():
        flat = int(np.argmin(kept))
        place = [int(i) for i in np.unravel_index(flat, array.shape)]
        raise InputError(
            f"{what}: element {place} is {array.reshape(-1)[flat]}, which {dtype} can not hold"
        )
    return result


def _converted(array: Array, source: DType, dtype: DType) -> Array:
    if dtype == BFLOAT16 and source.name != "float16":
        return _to_bfloat16(array)
    if source == BFLOAT16:
        array = array.astype(np.float32)  # exact; ml_dtypes converts to fewer types than NumPy
    return array.astype(dtype.numpy)


def _kept(array: Array, result: Array, source: DType, dtype: DType) -> Array:
    """A mask of the elements of ``result`` that equal those of ``array``, but for rounding."""
    if dtype.is_float:
        finite: Array = np.isfinite(result)
        return finite if not source.is_float else finite | ~np.isfinite(array)
    if source.is_float:
        array = array.astype(np.float64)
        low, high = (0, 2) if dtype.is_bool else _range(dtype)
        whole: Array = (array >= low) & (array < high) & (array == np.trunc(array))
        return whole
    back = result.astype(array.dtype)
    same: Array = (back == array) & ((result < 0) == (array < 0))
    return same


def _range(dtype: DType) -> tuple[float, float]:
    """The first integer of ``dtype`` and the first beyond it; both are exact in float64."""
    limits = np.iinfo(dtype.numpy)
    return float(limits.min), float(int(limits.max) + 1)


def _to_bfloat16(array: Array) -> Array:
    """Rounded once, although the way leads through float64 and float32.

    Both steps before the last round to odd: a result that is not exact gets an odd last bit, which
    keeps it off the midpoints at which the last step would have to break a tie (Boldo and
    Melquiond, "When double rounding is odd", 2005).
    """
    if array.dtype.kind in "iub":
        array = _integers_to_float64(array)
    single = array.astype(np.float32)
    back = single.astype(array.dtype)
    even = (single.view(np.uint32) & 1) == 0
    inexact = (back != array) & np.isfinite(single)
    other = np.nextafter(single, np.where(back < array, np.float32(np.inf), np.float32(-np.inf)))
    odd = np.where(inexact & even, other, single)
    result: Array = odd.astype(BFLOAT16.numpy)
    return result


def _integers_to_float64(array: Array) -> Array:
    """Integers as float64, where large ones keep only what rounding to 24 bits or fewer needs."""
    if array.dtype.itemsize < 8:
        return array.astype(np.float64)
    one = array.dtype.type(1)
    mask = (one << array.dtype.type(_STICKY_BITS)) - one
    large = (array > _EXACT_INTEGERS) | (
        array < -_EXACT_INTEGERS if array.dtype.kind == "i" else False
    )
    sticky = np.where(array & mask, one << array.dtype.type(_STICKY_BITS - 1), one - one)
    return np.where(large, (array & ~mask) | sticky, array).astype(np.float64)


def _shapes_of(
    kind: str, declared: Mapping[str, tuple[Dim, ...]], flat: Mapping[str, Array]
) -> dict[str, tuple[int, ...]]:
    """The shapes that numbers of elements give; each may settle Variables that others need."""
    values: dict[str, int] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    pending = dict(declared)
    while pending:
        ready = [name for name, shape in pending.items() if len(_unknown(shape, values)) < 2]
        if not ready:
            listed = ", ".join(map(repr, pending))
            raise InputError(
                f"the shapes of {listed} do not follow from numbers of elements; use run"
            )
        name = min(ready, key=lambda name: len(_unknown(pending[name], values)))
        shape, count = pending.pop(name), flat[name].size
        for axis in _unknown(shape, values):
            rest = math.prod([evaluate(d, values) for i, d in enumerate(shape) if i != axis])
            if rest == 0 or count % rest:
                raise InputError(
                    f"{kind} {name!r}: {count} elements do not fill {shape_text(shape)}"
                )
            values |= solve_dims({name: ((shape[axis],), (count // rest,))}, values)
        live = tuple(evaluate(dim, values) for dim in shape)
        if math.prod(live) != count:
            raise InputError(f"{kind} {name!r} has shape {shape_text(live)}, got {count} elements")
        shapes[name] = live
    return shapes


def _unknown(shape: Sequence[Dim], values: Mapping[str, int]) -> list[int]:
    """The axes whose sizes the values do not settle."""
    return [i for i, dim in enumerate(shape) if any(s.name not in values for s in symbols(dim))]
