"""Converters of matmuls, convolutions and pools."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.variables import bounds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ostinato.frontends.onnx.call import Call, Converter, Result
    from ostinato.ir.graph import Value
    from ostinato.variables import Dim

__all__ = ["CONVERTERS", "convert_average_pool", "convert_global_pool", "window_arguments"]


def convert_matmul(call: Call) -> Result:
    return call.g.matmul(call.value(0), call.value(1))


def convert_gemm(call: Call) -> Result:
    g = call.g
    if call.rank(0) != 2 or call.rank(1) != 2:
        call.malformed(f"expected two matrices, got {call.type(0)} and {call.type(1)}")
    a, b = call.value(0), call.value(1)
    if call.integer("transA", 0):
        a = g.permute_dims(a, (1, 0))
    if call.integer("transB", 0):
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
    return call.g.einsum(call.text("equation", ""), *call.values())


def convert_conv(call: Call) -> Result:
    arguments = window_arguments(call)
    return call.g.conv(call.value(0), call.value(1), call.optional(2), **arguments)


def window_arguments(call: Call) -> dict[str, Any]:
    """Strides, padding, dilations and groups of a convolution of operand 0 with operand 1."""
    ndim = _spatial(call)
    return {
        "stride": _per_axis(call, "strides", ndim),
        "padding": _padding(call, ndim),
        "dilation": _per_axis(call, "dilations", ndim),
        "groups": call.integer("group", 1),
    }


def convert_conv_transpose(call: Call) -> Result:
    ndim = _spatial(call)
    stride = _per_axis(call, "strides", ndim)
    dilation = _per_axis(call, "dilations", ndim)
    padding, extra = _transposed_padding(call, ndim, stride, dilation)
    return call.g.conv_transpose(
        call.value(0),
        call.value(1),
        call.optional(2),
        stride=stride,
        padding=padding,
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
        return _padding(call, ndim), given
    sizes, kernel = call.shape(0)[2:], call.shape(1)[2:]
    if target is None:
        target = tuple(size * step for size, step in zip(sizes, stride, strict=True))
    pads, extra = [], list(given)
    for axis, wanted in enumerate(target[-ndim:]):
        full = (sizes[axis] - 1) * stride[axis] + dilation[axis] * (kernel[axis] - 1) + 1
        total = full + extra[axis] - wanted
        if not isinstance(total, int):
            call.unsupported(f"its padding depends on a Variable ({total}); fix it with dims=")
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


def _per_axis(call: Call, name: str, ndim: int) -> tuple[int, ...]:
    found = call.integer_list(name, (1,) * ndim)
    if len(found) != ndim or any(entry < 1 for entry in found):
        call.malformed(f"{name} {list(found)} should be {ndim} positive ints")
    return found


def _padding(call: Call, ndim: int) -> Any:
    auto = call.text("auto_pad", "NOTSET")
    named = {"SAME_UPPER": "same", "SAME_LOWER": "same_lower", "VALID": "valid"}
    if auto in named:
        return named[auto]
    if auto not in ("", "NOTSET"):
        call.malformed(f"unknown auto_pad {auto!r}")
    pads = call.integer_list("pads", (0,) * (2 * ndim))
    if len(pads) != 2 * ndim:
        call.malformed(f"pads {list(pads)} should be {2 * ndim} ints")
    return list(zip(pads[:ndim], pads[ndim:], strict=True))


def convert_max_pool(call: Call) -> Result:
    if call.wants(1):
        call.unsupported("its second output, the positions of the maxima, has no equivalent")
    return call.g.max_pool(call.value(0), **_pool_arguments(call))


def convert_average_pool(call: Call) -> Result:
    include = bool(call.integer("count_include_pad", 0))
    return call.g.avg_pool(call.value(0), count_include_pad=include, **_pool_arguments(call))


def _pool_arguments(call: Call) -> dict[str, Any]:
    ndim = call.rank(0) - 2
    kernel = call.integer_list("kernel_shape", ())
    if ndim < 1 or len(kernel) != ndim:
        call.malformed(f"kernel_shape {list(kernel)} does not fit {call.type(0)}")
    return {
        "kernel": kernel,
        "stride": _per_axis(call, "strides", ndim),
        "padding": _padding(call, ndim),
        "dilation": _per_axis(call, "dilations", ndim),
        "ceil_mode": bool(call.integer("ceil_mode", 0)),
    }


def convert_global_pool(call: Call) -> Result:
    x = call.value(0)
    if x.ndim < 3 or any(bounds(dim)[1] == 0 for dim in x.shape[2:]):
        call.malformed(f"expected x [N,C,...], got {x.type}")
    reduce = call.g.mean if call.op_type == "GlobalAveragePool" else call.g.max
    return reduce(x, axis=tuple(range(2, x.ndim)), keepdims=True)


CONVERTERS: Mapping[str, Converter] = {
    "AveragePool": convert_average_pool,
    "Conv": convert_conv,
    "ConvTranspose": convert_conv_transpose,
    "Einsum": convert_einsum,
    "Gemm": convert_gemm,
    "GlobalAveragePool": convert_global_pool,
    "GlobalMaxPool": convert_global_pool,
    "MatMul": convert_matmul,
    "MaxPool": convert_max_pool,
}
