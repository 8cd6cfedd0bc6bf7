"""Converters of ops that give a tensor another shape, or its axes another order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ostinato.frontends.torch.call import Call, Converter
    from ostinato.ir.graph import Value

__all__ = ["CONVERTERS"]


def _reshaped(call: Call, self: Value, *_: Any) -> Value:
    """A tensor of the same elements in the shape that PyTorch gives to the result."""
    return call.g.reshape(self, call.shape)


def _raised(call: Call, tensors: Any) -> Any:
    """``atleast_1d``, ``atleast_2d`` and ``atleast_3d``, of one tensor or of several."""
    if not isinstance(tensors, tuple):
        return _reshaped(call, tensors)
    return tuple(
        call.g.reshape(tensor, call.shape_of(index)) for index, tensor in enumerate(tensors)
    )


def _viewed(call: Call, self: Value, dtype: Any) -> Value:
    """The same bits as elements of another dtype, which is as wide."""
    target = call.element_type(dtype)
    if target.itemsize != self.dtype.itemsize:
        call.unsupported(f"{self.dtype} viewed as {target}, which is not as wide")
    return call.g.bitcast(self, target)


def _permute(call: Call, self: Value, dims: tuple[int, ...]) -> Value:
    return call.g.permute_dims(self, tuple(call.axis(dim, self.ndim) for dim in dims))


def _transpose(call: Call, self: Value, dim0: int, dim1: int) -> Value:
    if not self.ndim:
        return self
    return call.g.swapaxes(self, call.axis(dim0, self.ndim), call.axis(dim1, self.ndim))


def _transpose_matrix(call: Call, self: Value) -> Value:
    return call.g.matrix_transpose(self) if self.ndim >= 2 else self


def _reversed_axes(call: Call, self: Value) -> Value:
    return call.g.transpose(self)


def _moved(call: Call, self: Value, source: Any, destination: Any) -> Value:
    if not self.ndim:
        return self
    return call.g.moveaxis(self, source, destination)


def _expand(call: Call, self: Value, size: Any, *, implicit: bool = False) -> Value:
    return call.g.broadcast_to(self, call.shape)


def _broadcast_all(call: Call, tensors: tuple[Value, ...]) -> tuple[Value, ...]:
    return tuple(
        call.g.broadcast_to(tensor, call.shape_of(index)) for index, tensor in enumerate(tensors)
    )


def _flip(call: Call, self: Value, dims: tuple[int, ...]) -> Value:
    if not self.ndim or not dims:
        return self
    return call.g.flip(self, tuple(call.axis(dim, self.ndim) for dim in dims))


def _flip_rows(axis: int) -> Converter:
    def convert(call: Call, self: Value) -> Value:
        return call.g.flip(self, axis)

    return convert


def _roll(call: Call, self: Value, shifts: Any, dims: Any = ()) -> Value:
    g = call.g
    moves = shifts if isinstance(shifts, tuple) else (shifts,)
    axes = dims if isinstance(dims, tuple) else (dims,)
    if not axes:
        flat = g.reshape(self, (-1,)) if self.ndim != 1 else self
        return g.reshape(_rolled(call, flat, moves[0], 0), self.shape)
    for shift, axis in zip(moves, axes, strict=True):
        self = _rolled(call, self, shift, call.axis(axis, self.ndim)) if self.ndim else self
    return self


def _rolled(call: Call, x: Value, shift: Any, axis: int) -> Value:
    size = x.shape[axis]
    places = call.known(shift, "shift")
    if isinstance(size, int):
        return call.g.roll(x, places, axis)
    g = call.g
    at = g.remainder(g.subtract(g.iota((size,)), places), g.maximum(g.dim_value(size), 1))
    return g.take(x, at, axis=axis)


def _repeat(call: Call, self: Value, repeats: tuple[Any, ...]) -> Value:
    return call.g.tile(self, repeats) if repeats else self


def _triangle(method: str) -> Converter:
    def convert(call: Call, self: Value, diagonal: int = 0) -> Value:
        return getattr(call.g, method)(self, call.known(diagonal, "diagonal"))  # type: ignore[no-any-return]

    return convert


def _diagonal(call: Call, self: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    return call.g.diagonal(self, offset, dim1, dim2)


def _diagonal_embedded(
    call: Call, self: Value, offset: int = 0, dim1: int = -2, dim2: int = -1
) -> Value:
    return call.g.diag_embed(self, offset, dim1, dim2)


def _diagonal_scattered(
    call: Call, self: Value, src: Value, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Value:
    return call.g.diagonal_scatter(self, src, offset, dim1, dim2)


def _trace(call: Call, self: Value) -> Value:
    return call.g.sum(call.g.cast(call.g.diagonal(self), call.dtype))


def _rotate(call: Call, self: Value, k: int = 1, dims: tuple[int, ...] = (0, 1)) -> Value:
    return call.g.rot90(self, k, dims)


def _strided(call: Call, self: Value, size: Any, stride: Any, storage_offset: Any = None) -> Value:
    """A view of the elements in memory; only that of a tensor in C order is known."""
    g = call.g
    offset = 0 if storage_offset is None else storage_offset
    return g.as_strided(self, size, stride, offset)


def _strided_scattered(
    call: Call, self: Value, src: Value, size: Any, stride: Any, storage_offset: Any = None
) -> Value:
    """``self`` with the elements that a strided view shows replaced by those of ``src``."""
    g = call.g
    count = self.type.size
    places = _strided(call, g.iota((count,)), size, stride, storage_offset)
    flat, at = g.reshape(self, (count,)), g.reshape(places, (places.type.size,))
    updates = g.reshape(g.broadcast_to(g.cast(src, self.dtype), places.shape), at.shape)
    return g.reshape(g.scatter(flat, at, updates), self.shape)


def _windows(call: Call, self: Value, dimension: int, size: Any, step: Any) -> Value:
    x = self if self.ndim else call.g.reshape(self, (1,))
    found = call.g.unfold(x, call.axis(dimension, x.ndim), size, step)
    return call.g.reshape(found, call.shape)


def _columns(
    call: Call, self: Value, kernel_size: Any, dilation: Any, padding: Any, stride: Any
) -> Value:
    g = call.g
    x = self if self.ndim == 4 else g.expand_dims(self, 0)
    return g.reshape(g.im2col(x, kernel_size, stride, padding, dilation), call.shape)


def _folded(
    call: Call,
    self: Value,
    output_size: Any,
    kernel_size: Any,
    dilation: Any,
    padding: Any,
    stride: Any,
) -> Value:
    g = call.g
    x = self if self.ndim == 3 else g.expand_dims(self, 0)
    found = g.col2im(x, output_size, kernel_size, stride, padding, dilation)
    return g.reshape(found, call.shape)


def _linalg_diagonal(
    call: Call, A: Value, *, offset: int = 0, dim1: int = -2, dim2: int = -1
) -> Value:
    return _diagonal(call, A, offset, dim1, dim2)


def _diag(call: Call, self: Value, diagonal: int = 0) -> Value:
    if self.ndim == 1:
        return _diagonal_embedded(call, self, diagonal)
    return _diagonal(call, self, diagonal)


def _diag_flat(call: Call, self: Value, offset: int = 0) -> Value:
    return _diagonal_embedded(call, call.g.reshape(self, (-1,)), offset)


def _pixel_shuffle(call: Call, self: Value, upscale_factor: int) -> Value:
    g, r = call.g, upscale_factor
    *lead, channels, height, width = self.shape
    n = len(lead)
    kept = channels // (r * r)
    blocks = g.reshape(self, (*lead, kept, r, r, height, width))
    order = (*range(n), n, n + 3, n + 1, n + 4, n + 2)
    return g.reshape(g.permute_dims(blocks, order), call.shape)


def _pixel_unshuffle(call: Call, self: Value, downscale_factor: int) -> Value:
    g, r = call.g, downscale_factor
    *lead, channels, height, width = self.shape
    n = len(lead)
    blocks = g.reshape(self, (*lead, channels, height // r, r, width // r, r))
    order = (*range(n), n, n + 2, n + 4, n + 1, n + 3)
    return g.reshape(g.permute_dims(blocks, order), call.shape)


def _channel_shuffle(call: Call, self: Value, groups: int) -> Value:
    g = call.g
    batch, channels, *rest = self.shape
    grouped = g.reshape(self, (batch, groups, channels // groups, *rest))
    return g.reshape(g.swapaxes(grouped, 1, 2), self.shape)


#: Ops whose result has the elements of the operand in order, and the shape of the result's type.
_RESHAPES = (
    "view",
    "reshape",
    "_unsafe_view",
    "_reshape_alias",
    "view_as",
    "reshape_as",
    "view_copy",
    "_reshape_copy",
    "flatten",
    "unflatten",
    "ravel",
    "squeeze",
    "squeeze_copy",
    "unsqueeze",
    "unsqueeze_copy",
)

CONVERTERS: dict[str, Converter] = {
    **{f"aten.{name}": _reshaped for name in _RESHAPES},
    **{f"aten.atleast_{n}d": _raised for n in (1, 2, 3)},
    "aten.view.dtype": _viewed,
    "aten.view_copy.dtype": _viewed,
    "aten.permute": _permute,
    "aten.permute_copy": _permute,
    "aten.transpose": _transpose,
    "aten.transpose_copy": _transpose,
    "aten.swapaxes": _transpose,
    "aten.swapdims": _transpose,
    "aten.t": _transpose_matrix,
    "aten.t_copy": _transpose_matrix,
    "aten.mT": _transpose_matrix,
    "aten.mH": _transpose_matrix,
    "aten.adjoint": _transpose_matrix,
    "aten.numpy_T": _reversed_axes,
    "aten.matrix_H": _transpose_matrix,
    "aten.movedim": _moved,
    "aten.moveaxis": _moved,
    "aten.expand": _expand,
    "aten.expand_copy": _expand,
    "aten.expand_as": _expand,
    "aten.broadcast_to": _expand,
    "aten.broadcast_tensors": _broadcast_all,
    "aten.flip": _flip,
    "aten.fliplr": _flip_rows(1),
    "aten.flipud": _flip_rows(0),
    "aten.roll": _roll,
    "aten.rot90": _rotate,
    "aten.repeat": _repeat,
    "aten.tile": _repeat,
    "aten.tril": _triangle("tril"),
    "aten.triu": _triangle("triu"),
    "aten.diagonal": _diagonal,
    "aten.diagonal_copy": _diagonal,
    "aten.linalg_diagonal": _linalg_diagonal,
    "aten.diag_embed": _diagonal_embedded,
    "aten.diag": _diag,
    "aten.diagflat": _diag_flat,
    "aten.diagonal_scatter": _diagonal_scattered,
    "aten.trace": _trace,
    "aten.as_strided": _strided,
    "aten.as_strided_copy": _strided,
    "aten.as_strided_scatter": _strided_scattered,
    "aten.unfold": _windows,
    "aten.unfold_copy": _windows,
    "aten.im2col": _columns,
    "aten.col2im": _folded,
    "aten.pixel_shuffle": _pixel_shuffle,
    "aten.pixel_unshuffle": _pixel_unshuffle,
    "aten.channel_shuffle": _channel_shuffle,
    "aten.native_channel_shuffle": _channel_shuffle,
}
