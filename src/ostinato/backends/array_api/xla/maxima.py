"""Maxima that only keep exponentials in range: whether they are NaN does not matter."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ostinato.backends.array_api.evaluator import Readers
    from ostinato.ir.graph import Node, Value

__all__ = ["keeps_in_range"]


def keeps_in_range(maximum: Node, readers: Readers) -> bool:
    """Whether a maximum is one of a softmax: its reader is ``exp(x - max)``, over its sum.

    Of a row with NaN, that sum is NaN whatever the maximum is, and so are all quotients.
    Comparisons may replace the maximum, or the sum, of rows without a finite element.
    """
    (x,) = maximum.inputs
    if not maximum.attrs["keepdims"]:
        return False
    shifts = _behind(maximum.outputs[0], readers)
    return bool(shifts) and all(
        node.op.name == "subtract"
        and node.inputs[0] is x
        and _is_normalised(node, maximum, readers)
        for node in shifts or ()
    )


def _is_normalised(shifted: Node, maximum: Node, readers: Readers) -> bool:
    """Whether the exponentials of a difference are only divided by their own sum."""
    exponentials = readers.of(shifted.outputs[0])
    if exponentials is None or [node.op.name for node in exponentials] != ["exp"]:
        return False
    (exponential,) = exponentials[0].outputs
    found = readers.of(exponential)
    sums = [node for node in found or () if node.op.name == "sum"]
    if found is None or len(sums) != 1 or dict(sums[0].attrs) != dict(maximum.attrs):
        return False
    quotients = [node for node in found if node is not sums[0]]
    divided = _behind(sums[0].outputs[0], readers)
    return divided is not None and all(
        node.op.name == "divide" and node.inputs[0] is exponential
        for node in (*quotients, *divided)
    )


def _behind(value: Value, readers: Readers) -> list[Node] | None:
    """The readers of a value, and of what replaces it where it equals a constant.

    ``None``: not all of them are nodes.
    """
    found = readers.of(value)
    if found is None:
        return None
    tests = [node for node in found if node.op.name == "equal"]
    behind = []
    for node in found:
        if node in tests:
            chosen = readers.of(node.outputs[0])
            if chosen is None or any(n.op.name != "where" or n not in found for n in chosen):
                return None
        elif node.op.name == "where" and node.inputs[2] is value:
            if node.inputs[0].node not in tests or node.inputs[1] is value:
                return None
            replaced = readers.of(node.outputs[0])
            if replaced is None:
                return None
            behind += replaced
        else:
            behind.append(node)
    return behind
