"""Convolution and its transpose, over one to three spatial axes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.dtypes import INT8, INT32, UINT8, DType
from ostinato.ir.facts import Fact
from ostinato.ir.op import Attr, Op
from ostinato.ir.types import TensorType
from ostinato.ops.windows import (
    check_geometry,
    check_windows,
    dilated,
    spatial_widths,
    window_slices,
    windowed_shape,
)
from ostinato.variables import maximum, prod, provably_less

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ostinato.ir.graph import Node, Value
    from ostinato.variables import Dim

__all__ = [
    "CONV",
    "CONV_TRANSPOSE",
    "FAMILY",
    "INTEGER_CONV",
    "Conv",
    "ConvTranspose",
    "IntegerConv",
    "is_depthwise",
]


class Conv(Op):
    """Cross-correlation, as every framework's "convolution" (ONNX ``Conv``).

    ``x [N, C, *spatial]``, ``w [O, C / groups, *kernel]``, optional ``bias [O]`` give
    ``[N, O, *windows]``. Attributes, one entry per spatial axis: ``stride``, ``padding`` as
    ``(low, high)`` zeros, ``dilation``; and ``groups``. Integers wrap.
    """

    name = "conv"
    weight_operands = (1,)
    takes_epilogue = True
    writes_subviews = True

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        self.expect_count(operands, 2, 3)
        _check_dtypes(operands)
        shape = _convolved_shape(self, operands[0], operands[1], attrs)
        _check_bias(operands, shape[1])
        return (TensorType(operands[0].dtype, shape),)

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        x, w, *bias = operands
        stride, padding, dilation = attrs["stride"], attrs["padding"], attrs["dilation"]
        groups = attrs["groups"]
        batch, channels, *sizes = x.shape
        filters, depth, *kernel = w.shape
        counts = windowed_shape(sizes, kernel, stride, padding, dilation)
        weights = xp.reshape(w, (1, groups, filters // groups, depth, *kernel))
        padded = xp.pad(x, *spatial_widths(padding), 0)
        total: Any = 0
        for position, seen in window_slices(padded, counts, kernel, stride, dilation):
            columns = xp.reshape(seen, (batch, groups, channels // groups, prod(counts)))
            total = total + xp.matmul(weights[(..., *position)], columns)
        result = xp.reshape(total, (batch, filters, *counts))
        return result + _per_channel(xp, bias[0], len(kernel)) if bias else result

    def flops(self, operands: Sequence[TensorType], attrs: dict[str, Attr]) -> Dim:
        (result,) = self.infer(*operands, **attrs)
        per_element = 2 * prod(operands[1].shape[1:]) + (len(operands) == 3)
        return result.size * per_element


class IntegerConv(Op):
    """A convolution of 8-bit integers, summed in int32, with the attributes of ``conv``.

    Either operand is int8 or uint8, there is no bias, and padding is with the integer 0. Sums wrap
    as int32 does. (ONNX ``ConvInteger`` without zero points.)
    """

    name = "integer_conv"
    weight_operands = (1,)
    takes_epilogue = True
    writes_subviews = True

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        self.expect_count(operands, 2)
        for operand in operands:
            bytes_ = operand.dtype in (INT8, UINT8)
            self.expect(bytes_, f"expected int8 or uint8, got {operand.dtype}")
        return (TensorType(INT32, _convolved_shape(self, operands[0], operands[1], attrs)),)

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        return CONV.evaluate(xp, *(xp.cast(operand, INT32) for operand in operands), **attrs)

    def flops(self, operands: Sequence[TensorType], attrs: dict[str, Attr]) -> Dim:
        (result,) = self.infer(*operands, **attrs)
        return result.size * 2 * prod(operands[1].shape[1:])


class ConvTranspose(Op):
    """The transpose (gradient) of a convolution, as PyTorch's and ONNX ``ConvTranspose``.

    ``x [N, C, *spatial]``, ``w [C, O / groups, *kernel]``, optional ``bias [O]`` give
    ``[N, O, *result]`` with ``result = (spatial - 1) * stride - low - high
    + dilation * (kernel - 1) + 1 + output_padding`` per axis. Attributes as for ``conv``, and
    ``output_padding``: positions added at the end of each axis.
    """

    name = "conv_transpose"

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        self.expect_count(operands, 2, 3)
        _check_dtypes(operands)
        x, w = operands[:2]
        _check_windowed(x, w, attrs)
        groups = attrs["groups"]
        channels = x.shape[1]
        self.expect(
            channels == w.shape[0], f"x has {channels} channels, the weight takes {w.shape[0]}"
        )
        self.expect(
            w.shape[0] % groups == 0, f"{channels} channels do not divide into {groups} groups"
        )
        filters = w.shape[1] * groups
        _check_bias(operands, filters)
        self.expect_facts(operands, attrs)
        spatial = tuple(
            _transposed_size(*axis)
            for axis in zip(
                x.shape[2:],
                _kernel(w),
                attrs["stride"],
                attrs["padding"],
                attrs["output_padding"],
                attrs["dilation"],
                strict=True,
            )
        )
        return (TensorType(x.dtype, (x.shape[0], filters, *spatial)),)

    def facts(self, operands: Sequence[TensorType], attrs: dict[str, Attr]) -> Iterator[Fact]:
        x = operands[0]
        for axis, size in enumerate(x.shape[2:], 2):
            yield Fact(size, 1, f"axis {axis} of {x}, which is spatial, is empty")

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        x, w, *bias = operands
        groups, padding = attrs["groups"], _full_padding(w.shape[2:], attrs)
        channels, depth, *kernel = w.shape
        grouped = xp.reshape(w, (groups, channels // groups, depth, *kernel))
        filters = (groups * depth, channels // groups, *kernel)
        swapped = xp.permute_dims(grouped, (0, 2, 1, *range(3, grouped.ndim)))
        full = CONV.evaluate(
            xp,
            _stuff_zeros(xp, x, attrs["stride"]),
            xp.flip(xp.reshape(swapped, filters), axis=tuple(range(2, x.ndim))),
            *bias,
            stride=(1,) * len(kernel),
            padding=_nonnegative(padding),
            dilation=attrs["dilation"],
            groups=groups,
        )
        return full[(..., *(slice(*ends) for ends in _kept(full.shape[2:], padding)))]

    def decompose(self, g: Any, operands: Sequence[Value], attrs: dict[str, Attr]) -> Any:
        x, w, *bias = operands
        groups, padding = attrs["groups"], _full_padding(_kernel(w.type), attrs)
        channels, depth, *kernel = w.shape
        grouped = g.reshape(w, (groups, channels // groups, depth, *kernel))
        swapped = g.permute_dims(grouped, (0, 2, 1, *range(3, grouped.ndim)))
        filters = g.reshape(swapped, (groups * depth, channels // groups, *kernel))
        full = g.conv(
            _stuff_zeros(g, x, attrs["stride"]),
            g.flip(filters, axis=tuple(range(2, x.ndim))),
            *bias,
            padding=_nonnegative(padding),
            dilation=attrs["dilation"],
            groups=groups,
        )
        starts, stops = zip(*_kept(full.shape[2:], padding), strict=True)
        if starts == (0,) * len(starts) and stops == full.shape[2:]:
            return full
        return g.slice(full, (0, 0, *starts), (*full.shape[:2], *stops))

    def flops(self, operands: Sequence[TensorType], attrs: dict[str, Attr]) -> Dim:
        x, w, *_ = operands
        return x.size * prod(w.shape[1:]) * 2


def _check_dtypes(operands: Sequence[TensorType]) -> None:
    """Check that all operands have one dtype, of numbers."""
    dtypes = {t.dtype for t in operands}
    Op.expect(len(dtypes) == 1, f"operands have dtypes {', '.join(sorted(map(str, dtypes)))}")
    Op.expect(not operands[0].dtype.is_bool, "expected numeric operands, got bool; cast them first")


def _check_windowed(x: TensorType, w: TensorType, attrs: dict[str, Attr]) -> None:
    """Check the conditions of all ops on the dims of ``x`` and the weight, and the attributes."""
    Op.expect(3 <= x.ndim <= 5, f"x is [N, C, *spatial] with 1 to 3 spatial axes, got {x}")
    Op.expect(w.ndim == x.ndim, f"x has {x.ndim} dims, the weight {w.ndim}")
    Op.expect(
        all(isinstance(d, int) and d > 0 for d in w.shape[1:]),
        f"the weight's channels and kernel are positive ints, got {w}",
    )
    check_geometry(attrs, x.ndim - 2)
    groups = attrs["groups"]
    fits = isinstance(groups, int) and groups >= 1
    Op.expect(fits, f"groups must be at least 1, got {groups!r}")


def _convolved_shape(
    op: Op, x: TensorType, w: TensorType, attrs: dict[str, Attr]
) -> tuple[Dim, ...]:
    """The shape of a convolution's result."""
    _check_windowed(x, w, attrs)
    groups = attrs["groups"]
    channels, filters = x.shape[1], w.shape[0]
    op.expect(
        channels == w.shape[1] * groups,
        f"x has {channels} channels, the weight takes {w.shape[1]} in each of {groups} groups",
    )
    op.expect(filters % groups == 0, f"{filters} filters do not divide into {groups} groups")
    sizes, kernel, padding = x.shape[2:], _kernel(w), attrs["padding"]
    spatial = windowed_shape(sizes, kernel, attrs["stride"], padding, attrs["dilation"])
    check_windows(spatial, sizes, kernel, padding, attrs["dilation"])
    return (x.shape[0], filters, *spatial)


