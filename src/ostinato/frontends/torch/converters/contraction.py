"""Converters of matrix products."""

from __future__ import annotations

import string
from functools import wraps
from typing import TYPE_CHECKING, Any

from ostinato.errors import GraphError
from ostinato.frontends.torch.converters.elementwise import scaled
from ostinato.ir.graph import Value
from ostinato.variables import prod

if TYPE_CHECKING:
    from ostinato.frontends.torch.call import Call, Converter

__all__ = ["CONVERTERS", "of_one_dtype"]


def of_one_dtype(converter: Converter) -> Converter:
    """A converter that refuses tensors of different dtypes, as its op does in eager.

    Tracing does not always notice them.
    """

    @wraps(converter)
    def convert(call: Call, *args: Any, **kwargs: Any) -> Any:
        given = [*args, *(kwargs[name] for name in _BESIDES & kwargs.keys())]
        listed = [item for arg in given for item in (arg if isinstance(arg, tuple) else (arg,))]
        found = {str(item.dtype): None for item in listed if isinstance(item, Value)}
        if len(found) > 1:
            raise GraphError(f"PyTorch takes operands of one dtype here, got {', '.join(found)}")
        return converter(call, *args, **kwargs)

    return convert


#: Tensors that are given by name.
_BESIDES = {"bias", "weight", "other", "mat1", "mat2", "key", "value"}


def _matmul(call: Call, self: Value, other: Value) -> Value:
    return call.g.matmul(call.value(self), call.value(other))


def _product(call: Call, self: Value, mat2: Value, out_dtype: Any = None) -> Value:
    """A product, in a wider dtype than that of the operands if one is given."""
    return call.g.matmul(*call.promoted(self, mat2))


def _vector_product(call: Call, self: Value, vec: Value) -> Value:
    return call.g.matmul(call.value(self), call.value(vec))


def _dot(call: Call, self: Value, tensor: Value) -> Value:
    return call.g.matmul(call.value(self), call.value(tensor))


def _vecdot(call: Call, x: Value, y: Value, *, dim: int = -1) -> Value:
    g = call.g
    a, b = call.widened(x, y)
    return call.rounded(g.sum(g.multiply(a, b), axis=dim))


def _outer(call: Call, self: Value, vec2: Value) -> Value:
    g = call.g
    a, b = call.promoted(self, vec2)
    column = g.expand_dims(a, 1)
    return g.logical_and(column, b) if call.dtype.is_bool else g.multiply(column, b)


def _inner(call: Call, self: Value, other: Value) -> Value:
    """Products over the last axis of both."""
    g = call.g
    if self.ndim == 0 or other.ndim == 0:
        return g.multiply(*call.promoted(self, other))
    rows = g.reshape(other, (prod(other.shape[:-1]), other.shape[-1]))
    return g.reshape(g.matmul(self, g.matrix_transpose(rows)), call.shape)


def _linear(call: Call, input: Value, weight: Value, bias: Value | None = None) -> Value:
    g = call.g
    product = g.matmul(call.value(input), g.matrix_transpose(weight) if weight.ndim > 1 else weight)
    return product if bias is None else g.add(product, bias)


def _added(call: Call, self: Value, product: Value, beta: Any, alpha: Any) -> Value:
    """``beta * self + alpha * product``; with a ``beta`` of 0 what ``self`` holds is ignored."""
    result = scaled(call, product, alpha)
    if isinstance(beta, int | float) and beta == 0:
        return call.g.broadcast_to(result, call.shape)
    return call.g.add(result, scaled(call, self, beta))


def _addmm(
    call: Call, self: Value, mat1: Value, mat2: Value, *, beta: Any = 1, alpha: Any = 1
) -> Value:
    return _added(call, self, call.g.matmul(mat1, mat2), beta, alpha)


def _addmm_wide(
    call: Call,
    self: Value,
    mat1: Value,
    mat2: Value,
    out_dtype: Any,
    *,
    beta: Any = 1,
    alpha: Any = 1,
) -> Value:
    """The same in a wider dtype than that of the operands; of batches, too."""
    x, a, b = call.promoted(self, mat1, mat2)
    return _added(call, x, call.g.matmul(a, b), beta, alpha)


