"""Converters of convolutions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.frontends.torch.converters.contraction import of_one_dtype

if TYPE_CHECKING:
    from ostinato.frontends.torch.call import Call, Converter
    from ostinato.ir.graph import Value

__all__ = ["CONVERTERS"]


def _convolution(
    call: Call,
    input: Value,
    weight: Value,
    bias: Value | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
    *_: Any,
) -> Value:
    """A convolution, transposed or not, of a batch or of one item alone."""
    g = call.g
    spatial = weight.ndim - 2
    x = input if input.ndim == weight.ndim else g.expand_dims(input, 0)
    strides, dilations = _each(stride, spatial), _each(dilation, spatial)
    pads: Any = padding if isinstance(padding, str) else _each(padding, spatial)
    if transposed:
        extra = _each(output_padding, spatial)
        result = g.conv_transpose(x, weight, bias, strides, pads, extra, dilations, groups)
    else:
        result = g.conv(x, weight, bias, strides, pads, dilations, groups)
    return result if input.ndim == weight.ndim else g.squeeze(result, 0)


def _each(numbers: Any, spatial: int) -> tuple[int, ...]:
    """A number for each spatial axis: one that is given alone is for all of them."""
    listed = numbers if isinstance(numbers, tuple) else (numbers,)
    return listed * spatial if len(listed) == 1 else listed


def _forward(
    call: Call,
    input: Value,
    weight: Value,
    bias: Value | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Value:
    return _convolution(call, input, weight, bias, stride, padding, dilation, False, 0, groups)


def _transposed(
    call: Call,
    input: Value,
    weight: Value,
    bias: Value | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Value:
    return _convolution(
        call,
        input,
        weight,
        bias,
        stride,
        padding,
        dilation,
        True,
        output_padding,
        groups,
    )


def _over_time(call: Call, self: Value, weight: Value, bias: Value, pad: int = 0) -> Value:
    """``conv_tbc``: of sequences ``[time, batch, channels]`` with ``[kernel, in, out]``."""
    g = call.g
    x, w = g.permute_dims(self, (1, 2, 0)), g.permute_dims(weight, (2, 1, 0))
    return g.permute_dims(g.conv(x, w, bias, 1, pad), (2, 0, 1))


CONVERTERS: dict[str, Converter] = {
    "aten.convolution": of_one_dtype(_convolution),
    "aten._convolution": of_one_dtype(_convolution),
    "aten.conv1d": of_one_dtype(_forward),
    "aten.conv2d": of_one_dtype(_forward),
    "aten.conv3d": of_one_dtype(_forward),
    "aten.conv_transpose1d": of_one_dtype(_transposed),
    "aten.conv_transpose2d": of_one_dtype(_transposed),
    "aten.conv_transpose3d": of_one_dtype(_transposed),
    "aten.conv_tbc": of_one_dtype(_over_time),
}
