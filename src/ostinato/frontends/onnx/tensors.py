"""``TensorProto`` to NumPy, without a copy where the file's bytes can be viewed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato import dtypes
from ostinato.dtypes import DType
from ostinato.errors import ModelFormatError

if TYPE_CHECKING:
    from onnx import TensorProto

    from ostinato.frontends.onnx.external import ExternalData

__all__ = [
    "ELEMENT_TYPES",
    "EXTERNAL",
    "MAX_RANK",
    "STRING",
    "array_from_bytes",
    "element_name",
    "element_number",
    "expect",
    "read_strings",
    "read_tensor",
    "stored_bytes",
    "tensor_shape",
]

#: ``TensorProto.DataType`` numbers and the dtypes that they name.
ELEMENT_TYPES: dict[int, DType] = {
    1: dtypes.FLOAT32,
    2: dtypes.UINT8,
    3: dtypes.INT8,
    4: dtypes.UINT16,
    5: dtypes.INT16,
    6: dtypes.INT32,
    7: dtypes.INT64,
    9: dtypes.BOOL,
    10: dtypes.FLOAT16,
    11: dtypes.FLOAT64,
    12: dtypes.UINT32,
    13: dtypes.UINT64,
    16: dtypes.BFLOAT16,
    17: DType.parse("float8_e4m3fn"),
    18: DType.parse("float8_e4m3fnuz"),
    19: DType.parse("float8_e5m2"),
    20: DType.parse("float8_e5m2fnuz"),
    21: DType.parse("uint4"),
    22: DType.parse("int4"),
    23: DType.parse("float4_e2m1fn"),
    24: DType.parse("float8_e8m0fnu"),
    25: DType.parse("uint2"),
    26: DType.parse("int2"),
}

#: The number of the element type of strings.
STRING = 8

_UNSUPPORTED_NAMES = {
    0: "undefined",
    8: "string",
    14: "complex64",
    15: "complex128",
}

#: The repeated field that holds the elements when they are not in ``raw_data``.
_FIELDS = {
    1: "float_data",
    7: "int64_data",
    11: "double_data",
    12: "uint64_data",
    13: "uint64_data",
}

#: No NumPy array has more dims.
MAX_RANK = 64

#: No tensor of a file has more elements.
_MOST_ELEMENTS = 1 << 56

#: ``TensorProto.DataLocation`` of data in another file.
EXTERNAL = 1


def element_name(data_type: int) -> str:
    """The name of an element type in messages, supported or not."""
    if data_type in ELEMENT_TYPES:
        return ELEMENT_TYPES[data_type].name
    return _UNSUPPORTED_NAMES.get(data_type, f"number {data_type}")


def element_number(dtype: DType) -> int:
    """The ``TensorProto.DataType`` number of ``dtype``."""
    return next(number for number, known in ELEMENT_TYPES.items() if known == dtype)


def tensor_shape(tensor: TensorProto) -> tuple[int, ...]:
    """The dims, checked.

    Raises:
        ModelFormatError: a dim is negative, or they are too many or too large.
    """
    shape = tuple(tensor.dims)
    if len(shape) > MAX_RANK:
        raise ModelFormatError(
            f"tensor {tensor.name!r} has {len(shape)} dims; at most {MAX_RANK} are supported"
        )
    if any(dim < 0 for dim in shape):
        raise ModelFormatError(f"tensor {tensor.name!r} has a negative dim: {list(shape)}")
    if math.prod(dim for dim in shape if dim) > _MOST_ELEMENTS:  # empty tensors have strides, too
        raise ModelFormatError(f"tensor {tensor.name!r} is impossibly large: {list(shape)}")
    return shape


def read_tensor(tensor: TensorProto, external: ExternalData) -> np.ndarray[Any, Any]:
    """The tensor's elements, read-only.

    Raises:
        ModelFormatError: the element type has no dtype here, the data is of the wrong length, or
            its external file cannot be read.
    """
    if tensor.data_type not in ELEMENT_TYPES:
        raise ModelFormatError(
            f"tensor {tensor.name!r} has elements of type {element_name(tensor.data_type)}"
        )
    dtype = ELEMENT_TYPES[tensor.data_type]
    shape = tensor_shape(tensor)
    if tensor.data_location == EXTERNAL:
        place = external.range(tensor, stored_bytes(dtype, shape))
        data = place.file.read(place.offset, place.nbytes)
        array = array_from_bytes(tensor.name, data, dtype, shape)
    elif tensor.HasField("raw_data"):
        array = array_from_bytes(tensor.name, tensor.raw_data, dtype, shape)
    else:
        array = _from_field(tensor, dtype, shape)
    array.flags.writeable = False
    return array


def read_strings(tensor: TensorProto) -> np.ndarray[Any, Any]:
    """The elements of a tensor of strings, as objects.

    Raises:
        ModelFormatError: there are too few or too many.
    """
    shape = tensor_shape(tensor)
    expect(tensor.name, len(tensor.string_data), math.prod(shape), "elements")
    array = np.empty(len(tensor.string_data), object)
    array[:] = [text.decode("utf-8", "replace") for text in tensor.string_data]
    return array.reshape(shape)


def array_from_bytes(
    name: str, data: bytes, dtype: DType, shape: tuple[int, ...]
) -> np.ndarray[Any, Any]:
    """Convert a tensor's bytes to its elements.

    Raises:
        ModelFormatError: there are too few or too many.
    """
    if dtype.is_narrow:
        return _from_codes(name, np.frombuffer(data, np.uint8), dtype, shape)
    expect(name, len(data), math.prod(shape) * dtype.itemsize, "bytes")
    if dtype.is_bool:  # any byte but 0 and 1 would be an invalid bool
        return np.frombuffer(data, np.uint8).astype(np.bool_).reshape(shape)
    stored = dtype.numpy if dtype.name == "bfloat16" else dtype.numpy.newbyteorder("<")
    return np.frombuffer(data, stored).reshape(shape)


def _from_field(tensor: TensorProto, dtype: DType, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    elements = getattr(tensor, _FIELDS.get(tensor.data_type, "int32_data"))
    if dtype.is_narrow:  # a byte of the packed data, one an int32
        codes = np.asarray(elements, np.int32).astype(np.uint8)
        return _from_codes(tensor.name, codes, dtype, shape)
    expect(tensor.name, len(elements), math.prod(shape), "elements")
    if dtype.is_float and dtype.itemsize == 2:  # the bits, one element an int32
        bits = np.asarray(elements, np.int32).astype(np.uint16)
        return bits.view(dtype.numpy).reshape(shape)
    wide: np.ndarray[Any, Any] = np.asarray(elements, _wide(dtype))
    return wide.astype(dtype.numpy).reshape(shape)


def stored_bytes(dtype: DType, shape: tuple[int, ...]) -> int:
    """The bytes that a file has for a tensor; narrow elements share them."""
    if dtype.is_narrow:
        return -(-math.prod(shape) * _code_bits(dtype) // 8)
    return math.prod(shape) * dtype.itemsize


def _from_codes(
    name: str, packed: np.ndarray[Any, Any], dtype: DType, shape: tuple[int, ...]
) -> np.ndarray[Any, Any]:
    """Elements of a narrow dtype from bytes that hold one, two or four each, the first lowest.

    Raises:
        ModelFormatError: there are too few or too many.
    """
    width, size = _code_bits(dtype), math.prod(shape)
    per_byte = 8 // width
    expect(name, packed.size, stored_bytes(dtype, shape), "bytes")
    shifts = np.arange(per_byte, dtype=np.uint8) * np.uint8(width)
    codes = (packed[:, None] >> shifts) & np.uint8((1 << width) - 1)
    codes = codes.reshape(-1)[:size].reshape(shape)
    if dtype.format.is_integer:
        codes = codes.astype(np.int8).astype(dtype.numpy)
    return codes.view(dtype.numpy)  # type: ignore[no-any-return]


def _code_bits(dtype: DType) -> int:
    """The bits of an element in a file."""
    form = dtype.format
    if form.is_integer:
        return form.mantissa
    return form.exponent + form.mantissa + form.signed


def _wide(dtype: DType) -> type[np.generic]:
    """The element type of the protobuf field that holds ``dtype``."""
    if dtype.is_float:
        return np.float64 if dtype.itemsize == 8 else np.float32
    if dtype.name in ("uint32", "uint64"):
        return np.uint64
    return np.int64


def expect(name: str, found: int, expected: int, unit: str) -> None:
    """Check how much data a tensor has.

    Raises:
        ModelFormatError: it is not as much as its shape says.
    """
    if found != expected:
        raise ModelFormatError(
            f"tensor {name!r} should hold {expected} {unit} and holds {found}; the file is damaged"
        )