def _check_bias(operands: Sequence[TensorType], filters: Dim) -> None:
    if len(operands) == 3:
        Op.expect(
            operands[2].shape == (filters,), f"the bias is {operands[2]}, expected [{filters}]"
        )


def _kernel(w: TensorType) -> tuple[int, ...]:
    return tuple(d for d in w.shape[2:] if isinstance(d, int))


def _per_channel(xp: Any, bias: Any, spatial: int) -> Any:
    return xp.reshape(bias, (1, -1, *(1,) * spatial))


def _transposed_size(
    size: Dim, kernel: int, stride: int, padding: tuple[int, int], extra: int, dilation: int
) -> Dim:
    result = (size - 1) * stride - sum(padding) + dilated(kernel, dilation) + extra
    Op.expect(
        not provably_less(result, 1), f"padding {padding} leaves {result} positions of an axis"
    )
    return maximum(result, 0)


def _full_padding(kernel: Sequence[int], attrs: dict[str, Attr]) -> tuple[tuple[int, int], ...]:
    """The padding of the equivalent convolution over the zero-stuffed ``x``.

    Zero-stuffing ends with ``stride - 1`` zeros that stand for nothing, so the end is padded by
    that much less. A negative entry stands for that many results to drop (:func:`_kept`).
    """
    keys = ("stride", "padding", "output_padding", "dilation")
    axes = zip(kernel, *(attrs[key] for key in keys), strict=True)
    return tuple(
        (dilated(k, d) - 1 - low, dilated(k, d) - s - high + extra)
        for k, s, (low, high), extra, d in axes
    )


