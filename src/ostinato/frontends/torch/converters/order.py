"""Converters of sorts, searches, and elements by their rank. Bools are ordered as bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.dtypes import INT32, UINT8

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
    "aten.bucketize": _bucketize,
}
