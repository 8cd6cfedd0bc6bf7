"""Converters of sums, extrema, norms and running sums."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ostinato.dtypes import BOOL, INT64
from ostinato.frontends.torch.call import Complex
from ostinato.variables import prod

if TYPE_CHECKING:
    from ostinato.frontends.torch.call import Call, Converter
    from ostinato.frontends.torch.program import Named
    from ostinato.ir.graph import Value

__all__ = ["CONVERTERS"]


def _reduced(method: str) -> Converter:
    """A reduction along some axes, or all, computed in the result's dtype."""

    def convert(
        call: Call, self: Any, dim: Any = None, keepdim: bool = False, *, dtype: Named | None = None
    ) -> Any:
        g = call.g
        if isinstance(self, Complex):
            if method not in ("sum", "mean"):
                call.unsupported("complex operands")
            axes = call.axes(dim, self.ndim)
            return Complex(getattr(g, method)(g.cast(self.pairs, call.dtype), axes, keepdim))
        (x,) = call.promoted(self)
        return getattr(g, method)(x, call.axes(dim, x.ndim), keepdim)

    return convert


def _truth(method: str) -> Converter:
    """Whether any or all elements are not zero; of bytes a byte."""

    def convert(call: Call, self: Value, dim: Any = None, keepdim: bool = False) -> Value:
        g = call.g
        found = getattr(g, method)(self, call.axes(dim, self.ndim), keepdim)
        return g.cast(found, call.dtype)

    return convert


def _extremum(method: str) -> Converter:
    """The greatest or least elements, and where they are, if an axis is named."""

    def convert(call: Call, self: Value, dim: int | None = None, keepdim: bool = False) -> Any:
        g = call.g
        x = g.cast(self, INT64) if self.dtype.is_bool else self
        if dim is None:
            return g.cast(getattr(g, method)(x), self.dtype)
        if not x.ndim:
            return self, g.constant(0, INT64)
        axis = call.axis(dim, x.ndim)
        values = getattr(g, method)(x, axis, keepdim)
        return g.cast(values, self.dtype), getattr(g, f"arg{method}")(x, axis, keepdim)

    return convert


def _amax(method: str) -> Converter:
    """The greatest or least elements along axes."""

    def convert(call: Call, self: Value, dim: Any = (), keepdim: bool = False) -> Value:
        g = call.g
        x = g.cast(self, INT64) if self.dtype.is_bool else self
        return g.cast(getattr(g, method)(x, call.axes(dim, x.ndim), keepdim), self.dtype)

    return convert


def _aminmax(call: Call, self: Value, *, dim: int | None = None, keepdim: bool = False) -> Any:
    g = call.g
    x = g.cast(self, INT64) if self.dtype.is_bool else self
    axes = call.axes(dim, x.ndim)
    found = (g.min(x, axes, keepdim), g.max(x, axes, keepdim))
    return tuple(g.cast(value, self.dtype) for value in found)


def _place(method: str) -> Converter:
    """The index of the greatest or least element."""

    def convert(call: Call, self: Value, dim: int | None = None, keepdim: bool = False) -> Value:
        g = call.g
        x = g.cast(self, INT64) if self.dtype.is_bool else self
        if not x.ndim:
            return g.constant(0, INT64)
        axis = None if dim is None else call.axis(dim, x.ndim)
        found: Value = getattr(g, method)(x, axis, keepdim)
        return found

    return convert


def _variance(*, mean: bool = False, root: bool = False) -> Converter:
    """The variance, or its square root, with the mean if that is wanted."""

    def convert(
        call: Call,
        self: Any,
        dim: Any = None,
        unbiased: bool = True,
        keepdim: bool = False,
        *,
        correction: Any = None,
    ) -> Any:
        if isinstance(self, Complex):
            call.unsupported("complex operands")
        g = call.g
        if isinstance(dim, bool):
            unbiased, dim = dim, None  # var(x, unbiased)
        if correction is None:
            correction = int(unbiased)
        (x,) = call.promoted(self)
        axes = call.axes(dim, x.ndim)
        correction = float(call.known(correction, "correction"))
        sizes = [x.shape[axis] for axis in axes]
        count = math.prod(size if isinstance(size, int) else 0 for size in sizes)
        if count > correction:
            spread = g.var(x, axes, correction, keepdim)
        else:  # of as few elements PyTorch gives infinities and NaN
            far = g.square(g.subtract(x, g.mean(x, axes, True)))
            counted = g.cast(g.dim_value(prod(sizes)), x.dtype)
            over = g.maximum(g.subtract(counted, correction), 0.0)
            spread = g.divide(g.sum(far, axes, keepdim), over)
        result = g.sqrt(spread) if root else spread
        return (result, g.mean(x, axes, keepdim)) if mean else result

    return convert


