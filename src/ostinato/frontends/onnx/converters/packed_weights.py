"""Converter of ``DequantizePacked``: weights in the blocks of GGUF files."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from ostinato.conversion import convert
from ostinato.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, UINT8
from ostinato.errors import InputError
from ostinato.frontends.onnx.known import Known
from ostinato.frontends.onnx.tensors import ELEMENT_TYPES
from ostinato.ops.packed.decoding import decode, packed_format

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.frontends.onnx.call import Call, Converter, Result

__all__ = ["CONVERTERS"]

_FLOAT: Final = 1  # of TensorProto.DataType


def convert_dequantize_packed(call: Call) -> Result:
    """``DequantizePacked``: the elements of packed blocks.

    A weight stays packed in the model, and is decoded once, when it is written. Formats that no
    kernel decodes are decoded while the model is loaded.
    """
    name, shape = call.text("format", ""), call.integer_list("shape", None)
    if not name or shape is None:
        call.malformed("it lacks the attribute 'format' or 'shape'")
    if min(shape, default=0) < 0:
        call.malformed(f"its shape is {list(shape)}")
    number = call.integer("output_dtype", _FLOAT)
    dtype = ELEMENT_TYPES.get(number)
    if dtype not in (FLOAT32, FLOAT16, BFLOAT16, FLOAT64):
        call.malformed(f"output_dtype is FLOAT, FLOAT16, BFLOAT16 or DOUBLE, got {number}")
    assert dtype is not None
    try:
        form = packed_format(name)
    except InputError as error:
        call.unsupported(str(error))
    packed, count = call.type(0), math.prod(shape)
    if packed.dtype != UINT8 or packed.ndim != 1:
        call.malformed(f"x is uint8 of one axis, got {packed}")
    if count % form.size or packed.shape != (count // form.size * form.nbytes,):
        call.malformed(f"{list(shape)} in blocks of {form.name} is not {packed}")
    if form.computed:
        return call.g.dequantize_packed(call.value(0), name, shape, dtype)
    known = call.known(0)
    if known is None or known.symbolic:
        call.unknown(0, f"weights in the format {name} are not known when the model is loaded")
    elements = convert(decode(known.array, name).reshape(shape), dtype)
    label = f"{known.name or call.label}.decoded"
    return call.leaves.value(Known(elements, dtype, label, weight=True))


CONVERTERS: Mapping[str, Converter] = {"DequantizePacked": convert_dequantize_packed}
