"""Weights of a language model by their logical names, still in their files.

Weights have the names of one scheme, which the parts of :mod:`ostinato.llm.families` list, whatever
a file calls them; and one orientation: a matrix is ``[outputs, inputs]``.
"""

from __future__ import annotations

from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import numpy as np

from ostinato.conversion import convert
from ostinato.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64
from ostinato.errors import ModelFormatError
from ostinato.llm.weight_sources import (
    Converted,
    Derived,
    Encoded,
    ExpertRows,
    Stack,
    taken_columns,
)
from ostinato.ops.packed.decoding import packed_format
from ostinato.records import dataclass, replace

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from ostinato.dtypes import DType
    from ostinato.ir.stored import ExpertTensor, StoredTensor

__all__ = [
    "FileTensor",
    "RowOrder",
    "RowSpans",
    "Stored",
    "Weight",
    "WeightFormat",
    "converted",
    "last_rows",
    "located",
    "widened_dtype",
]

Array = np.ndarray[Any, Any]

#: The widths in which matrices may be kept: as in the file, or narrower.
WeightFormat: TypeAlias = Literal["keep", "bfloat16", "int8", "int4"]

#: Formats of blocks that stand for integers of a width.
_BLOCKS: Final[Mapping[str, str]] = MappingProxyType({"int8": "gguf:q8_0", "int4": "gguf:q4_0"})

_MATRICES = (FLOAT32, FLOAT16, BFLOAT16)

#: The floats that stacks of packed matrices become where they are computed as floats: float16,
#: whose rounding is far below that of any format, but for this one, which has larger exponents.
_WIDENED: Final[Mapping[str, DType]] = MappingProxyType({"gguf:mxfp4": BFLOAT16})


@dataclass(frozen=True, kw_only=True)
class FileTensor:
    """A tensor of a file.

    Attributes:
        name: in the file.
        source: of its elements or, packed, of the bytes of its rows.
        shape: of its elements, in C order.
        format: of its blocks, as ONNX has it; ``None``: elements.
        widened: a source of the elements of a packed tensor as float32.
        by_column: whether packed rows are the columns of its matrices, rather than their rows.
    """

    name: str
    source: StoredTensor
    shape: tuple[int, ...]
    format: str | None = None
    widened: Callable[[], StoredTensor] | None = None
    by_column: bool = False

    def plain(self) -> FileTensor:
        """The tensor as a source of elements, packed or not."""
        if self.widened is None:
            return self
        return FileTensor(name=self.name, source=self.widened(), shape=self.shape)


@dataclass(frozen=True, kw_only=True)
class RowOrder:
    """Rows of a tensor in another order.

    Attributes:
        shape: in which the tensor's rows are counted.
        axes: the order of those axes that rows are taken in.
        part: the position along the first of them that is taken; ``None``: all.
    """

    shape: tuple[int, ...]
    axes: tuple[int, ...]
    part: int | None = None

    @property
    def count(self) -> int:
        """The number of rows that are taken."""
        return self.total if self.part is None else self.total // self.shape[self.axes[0]]

    @property
    def total(self) -> int:
        """The number of rows that there are."""
        return prod(self.shape)

    def indices(self) -> Array:
        """The rows that are taken, in order."""
        numbers = np.arange(prod(self.shape)).reshape(self.shape).transpose(self.axes)
        return (numbers if self.part is None else numbers[self.part]).reshape(-1)


@dataclass(frozen=True, kw_only=True)
class RowSpans:
    """Parts of groups of rows, each part of all groups before the next part.

    Attributes:
        groups: how many there are.
        size: rows of each.
        spans: the parts: the first row within a group, and the number of rows.
    """

    groups: int
    size: int
    spans: tuple[tuple[int, int], ...]

    @property
    def count(self) -> int:
        """The number of rows that are taken."""
        return self.groups * sum(rows for _, rows in self.spans)

    @property
    def total(self) -> int:
        """The number of rows that there are."""
        return self.groups * self.size

    def indices(self) -> Array:
        """The rows that are taken, in order."""
        numbers = np.arange(self.total).reshape(self.groups, self.size)
        parts = [numbers[:, start : start + rows].reshape(-1) for start, rows in self.spans]
        return np.concatenate(parts)


@dataclass(frozen=True, kw_only=True)
class Stored:
    """The position of a weight in a file.

    Attributes:
        names: the tensor that has it; several are stacked along a new first axis.
        rows: its rows among those of the tensor, which may be in another order; ``None``: all.
        columns: its elements along the tensor's last axis; ``None``: all.
        total: how many rows, or columns, the tensor has, where not all are taken.
        transposed: whether the file has the last two axes the other way round.
        flat: whether the file has a matrix whose rows are those of all first axes.
        offset: a number to be added to each element.
        logarithm: whether the weight is the logarithm of the negated elements.
        summed: of a stack of matrices, the weight's axis that matmuls sum over; packed rows along
            it stay packed.
    """

    names: tuple[str, ...]
    rows: slice | RowOrder | RowSpans | None = None
    columns: slice | None = None
    total: int = 0
    transposed: bool = False
    flat: bool = False
    offset: float = 0.0
    logarithm: bool = False
    summed: Literal[-2, -1] | None = None

    @property
    def alone(self) -> bool:
        """Whether one tensor has the weight."""
        return len(self.names) == 1

    @property
    def whole(self) -> bool:
        """Whether the weight is the tensor as it is."""
        changed = self.transposed or self.flat or self.offset or self.logarithm
        return self.rows is None and self.columns is None and not changed


