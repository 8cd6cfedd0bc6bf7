"""Values of Variables: from the shapes of arrays, and as callers give them."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from ostinato.errors import InputError, VariableError
from ostinato.variables import BoundVariable, Dim, Symbol, bounds, coefficient, evaluate, symbols

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ostinato.variables import Variable

__all__ = ["VariableValues", "check_values", "solve_dims", "variable_values"]

#: Values of Variables as callers give them: ``{"n": 4}``, ``{"n": n.bind(4)}`` or ``[n.bind(4)]``.
VariableValues: TypeAlias = (
    Mapping[str, int] | Mapping[str, BoundVariable] | Sequence[BoundVariable]
)


def solve_dims(
    shapes: Mapping[str, tuple[Sequence[Dim], Sequence[int]]],
    given: Mapping[str, int],
    *,
    given_by: str = "the caller",
) -> dict[str, int]:
    """The value of every Variable that follows from the shapes of arrays.

    Args:
        shapes: by name, the declared shape and the array's own.
        given: values known already, which the shapes must agree with.
        given_by: where they come from, for messages.

    Raises:
        InputError: an array has another rank, or a size that no value of the Variables gives.
        VariableError: two arrays disagree about a Variable.
    """
    values = dict(given)
    origin = dict.fromkeys(given, given_by)
    pending = [
        (name, axis, dim, size)
        for name, (declared, actual) in shapes.items()
        for axis, (dim, size) in enumerate(_aligned(name, declared, actual))
    ]
    progress = True
    while progress:
        progress, waiting = False, []
        for name, axis, dim, size in pending:
            unknown = [s for s in symbols(dim) if s.name not in values]
            if not unknown:
                _check(name, axis, dim, size, values, origin)
            elif len(unknown) == 1 and (value := _solve(dim, size, unknown[0], values)) is not None:
                values[unknown[0].name] = value
                origin[unknown[0].name] = f"axis {axis} of {name!r}"
                _check(name, axis, dim, size, values, origin)
                progress = True
            else:
                waiting.append((name, axis, dim, size))
        pending = waiting
    return values


def variable_values(
    given: VariableValues | object, variables: Mapping[str, Symbol]
) -> dict[str, int]:
    """Values by name, checked against the Variables that there are. Any may be left out.

    Args:
        given: ints or bound Variables by name, or a list of bound Variables.
        variables: by name.

    Raises:
        VariableError: ``given`` is neither; or a Variable is unknown, given twice, bound under
            another's name, bound with other bounds than it has here, or not an int within them.
    """
    values: dict[str, int] = {}
    for name, value in _named(given):
        if name in values:
            raise VariableError(f"Variable {name!r} is given twice: {values[name]} and {value}")
        bound = isinstance(value, BoundVariable)
        number = _as_int(value.value if bound else value)
        _check_value(variables, name, number)
        if bound:
            _check_bound(value.variable, variables[name])
        values[name] = number
    return values


def check_values(variables: Mapping[str, Symbol], values: Mapping[str, int]) -> None:
    """Check that every Variable has a value within its bounds, and that nothing else has one.

    Raises:
        VariableError: one is unknown, missing, or out of bounds.
    """
    for name, value in values.items():
        _check_value(variables, name, value)
    missing = [name for name in variables if name not in values]
    if missing:
        raise VariableError(
            f"no input's shape gives a value to {', '.join(missing)}; pass it in variables="
        )


def _named(given: object) -> Iterator[tuple[Any, Any]]:
    """Yield names with ints or bound Variables."""
    if isinstance(given, Mapping):
        for name, value in given.items():
            if isinstance(value, BoundVariable) and value.variable.name != name:
                other = value.variable.name
                raise VariableError(
                    f"Variable {name!r} is given the value of {other!r}, {value.value}"
                )
            yield name, value
        return
    listed = given if isinstance(given, list | tuple) else ()
    alone = listed is not given or isinstance(given, BoundVariable)
    if alone or not all(isinstance(bound, BoundVariable) for bound in listed):
        raise VariableError(
            'values of Variables are given as a mapping, {"n": 4}, or as a list of bound ones, '
            f"[n.bind(4)], got {given!r:.80}"
        )
    for bound in listed:
        yield bound.variable.name, bound


def _as_int(value: object) -> Any:
    """Convert ``value`` to an int if it has ``__index__``; else return it, to be refused."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        return value
    try:
        return operator.index(value)
    except TypeError:  # an array of several numbers
        return value


def _check_value(variables: Mapping[str, Symbol], name: Any, value: Any) -> None:
    if name not in variables:
        known = ", ".join(variables) or "none"
        raise VariableError(f"there is no Variable {name!r:.80}; the graph has {known}")
    symbol = variables[name]
    if isinstance(value, bool) or not isinstance(value, int):
        raise VariableError(f"Variable {name!r} takes an int, got {value!r:.80}")
    if not symbol.min <= value <= symbol.max:
        raise VariableError(
            f"Variable {name!r} is bounded by {symbol.min}..{symbol.max}, got {value}"
        )


def _check_bound(bound: Variable, declared: Symbol) -> None:
    if (bound.min, bound.max) != (declared.min, declared.max):
        raise VariableError(
            f"the Variable {bound.name!r} that is bound to a value has the bounds "
            f"{bound.min}..{bound.max}, the graph's {declared.min}..{declared.max}; bind that one"
        )


def _aligned(name: str, declared: Sequence[Dim], actual: Sequence[int]) -> list[tuple[Dim, int]]:
    if len(declared) != len(actual):
        raise InputError(f"{name!r}: expected shape {_shown(declared)}, got {_shown(actual)}")
    return list(zip(declared, actual, strict=True))


def _solve(dim: Dim, size: int, symbol: Symbol, values: Mapping[str, int]) -> int | None:
    """The value of the one unknown of ``dim``, where it occurs linearly."""
    parts = coefficient(dim, symbol)
    if parts is None:
        return None
    scale, rest = (evaluate(part, values) for part in parts)
    if scale == 0:
        return None
    return (size - rest) // scale


def _check(
    name: str,
    axis: int,
    dim: Dim,
    size: int,
    values: Mapping[str, int],
    origin: Mapping[str, str],
) -> None:
    expected = evaluate(dim, values)
    if expected == size:
        return
    if isinstance(dim, int):
        raise InputError(f"{name!r}: expected {dim} along axis {axis}, got {size}")
    known = {s.name for s in symbols(dim)}
    because = ", ".join(f"{v} = {values[v]} (from {origin[v]})" for v in sorted(known))
    message = f"{name!r}: axis {axis} is {dim} = {expected} with {because}, got {size}"
    if bounds(dim)[0] <= size <= bounds(dim)[1]:
        raise VariableError(message)
    raise InputError(message)


def _shown(shape: Sequence[Dim]) -> str:
    return f"[{','.join(map(str, shape))}]"
