"""Converters of the gradients that graphs of AOTAutograd are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.frontends.torch.converters.attention import attention_operands
from ostinato.frontends.torch.converters.pooling import each

if TYPE_CHECKING:
    from ostinato.frontends.torch.call import Call, Converter
    from ostinato.ir.graph import Value
    from ostinato.variables import Dim

__all__ = ["CONVERTERS"]


def _wanted(gradients: tuple[Value, ...], mask: tuple[bool, ...]) -> tuple[Value | None, ...]:
    """The gradients that are asked for."""
    pairs = zip(gradients, mask, strict=True)
    return tuple(gradient if wanted else None for gradient, wanted in pairs)


# -- windows ----------------------------------------------------------------------------------


def _convolution(
    call: Call,
    grad_output: Value,
    input: Value,
    weight: Value,
    bias_sizes: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
    output_mask: tuple[bool, ...],
) -> tuple[Value | None, ...]:
    if transposed:
        call.unsupported("the gradient of a transposed convolution")
    spatial = weight.ndim - 2
    steps, pads, apart = (each(numbers, spatial) for numbers in (stride, padding, dilation))
    found = call.g.conv_backward(grad_output, input, weight, steps, pads, apart, groups)
    return _wanted(found, output_mask)


def _max_pool(spatial: int) -> Converter:
    def convert(
        call: Call,
        grad_output: Value,
        self: Value,
        kernel_size: Any,
        stride: Any,
        padding: Any,
        dilation: Any,
        ceil_mode: bool,
        indices: Value,
    ) -> Value:
        return _to_maxima(call, grad_output, self, indices, spatial)

    return convert


def _adaptive_max_pool(spatial: int) -> Converter:
    def convert(call: Call, grad_output: Value, self: Value, indices: Value) -> Value:
        return _to_maxima(call, grad_output, self, indices, spatial)

    return convert


def _to_maxima(call: Call, grad: Value, x: Value, indices: Value, spatial: int) -> Value:
    g, sizes = call.g, x.shape[-spatial:]
    if x.ndim == spatial + 2:
        return g.max_pool_backward(grad, indices, sizes)
    found = g.max_pool_backward(g.expand_dims(grad, 0), g.expand_dims(indices, 0), sizes)
    return g.squeeze(found, 0)


def _avg_pool(spatial: int) -> Converter:
    def convert(
        call: Call,
        grad_output: Value,
        self: Value,
        kernel_size: Any,
        stride: Any,
        padding: Any,
        ceil_mode: bool,
        count_include_pad: bool,
        divisor_override: int | None,
    ) -> Value:
        g = call.g
        kernel = each(kernel_size, spatial)
        steps = each(stride, spatial) if stride else kernel
        sizes = [call.fixed(size, "size") for size in self.shape[-spatial:]]
        above = grad_output if self.ndim == spatial + 2 else g.expand_dims(grad_output, 0)
        found = g.avg_pool_backward(
            above,
            sizes,
            kernel,
            steps,
            each(padding, spatial),
            ceil_mode,
            count_include_pad,
            divisor_override,
        )
        return g.reshape(found, self.shape)

    return convert


# -- activations ------------------------------------------------------------------------------


def _gelu(call: Call, grad_output: Value, self: Value, *, approximate: str = "none") -> Value:
    return call.g.gelu_backward(grad_output, self, approximate == "tanh")


def _of_operand(method: str) -> Converter:
    """The gradient of a function, by its operand."""

    def convert(call: Call, grad_output: Value, self: Value) -> Value:
        return getattr(call.g, method)(grad_output, self)  # type: ignore[no-any-return]

    return convert


def _of_result(method: str) -> Converter:
    """The gradient of a function, by its result."""

    def convert(call: Call, grad_output: Value, output: Value) -> Value:
        return getattr(call.g, method)(grad_output, output)  # type: ignore[no-any-return]

    return convert


def _softmax(method: str) -> Converter:
    def convert(call: Call, grad_output: Value, output: Value, dim: int, input_dtype: Any) -> Value:
        g = call.g
        if not output.ndim:
            return call.rounded(g.multiply(grad_output, 0))
        axis = call.axis(dim, output.ndim)
        found: Value = getattr(g, method)(grad_output, output, axis)
        return call.rounded(found)

    return convert


def _threshold(call: Call, grad_output: Value, self: Value, threshold: Any) -> Value:
    g = call.g
    below = g.less_equal(self, call.value(threshold, self.dtype))
    return g.where(below, call.value(0, grad_output.dtype), grad_output)


# -- norms ------------------------------------------------------------------------------------


def _layer_norm(
    call: Call,
    grad_out: Value,
    input: Value,
    normalized_shape: tuple[Dim, ...],
    mean: Value,
    rstd: Value,
    weight: Value | None,
    bias: Value | None,
    output_mask: tuple[bool, ...],
) -> tuple[Value | None, ...]:
    axis = input.ndim - len(normalized_shape)
    found = call.g.layer_norm_backward(grad_out, input, mean, rstd, weight, axis)
    return _wanted(found, output_mask)


def _group_norm(
    call: Call,
    grad_out: Value,
    input: Value,
    mean: Value,
    rstd: Value,
    weight: Value | None,
    N: Dim,
    C: Dim,
    HxW: Dim,
    group: int,
    output_mask: tuple[bool, ...],
) -> tuple[Value | None, ...]:
    found = call.g.group_norm_backward(grad_out, input, mean, rstd, group, weight)
    return _wanted(found, output_mask)


def _batch_norm(
    call: Call,
    grad_out: Value,
    input: Value,
    weight: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    save_mean: Value | None,
    save_invstd: Value | None,
    train: bool,
    eps: float,
    output_mask: tuple[bool, ...],
) -> tuple[Value | None, ...]:
    if not train or save_mean is None or save_invstd is None:
        call.unsupported("the gradient of a norm by running statistics")
    found = call.g.batch_norm_backward(grad_out, input, save_mean, save_invstd, weight)
    return _wanted(found, output_mask)


# -- embeddings and attention -----------------------------------------------------------------


def _embedding(
    call: Call,
    grad_output: Value,
    indices: Value,
    num_weights: Dim,
    padding_idx: int,
    scale_grad_by_freq: bool,
) -> Value:
    if scale_grad_by_freq:
        call.unsupported("gradients that are scaled by frequency")
    padding = None if padding_idx < 0 else padding_idx
    return call.g.embedding_backward(grad_output, indices, num_weights, padding)


def _attention(
    call: Call,
    grad_out: Value,
    query: Value,
    key: Value,
    value: Value,
    out: Value,
    logsumexp: Value,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Value | None = None,
    scale: float | None = None,
) -> tuple[Value, Value, Value]:
    if dropout_p:
        call.unsupported("dropout within attention")
    mask, causal = attention_operands(call, query, key, attn_mask, is_causal)
    return call.g.attention_backward(
        grad_out, query, key, value, out, logsumexp, mask=mask, causal=causal, scale=scale
    )


CONVERTERS: dict[str, Converter] = {
    "aten.convolution_backward": _convolution,
    **{f"aten.max_pool{n}d_with_indices_backward": _max_pool(n) for n in (2, 3)},
    **{f"aten.adaptive_max_pool{n}d_backward": _adaptive_max_pool(n) for n in (2, 3)},
    **{f"aten.avg_pool{n}d_backward": _avg_pool(n) for n in (2, 3)},
    "aten.gelu_backward": _gelu,
    "aten.silu_backward": _of_operand("silu_backward"),
    "aten.sigmoid_backward": _of_result("sigmoid_backward"),
    "aten.tanh_backward": _of_result("tanh_backward"),
    "aten._softmax_backward_data": _softmax("softmax_backward"),
    "aten._log_softmax_backward_data": _softmax("log_softmax_backward"),
    "aten.threshold_backward": _threshold,
    "aten.native_layer_norm_backward": _layer_norm,
    "aten.native_group_norm_backward": _group_norm,
    "aten.native_batch_norm_backward": _batch_norm,
    "aten.embedding_dense_backward": _embedding,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward": _attention,
}
