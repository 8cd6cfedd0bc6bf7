"""Sources of weights that follow from tensors of files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.conversion import convert
from ostinato.dtypes import FLOAT32, UINT8
from ostinato.ir.files import FileRange
from ostinato.ir.stored import ExpertTensor, MatrixLayout, StoredTensor
from ostinato.ops.packed.decoding import decode, packed_format
from ostinato.ops.packed.encoding import encode
from ostinato.records import dataclass, replace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.dtypes import DType

__all__ = ["Converted", "Decoded", "Derived", "Encoded", "ExpertRows", "Stack", "taken_columns"]

Array = np.ndarray[Any, Any]


class Derived(StoredTensor):
    """Elements that follow from those of other tensors.

    Args:
        parts: those tensors.
        rule: the way in which they follow, as text that differs for different ways.
    """

    def __init__(self, parts: Sequence[StoredTensor], rule: str) -> None:
        self._parts, self._rule = tuple(parts), rule

    @property
    def content_key(self) -> str | None:
        keys = [part.content_key for part in self._parts]
        known = [key for key in keys if key is not None]
        return f"{self._rule} of {known}" if len(known) == len(keys) else None

    def release(self) -> None:
        for part in self._parts:
            part.release()


class ExpertRows(Derived):
    """Some packed rows of the matrix of each expert."""

    def __init__(self, tensor: StoredTensor, rows: slice) -> None:
        super().__init__([tensor], f"rows {rows} of experts")
        self._tensor, self._rows = tensor, rows
        experts, count, nbytes = tensor.shape
        self.shape = (experts, len(range(*rows.indices(count))), nbytes)
        self.dtype = tensor.dtype

    def read(self) -> Array:
        return np.ascontiguousarray(self._tensor.read()[:, self._rows])

    def matrices(self, name: str) -> ExpertTensor | None:
        found = self._tensor.matrices(name)
        return None if found is None else _lines(found, self._rows)


class Converted(Derived):
    """The elements of a tensor in another dtype."""

    def __init__(self, tensor: StoredTensor, dtype: DType) -> None:
        super().__init__([tensor], f"as {dtype}")
        self._tensor = tensor
        self.shape = tensor.shape
        self.dtype = dtype

    def read(self) -> Array:
        return convert(self._tensor.read(), self.dtype)


class Encoded(Derived):
    """The rows of a matrix as blocks."""

    def __init__(self, tensor: StoredTensor, form: str, size: int, nbytes: int) -> None:
        super().__init__([tensor], f"in {form}")
        self._tensor, self._form = tensor, form
        rows, columns = tensor.shape
        self.shape = (rows, columns // size * nbytes)
        self.dtype = UINT8

    def read(self) -> Array:
        return encode(convert(self._tensor.read(), FLOAT32), self._form)


class Decoded(Derived):
    """Stacks of packed matrices as floats, each matrix decoded as it is read.

    Args:
        tensor: the packed rows, ``[count, rows, bytes]``.
        form: of their blocks.
        dtype: of the elements, which are rounded to it.
        swapped: whether rows become columns.
    """

    def __init__(self, tensor: StoredTensor, form: str, dtype: DType, *, swapped: bool) -> None:
        super().__init__([tensor], f"{form} as {dtype}{' swapped' * swapped}")
        self._tensor, self._form, self._swapped = tensor, packed_format(form), swapped
        self.shape, self.dtype = self._decoded_shape(tensor.shape), dtype

    def _decoded_shape(self, shape: tuple[int, ...]) -> tuple[int, int, int]:
        count, rows, nbytes = shape
        depth = nbytes // self._form.nbytes * self._form.size
        return (count, depth, rows) if self._swapped else (count, rows, depth)

    def decoded(self, rows: Array) -> Array:
        """The elements of a matrix."""
        found = convert(decode(rows, self._form.name), self.dtype)
        return found.T if self._swapped else found

    def read(self) -> Array:
        whole = np.empty(self.shape, self.dtype.numpy)
        for matrix, rows in zip(whole, self._tensor.read(), strict=True):
            matrix[...] = self.decoded(rows)
        return whole

    def matrices(self, name: str) -> ExpertTensor | None:
        found = self._tensor.matrices(name)
        if found is None:
            return None
        shape, layout = self._decoded_shape(found.shape), found.layout
        return _DecodedMatrices(name, self.dtype, shape, layout, found.ranges, self, found)


@dataclass(frozen=True, eq=False)
class _DecodedMatrices(ExpertTensor):
    """Packed matrices of files, for devices that take floats and read them on the host.

    Attributes:
        source: decodes them.
        packed: the matrices as they are.
    """

    source: Decoded
    packed: ExpertTensor

    def matrix(self, expert: int) -> Array:
        return self.source.decoded(self.packed.matrix(expert))


class Stack(Derived):
    """Tensors of one type along a new first axis."""

    def __init__(self, parts: Sequence[StoredTensor]) -> None:
        super().__init__(parts, "stack")
        self.shape = (len(parts), *parts[0].shape)
        self.dtype = parts[0].dtype

    def read(self) -> Array:
        whole = np.empty(self.shape, self.dtype.numpy)
        for position, part in enumerate(self._parts):
            whole[position] = part.read()
        return whole

    def matrices(self, name: str) -> ExpertTensor | None:
        found = [part.matrices(name) for part in self._parts]
        known = [part for part in found if part is not None]
        if len(known) < len(found) or len({(part.layout, part.shape) for part in known}) != 1:
            return None
        first = known[0]
        ranges = zip(*(part.ranges for part in known), strict=True)
        return replace(
            first,
            shape=(len(known) * first.shape[0], *first.shape[1:]),
            ranges=tuple(tuple(place for part in parts for place in part) for parts in ranges),
        )


def taken_columns(found: ExpertTensor, taken: slice) -> ExpertTensor:
    """Some elements of each line of matrices whose lines are rows."""
    experts, rows, total = found.shape
    first, _, step = taken.indices(total)
    columns, size = len(range(*taken.indices(total))), found.dtype.itemsize
    (pitch,) = found.layout.pitches
    nbytes = (rows - 1) * pitch + ((columns - 1) * step + 1) * size
    places = (
        FileRange(place.file, place.offset + first * size, nbytes) for place in found.ranges[0]
    )
    layout = MatrixLayout((pitch,), step=step)
    return replace(found, shape=(experts, rows, columns), layout=layout, ranges=(tuple(places),))


def _lines(found: ExpertTensor, taken: slice) -> ExpertTensor:
    """Some lines of matrices whose lines are rows, one right behind the other."""
    experts, rows, columns = found.shape
    first, _, step = taken.indices(rows)
    count = len(range(*taken.indices(rows)))
    pitches = found.layout.pitches
    ranges = tuple(
        tuple(
            FileRange(place.file, place.offset + first * pitch, ((count - 1) * step + 1) * pitch)
            for place in part
        )
        for pitch, part in zip(pitches, found.ranges, strict=True)
    )
    layout = MatrixLayout(tuple(step * pitch for pitch in pitches))
    return replace(found, shape=(experts, count, columns), layout=layout, ranges=ranges)
