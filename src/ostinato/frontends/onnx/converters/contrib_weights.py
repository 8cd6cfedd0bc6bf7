"""Block-quantised weights of the domain ``com.microsoft``: ``MatMulNBits``,
``GatherBlockQuantized``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.dtypes import UINT8
from ostinato.frontends.onnx.known import Known
from ostinato.ops.base import normalize_axis
from ostinato.variables import ceil_div

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.frontends.onnx.call import Call, Converter, Result
    from ostinato.ir.graph import Value
    from ostinato.variables import Dim

    Array = np.ndarray[Any, Any]

__all__ = ["EXTENSIONS"]

#: The ``accuracy_level`` that lets activations be rounded to 8 bits.
_INT8_ACTIVATIONS = 4
#: The sizes of blocks that the vocabulary's own matmul of 4-bit codes takes.
_GROUPS = (32, 64, 128)


# -- MatMulNBits -----------------------------------------------------------------------------------


def convert_matmul_nbits(call: Call) -> Result:
    """Convert ``MatMulNBits``: a matmul of 4-bit codes where the node allows activations of 8 bits
    and its weights fit, else one of weights that are unpacked while loading.
    """
    g, x = call.g, call.value(0)
    depth, columns = call.required("K"), call.required("N")
    bits, block = call.integer("bits", 4), call.required("block_size")
    if bits not in (2, 4, 8) or min(depth, columns, block) < 1:
        call.malformed(f"{bits} bits in blocks of {block} of a {depth} by {columns} matrix")
    if call.has(4):
        call.unsupported("its rows are in another order (g_idx)")
    blocks = -(-depth // block)
    codes = _codes(call, 1, (columns, blocks, block), bits)
    scales = _known(call, 2).reshape(columns, blocks)
    zero = _zero_points(call, (columns, blocks), bits)
    symmetric = bool((zero == 1 << bits - 1).all())
    allowed = call.integer("accuracy_level", 0) == _INT8_ACTIVATIONS
    if allowed and symmetric and bits == 4 and block in _GROUPS and depth % block == 0:
        rows = codes.reshape(columns, depth).T
        packed = (rows[0::2] | rows[1::2] << 4).astype(np.uint8)
        leaf = call.leaves.value
        product = g.int4_matmul(
            x,
            leaf(Known(packed, UINT8, _name(call, 1), weight=True)),
            leaf(_float(call, np.ascontiguousarray(scales.T), _name(call, 2), x)),
            group=block,
        )
    else:
        wide = (codes - zero[:, :, None]) * scales.astype(np.float32)[:, :, None]
        weight = np.ascontiguousarray(wide.reshape(columns, -1)[:, :depth].T)
        known = _float(call, weight, _name(call, 1), x)
        product = g.matmul(x, call.leaves.value(known))
    return g.add(product, call.value(5)) if call.has(5) else product


def _float(call: Call, array: Array, name: str, like: Value) -> Known:
    return Known(array.astype(like.dtype.numpy), like.dtype, name, weight=True)


def _name(call: Call, index: int) -> str:
    known = call.known(index)
    return f"{known.name or call.label}.unpacked" if known is not None else ""


def _known(call: Call, index: int) -> Array:
    known = call.known(index)
    if known is None or known.symbolic:
        call.unknown(index, "its weights are not known when the model is loaded")
    return known.array


def _codes(call: Call, index: int, shape: tuple[int, int, int], bits: int) -> Array:
    """The codes of all blocks, the first in the lowest bits of a byte."""
    packed = _known(call, index)
    expected = shape[0] * shape[1] * (shape[2] * bits // 8)
    if packed.dtype != np.uint8 or packed.size != expected:
        call.malformed(f"{call.type(index)} should hold {expected} bytes of codes")
    return _unpacked(packed.reshape(shape[0], shape[1], -1), bits)


def _unpacked(packed: Array, bits: int) -> Array:
    shifts = np.arange(8 // bits, dtype=np.uint8) * np.uint8(bits)
    codes = packed[..., None] >> shifts & np.uint8((1 << bits) - 1)
    flat: Array = codes.reshape(*packed.shape[:-1], -1)
    return flat


def _zero_points(call: Call, shape: tuple[int, int], bits: int) -> Array:
    """A number for each block; packed like the codes, row by row, unless they are floats."""
    if not call.has(3):
        return np.full(shape, 1 << bits - 1, np.float32)
    zero = _known(call, 3)
    if zero.dtype != np.uint8:
        return zero.astype(np.float32).reshape(shape)
    packed = zero.reshape(shape[0], -1)
    return _unpacked(packed, bits)[:, : shape[1]].astype(np.float32)


# -- GatherBlockQuantized --------------------------------------------------------------------------


def convert_gather_block_quantized(call: Call) -> Result:
    """Convert ``GatherBlockQuantized``: rows of codes, of scales and of zero points are gathered,
    and computed from there.
    """
    g, data = call.g, call.value(0)
    packed = data.dtype == UINT8
    bits, block = call.integer("bits", 4), call.integer("block_size", 128)
    axis = normalize_axis(call.integer("gather_axis", 0), data.ndim)
    quantized = normalize_axis(call.integer("quantize_axis", 1), data.ndim)
    if bits not in (2, 4, 8) or block < 1:
        call.malformed(f"{bits} bits in blocks of {block}")
    if axis == quantized or (packed and quantized != data.ndim - 1):
        call.unsupported(f"it gathers along axis {axis}, with blocks along axis {quantized}")
    indices = call.value(1)
    picked = [g.take(call.value(i), indices, axis=axis) for i in (0, 2)]
    codes, scales = picked
    if packed and bits < 8:
        codes = _spread(call, codes, bits)
    along = quantized + indices.ndim - 1 if quantized > axis else quantized
    size = codes.shape[along]
    wide = g.cast(codes, scales.dtype)
    if call.has(3):
        zero = g.take(call.value(3), indices, axis=axis)
        if packed and bits < 8 and zero.dtype == UINT8:
            zero = _spread(call, zero, bits)
            zero = g.slice(zero, [0], [scales.shape[along]], axes=[along])
        zero = g.cast(zero, scales.dtype)
        wide = g.subtract(wide, _repeated(call, zero, along, block, size))
    elif packed:
        wide = g.subtract(wide, float(1 << bits - 1))
    return g.multiply(wide, _repeated(call, scales, along, block, size))


def _spread(call: Call, packed: Value, bits: int) -> Value:
    """The codes within bytes, along the last axis."""
    g, count = call.g, 8 // bits
    shifts = g.constant(np.arange(count, dtype=np.uint8) * np.uint8(bits))
    mask = g.constant(np.uint8((1 << bits) - 1))
    codes = g.bitwise_and(g.bitwise_right_shift(g.expand_dims(packed, packed.ndim), shifts), mask)
    return g.reshape(codes, (*packed.shape[:-1], packed.shape[-1] * count))


def _repeated(call: Call, x: Value, axis: int, block: int, size: Dim) -> Value:
    """Each element along ``axis`` ``block`` times, ``size`` of them in all."""
    g = call.g
    if ceil_div(size, block) != x.shape[axis]:
        call.malformed(f"{x.type} does not hold a number for each block of {block} of {size}")
    wide = g.repeat(x, block, axis=axis)
    return wide if wide.shape[axis] == size else g.slice(wide, [0], [size], axes=[axis])


#: Ops of the ``com.microsoft`` domain.
EXTENSIONS: Mapping[str, Converter] = {
    "GatherBlockQuantized": convert_gather_block_quantized,
    "MatMulNBits": convert_matmul_nbits,
}