def is_depthwise(node: Node) -> bool:
    """Whether each output channel of a convolution sees one input channel of several."""
    return bool(node.inputs[1].shape[1] == 1 and node.attrs["groups"] > 1)


def _nonnegative(padding: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    return tuple((max(low, 0), max(high, 0)) for low, high in padding)


def _kept(sizes: Sequence[Dim], padding: Sequence[tuple[int, int]]) -> list[tuple[int, Dim]]:
    """``(start, stop)`` of what negative padding leaves of every spatial axis."""
    return [
        (max(-low, 0), size - max(-high, 0))
        for size, (low, high) in zip(sizes, padding, strict=True)
    ]


def _stuff_zeros(xp: Any, x: Any, stride: Sequence[int]) -> Any:
    """``x``, an array or a value of a graph, with ``stride - 1`` zeros after every element."""
    for axis, step in enumerate(stride, 2):
        if step > 1:
            before, size, after = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
            apart = xp.reshape(x, (*before, size, 1, *after))
            zeros = xp.full((*before, size, step - 1, *after), 0, DType.parse(x.dtype))
            stuffed = xp.concat([apart, zeros], axis=axis + 1)
            x = xp.reshape(stuffed, (*before, size * step, *after))
    return x


CONV, INTEGER_CONV, CONV_TRANSPOSE = Conv(), IntegerConv(), ConvTranspose()
FAMILY: tuple[Op, ...] = (CONV, INTEGER_CONV, CONV_TRANSPOSE)
