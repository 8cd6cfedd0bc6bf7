"""Converters of sorts, searches, and elements by their rank. Bools are ordered as bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.dtypes import BOOL, INT32, INT64, UINT8

if TYPE_CHECKING:
    from ostinato.frontends.torch.call import Call, Converter
    from ostinato.ir.graph import Value

__all__ = ["CONVERTERS"]


def _row(call: Call, x: Value) -> Value:
    """A tensor that can be sorted: with a dim at least, and of numbers."""
    g = call.g
    numbers = g.cast(x, UINT8) if x.dtype.is_bool else x
    return numbers if x.ndim else g.reshape(numbers, (1,))


def _pair(call: Call, values: Value, order: Value) -> tuple[Value, Value]:
    """Values and indices in the types of the results."""
    g = call.g
    found = g.cast(values, call.dtype)
    return g.reshape(found, call.shape_of(0)), g.reshape(order, call.shape_of(1))


def _top(
    call: Call, self: Value, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Value, Value]:
    x = _row(call, self)
    return _pair(call, *call.g.topk(x, k, call.axis(dim, x.ndim), largest=largest))


def _sort(call: Call, self: Value, dim: int = -1, descending: bool = False) -> tuple[Value, Value]:
    x = _row(call, self)
    return _pair(call, *call.g.sort(x, call.axis(dim, x.ndim), descending=descending))


def _sort_stable(
    call: Call,
    self: Value,
    *,
    stable: bool | None = None,
    dim: int = -1,
    descending: bool = False,
) -> tuple[Value, Value]:
    return _sort(call, self, dim, descending)


def _argsort(call: Call, self: Value, dim: int = -1, descending: bool = False) -> Value:
    x = _row(call, self)
    order = call.g.argsort(x, call.axis(dim, x.ndim), descending=descending)
    return call.g.reshape(order, self.shape)


def _argsort_stable(
    call: Call, self: Value, *, stable: bool, dim: int = -1, descending: bool = False
) -> Value:
    return _argsort(call, self, dim, descending)


def _msort(call: Call, self: Value) -> Value:
    x = _row(call, self)
    return call.g.reshape(call.g.cast(call.g.sort(x, 0)[0], self.dtype), self.shape)


def _kth(
    call: Call, self: Value, k: Any, dim: int = -1, keepdim: bool = False
) -> tuple[Value, Value]:
    x = _row(call, self)
    return _pair(call, *call.g.kthvalue(x, k, call.axis(dim, x.ndim), keepdim))


def _middle(method: str) -> Converter:
    """``median`` or ``nanmedian`` of all elements."""

    def convert(call: Call, self: Value) -> Value:
        if self.type.size == 0:
            return call.g.full((), float("nan"), call.dtype)
        values, _ = getattr(call.g, method)(_row(call, self))
        return call.g.reshape(values, ())

    return convert


def _middle_along(method: str) -> Converter:
    def convert(call: Call, self: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
        x = _row(call, self)
        return _pair(call, *getattr(call.g, method)(x, call.axis(dim, x.ndim), keepdim))

    return convert


def _mode(call: Call, self: Value, dim: int = -1, keepdim: bool = False) -> tuple[Value, Value]:
    x = _row(call, self)
    return _pair(call, *call.g.mode(x, call.axis(dim, x.ndim), keepdim))


def _quantile(method: str) -> Converter:
    def convert(
        call: Call,
        self: Value,
        q: Any,
        dim: int | None = None,
        keepdim: bool = False,
        *,
        interpolation: str = "linear",
    ) -> Value:
        x = _row(call, self)
        axis = None if dim is None else call.axis(dim, x.ndim)
        found = getattr(call.g, method)(x, q, axis, keepdim, interpolation=interpolation)
        return call.g.reshape(found, call.shape)

    return convert


def _search(
    call: Call,
    sorted_sequence: Value,
    self: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Value | None = None,
) -> Value:
    g = call.g
    sequence, values = call.compared(sorted_sequence, self)
    right = right or side == "right"
    rows = values if values.ndim else g.reshape(values, (1,))
    found = g.searchsorted(sequence, rows, right=right, sorter=sorter)
    return g.reshape(g.cast(found, INT32) if out_int32 else found, call.shape)


def _bucketize(
    call: Call, self: Any, boundaries: Value, *, out_int32: bool = False, right: bool = False
) -> Value:
    return _search(call, boundaries, self, out_int32=out_int32, right=right)


# -- distinct elements ------------------------------------------------------------------------


def _unique(
    call: Call,
    self: Value,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
) -> tuple[Value, ...]:
    """The distinct elements in order; each NaN is one of its own."""
    g = call.g
    flat = g.reshape(self, (self.type.size,))
    values, order = g.sort(flat, 0)
    begins = _begins(call, values)
    distinct = g.masked_select(values, begins)
    group = g.subtract(g.cumsum(g.cast(begins, INT64), axis=0), 1)
    inverse = g.reshape(g.scatter(g.zeros_like(order), order, group), self.shape)
    return _distinct(call, distinct, inverse, group, return_inverse, return_counts)


def _unique_runs(
    call: Call,
    self: Value,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> tuple[Value, ...]:
    """The first element of each run of equal ones."""
    g = call.g
    if dim is not None and self.ndim != 1:
        call.unsupported("runs of slices")
    flat = g.reshape(self, (self.type.size,))
    begins = _begins(call, flat)
    group = g.subtract(g.cumsum(g.cast(begins, INT64), axis=0), 1)
    inverse = g.reshape(group, self.shape)
    distinct = g.masked_select(flat, begins)
    return _distinct(call, distinct, inverse, group, return_inverse, return_counts)


def _unique_slices(
    call: Call,
    self: Value,
    dim: int,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
) -> tuple[Value, ...]:
    """The distinct slices along an axis, in order."""
    g = call.g
    if self.dtype.is_float or self.type.size == 0:
        call.unsupported(
            "distinct slices of floats, of which a NaN differs from itself, or of none"
        )
    distinct, _, inverse, counts = g.unique(self, call.axis(dim, self.ndim))
    empty = g.zeros((0,), INT64)
    return distinct, inverse if return_inverse else empty, counts if return_counts else empty


def _begins(call: Call, x: Value) -> Value:
    """Whether each element of a vector is the first, or differs from the one before."""
    g = call.g
    if x.type.size == 0:
        return g.zeros(x.shape, BOOL)
    line = g.iota(x.shape)
    before = g.take(x, g.maximum(g.subtract(line, 1), 0))
    return g.logical_or(g.equal(line, 0), g.not_equal(x, before))


def _distinct(
    call: Call, distinct: Value, inverse: Value, group: Value, inverted: bool, counted: bool
) -> tuple[Value, ...]:
    """The results: those that are not asked for are empty."""
    g = call.g
    empty = g.zeros((0,), INT64)
    counts = empty
    if counted:
        zeros = g.zeros(distinct.shape, INT64)
        counts = g.scatter(zeros, group, g.ones_like(group), mode="add")
    return distinct, inverse if inverted else empty, counts


CONVERTERS: dict[str, Converter] = {
    "aten.topk": _top,
    "aten.sort": _sort,
    "aten.sort.stable": _sort_stable,
    "aten.argsort": _argsort,
    "aten.argsort.stable": _argsort_stable,
    "aten.msort": _msort,
    "aten.kthvalue": _kth,
    "aten.median": _middle("median"),
    "aten.median.dim": _middle_along("median"),
    "aten.nanmedian": _middle("nanmedian"),
    "aten.nanmedian.dim": _middle_along("nanmedian"),
    "aten.mode": _mode,
    "aten.quantile": _quantile("quantile"),
    "aten.nanquantile": _quantile("nanquantile"),
    "aten.searchsorted": _search,
    "aten._unique2": _unique,
    "aten.unique_dim": _unique_slices,
    "aten.unique_consecutive": _unique_runs,
    "aten.bucketize": _bucketize,
}
