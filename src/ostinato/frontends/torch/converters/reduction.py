"""Converters of reductions and of running sums."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.dtypes import BOOL, INT64, UINT8
from ostinato.variables import Expr, prod

if TYPE_CHECKING:
    from collections.abc import Callable

    from ostinato.frontends.torch.call import Call, Converter
    from ostinato.ir.graph import Value

__all__ = ["CONVERTERS", "mean_of"]


def _operand(call: Call, x: Value, dims: Any) -> tuple[Value, tuple[int, ...]]:
    """The operand of a reduction, and its axes: without dims it is a vector of one element."""
    if not x.ndim:
        return call.g.reshape(x, (1,)), (0,)
    return x, call.axes(dims, x.ndim)


def _reduced(call: Call, method: str, x: Value, dims: Any, keepdim: bool, **options: Any) -> Value:
    operand, axes = _operand(call, x, dims)
    keeps = keepdim and x.ndim > 0
    reduce: Callable[..., Value] = getattr(call.g, method)
    return reduce(operand, axis=axes, keepdims=keeps, **options)


def _sum(
    call: Call, self: Value, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Value:
    return _reduced(call, "sum", call.g.cast(self, call.dtype), dim, keepdim)


def _sum_numbers(
    call: Call, self: Value, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Value:
    g = call.g
    x = self
    if x.dtype.is_float:
        x = g.where(g.isnan(x), 0, x)
    return _sum(call, x, dim, keepdim)


def mean_of(call: Call, x: Value, dims: Any, keepdim: bool) -> Value:
    """The mean in the result's dtype; 16-bit floats are rounded once."""
    return _reduced(call, "mean", call.g.cast(x, call.dtype), dims, keepdim)


