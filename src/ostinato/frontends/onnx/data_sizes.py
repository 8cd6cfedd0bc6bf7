"""Sizes that a model computes while it runs: the shape of a Reshape, the ends of a Slice.

Most of a shape is known while loading even where some of its elements are not: it is concatenated
from both. Elements that are not known become Variables that the run binds. Where nothing limits
them, and they follow from inputs of integers alone, the graph is built for the contents of those.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.dtypes import INT64
from ostinato.frontends.onnx.tensors import MAX_RANK
from ostinato.ir.leaves import CONSTANT, INPUT, PARAM, STATE
from ostinato.variables import bounds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.frontends.onnx.call import Call
    from ostinato.ir.graph import Value
    from ostinato.variables import Dim

__all__ = [
    "bound_sizes",
    "element",
    "follows_from_integers",
    "known_elements",
    "open_bound",
    "open_count",
    "open_elements",
]

#: The most sizes that one operand computes: two for each dim.
_MOST_ELEMENTS = 2 * MAX_RANK

#: Sizes about which nothing is known, together: memory is planned for no more elements.
_OPEN_BITS = 40

#: Such a size alone, at most.
_OPEN_BITS_ALONE = 20


def known_elements(call: Call, index: int) -> list[Dim | None]:
    """The elements of an integer operand in order, as dims; ``None``: known in a run only."""
    known = call.known(index)
    if known is not None:
        return list(call.dims(index, "elements"))
    value = call.value(index)
    if not isinstance(value.type.size, int):
        call.unsupported(f"its operand {index} has a number of elements that varies")
    if value.type.size > _MOST_ELEMENTS:
        call.malformed(
            f"its operand {index} computes {value.type.size:,} sizes, expected at most "
            f"{_MOST_ELEMENTS}"
        )
    found = _elements(value)
    return found if len(found) == value.type.size else [None] * value.type.size


def open_elements(call: Call, index: int, what: str) -> list[Dim | None]:
    """As :func:`known_elements`, of sizes that nothing limits.

    Raises:
        NotSupported: they follow from inputs of integers, and are known with these.
    """
    elements = known_elements(call, index)
    if None in elements and follows_from_integers(call.value(index)):
        call.unknown(index, f"its {what} follow from the contents of inputs")
    return elements


def open_bound(elements: Sequence[Dim | None]) -> int:
    """The bound of each element that is not known, where nothing else limits it."""
    unknown = max(sum(size is None for size in elements), 1)
    return 1 << min(_OPEN_BITS // unknown, _OPEN_BITS_ALONE)


def open_count(part: Dim) -> int:
    """The bound of a number of parts that nothing limits, each of ``part`` elements."""
    bits = _OPEN_BITS - bounds(part)[1].bit_length()
    return 1 << max(min(bits, _OPEN_BITS_ALONE), 0)


def bound_sizes(call: Call, index: int, bound: Dim | None = None) -> list[Dim]:
    """The elements of an integer operand as sizes; those not known are bound by the run.

    Args:
        call: the node.
        index: the operand.
        bound: the greatest value of those; ``None``: nothing limits them.
    """
    if bound is None:
        elements = open_elements(call, index, "sizes")
        most: Dim = open_bound(elements)
    else:
        elements, most = known_elements(call, index), bound
    return [
        call.g.size_from(element(call, index, i), most) if size is None else size
        for i, size in enumerate(elements)
    ]


def element(call: Call, index: int, position: int) -> Value:
    """An element of an operand, as an int64 scalar."""
    g, value = call.g, call.value(index)
    flat = g.reshape(value, (value.type.size,))
    return g.cast(g.reshape(g.slice(flat, [position], [position + 1]), ()), INT64)


def follows_from_integers(value: Value) -> bool:
    """Whether a value depends on constants and on inputs of integers alone."""
    waiting, seen = [value.node], {value.node}
    while waiting:
        node = waiting.pop()
        inexact = any(output.dtype.is_float for output in node.outputs)
        if node.op in (PARAM, STATE) or (node.op is INPUT and inexact) or node.op.binds_size:
            return False
        fresh = {operand.node for operand in node.inputs} - seen
        seen |= fresh
        waiting.extend(fresh)
    return True


def _elements(value: Value) -> list[Dim | None]:
    """The elements of a small integer tensor, as far as they follow from sizes and constants."""
    node = value.node
    size = value.type.size
    assert isinstance(size, int)
    if node.op is CONSTANT:
        return [int(number) for number in node.attrs["array"].reshape(-1)]
    match node.op.name:
        case "dim_value":
            return [node.attrs["dim"]]
        case "bind_size":
            return [node.attrs["size"]]
        case "reshape":
            return _elements(node.inputs[0])
        case "cast" if node.inputs[0].dtype.is_integer and value.dtype.itemsize >= 4:
            return _elements(node.inputs[0])
        case "concat" if value.ndim == 1:
            return [found for operand in node.inputs for found in _elements(operand)]
    return [None] * size