def _scaled_product(
    call: Call,
    self: Value,
    mat2: Value,
    scale_a: Value,
    scale_b: Value,
    bias: Value | None = None,
    scale_result: Value | None = None,
    out_dtype: Any = None,
    use_fast_accum: bool = False,
) -> Value:
    """A product of 8-bit floats, scaled by a number each or by rows and columns."""
    g = call.g
    if call.dtype.is_narrow or scale_result is not None:
        raise GraphError(f"_scaled_mm gives float32, float16 or bfloat16 here, not {call.dtype}")
    left = scale_a if prod(scale_a.shape) != 1 else g.reshape(scale_a, ())
    right = g.reshape(scale_b, () if prod(scale_b.shape) == 1 else (mat2.shape[1],))
    if bias is None:
        return g.scaled_matmul(self, mat2, left, right, call.dtype)
    wide = g.scaled_matmul(self, mat2, left, right)
    return g.cast(g.add(wide, g.cast(bias, wide.dtype)), call.dtype)


def _addmm_activated(
    call: Call,
    self: Value,
    mat1: Value,
    mat2: Value,
    *,
    beta: Any = 1,
    alpha: Any = 1,
    use_gelu: bool = False,
) -> Value:
    g = call.g
    product = _added(call, self, g.matmul(mat1, mat2), beta, alpha)
    return g.gelu(product, approximate=True) if use_gelu else g.relu(product)


def _addmv(
    call: Call, self: Value, mat: Value, vec: Value, *, beta: Any = 1, alpha: Any = 1
) -> Value:
    return _added(call, self, call.g.matmul(mat, vec), beta, alpha)


def _baddbmm(
    call: Call, self: Value, batch1: Value, batch2: Value, *, beta: Any = 1, alpha: Any = 1
) -> Value:
    return _added(call, self, call.g.matmul(batch1, batch2), beta, alpha)


def _addbmm(
    call: Call, self: Value, batch1: Value, batch2: Value, *, beta: Any = 1, alpha: Any = 1
) -> Value:
    g = call.g
    batch, rows, inner = batch1.shape
    left = g.reshape(g.permute_dims(batch1, (1, 0, 2)), (rows, batch * inner))
    right = g.reshape(batch2, (batch * inner, batch2.shape[2]))
    return _added(call, self, g.matmul(left, right), beta, alpha)


def _addr(
    call: Call, self: Value, vec1: Value, vec2: Value, *, beta: Any = 1, alpha: Any = 1
) -> Value:
    g = call.g
    x, a, b = call.promoted(self, vec1, vec2)
    if call.dtype.is_bool:
        product = g.logical_and(g.expand_dims(a, 1), b)
        product = product if alpha else g.zeros_like(product)
        return g.logical_or(product, x) if beta else product
    return _added(call, x, g.multiply(g.expand_dims(a, 1), b), beta, alpha)


def _einsum(call: Call, equation: str, tensors: tuple[Value, ...], *, path: Any = None) -> Value:
    return call.g.einsum(equation, *map(call.value, tensors))


def _tensordot(
    call: Call,
    self: Value,
    other: Value,
    dims_self: tuple[int, ...],
    dims_other: tuple[int, ...],
) -> Value:
    letters = string.ascii_letters
    left = list(letters[: self.ndim])
    right = list(letters[self.ndim : self.ndim + other.ndim])
    for a, b in zip(dims_self, dims_other, strict=True):
        right[call.axis(b, other.ndim)] = left[call.axis(a, self.ndim)]
    kept = [label for label in (*left, *right) if left.count(label) + right.count(label) == 1]
    equation = f"{''.join(left)},{''.join(right)}->{''.join(kept)}"
    return call.g.einsum(equation, self, other)


def _trilinear(
    call: Call,
    i1: Value,
    i2: Value,
    i3: Value,
    expand1: tuple[int, ...],
    expand2: tuple[int, ...],
    expand3: tuple[int, ...],
    sumdim: tuple[int, ...],
    unroll_dim: int = 1,
) -> Value:
    g = call.g
    a, b, c = (
        g.expand_dims(x, axes) if axes else x
        for x, axes in ((i1, expand1), (i2, expand2), (i3, expand3))
    )
    return g.sum(g.multiply(g.multiply(a, b), c), axis=sumdim)


def _bilinear(
    call: Call, input1: Value, input2: Value, weight: Value, bias: Value | None = None
) -> Value:
    g = call.g
    product = g.einsum("...i,oij,...j->...o", input1, weight, input2)
    return product if bias is None else g.add(product, bias)


def _kronecker(call: Call, self: Value, other: Value) -> Value:
    g = call.g
    a, b = call.promoted(self, other)
    rank = max(a.ndim, b.ndim)
    left = (*(1,) * (rank - a.ndim), *a.shape)
    right = (*(1,) * (rank - b.ndim), *b.shape)
    blocks = [n for pair in zip(left, (1,) * rank, strict=True) for n in pair]
    cells = [n for pair in zip((1,) * rank, right, strict=True) for n in pair]
    x, y = g.reshape(a, tuple(blocks)), g.reshape(b, tuple(cells))
    product = g.logical_and(x, y) if call.dtype.is_bool else g.multiply(x, y)
    return g.reshape(product, call.shape)