def _mean(
    call: Call, self: Value, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Value:
    return mean_of(call, self, dim, keepdim)


def _mean_of_all(call: Call, self: Value, *, dtype: Any = None) -> Value:
    return mean_of(call, self, None, False)


def _mean_numbers(
    call: Call, self: Value, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Value:
    g = call.g
    x = g.cast(self, call.dtype.accumulator)
    counted = g.cast(g.logical_not(g.isnan(x)), x.dtype)
    total = _reduced(call, "sum", g.where(g.isnan(x), 0, x), dim, keepdim)
    return call.rounded(g.divide(total, _reduced(call, "sum", counted, dim, keepdim)))


def _product(
    call: Call, self: Value, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Value:
    return _reduced(call, "prod", call.g.cast(self, call.dtype), dim, keepdim)


def _product_of_all(call: Call, self: Value, *, dtype: Any = None) -> Value:
    return _reduced(call, "prod", call.g.cast(self, call.dtype), None, False)


def _extreme(method: str) -> Converter:
    """``amax`` or ``amin``."""

    def convert(call: Call, self: Value, dim: Any = (), keepdim: bool = False) -> Value:
        return _extreme_of(call, method, self, dim, keepdim)

    return convert


def _extreme_of(call: Call, method: str, x: Value, dims: Any, keepdim: bool) -> Value:
    if x.dtype.is_bool:
        method = "any" if method == "max" else "all"
    return _reduced(call, method, x, dims, keepdim)


def _both_extremes(
    call: Call, self: Value, *, dim: int | None = None, keepdim: bool = False
) -> tuple[Value, Value]:
    return (
        _extreme_of(call, "min", self, dim, keepdim),
        _extreme_of(call, "max", self, dim, keepdim),
    )


def _extreme_of_all(method: str) -> Converter:
    def convert(call: Call, self: Value) -> Value:
        return _extreme_of(call, method, self, None, False)

    return convert


def _extreme_along(method: str) -> Converter:
    """``max.dim`` or ``min.dim``: the extreme, and the first place of it."""

    def convert(call: Call, self: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
        values = _extreme_of(call, method, self, dim, keepdim)
        return values, _place(call, method, self, dim, keepdim)

    return convert


def _place(call: Call, method: str, x: Value, dim: int | None, keepdim: bool) -> Value:
    """The first position of the extreme; NaN is one."""
    g = call.g
    operand = g.cast(x, UINT8) if x.dtype.is_bool else x
    if not x.ndim:
        return g.constant(0, INT64)
    axis = None if dim is None else call.axis(dim, x.ndim)
    return getattr(g, f"arg{method}")(operand, axis=axis, keepdims=keepdim)  # type: ignore[no-any-return]


def _arg(method: str) -> Converter:
    def convert(call: Call, self: Value, dim: int | None = None, keepdim: bool = False) -> Value:
        return _place(call, method, self, dim, keepdim)

    return convert


def _truth(method: str) -> Converter:
    """``any`` or ``all``: bools, but of bytes bytes."""

    def convert(call: Call, self: Value, dim: Any = None, keepdim: bool = False) -> Value:
        found = _reduced(call, method, call.truth(self), dim, keepdim)
        return call.g.cast(found, call.dtype)

    return convert


def _count_nonzero(call: Call, self: Value, dim: Any = None) -> Value:
    flags = call.g.cast(call.truth(self), INT64)
    return _reduced(call, "sum", flags, dim, False)


# -- statistics -------------------------------------------------------------------------------


def _variance(root: bool, with_mean: bool) -> Converter:
    """``var``, ``std``, ``var_mean`` or ``std_mean`` with a correction, 1 by default."""

    def convert(
        call: Call,
        self: Value,
        dim: Any = None,
        *,
        correction: Any = None,
        keepdim: bool = False,
    ) -> Any:
        return _deviation(call, self, dim, correction, keepdim, root, with_mean)

    return convert


def _variance_unbiased(root: bool, with_mean: bool) -> Converter:
    """The same of all elements, by whether it is unbiased."""

    def convert(call: Call, self: Value, unbiased: bool = True) -> Any:
        return _deviation(call, self, None, float(unbiased), False, root, with_mean)

    return convert


def _variance_along(root: bool, with_mean: bool) -> Converter:
    """The same along axes, by whether it is unbiased."""

    def convert(
        call: Call, self: Value, dim: Any, unbiased: bool = True, keepdim: bool = False
    ) -> Any:
        return _deviation(call, self, dim, float(unbiased), keepdim, root, with_mean)

    return convert


def _deviation(
    call: Call,
    self: Value,
    dim: Any,
    correction: Any,
    keepdim: bool,
    root: bool,
    with_mean: bool,
) -> Any:
    g = call.g
    less = 1.0 if correction is None else float(call.known(correction, "correction"))
    (x,) = call.widened(self)
    operand, axes = _operand(call, x, dim)
    count = prod(operand.shape[axis] for axis in axes)
    keeps = keepdim and self.ndim > 0
    if isinstance(count, Expr) or count - less > 0:
        method = g.std if root else g.var
        found = method(operand, axis=axes, correction=less, keepdims=keeps)
    else:  # PyTorch divides by nothing less than 0
        found = g.divide(g.multiply(g.var(operand, axis=axes, keepdims=keeps), float(count)), 0.0)
    if not with_mean:
        return call.rounded(found)
    mean = g.mean(operand, axis=axes, keepdims=keeps)
    return call.rounded(found), call.rounded(mean)


def _log_sum_exp(call: Call, self: Value, dim: Any, keepdim: bool = False) -> Value:
    (x,) = call.promoted(self)
    if x.dtype.accumulator == x.dtype:
        return _reduced(call, "logsumexp", x, dim, keepdim)
    # PyTorch rounds 16-bit floats after each of these steps.
    g = call.g
    greatest = _reduced(call, "max", x, dim, keepdim=True)
    greatest = g.where(g.isinf(greatest), 0, greatest)
    total = _reduced(call, "sum", g.exp(g.subtract(x, greatest)), dim, keepdim)
    return g.add(g.log(total), g.reshape(greatest, total.shape))


def _vector_norm(
    call: Call,
    self: Any,
    ord: Any = 2,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
) -> Value:
    g = call.g
    order = float(call.known(ord, "order"))
    (wide,) = call.widened(self)
    if order == 0:
        counted = g.cast(g.not_equal(wide, 0), wide.dtype)
        return call.rounded(_reduced(call, "sum", counted, dim, keepdim))
    return call.rounded(_reduced(call, "norm", wide, dim, keepdim, ord=order))


def _norm(
    call: Call,
    self: Value,
    p: Any = 2,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
) -> Value:
    return _vector_norm(call, self, 2 if p is None else p, dim, keepdim)


def _frobenius_norm(call: Call, self: Value, dim: Any, keepdim: bool = False) -> Value:
    return _vector_norm(call, self, 2, dim, keepdim)


def _distance(call: Call, self: Value, other: Value, p: Any = 2) -> Value:
    g = call.g
    a, b = call.widened(self, other)
    return _vector_norm(call, g.subtract(a, b), p)


def _pairwise_distance(
    call: Call, x1: Value, x2: Value, p: Any = 2, eps: float = 1e-6, keepdim: bool = False
) -> Value:
    g = call.g
    a, b = call.widened(x1, x2)
    return _vector_norm(call, g.add(g.subtract(a, b), eps), p, -1, keepdim)


# -- running reductions -----------------------------------------------------------------------


def _running(method: str) -> Converter:
    def convert(call: Call, self: Value, dim: int, *, dtype: Any = None) -> Value:
        g = call.g
        x = g.cast(self, call.dtype)
        if not x.ndim:
            return x
        return getattr(g, method)(x, axis=call.axis(dim, x.ndim))  # type: ignore[no-any-return]

    return convert


def _running_extreme(method: str) -> Converter:
    """The extreme so far, and the last place of it."""

    def convert(call: Call, self: Value, dim: int) -> tuple[Value, Value]:
        g = call.g
        x = g.cast(self, UINT8) if self.dtype.is_bool else self
        if not x.ndim:
            return self, g.constant(0, INT64)
        values, places = getattr(g, method)(x, axis=call.axis(dim, x.ndim))
        return g.cast(values, self.dtype), places

    return convert


def _differences(
    call: Call,
    self: Value,
    n: int = 1,
    dim: int = -1,
    prepend: Value | None = None,
    append: Value | None = None,
) -> Value:
    g = call.g
    axis = call.axis(dim, self.ndim)
    parts = [part for part in (prepend, self, append) if part is not None]
    x = g.concat(parts, axis) if len(parts) > 1 else self
    for _ in range(n):
        size = x.shape[axis]
        if size == 0:
            break
        later = g.slice(x, [1], [size], axes=[axis])
        earlier = g.slice(x, [0], [size - 1], axes=[axis])
        x = g.logical_xor(later, earlier) if x.dtype == BOOL else g.subtract(later, earlier)
    return x


_STATISTICS = {
    "var": (False, False),
    "std": (True, False),
    "var_mean": (False, True),
    "std_mean": (True, True),
}

CONVERTERS: dict[str, Converter] = {
    "aten.sum": _sum,
    "aten.nansum": _sum_numbers,
    "aten.mean.default": _mean_of_all,
    "aten.mean": _mean,
    "aten.nanmean": _mean_numbers,
    "aten.prod.default": _product_of_all,
    "aten.prod": _product,
    "aten.amax": _extreme("max"),
    "aten.amin": _extreme("min"),
    "aten.aminmax": _both_extremes,
    "aten.max.default": _extreme_of_all("max"),
    "aten.min.default": _extreme_of_all("min"),
    "aten.max.dim": _extreme_along("max"),
    "aten.min.dim": _extreme_along("min"),
    "aten.argmax": _arg("max"),
    "aten.argmin": _arg("min"),
    "aten.any": _truth("any"),
    "aten.all": _truth("all"),
    "aten.count_nonzero": _count_nonzero,
    **{
        f"aten.{name}.{overload}": make(*flags)
        for name, flags in _STATISTICS.items()
        for overload, make in (
            ("correction", _variance),
            ("default", _variance_unbiased),
            ("dim", _variance_along),
        )
    },
    "aten.logsumexp": _log_sum_exp,
    "aten.special_logsumexp": _log_sum_exp,
    "aten.linalg_vector_norm": _vector_norm,
    "aten.norm": _norm,
    "aten.dist": _distance,
    "aten.frobenius_norm.dim": _frobenius_norm,
    "aten.pairwise_distance": _pairwise_distance,
    "aten.logcumsumexp": _running("logcumsumexp"),
    "aten.cummax": _running_extreme("cummax"),
    "aten.cummin": _running_extreme("cummin"),
    "aten.cumsum": _running("cumsum"),
    "aten.cumprod": _running("cumprod"),
    "aten.diff": _differences,
}
