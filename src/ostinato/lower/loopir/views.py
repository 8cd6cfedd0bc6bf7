"""Ops that only rename indices: where an element of their result stands in their operand.

Lowering reads through them, so that a reshape, transpose, slice or broadcast costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from ostinato.variables import Dim, floor_div, prod, recombine, remainder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ostinato.ir.graph import Node, Value

__all__ = [
    "MAX_NON_AFFINE",
    "VIEWS",
    "Indices",
    "broadcast_index",
    "is_non_affine",
    "linear_index",
    "reshape_index",
    "source_index",
    "unravel",
]

Indices: TypeAlias = tuple[Dim, ...]

#: The most non-affine views (see :func:`is_non_affine`) that are read through in a row.
MAX_NON_AFFINE = 3


def linear_index(shape: Sequence[Dim], indices: Sequence[Dim]) -> Dim:
    """The offset of an element of a C-ordered array."""
    offset: Dim = 0
    for size, index in zip(shape, indices, strict=True):
        offset = offset * size + index
    return recombine(offset)


def unravel(shape: Sequence[Dim], offset: Dim) -> Indices:
    """The indices of the element of a C-ordered array that stands at ``offset``."""
    indices: list[Dim] = []
    for size in reversed(shape[1:]):
        indices.append(remainder(offset, size))
        offset = floor_div(offset, size)
    return (offset, *reversed(indices)) if shape else ()


def reshape_index(source: Sequence[Dim], target: Sequence[Dim], indices: Indices) -> Indices:
    """The indices, before a reshape, of the element at ``indices`` of the reshaped array.

    Dimensions are matched in the smallest groups of equal size, so that those which a reshape
    leaves alone keep their own index. In an array of none, any place will do.
    """
    if any(size == 0 for size in source):
        return (0,) * len(source)
    result: list[Dim] = []
    for old, new in _matching_groups(source, target):
        sizes = [target[i] for i in new]
        offset = linear_index(sizes, [indices[i] for i in new])
        result.extend(unravel([source[i] for i in old], offset))
    return tuple(result)


def is_non_affine(node: Node) -> bool:
    """Whether a view takes an index apart, by quotients and remainders: a reshape that merges dims.

    A few in a row are cheap; of many, each wraps the expressions of the one before.
    """
    if node.op.name != "reshape":
        return False
    source = node.inputs[0].shape
    if any(size == 0 for size in source):
        return False
    groups = _matching_groups(source, node.outputs[0].shape)
    return any(sum(source[i] != 1 for i in old) > 1 for old, _ in groups)


def source_index(node: Node, indices: Indices) -> tuple[Value, Indices]:
    """The operand and the indices that hold the element at ``indices`` of a view's result."""
    return VIEWS[node.op.name](node, indices)


def _matching_groups(
    source: Sequence[Dim], target: Sequence[Dim]
) -> list[tuple[list[int], list[int]]]:
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(source) or j < len(target):
        old, new = list(range(i, min(i + 1, len(source)))), list(range(j, min(j + 1, len(target))))
        i, j = i + len(old), j + len(new)
        while (a := prod(source[k] for k in old)) != (b := prod(target[k] for k in new)):
            if i == len(source) and j == len(target):
                break  # equal in every run, by a fact about data-dependent sizes
            grow_old = _smaller(a, b) if i < len(source) and j < len(target) else i < len(source)
            if grow_old:
                old.append(i)
                i += 1
            else:
                new.append(j)
                j += 1
        groups.append((old, new))
    return groups


def _smaller(a: Dim, b: Dim) -> bool:
    """Whether to extend the first side: the smaller; a symbolic one counts as the larger."""
    if isinstance(a, int) and isinstance(b, int):
        return a < b
    if isinstance(a, int) or isinstance(b, int):
        return isinstance(a, int)
    return len(a.terms[0][0]) < len(b.terms[0][0]) or a.terms[0][1] < b.terms[0][1]


def _reshape(node: Node, indices: Indices) -> tuple[Value, Indices]:
    (x,) = node.inputs
    return x, reshape_index(x.shape, node.outputs[0].shape, indices)


def _permute_dims(node: Node, indices: Indices) -> tuple[Value, Indices]:
    source: list[Dim] = [0] * len(indices)
    for position, axis in enumerate(node.attrs["axes"]):
        source[axis] = indices[position]
    return node.inputs[0], tuple(source)


def _broadcast_to(node: Node, indices: Indices) -> tuple[Value, Indices]:
    (x,) = node.inputs
    return x, broadcast_index(x.shape, indices)


def broadcast_index(shape: Sequence[Dim], indices: Indices) -> Indices:
    """The indices into an operand of ``shape`` that broadcasts to the space of ``indices``."""
    kept = indices[len(indices) - len(shape) :]
    return tuple(0 if size == 1 else index for size, index in zip(shape, kept, strict=True))


def _slice(node: Node, indices: Indices) -> tuple[Value, Indices]:
    starts, steps = node.attrs["starts"], node.attrs["steps"]
    return node.inputs[0], tuple(
        start + index * step for start, index, step in zip(starts, indices, steps, strict=True)
    )


def _flip(node: Node, indices: Indices) -> tuple[Value, Indices]:
    (x,) = node.inputs
    axes = node.attrs["axes"]
    return x, tuple(
        x.shape[i] - 1 - index if i in axes else index for i, index in enumerate(indices)
    )


def _affine_view(node: Node, indices: Indices) -> tuple[Value, Indices]:
    found: list[Dim] = []
    for start, steps in zip(node.attrs["starts"], node.attrs["steps"], strict=True):
        found.append(start + sum(i * step for i, step in zip(indices, steps, strict=True)))
    return node.inputs[0], tuple(found)


#: The view ops by name, each with its rule.
VIEWS: dict[str, Callable[[Node, Indices], tuple[Value, Indices]]] = {
    "reshape": _reshape,
    "permute_dims": _permute_dims,
    "broadcast_to": _broadcast_to,
    "slice": _slice,
    "flip": _flip,
    "affine_view": _affine_view,
}