def _chain(call: Call, tensors: tuple[Value, ...]) -> Value:
    product = tensors[0]
    for x in tensors[1:]:
        product = call.g.matmul(product, x)
    return product


def _cross(call: Call, self: Value, other: Value, dim: int | None = None) -> Value:
    axis = dim
    if axis is None:  # the first axis of 3
        axis = next(a for a, size in enumerate(call.shape) if size == 3)
    return call.g.cross(self, other, axis)


def _linalg_cross(call: Call, self: Value, other: Value, *, dim: int = -1) -> Value:
    return _cross(call, self, other, dim)


def _distances(
    call: Call, x1: Value, x2: Value, p: float = 2.0, compute_mode: int | None = None
) -> Value:
    return call.g.cdist(x1, x2, p)


def _pair_distances(call: Call, self: Value, p: float = 2.0) -> Value:
    return call.g.pdist(self, p)


def _renormed(call: Call, self: Value, p: Any, dim: int, maxnorm: Any) -> Value:
    return call.g.renorm(self, p, call.axis(dim, self.ndim), maxnorm)


def _grouped(
    call: Call,
    self: Value,
    mat2: Value,
    offs: Value | None = None,
    bias: Value | None = None,
    out_dtype: Any = None,
) -> Value:
    """Consecutive rows, up to each offset, times a matrix of their own."""
    if self.ndim != 2 or mat2.ndim != 3 or offs is None or bias is not None:
        call.unsupported("groups other than of rows")
    return call.rounded(call.g.grouped_matmul(self, mat2, offsets=offs))


def _grouped_fallback(call: Call, input: Value, weight: Value, offs: Value) -> Value:
    return _grouped(call, input, weight, offs)


def _matrix_power(call: Call, self: Value, n: int) -> Value:
    g = call.g
    if n < 0:
        call.unsupported("the inverse of a matrix")
    if n == 0:
        size = self.shape[-1]
        eye = g.cast(g.equal(g.iota((size, 1), 0), g.iota((1, size), 1)), self.dtype)
        return g.broadcast_to(eye, self.shape)
    result: Value | None = None
    square = self
    while n:
        if n & 1:
            result = square if result is None else g.matmul(result, square)
        n >>= 1
        square = g.matmul(square, square) if n else square
    assert result is not None
    return result


CONVERTERS: dict[str, Converter] = {
    "aten.matmul": of_one_dtype(_matmul),
    "aten.linalg_matmul": _matmul,
    "aten.mm": of_one_dtype(_product),
    "aten.bmm": of_one_dtype(_product),
    "aten.mv": of_one_dtype(_vector_product),
    "aten.dot": of_one_dtype(_dot),
    "aten.vdot": _matmul,
    "aten.linalg_vecdot": _vecdot,
    "aten.outer": _outer,
    "aten.ger": _outer,
    "aten.inner": of_one_dtype(_inner),
    "aten.linear": of_one_dtype(_linear),
    "aten.addmm": of_one_dtype(_addmm),
    "aten.addmm.dtype": _addmm_wide,
    "aten.baddbmm.dtype": _addmm_wide,
    "aten._addmm_activation": _addmm_activated,
    "aten._scaled_mm": _scaled_product,
    "aten.addmv": of_one_dtype(_addmv),
    "aten.baddbmm": of_one_dtype(_baddbmm),
    "aten.addbmm": of_one_dtype(_addbmm),
    "aten.addr": _addr,
    "aten.einsum": of_one_dtype(_einsum),
    "aten.tensordot": of_one_dtype(_tensordot),
    "aten._trilinear": _trilinear,
    "aten.bilinear": _bilinear,
    "aten.kron": _kronecker,
    "aten.linalg_multi_dot": _chain,
    "aten.cross": _cross,
    "aten.linalg_cross": _linalg_cross,
    "aten.cdist": _distances,
    "aten._cdist_forward": _distances,
    "aten._euclidean_dist": _distances,
    "aten.pdist": _pair_distances,
    "aten._pdist_forward": _pair_distances,
    "aten.renorm": _renormed,
    "aten._grouped_mm": _grouped,
    "transformers.grouped_mm_fallback": _grouped_fallback,
    "aten.matrix_power": _matrix_power,
    "aten.linalg_matrix_power": _matrix_power,
}
