"""Arithmetic as polynomials, so that a pattern need not list every association of a formula.

``0.5 * x * (1 + t)``, ``x * (t + 1) / 2`` and ``0.5 * x + (x * 0.5) * t`` all expand to
``{x: 0.5, x·t: 0.5}``. Exponents may be negative or halves, so that ``d / sqrt(v)`` and
``d * rsqrt(v)`` are both ``d·v^-0.5``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from ostinato.passes.match import near, uniform_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ostinato.dtypes import DType
    from ostinato.ir.graph import Node, Value

__all__ = ["ARITHMETIC", "Monomial", "Polynomial", "arithmetic_below", "equals", "expand", "power"]

#: Powers of distinct values, by ascending value id; the empty one is the constant term.
Monomial: TypeAlias = "tuple[tuple[Value, float], ...]"

#: Coefficients by monomial.
Polynomial: TypeAlias = "dict[Monomial, float]"

#: The ops that expansion sees through.
ARITHMETIC = frozenset(
    {"add", "subtract", "multiply", "divide", "neg", "square", "pow", "sqrt", "rsqrt"}
    | {"reciprocal", "broadcast_to"}
)

_MAX_DEPTH = 12
_MAX_TERMS = 12
_ONE: Monomial = ()


class _TooBig(Exception):
    """The expansion has too many terms, or cancels what it must not."""


def expand(value: Value, is_atom: Callable[[Value], bool]) -> Polynomial | None:
    """``value`` as a polynomial in atoms: values that ``is_atom`` accepts, or no arithmetic makes.

    Broadcasting is associative, so shapes are for the caller to check, once, at the root.
    ``None`` when the expansion is too big to be part of a pattern.
    """
    try:
        return _expand(value, is_atom, _MAX_DEPTH)
    except _TooBig:
        return None


def equals(found: Polynomial | None, expected: Mapping[Monomial, float], dtype: DType) -> bool:
    """Whether two polynomials are the same, coefficients compared as rounded to ``dtype``."""
    return (
        found is not None
        and found.keys() == expected.keys()
        and all(near(found[monomial], c, dtype) for monomial, c in expected.items())
    )


def power(*factors: tuple[Value, float]) -> Monomial:
    """The product of powers of distinct values."""
    return tuple(sorted(factors, key=lambda factor: factor[0].id))


def is_arithmetic(value: Value) -> bool:
    """Whether expansion sees through what makes ``value``."""
    return value.node.op.name in ARITHMETIC


def arithmetic_below(value: Value, limit: int = 16) -> Iterator[Value]:
    """``value`` and what arithmetic makes it from, nearest first, at most ``limit`` values."""
    queue, seen = [value], {value}
    while queue and limit:
        current = queue.pop(0)
        limit -= 1
        yield current
        if current.node.op.name in ARITHMETIC:
            for operand in current.node.inputs:
                if operand not in seen and uniform_of(operand) is None:
                    seen.add(operand)
                    queue.append(operand)


def _expand(value: Value, is_atom: Callable[[Value], bool], depth: int) -> Polynomial:
    if is_atom(value):
        return {((value, 1.0),): 1.0}
    number = uniform_of(value)
    if number is not None:
        return {_ONE: float(number)}
    node = value.node
    if depth and value.dtype.is_float and node.op.name in ARITHMETIC:
        found = _expand_node(node, is_atom, depth - 1)
        if found is not None:
            return found
    return {((value, 1.0),): 1.0}


def _expand_node(node: Node, is_atom: Callable[[Value], bool], depth: int) -> Polynomial | None:
    name, operands = node.op.name, node.inputs
    if name == "pow":
        return _expand_power(node, is_atom, depth)
    if name in ("sqrt", "rsqrt"):
        return _root(operands[0], is_atom, depth, 0.5 if name == "sqrt" else -0.5)
    terms = [_expand(operand, is_atom, depth) for operand in operands]
    match name:
        case "add":
            return _sum(terms[0], terms[1], 1.0)
        case "subtract":
            return _sum(terms[0], terms[1], -1.0)
        case "neg":
            return {monomial: -c for monomial, c in terms[0].items()}
        case "multiply":
            return _product(terms[0], terms[1])
        case "square":
            return _product(terms[0], terms[0])
        case "divide":
            return _product(terms[0], _inverse(operands[1], terms[1]))
        case "reciprocal":
            return _inverse(operands[0], terms[0])
    return terms[0]  # broadcast_to


def _expand_power(node: Node, is_atom: Callable[[Value], bool], depth: int) -> Polynomial | None:
    base, exponent = node.inputs[0], uniform_of(node.inputs[1])
    if exponent in (0.5, -0.5):
        return _root(base, is_atom, depth, float(exponent))
    if exponent not in (1, 2, 3, 4):
        return None
    terms = _expand(base, is_atom, depth)
    result = terms
    for _ in range(int(exponent) - 1):
        result = _product(result, terms)
    return result


def _root(
    value: Value, is_atom: Callable[[Value], bool], depth: int, exponent: float
) -> Polynomial:
    """``value ** exponent`` as a power of the value itself, whatever it is made of."""
    number = uniform_of(value)
    if number is not None:
        if number <= 0:
            raise _TooBig
        return {_ONE: float(number) ** exponent}
    return {((value, exponent),): 1.0}


def _inverse(value: Value, terms: Polynomial) -> Polynomial:
    """The reciprocal: of each factor if ``terms`` is a single one, else of the value itself."""
    if len(terms) > 1:
        return {((value, -1.0),): 1.0}
    ((monomial, c),) = terms.items()
    if c == 0:
        raise _TooBig
    return {tuple((atom, -e) for atom, e in monomial): 1.0 / c}


def _sum(a: Polynomial, b: Polynomial, sign: float) -> Polynomial:
    result = dict(a)
    for monomial, c in b.items():
        result[monomial] = result.get(monomial, 0.0) + sign * c
    return _bounded({monomial: c for monomial, c in result.items() if c != 0})


def _product(a: Polynomial, b: Polynomial) -> Polynomial:
    result: Polynomial = {}
    for m1, c1 in a.items():
        for m2, c2 in b.items():
            monomial = _times(m1, m2)
            result[monomial] = result.get(monomial, 0.0) + c1 * c2
    return _bounded(result)


def _times(a: Monomial, b: Monomial) -> Monomial:
    if not a or not b:
        return a or b
    powers = dict(a)
    for atom, exponent in b:
        if powers.get(atom, exponent) * exponent < 0:
            raise _TooBig  # x / x is not 1 where x is 0, infinite or NaN
        powers[atom] = powers.get(atom, 0.0) + exponent
    return power(*powers.items())


def _bounded(terms: Polynomial) -> Polynomial:
    if not terms or len(terms) > _MAX_TERMS:
        raise _TooBig
    return terms
