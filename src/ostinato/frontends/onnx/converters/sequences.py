"""Sequences and optionals: lists of tensors that are taken apart while the model is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ostinato.frontends.onnx.known import Known, Missing, OptionalOf, SequenceOf, as_known
from ostinato.frontends.onnx.tensors import ELEMENT_TYPES
from ostinato.ir.graph import Value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ostinato.frontends.onnx.call import Call, Converter, Result
    from ostinato.frontends.onnx.known import Tensor

__all__ = ["CONVERTERS"]

_FLOAT = 1  # TensorProto.DataType
_MOST_PARTS = 2**16


def convert_sequence_construct(call: Call) -> Result:
    items = tuple(call.operand(i) for i in range(len(call.operands)))
    if not items:
        call.malformed("expected at least one tensor")
    return _sequence(call, items, items[0])


def convert_sequence_empty(call: Call) -> Result:
    number = call.integer("dtype", _FLOAT)
    if number not in ELEMENT_TYPES:
        call.unsupported(f"elements of type {number}")
    return SequenceOf((), ELEMENT_TYPES[number])


def convert_sequence_at(call: Call) -> Result:
    """The tensor at a position; one that depends on data is taken of all tensors, stacked."""
    items = call.sequence(0).items
    if call.known(1) is not None:
        return items[_position(call, 1, len(items))]
    if not items or len({item.type for item in items}) > 1:
        call.unsupported("its position depends on data, and tensors are of different types")
    stacked = call.g.stack([call.as_value(item) for item in items])
    return call.g.take(stacked, call.g.reshape(call.value(1), ()), axis=0)


def convert_sequence_insert(call: Call) -> Result:
    sequence, item = call.sequence(0), call.operand(1)
    count = len(sequence.items)
    at = _position(call, 2, count + 1, base=count) if call.has(2) else count
    if item.dtype != sequence.dtype and count:
        call.malformed(f"a tensor of {item.dtype} among those of {sequence.dtype}")
    return SequenceOf((*sequence.items[:at], item, *sequence.items[at:]), item.dtype)


def convert_sequence_erase(call: Call) -> Result:
    sequence = call.sequence(0)
    count = len(sequence.items)
    at = _position(call, 1, count) if call.has(1) else count - 1
    if not count:
        call.malformed("the sequence is empty")
    return SequenceOf((*sequence.items[:at], *sequence.items[at + 1 :]), sequence.dtype)


def convert_sequence_length(call: Call) -> Result:
    return as_known(np.array(len(call.sequence(0).items), np.int64))


def convert_concat_from_sequence(call: Call) -> Result:
    values = [call.as_value(item) for item in call.sequence(0).items]
    if not values:
        call.malformed("the sequence is empty")
    join = call.g.stack if call.integer("new_axis", 0) else call.g.concat
    return join(values, axis=call.required("axis"))


def convert_split_to_sequence(call: Call) -> Result:
    x, axis = call.value(0), call.integer("axis", 0)
    if not -x.ndim <= axis < x.ndim:
        call.malformed(f"axis {axis} of {x.type}")
    size = x.shape[axis]
    if not call.has(1):
        sizes: Sequence[int] = [1] * _fixed(call, size)
    else:
        given = call.integers(1, "sizes")
        if call.rank(1):
            sizes = given
            if not isinstance(size, int) and sum(given) != size:
                call.unsupported(f"its parts make up {sum(given)} of {size}; fix that with dims=")
        else:
            whole = _fixed(call, size)
            if given[0] < 1:
                call.malformed(f"parts of {given[0]}")
            sizes = [min(given[0], whole - at) for at in range(0, whole, given[0])]
    if len(sizes) > _MOST_PARTS:
        call.unsupported(f"{len(sizes)} parts")
    parts: Sequence[Value] = call.g.split(x, sizes, axis) if sizes else ()
    if not call.has(1) and not call.integer("keepdims", 1):
        parts = [call.g.squeeze(part, axis) for part in parts]
    return SequenceOf(tuple(parts), x.dtype)


def convert_sequence_map(call: Call) -> Result:
    """The body for each position of the sequences; tensors are the same for all."""
    body, first = call.graph("body"), call.sequence(0)
    rows: list[list[Tensor]] = []
    for position, item in enumerate(first.items):
        operands: list[Tensor] = [item]
        for index in range(1, len(call.operands)):
            operand = call.operands[index]
            if isinstance(operand, SequenceOf):
                if len(operand.items) != len(first.items):
                    call.malformed(f"operand {index} has {len(operand.items)} tensors")
                operands.append(operand.items[position])
            else:
                operands.append(call.operand(index))
        rows.append(call.inline(body, operands))
    if not rows:
        call.unsupported("its sequence is empty, which leaves the types of its results open")
    results = []
    for column in zip(*rows, strict=True):
        items = [item for item in column if isinstance(item, Value | Known)]
        if len(items) < len(rows):
            return [Missing() for _ in call.outputs]
        results.append(_sequence(call, items, items[0]))
    return results


def convert_optional(call: Call) -> Result:
    found = call.operands[0] if call.operands else None
    if isinstance(found, Missing | OptionalOf):
        call.malformed("expected a tensor or a sequence")
    return OptionalOf(found)


def convert_optional_has_element(call: Call) -> Result:
    found = call.operands[0] if call.operands else None
    if isinstance(found, OptionalOf):
        found = found.item
    return as_known(np.array(found is not None))


def convert_optional_get_element(call: Call) -> Result:
    found = call.operands[0] if call.operands else None
    if isinstance(found, OptionalOf):
        found = found.item
    if found is None or isinstance(found, Missing):
        call.malformed("the optional is empty")
    return found


def _sequence(call: Call, items: Sequence[Value | Known], first: Value | Known) -> SequenceOf:
    if any(item.dtype != first.dtype for item in items):
        call.malformed(f"tensors of {', '.join(sorted({str(i.dtype) for i in items}))}")
    return SequenceOf(tuple(items), first.dtype)


def _position(call: Call, index: int, count: int, base: int | None = None) -> int:
    """A position among ``count``; a negative one counts from ``base``, by default ``count``."""
    at = int(call.scalar(index, "position"))
    wrapped = at + (count if base is None else base) if at < 0 else at
    if not 0 <= wrapped < count:
        call.malformed(f"position {at} of {count}")
    return wrapped


def _fixed(call: Call, size: object) -> int:
    if not isinstance(size, int):
        call.unsupported(f"the number of parts depends on a Variable ({size}); fix it with dims=")
    return size


CONVERTERS: Mapping[str, Converter] = {
    "ConcatFromSequence": convert_concat_from_sequence,
    "Optional": convert_optional,
    "OptionalGetElement": convert_optional_get_element,
    "OptionalHasElement": convert_optional_has_element,
    "SequenceAt": convert_sequence_at,
    "SequenceConstruct": convert_sequence_construct,
    "SequenceEmpty": convert_sequence_empty,
    "SequenceErase": convert_sequence_erase,
    "SequenceInsert": convert_sequence_insert,
    "SequenceLength": convert_sequence_length,
    "SequenceMap": convert_sequence_map,
    "SplitToSequence": convert_split_to_sequence,
}
