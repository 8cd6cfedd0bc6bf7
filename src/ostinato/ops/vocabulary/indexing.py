"""The methods that read and write at indices.

No index faults: gathers count negative indices from the end and clamp the rest, scatters drop
what lies outside, and dynamic slices are moved to fit.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.dtypes import FLOAT32, INT64, DType
from ostinato.errors import GraphError
from ostinato.ir.leaves import check_shape
from ostinato.lazy import LazyModule
from ostinato.ops.base import broadcast_shapes, normalize_axis
from ostinato.ops.vocabulary.core import T
from ostinato.ops.vocabulary.ranges import Range, as_dim, resolve_range
from ostinato.ops.vocabulary.shape import ShapeVocabulary
from ostinato.variables import Dim, Expr, data_symbols, maximum, minimum

if TYPE_CHECKING:
    from ostinato.ir.types import TensorType
    from ostinato.ops import indexing as ops
else:
    ops = LazyModule("ostinato.ops.indexing")

__all__ = ["IndexingVocabulary"]


class IndexingVocabulary(ShapeVocabulary[T]):
    """Methods whose indices may be computed by the graph.

    All raise :class:`~ostinato.errors.GraphError` for indices that are no integers and for shapes
    that do not fit.
    """

    def getitem(self, x: Any, key: Any) -> T:
        """``x[key]`` as NumPy has it: ints, slices, ``None``, ``...``, tensors of ints, masks.

        Ints and bounds of slices may be expressions of Variables, which count from the start.
        Tensors of ints broadcast against each other; their axes stand where the first one does, and
        in front if there are others in between. Ints select before that, as in PyTorch. A mask of
        bools stands for the indices of its true elements; their number depends on data, and
        sessions have no such sizes.
        """
        lifted, type_ = self._typed(x)
        cuts: dict[int, Range] = {}
        dropped: set[int] = set()
        shape: list[Dim | None] = []  # None: the size that the cut leaves
        gathers: list[tuple[int, T]] = []
        axis = 0
        for item in self._expanded(key, type_):
            if item is None:
                shape.append(1)
            elif isinstance(item, slice):
                size = type_.shape[axis]
                cuts[axis] = resolve_range(item.start, item.stop, item.step, size)
                shape.append(None)
                axis += 1
            elif _is_position(item):
                cuts[axis] = _one_element(as_dim(item, "an index"), type_, axis)
                dropped.add(axis)
                axis += 1
            else:
                for ids in self._index_vectors(item, type_, axis):
                    gathers.append((len(shape), ids))
                    shape.append(None)
                    axis += 1
        cut, cut_type = self._typed(self._cut(lifted, type_, cuts) if cuts else lifted)
        kept = iter([d for a, d in enumerate(cut_type.shape) if a not in dropped])
        result = self.reshape(cut, tuple(next(kept) if d is None else d for d in shape))
        return self._gathered(result, gathers) if gathers else result

    def take(self, x: Any, indices: Any, axis: int | None = None) -> T:
        """Slices of ``x`` along ``axis`` (of the flattened ``x`` if none is named) at ``indices``.

        The shape of ``indices`` takes the place of that axis.
        """
        lifted, type_ = self._typed(x)
        if axis is None:
            lifted, type_ = self._typed(self.reshape(lifted, (-1,)))
        where = normalize_axis(0 if axis is None else axis, type_.ndim)
        return self._one(ops.TAKE, lifted, self._typed(indices)[0], axis=where)

    def take_along_axis(self, x: Any, indices: Any, axis: int = -1) -> T:
        """Along ``axis`` the elements at ``indices``; the other axes broadcast."""
        lifted, type_ = self._typed(x)
        ids, ids_type = self._typed(indices)
        where = normalize_axis(axis, type_.ndim)
        if ids_type.ndim != type_.ndim:
            raise GraphError(f"the indices {ids_type} have another rank than {type_}")
        others = list(broadcast_shapes(_but(type_, where), _but(ids_type, where)))
        lifted = self.broadcast_to(lifted, _with(others, where, type_.shape[where]))
        ids = self.broadcast_to(ids, _with(others, where, ids_type.shape[where]))
        return self._one(ops.TAKE_ALONG_AXIS, lifted, ids, axis=where)

    def gather_nd(self, x: Any, indices: Any, batch_dims: int = 0) -> T:
        """Elements or slices of ``x`` at the index vectors in the last axis of ``indices``.

        Args:
            batch_dims: how many leading axes both have in common.
        """
        lifted, ids = self._typed(x)[0], self._typed(indices)[0]
        return self._one(ops.GATHER_ND, lifted, ids, batch_dims=operator.index(batch_dims))

    def dynamic_slice(self, x: Any, start: Sequence[Any], sizes: Sequence[Dim]) -> T:
        """A block of ``sizes`` that begins at ``start``, moved to lie within ``x``.

        Args:
            start: for each axis an int, an expression of Variables, or an integer scalar of the
                graph. A start below 0 counts as 0.
        """
        lifted, type_ = self._typed(x)
        starts = _starts(start, type_)
        block = check_shape("dynamic_slice", sizes)
        if any(self.type_of(s) is not None for s in starts):
            scalars = (self._start(s) for s in starts)
            return self._one(ops.DYNAMIC_SLICE, lifted, *scalars, sizes=block)
        ops.expect_block(type_, block)
        cuts: dict[int, Range] = {}
        for axis, (first, size) in enumerate(zip(starts, block, strict=True)):
            fitting = maximum(minimum(as_dim(first, "a start"), type_.shape[axis] - size), 0)
            cuts[axis] = Range(fitting, fitting + size, 1, False)
        return self._cut(lifted, type_, cuts)

    def dynamic_update_slice(self, x: Any, update: Any, start: Sequence[Any]) -> T:
        """``x`` with the block at ``start`` replaced by ``update``; starts as `dynamic_slice`."""
        lifted, new = self._lift(x, update)
        type_ = self._typed(lifted)[1]
        starts = (self._start(s) for s in _starts(start, type_))
        return self._one(ops.DYNAMIC_UPDATE_SLICE, lifted, new, *starts)

    def scatter(self, x: Any, indices: Any, updates: Any, axis: int = 0, mode: str = "set") -> T:
        """``x`` with ``updates`` combined in at ``indices`` along ``axis``.

        The update at ``[i, j]`` goes to ``x[indices[i, j], j]`` for axis 0. Of several updates of
        one element with mode ``"set"`` the last stays.

        Args:
            updates: of the shape of ``indices``, or a scalar.
            mode: ``"set"``, ``"add"``, ``"mul"``, ``"min"`` or ``"max"``.
        """
        lifted, ids, new = self._scattered(x, indices, updates)
        where = normalize_axis(axis, self._typed(lifted)[1].ndim)
        if self._typed(new)[1].ndim == 0:
            new = self.broadcast_to(new, self._typed(ids)[1].shape)
        return self._one(ops.SCATTER, lifted, ids, new, axis=where, mode=mode)

    def scatter_add(self, x: Any, indices: Any, updates: Any, axis: int = 0) -> T:
        """:meth:`scatter` that adds."""
        return self.scatter(x, indices, updates, axis, "add")

    def scatter_nd(
        self, x: Any, indices: Any, updates: Any, mode: str = "set", *, unique: bool = False
    ) -> T:
        """``x`` with slices ``updates`` combined in at the index vectors of ``indices``.

        Of slices that are set at one place, the last one counts. With ``unique``, the caller
        promises that those within ``x`` are at different places, so that they need no order; if
        they are not, any of them counts. (JAX ``scatter``, ``unique_indices``.)
        """
        lifted, ids, new = self._scattered(x, indices, updates)
        more = {"unique": True} if unique else {}
        return self._one(ops.SCATTER_ND, lifted, ids, new, mode=mode, **more)

    def one_hot(self, indices: Any, depth: Dim, axis: int = -1, dtype: Any = FLOAT32) -> T:
        """A new axis of ``depth``, 1 at the index and 0 elsewhere (everywhere if out of range)."""
        ids, type_ = self._typed(indices)
        where = normalize_axis(axis, type_.ndim + 1)
        size = as_dim(depth, "depth")
        return self._one(ops.ONE_HOT, ids, depth=size, axis=where, dtype=DType.parse(dtype))

    # -- machinery --------------------------------------------------------------------------

    def _expanded(self, key: Any, type_: TensorType) -> list[Any]:
        """``key`` with ``...`` written out: an item for each axis, or more, and the new axes."""
        items = list(key) if isinstance(key, tuple) else [key]
        dots = [i for i, item in enumerate(items) if item is Ellipsis]
        named = sum(self._axes_of(item) for item in items)
        if len(dots) > 1 or named > type_.ndim:
            raise GraphError(f"{len(items)} indices do not fit {type_}: {_shown(key)}")
        rest = [slice(None)] * (type_.ndim - named)
        at = dots[0] if dots else len(items)
        return [*items[:at], *rest, *items[at + 1 :]]

    def _axes_of(self, item: Any) -> int:
        """The axes that an item of a key stands for."""
        if item is None or item is Ellipsis:
            return 0
        if isinstance(item, slice) or _is_position(item):
            return 1
        type_ = self._typed(item)[1]
        return type_.ndim if type_.dtype.is_bool else 1

    def _index_vectors(self, item: Any, type_: TensorType, axis: int) -> tuple[T, ...]:
        """The tensors of ints that an item of a key, which begins at ``axis``, stands for."""
        lifted, item_type = self._typed(item)
        if not item_type.dtype.is_bool:
            return (lifted,)
        if item_type.shape != type_.shape[axis : axis + item_type.ndim]:
            raise GraphError(f"the mask {item_type} does not fit {type_} from axis {axis} on")
        return self._true_positions(lifted)

    def _true_positions(self, mask: T) -> tuple[T, ...]:
        """For each axis of a mask, the indices of its true elements."""
        raise GraphError(
            f"how many elements the mask {self._typed(mask)[1]} selects depends on data: "
            "only a graph has such sizes; use where, or index_put"
        )

    def _integer_keys(self, keys: Sequence[Any], type_: TensorType) -> list[tuple[int, T]]:
        """The tensors of ints among indices of leading axes, ``None`` for all of one, by axis."""
        placed: list[tuple[int, T]] = []
        axis = 0
        for key in keys:
            if key is None:
                axis += 1
                continue
            vectors = self._index_vectors(key, type_, axis)
            placed += [(axis + i, ids) for i, ids in enumerate(vectors)]
            axis += len(vectors)
        if axis > type_.ndim:
            raise GraphError(f"indices of {axis} axes do not fit {type_}")
        return placed

    def _together(self, tensors: Sequence[T]) -> list[T]:
        """Tensors of ints as int64 of the shape to which they broadcast."""
        wide = [self.cast(ids, INT64) for ids in tensors]
        if len(wide) == 1:
            return wide
        types = [self._typed(ids)[1] for ids in wide]
        if any(data_symbols(type_.size) for type_ in types):
            # Sizes may be equal in a run alone; operands of elementwise ops are made to agree.
            nothing = self.multiply(reduce(self.add, wide), 0)
            return [self.add(nothing, ids) for ids in wide]
        shape = broadcast_shapes(*(type_.shape for type_ in types))
        return [self.broadcast_to(ids, shape) for ids in wide]

    def _gathered(self, x: T, placed: Sequence[tuple[int, T]]) -> T:
        """``x`` at tensors of ints for some of its axes."""
        axes, tensors = zip(*placed, strict=True)
        if len(axes) == 1:
            return self.take(x, tensors[0], axis=axes[0])
        columns = self._together(tensors)
        shape = self._typed(columns[0])[1].shape
        others = [a for a in range(self._typed(x)[1].ndim) if a not in axes]
        moved = self.permute_dims(x, (*axes, *others))
        found = self.gather_nd(moved, self.stack(columns, axis=-1))
        if axes != tuple(range(axes[0], axes[-1] + 1)):
            return found
        points = range(len(shape))
        return self.moveaxis(found, tuple(points), tuple(axes[0] + i for i in points))

    def _start(self, start: Any) -> T:
        return start if self.type_of(start) is not None else self.dim_value(start)

    def _scattered(self, x: Any, indices: Any, updates: Any) -> tuple[T, T, T]:
        lifted, new = self._lift(x, updates)
        return lifted, self._typed(indices)[0], new


def _shown(key: Any) -> str:
    return repr(key) if len(repr(key)) < 60 else type(key).__name__


def _is_position(item: Any) -> bool:
    if isinstance(item, bool | np.bool_):
        raise GraphError("a bool is no index; use where for masks")
    scalar = not isinstance(item, np.ndarray) or item.ndim == 0
    return isinstance(item, Expr) or (scalar and hasattr(item, "__index__"))


def _one_element(index: Dim, type_: TensorType, axis: int) -> Range:
    """The range that holds one element; where the axis is symbolic it is moved to lie within."""
    size = type_.shape[axis]
    if isinstance(index, int):
        if isinstance(size, int) and not -size <= index < size:
            raise GraphError(f"index {index} is out of range for axis {axis} of {type_}")
        index = index + size if index < 0 else index
    first = maximum(minimum(index, size - 1), 0)
    return Range(first, first + 1, 1, False)


def _but(type_: TensorType, axis: int) -> tuple[Dim, ...]:
    return (*type_.shape[:axis], *type_.shape[axis + 1 :])


def _with(others: Sequence[Dim], axis: int, size: Dim) -> tuple[Dim, ...]:
    return (*others[:axis], size, *others[axis:])


def _starts(start: Any, type_: TensorType) -> list[Any]:
    starts = list(start) if isinstance(start, Sequence | np.ndarray) else [start]
    if len(starts) != type_.ndim:
        raise GraphError(f"expected a start for each axis of {type_}, got {len(starts)}")
    return starts
