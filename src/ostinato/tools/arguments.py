"""Parsing of the ``name=value`` arguments of the command line."""

from __future__ import annotations

import re
from typing import Any

import typer

from ostinato.records import dataclass

__all__ = [
    "ConstantArgument",
    "DimArgument",
    "InputArgument",
    "dims_mapping",
    "parse_constant",
    "parse_dim",
    "parse_input",
]


@dataclass(frozen=True)
class DimArgument:
    """``name=8``, ``name=1..128`` or, for one axis of one input, ``name[axis]=8``.

    Attributes:
        name: of a dim or, with an axis, of an input.
        axis: of that input, or ``None``.
        size: a size, or a pair of inclusive bounds.
    """

    name: str
    axis: int | None
    size: int | tuple[int, int]


@dataclass(frozen=True)
class ConstantArgument:
    """``name=number``: an input that is fixed while compiling."""

    name: str
    value: float


@dataclass(frozen=True)
class InputArgument:
    """``name=source``: where the elements of an input come from.

    Attributes:
        name: of the input.
        kind: ``"random"``, ``"fill"`` or ``"file"``.
        value: bounds or ``None`` for random, the number to fill with, or the path.
    """

    name: str
    kind: str
    value: Any


def parse_dim(text: str) -> DimArgument:
    """Parse a :class:`DimArgument`; raises ``typer.BadParameter`` for any other form."""
    name, value = _split(text)
    size = _bounds(value) or _integer(value)
    if size is None:
        raise typer.BadParameter(f"{text!r}: a size is 8, or 1..128 for one that varies")
    match = re.fullmatch(r"(.+)\[(-?\d+)\]", name)
    return DimArgument(match[1], int(match[2]), size) if match else DimArgument(name, None, size)


def parse_constant(text: str) -> ConstantArgument:
    """Parse a :class:`ConstantArgument`; raises ``typer.BadParameter`` unless it is a number."""
    name, value = _split(text)
    number = _number(value)
    if number is None:
        raise typer.BadParameter(f"{text!r}: {value!r} is no number")
    return ConstantArgument(name, number)


def parse_input(text: str) -> InputArgument:
    """Parse an :class:`InputArgument`; raises ``typer.BadParameter`` for any other form."""
    name, value = _split(text)
    if value in ("zeros", "ones"):
        return InputArgument(name, "fill", int(value == "ones"))
    if value == "random":
        return InputArgument(name, "random", None)
    if value.startswith("random:"):
        bounds = _bounds(value.removeprefix("random:"))
        if bounds is None or bounds[0] > bounds[1]:
            raise typer.BadParameter(f"{text!r}: bounds are given as random:0..99")
        return InputArgument(name, "random", bounds)
    number = _number(value)
    if number is not None:
        return InputArgument(name, "fill", number)
    return InputArgument(name, "file", value)


def dims_mapping(arguments: list[DimArgument]) -> dict[str, Any]:
    """The ``dims`` argument of :func:`ostinato.load_onnx`."""
    dims: dict[str, Any] = {}
    for argument in arguments:
        if argument.axis is None:
            dims[argument.name] = argument.size
            continue
        axes = dims.setdefault(argument.name, {})
        if not isinstance(axes, dict):
            raise typer.BadParameter(f"--dim gives {argument.name!r} a size and also an axis")
        axes[argument.axis] = argument.size
    return dims


def _split(text: str) -> tuple[str, str]:
    name, equals, value = text.rpartition("=")
    if not (name and equals and value):
        raise typer.BadParameter(f"{text!r}: expected name=value")
    return name, value


def _bounds(text: str) -> tuple[int, int] | None:
    match = re.fullmatch(r"(-?\d{1,18})\.\.(-?\d{1,18})", text)
    return (int(match[1]), int(match[2])) if match else None


def _integer(text: str) -> int | None:
    return int(text) if re.fullmatch(r"-?\d{1,18}", text) else None


def _number(text: str) -> float | None:
    """``text`` as an int if it is one, else as a float."""
    whole = _integer(text)
    if whole is not None:
        return whole
    try:
        return float(text)
    except ValueError:
        return None
