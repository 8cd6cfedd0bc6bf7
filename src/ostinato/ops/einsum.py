"""Einstein summation: reading an equation and fitting it to shapes.

No op of that name exists in the IR: :func:`contract` carries an equation out with views, products
and sums, on arrays or on the values of a graph. Dims that an ellipsis stands for get labels of
their own (``"0"``, ``"1"``, ... counted from the last), so that after :func:`parse_equation`
nothing but labels is left.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from ostinato.dtypes import INT64
from ostinato.errors import GraphError
from ostinato.records import dataclass
from ostinato.variables import prod

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.variables import Dim

__all__ = ["Einsum", "contract", "parse_equation"]

_ELLIPSIS = "..."


@dataclass(frozen=True)
class Einsum:
    """An equation fitted to operands.

    Attributes:
        operands: one label per dim, for every operand.
        result: the labels of the result, in order.
        sizes: the size of every label.
    """

    operands: tuple[tuple[str, ...], ...]
    result: tuple[str, ...]
    sizes: dict[str, Dim]

    def shape(self, labels: Sequence[str]) -> tuple[Dim, ...]:
        """The sizes of ``labels``."""
        return tuple(self.sizes[label] for label in labels)


def parse_equation(equation: str, shapes: Sequence[Sequence[Dim]]) -> Einsum:
    """``equation`` (NumPy's syntax, ellipsis and implicit result included) for these shapes.

    A dim of 1 broadcasts against another size of its label.

    Raises:
        GraphError: the equation is malformed, or does not fit the number of operands or a shape.
    """
    if not isinstance(equation, str):
        raise GraphError(f"the equation is a string, got {equation!r}")
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(shapes):
        raise GraphError(f"{equation!r} has {len(terms)} operands, got {len(shapes)}")
    operands = tuple(
        _labels(equation, term, len(shape)) for term, shape in zip(terms, shapes, strict=True)
    )
    sizes = _sizes(equation, operands, shapes)
    if arrow:
        spread = max((sum(c.isdigit() for c in labels) for labels in operands), default=0)
        result = _explicit_result(equation, right, spread, sizes)
    else:
        result = _implicit_result(operands)
    return Einsum(operands, result, sizes)


def _labels(equation: str, term: str, ndim: int) -> tuple[str, ...]:
    """One label per dim of an operand with ``ndim`` dims."""
    before, dots, after = term.partition(_ELLIPSIS)
    _check_letters(equation, before + after)
    named = len(before) + len(after)
    if named > ndim or (not dots and named < ndim):
        raise GraphError(f"in {equation!r}, {term!r} does not name the {ndim} dims of its operand")
    return (*before, *_ellipsis_labels(ndim - named), *after)


def _ellipsis_labels(count: int) -> tuple[str, ...]:
    return tuple(str(i) for i in reversed(range(count)))


def _check_letters(equation: str, labels: str) -> None:
    for label in labels:
        if not (label.isascii() and label.isalpha()):
            raise GraphError(f"in {equation!r}, {label!r} is no label; labels are a-z and A-Z")


def _sizes(
    equation: str, operands: Sequence[Sequence[str]], shapes: Sequence[Sequence[Dim]]
) -> dict[str, Dim]:
    sizes: dict[str, Dim] = {}
    for labels, shape in zip(operands, shapes, strict=True):
        for label, dim in zip(labels, shape, strict=True):
            known = sizes.get(label, 1)
            if known == 1:
                sizes[label] = dim
            elif dim not in (1, known):
                what = "a dim of the ellipsis" if label.isdigit() else f"label {label!r}"
                raise GraphError(f"in {equation!r}, {what} has sizes {known} and {dim}")
    return sizes


def _explicit_result(
    equation: str, term: str, spread: int, sizes: dict[str, Dim]
) -> tuple[str, ...]:
    before, dots, after = term.partition(_ELLIPSIS)
    _check_letters(equation, before + after)
    result = (*before, *_ellipsis_labels(spread if dots else 0), *after)
    for label, count in Counter(result).items():
        if count > 1 or label not in sizes:
            problem = "occurs twice in the result" if count > 1 else "is on no operand"
            raise GraphError(f"in {equation!r}, label {label!r} {problem}")
    return result


def _implicit_result(operands: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """The ellipsis, then the labels that stand once, in alphabetical order."""
    counts = Counter(label for labels in operands for label in labels)
    spread = sorted((label for label in counts if label.isdigit()), key=int, reverse=True)
    return (*spread, *sorted(label for label in counts if counts[label] == 1 and label.isalpha()))


@dataclass(frozen=True)
class _Term:
    """An array whose dims have distinct labels."""

    array: Any
    labels: tuple[str, ...]


def contract(xp: Any, einsum: Einsum, operands: Sequence[Any]) -> Any:
    """The value of ``einsum``: operands are multiplied from left to right.

    Labels are summed as soon as no later operand has them: inside a matrix product where two
    operands share them.
    """
    terms = [
        _distinct(xp, einsum, operand, labels)
        for operand, labels in zip(operands, einsum.operands, strict=True)
    ]
    result: _Term | None = None
    for index, term in enumerate(terms):
        later = {label for other in terms[index + 1 :] for label in other.labels}
        needed = later.union(einsum.result)
        own = _summed(xp, term, needed.union(result.labels if result else ()))
        result = _product(xp, einsum, result, own, needed) if result else _summed(xp, own, needed)
    assert result is not None, "an equation has at least one operand"
    return _ordered(xp, result, einsum.result)


def _distinct(xp: Any, einsum: Einsum, array: Any, labels: Sequence[str]) -> _Term:
    """``array`` without the dims of 1 that broadcast, and with diagonals for repeated labels."""
    shape = tuple(array.shape)
    named = [n for n, d in zip(labels, shape, strict=True) if d == einsum.sizes[n]]
    if len(named) != len(shape):
        array = xp.reshape(array, einsum.shape(named))
    while len(set(named)) != len(named):
        label = next(n for n in named if named.count(n) > 1)
        first = named.index(label)
        second = named.index(label, first + 1)
        rest = [axis for axis in range(len(named)) if axis not in (first, second)]
        array = _diagonal(xp, xp.permute_dims(array, (*rest, first, second)))
        named = [*(named[axis] for axis in rest), label]
    return _Term(array, tuple(named))


def _diagonal(xp: Any, array: Any) -> Any:
    """The diagonal of the last two dims, as the last dim."""
    *lead, size, _ = array.shape
    columns = xp.iota((*lead, size, 1), len(lead), INT64)
    return xp.reshape(xp.take_along_axis(array, columns, axis=len(lead) + 1), (*lead, size))


def _summed(xp: Any, term: _Term, needed: set[str]) -> _Term:
    """``term`` summed over the labels that are not ``needed``."""
    axes = tuple(axis for axis, label in enumerate(term.labels) if label not in needed)
    if not axes:
        return term
    kept = tuple(label for label in term.labels if label in needed)
    return _Term(xp.sum(term.array, axis=axes), kept)


def _product(xp: Any, einsum: Einsum, a: _Term, b: _Term, needed: set[str]) -> _Term:
    """``a`` times ``b``, summed over the labels that both have and that are not ``needed``."""
    shared = [label for label in a.labels if label in b.labels]
    batch = tuple(label for label in shared if label in needed)
    inner = tuple(label for label in shared if label not in needed)
    rows = tuple(label for label in a.labels if label not in shared)
    columns = tuple(label for label in b.labels if label not in shared)
    lead, labels = einsum.shape(batch), (*batch, *rows, *columns)
    left, right = _ordered(xp, a, batch + rows + inner), _ordered(xp, b, batch + inner + columns)
    if not inner:
        ones = (1,) * len(rows)
        left = xp.reshape(left, (*einsum.shape(batch + rows), *(1,) * len(columns)))
        right = xp.reshape(right, (*lead, *ones, *einsum.shape(columns)))
        return _Term(left * right, labels)
    height, depth, width = (prod(einsum.shape(part)) for part in (rows, inner, columns))
    left, right = xp.reshape(left, (*lead, height, depth)), xp.reshape(right, (*lead, depth, width))
    return _Term(xp.reshape(xp.matmul(left, right), einsum.shape(labels)), labels)


def _ordered(xp: Any, term: _Term, labels: tuple[str, ...]) -> Any:
    """The array of ``term`` with its dims in the order of ``labels``."""
    if labels == term.labels:
        return term.array
    return xp.permute_dims(term.array, tuple(term.labels.index(label) for label in labels))