def _logsumexp(call: Call, self: Any, dim: Any, keepdim: bool = False) -> Value:
    (x,) = call.promoted(self)
    return call.g.logsumexp(x, call.axes(dim, x.ndim), keepdim)


def _norm(call: Call, x: Any, order: Any, dim: Any, keepdim: bool) -> Value:
    """The vector norm along axes. Order 0 counts the elements that are not zero."""
    g = call.g
    if isinstance(x, Complex):
        parts = g.norm(g.cast(x.pairs, call.dtype), 2.0, -1)
        return _norm(call, parts, order, dim, keepdim)
    value = call.value(x, call.dtype)
    axes = call.axes(dim, value.ndim)
    order = 2.0 if order is None else float(call.known(order, "order"))
    if not axes:
        return g.cast(g.not_equal(value, 0.0), value.dtype) if order == 0 else g.abs(value)
    if order == 0:
        return g.sum(g.cast(g.not_equal(value, 0.0), value.dtype), axes, keepdim)
    if math.isinf(order):
        return (g.max if order > 0 else g.min)(g.abs(value), axes, keepdim)
    if order == 1:
        return g.sum(g.abs(value), axes, keepdim)
    return g.norm(value, order, axes, keepdim)


def _vector_norm(
    call: Call,
    self: Any,
    ord: Any = 2,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: Named | None = None,
) -> Value:
    return _norm(call, self, ord, dim, keepdim)


def _p_norm(
    call: Call,
    self: Any,
    p: Any = 2,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: Named | None = None,
) -> Value:
    return _norm(call, self, p, dim, keepdim)


def _frobenius_norm(call: Call, self: Any, dim: Any, keepdim: bool = False) -> Value:
    return _norm(call, self, 2, dim, keepdim)


def _nan_sum(
    call: Call, self: Value, dim: Any = None, keepdim: bool = False, *, dtype: Named | None = None
) -> Value:
    g = call.g
    (x,) = call.promoted(self)
    if x.dtype.is_float:
        x = g.where(g.isnan(x), g.zeros_like(x), x)
    return g.sum(x, call.axes(dim, x.ndim), keepdim)


def _count_nonzero(call: Call, self: Any, dim: Any = None) -> Value:
    g = call.g
    if isinstance(self, Complex):
        nonzero = g.any(g.not_equal(self.pairs, 0), -1)
    else:
        nonzero = self if self.dtype.is_bool else g.not_equal(self, g.zeros_like(self))
    return g.sum(g.cast(nonzero, INT64), call.axes(dim, nonzero.ndim))


def _running(method: str) -> Converter:
    """A running sum or product, in the result's dtype."""

    def convert(call: Call, self: Value, dim: int, *, dtype: Named | None = None) -> Value:
        (x,) = call.promoted(self)
        if call.dtype == BOOL:
            call.unsupported("running sums of bools")
        return x if not x.ndim else getattr(call.g, method)(x, call.axis(dim, x.ndim))

    return convert


CONVERTERS: dict[str, Converter] = {
    "aten.sum": _reduced("sum"),
    "aten.mean": _reduced("mean"),
    "aten.prod": _reduced("prod"),
    "aten.any": _truth("any"),
    "aten.all": _truth("all"),
    "aten.max.default": _extremum("max"),
    "aten.max.dim": _extremum("max"),
    "aten.min.default": _extremum("min"),
    "aten.min.dim": _extremum("min"),
    "aten.amax": _amax("max"),
    "aten.amin": _amax("min"),
    "aten.aminmax": _aminmax,
    "aten.argmax": _place("argmax"),
    "aten.argmin": _place("argmin"),
    "aten.var": _variance(),
    "aten.std": _variance(root=True),
    "aten.var_mean": _variance(mean=True),
    "aten.std_mean": _variance(mean=True, root=True),
    "aten.logsumexp": _logsumexp,
    "aten.linalg_vector_norm": _vector_norm,
    "aten.norm.Scalar": _p_norm,
    "aten.norm.ScalarOpt_dim": _p_norm,
    "aten.norm.ScalarOpt_dtype": _p_norm,
    "aten.norm.ScalarOpt_dim_dtype": _p_norm,
    "aten.frobenius_norm.dim": _frobenius_norm,
    "aten.nansum": _nan_sum,
    "aten.count_nonzero": _count_nonzero,
    "aten.cumsum": _running("cumsum"),
    "aten.cumprod": _running("cumprod"),
}
