"""Arrays from users: what is accepted, and in which words the rest is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.conversion import convert
from ostinato.dtypes import DType
from ostinato.errors import GraphError, InputError
from ostinato.ir.leaves import as_array
from ostinato.plan.device_array import DeviceArray
from ostinato.records import dataclass

if TYPE_CHECKING:
    from ostinato.ir.types import TensorType
    from ostinato.variables import Dim

__all__ = [
    "Array",
    "TensorSpec",
    "checked_array",
    "checked_mapping",
    "converted",
    "in_place",
    "shape_text",
]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class TensorSpec:
    """An input, output or param of a compiled graph: its name, shape and dtype."""

    name: str
    type: TensorType

    @property
    def shape(self) -> tuple[Dim, ...]:
        return self.type.shape

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    def __str__(self) -> str:
        return f"{self.name}: {self.type}"


def checked_mapping(kind: str, given: object, specs: Mapping[str, TensorSpec]) -> Mapping[str, Any]:
    """``given`` as a mapping whose names are known.

    Raises:
        InputError: it is no mapping, or a name is unknown.
    """
    if not isinstance(given, Mapping):
        got = type(given).__name__
        raise InputError(f"{kind}s are given as a mapping of names to arrays, got {got}")
    for name in given:
        if name not in specs:
            known = ", ".join(map(repr, specs)) or "none"
            raise InputError(f"unknown {kind} {name!r}; the graph has {known}")
    return given


def checked_array(kind: str, spec: TensorSpec, given: object, *, cast: bool = False) -> Array:
    """``given`` as an array of the declared rank and fixed sizes, sharing its memory.

    Its dtype is the declared one, unless ``cast`` says that :func:`converted` may convert it.

    Raises:
        InputError: it is no array, or its dtype or shape differs.
    """
    if isinstance(given, DeviceArray):
        array: Any = given
        cast = False  # a conversion would take place on the host
    else:
        try:
            array = as_array(given)
        except GraphError as error:
            raise InputError(f"{kind} {spec.name!r} is {spec.type}: {error}") from None
    if array.dtype != spec.dtype.numpy and not (cast and _is_known(array.dtype)):
        advice = "" if cast else "; convert the array, or compile with cast_inputs=True"
        raise InputError(f"{kind} {spec.name!r} is {spec.dtype}, got {_named(array)}{advice}")
    fits = len(array.shape) == len(spec.shape) and all(
        not isinstance(dim, int) or dim == size
        for dim, size in zip(spec.shape, array.shape, strict=True)
    )
    if not fits:
        raise InputError(
            f"{kind} {spec.name!r} has shape {shape_text(spec.shape)}, got {array.shape}"
        )
    found: Array = array
    return found


def converted(spec: TensorSpec, array: Array) -> Array:
    """A checked array as the device wants it: of the declared dtype, and C-contiguous.

    It is converted as the op ``cast`` would, and copied only where it has to be.
    """
    if isinstance(array, DeviceArray):
        if not array.flags.c_contiguous:
            raise InputError(
                f"{spec.name!r}: an array on {array.device} must be C-contiguous; make it so there"
            )
        return array
    if array.dtype != spec.dtype.numpy:
        return convert(array, spec.dtype)
    return array if array.flags.c_contiguous else array.copy(order="C")


def in_place(kind: str, spec: TensorSpec, given: object) -> Array:
    """``given``, whose own memory is going to be used, as an array.

    Raises:
        InputError: it has no memory to share, its dtype differs, or its elements do not lie in
            order.
    """
    shares = isinstance(given, np.ndarray) or hasattr(given, "__dlpack__") or _is_buffer(given)
    if not shares:
        raise InputError(
            f"{kind} {spec.name!r}: a {type(given).__name__} has no memory that could be bound; "
            "give an array"
        )
    if isinstance(given, DeviceArray):
        array: Any = given
    else:
        try:
            array = as_array(given)
        except GraphError as error:
            raise InputError(f"{kind} {spec.name!r} is {spec.type}: {error}") from None
    if array.dtype != spec.dtype.numpy:
        raise InputError(f"{kind} {spec.name!r} is {spec.dtype}, got {_named(array)}")
    if not array.flags.c_contiguous:
        raise InputError(
            f"{kind} {spec.name!r} is used in place and must be C-contiguous, got strides "
            f"{getattr(array, 'strides', 'unknown')} for shape {array.shape}; give "
            "np.ascontiguousarray of it"
        )
    found: Array = array
    return found


def shape_text(shape: Sequence[Dim]) -> str:
    """A shape as Python writes tuples, with Variables by their names."""
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def _is_buffer(given: object) -> bool:
    try:
        memoryview(given)  # type: ignore[arg-type]  # that is the question
    except (TypeError, ValueError, BufferError):
        return False
    return True


def _is_known(dtype: np.dtype[Any]) -> bool:
    """Whether elements of ``dtype`` can be converted: numbers are, text and records are not."""
    try:
        DType.parse(dtype)
    except GraphError:
        return False
    return True


def _named(array: Array) -> str:
    order = "" if array.dtype.isnative else " in foreign byte order"
    return f"{array.dtype.name}{order}"
