"""Converters of matmuls and convolutions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.frontends.onnx.converters.windows import padding, per_axis

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ostinato.frontends.onnx.call import Call, Converter, Result
    from ostinato.ir.graph import Value
    from ostinato.variables import Dim

__all__ = ["CONVERTERS", "window_arguments"]


def convert_matmul(call: Call) -> Result:
    call.alike(0, 1)
    return call.g.matmul(call.value(0), call.value(1))


def convert_gemm(call: Call) -> Result:
    g = call.g
    if call.rank(0) != 2 or call.rank(1) != 2:
        call.malformed(f"expected two matrices, got {call.type(0)} and {call.type(1)}")
    call.alike(0, 1, 2)
    a, b = call.value(0), call.value(1)
    if call.flag("transA", 0):
        a = g.permute_dims(a, (1, 0))
    if call.flag("transB", 0):
        b = g.permute_dims(b, (1, 0))
    product = _scaled(call, g.matmul(a, b), call.real("alpha", 1.0))
    beta = call.real("beta", 1.0)
    if not call.has(2) or beta == 0.0:
        return product
    return g.add(product, _scaled(call, call.value(2), beta))


def _scaled(call: Call, x: Value, factor: float) -> Value:
    if factor == 1.0:
        return x
    if x.dtype.is_float:
        return call.g.multiply(x, factor)
    return call.g.cast(call.g.multiply(call.g.cast(x, "float64"), factor), x.dtype)


def convert_einsum(call: Call) -> Result:
    call.alike(*range(len(call.operands)))
    return call.g.einsum(call.text("equation", ""), *call.values())


def convert_conv(call: Call) -> Result:
    arguments = window_arguments(call)
    return call.g.conv(call.value(0), call.value(1), call.optional(2), **arguments)


def window_arguments(call: Call) -> dict[str, Any]:
    """Strides, padding, dilations and groups of a convolution of operand 0 with operand 1."""
    ndim = _spatial(call)
    return {
        "stride": per_axis(call, "strides", ndim),
        "padding": padding(call, ndim),
        "dilation": per_axis(call, "dilations", ndim),
        "groups": call.integer("group", 1),
    }


def convert_conv_transpose(call: Call) -> Result:
    ndim = _spatial(call)
    stride = per_axis(call, "strides", ndim)
    dilation = per_axis(call, "dilations", ndim)
    pads, extra = _transposed_padding(call, ndim, stride, dilation)
    return call.g.conv_transpose(
        call.value(0),
        call.value(1),
        call.optional(2),
        stride=stride,
        padding=pads,
        output_padding=extra,
        dilation=dilation,
        groups=call.integer("group", 1),
    )


def _transposed_padding(
    call: Call, ndim: int, stride: tuple[int, ...], dilation: tuple[int, ...]
) -> tuple[Any, Sequence[int]]:
    """Padding and output padding: those given, or what leads to the output's given size."""
    given = call.integer_list("output_padding", (0,) * ndim)
    if len(given) != ndim:
        call.malformed(f"output_padding {list(given)} should be {ndim} ints")
    auto = call.text("auto_pad", "NOTSET")
    target: tuple[Dim, ...] | None = call.integer_list("output_shape", None)
    if target is None and not auto.startswith("SAME"):
        return padding(call, ndim), given
    sizes, kernel = call.shape(0)[2:], call.shape(1)[2:]
    if target is None:
        target = tuple(size * step for size, step in zip(sizes, stride, strict=True))
    pads, extra = [], list(given)
    for axis, wanted in enumerate(target[-ndim:]):
        full = (sizes[axis] - 1) * stride[axis] + dilation[axis] * (kernel[axis] - 1) + 1
        total = full + extra[axis] - wanted
        if not isinstance(total, int):
            call.needs_number(f"its padding is {total}", total)
        if total < 0:
            extra[axis] -= total
        half = max(total, 0) // 2
        total = max(total, 0)
        pads.append((total - half, half) if auto == "SAME_LOWER" else (half, total - half))
    return pads, extra


def _spatial(call: Call) -> int:
    """The number of spatial axes of a convolution."""
    ndim = call.rank(0) - 2
    if ndim < 1 or call.rank(1) != call.rank(0):
        call.malformed(
            f"expected x [N,C,...] and a weight of as many dims, got {call.type(0)}, {call.type(1)}"
        )
    kernel = call.integer_list("kernel_shape", call.shape(1)[2:])
    if tuple(kernel) != call.shape(1)[2:]:
        call.malformed(f"kernel_shape {list(kernel)} contradicts the weight {call.type(1)}")
    return ndim


CONVERTERS: Mapping[str, Converter] = {
    "Conv": convert_conv,
    "ConvTranspose": convert_conv_transpose,
    "Einsum": convert_einsum,
    "Gemm": convert_gemm,
    "MatMul": convert_matmul,
}