@dataclass(frozen=True, kw_only=True)
class Weight:
    """A weight of a model.

    Attributes:
        name: the logical one.
        source: of a param: elements, or the bytes of packed rows.
        shape: of the elements; a matrix is ``[outputs, inputs]``, those of experts are ``[experts,
            inputs, outputs]``, those of heads either.
        format: of packed rows; ``None``: elements. Rows are those of ``[outputs, inputs]``, also of
            experts and of heads: their bytes are ``[experts, outputs, bytes]``.
        summed: the axis of the elements that packed rows lie along.
        decoded: the floats that packed rows become once, where the model is compiled, before they
            are multiplied; ``None``: they are multiplied as they are.
    """

    name: str
    source: StoredTensor
    shape: tuple[int, ...]
    format: str | None = None
    summed: Literal[-2, -1] = -1
    decoded: DType | None = None


def located(
    tensors: Mapping[str, FileTensor],
    places: Mapping[str, Stored],
    shapes: Mapping[str, tuple[int, ...]],
    source: str,
    unused: Callable[[str], bool],
) -> dict[str, Weight]:
    """The weights of a model among the tensors of its files.

    Args:
        tensors: of the files, by name.
        places: by logical name.
        shapes: of all weights of the model, by logical name.
        source: the files, for messages.
        unused: whether a tensor of this name may be left over.

    Raises:
        ModelFormatError: a tensor is missing, left over, of another shape, or no floats.
    """
    found: dict[str, Weight] = {}
    used: set[str] = set()
    for name, shape in shapes.items():
        place = places[name]
        parts = [
            _weight(name, stored, tensors, place, shape if place.alone else shape[1:], source)
            for stored in place.names
        ]
        used.update(place.names)
        found[name] = parts[0] if len(parts) == 1 else _stacked(parts, shape)
    if left := [name for name in tensors if name not in used and not unused(name)]:
        shown = ", ".join(f"{name!r:.80}" for name in left[:8])
        raise ModelFormatError(
            f"{source!r} has {len(left)} tensors that the model has no use for, such as {shown}: "
            "its configuration does not describe it, or it is of a kind that is not known here"
        )
    return found


def _weight(
    name: str,
    stored: str,
    tensors: Mapping[str, FileTensor],
    place: Stored,
    shape: tuple[int, ...],
    source: str,
) -> Weight:
    tensor = tensors.get(stored)
    if tensor is None:
        raise ModelFormatError(f"{source!r} lacks the tensor {stored!r:.120} ({name})")
    form = packed = tensor.format
    if name.endswith(".bias") or not _stays_packed(tensor, place, len(shape)):
        tensor, form = tensor.plain(), None
    shown = (prod(shape[:-1]), shape[-1]) if place.flat else shape
    expected = shown if place.rows is None else (place.total, *shown[1:])
    if place.transposed:
        expected = _swapped(expected)
    if place.columns is not None:
        expected = (*expected[:-1], place.total)
    if tensor.shape != expected:
        raise ModelFormatError(
            f"{source!r}: tensor {stored!r:.120} ({name}) has the shape {tensor.shape}, expected "
            f"{expected}"
        )
    dtype = tensor.source.dtype
    if form is None and dtype not in (*_MATRICES, FLOAT64):
        raise ModelFormatError(f"{source!r}: tensor {stored!r:.120} ({name}) is {dtype}, no float")
    elements = tensor.source
    if form is not None and place.summed is not None:
        if place.columns is not None:
            elements = ExpertRows(elements, place.columns)
    elif not place.whole:
        part = shape if place.flat else _part_shape(tensor, place)
        elements = _Part(tensor.source, place, part)
    if form is None and (len(shape) == 1 or dtype == FLOAT64 or place.offset):
        elements = Converted(elements, FLOAT32)
    elif packed is not None and form is None and len(shape) > 2:
        elements = Converted(elements, widened_dtype(packed))
    summed = place.summed or -1
    return Weight(name=name, source=elements, shape=shape, format=form, summed=summed)


def _stays_packed(tensor: FileTensor, place: Stored, ndim: int) -> bool:
    """Whether the rows of a weight are packed rows of the tensor."""
    if tensor.format is None or place.offset:
        return False
    if place.summed is not None:
        changed = place.rows is not None or place.flat or place.logarithm
        packed_axis = -2 if tensor.by_column != place.transposed else -1
        whole = place.columns is None or (tensor.by_column and not place.transposed)
        return ndim == 3 and not changed and whole and packed_axis == place.summed
    by_column = tensor.by_column or place.transposed or place.columns is not None
    return ndim == 2 and not by_column


def _part_shape(tensor: FileTensor, place: Stored) -> tuple[int, ...]:
    """The shape of the part of a tensor's source."""
    shape = tensor.source.shape
    if place.columns is not None:
        shape = (*shape[:-1], len(range(*place.columns.indices(shape[-1]))))
    shape = _swapped(shape) if place.transposed else shape
    match place.rows:
        case None:
            return shape
        case slice():
            return (len(range(*place.rows.indices(shape[0]))), *shape[1:])
        case rows:
            return (rows.count, *shape[1:])


def _swapped(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape with its last two axes the other way round."""
    return (*shape[:-2], *shape[-2:][::-1])


def _stacked(parts: Sequence[Weight], shape: tuple[int, ...]) -> Weight:
    formats = {part.format for part in parts}
    kinds = {(part.source.dtype, part.source.shape) for part in parts}
    if len(formats) > 1 or len(kinds) > 1:
        raise ModelFormatError(f"the tensors of {parts[0].name!r} are of several formats")
    source = Stack([part.source for part in parts])
    return replace(parts[0], source=source, shape=shape)


def converted(
    weights: Mapping[str, Weight], kept: WeightFormat, exact: Collection[str] = ()
) -> dict[str, Weight]:
    """Weights whose matrices are as narrow as asked for; packed ones stay as they are.

    ``int8`` and ``int4`` are blocks of 32 integers with a scale: the formats ``q8_0`` and ``q4_0``.
    Matrices whose rows are no whole blocks become bfloat16.

    Args:
        weights: by logical name.
        kept: the width.
        exact: the last parts of names that stay as they are.
    """
    if kept == "keep":
        return dict(weights)
    return {
        name: weight if name.endswith(tuple(exact)) else _narrowed(weight, kept)
        for name, weight in weights.items()
    }


def widened_dtype(form: str) -> DType:
    """The 16-bit floats that a stack of packed matrices becomes where it is computed as floats."""
    return _WIDENED.get(form, FLOAT16)


def _narrowed(weight: Weight, kept: WeightFormat) -> Weight:
    if weight.format is not None or len(weight.shape) < 2:
        return weight
    if kept != "bfloat16" and len(weight.shape) == 2:
        form = packed_format(_BLOCKS[kept])
        if weight.shape[-1] % form.size == 0:
            source = Encoded(weight.source, form.name, form.size, form.nbytes)
            return replace(weight, source=source, format=form.name)
    if weight.source.dtype == BFLOAT16:
        return weight
    return replace(weight, source=Converted(weight.source, BFLOAT16))


def last_rows(weight: Weight, count: int) -> Weight:
    """The last rows of a matrix of elements."""
    rows, columns = weight.shape
    place = Stored(names=(weight.name,), rows=slice(rows - count, rows), total=rows)
    source = _Part(weight.source, place, (count, columns))
    return replace(weight, source=source, shape=(count, columns))


class _Part(Derived):
    """Some rows of a tensor, or of its transpose, with a number added."""

    def __init__(self, tensor: StoredTensor, place: Stored, shape: tuple[int, ...]) -> None:
        super().__init__([tensor], f"{replace(place, names=())!r} {shape}")
        self._tensor, self._place = tensor, place
        self.shape = shape
        self.dtype = FLOAT32 if place.offset or place.logarithm else tensor.dtype

    def matrices(self, name: str) -> ExpertTensor | None:
        place, found = self._place, self._tensor.matrices(name)
        changed = place.rows is not None or place.flat or place.offset or place.logarithm
        if found is None or changed or found.layout.transposed or found.layout.step != 1:
            return None
        if place.columns is not None:
            return None if place.transposed else taken_columns(found, place.columns)
        if not place.transposed:
            return found
        count, rows, columns = found.shape
        layout = replace(found.layout, transposed=True)
        return replace(found, shape=(count, columns, rows), layout=layout)

    def read(self) -> Array:
        found = self._tensor.read()
        if self._place.columns is not None:
            found = found[..., self._place.columns]
        if self._place.transposed and found.ndim > 1:
            found = np.swapaxes(found, -1, -2)
        if (rows := self._place.rows) is not None:
            found = found[rows if isinstance(rows, slice) else rows.indices()]
        if self._place.offset:
            found = convert(found, FLOAT32) + np.float32(self._place.offset)
        if self._place.logarithm:
            with np.errstate(invalid="ignore", divide="ignore"):
                found = np.log(-convert(found, FLOAT32))
        return np.ascontiguousarray(found).reshape(self.shape)
