"""Ops that rename, repeat or place elements, and those that are made of indices alone."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING, Any

from ostinato.dtypes import INT64, DType
from ostinato.errors import GraphError
from ostinato.ir.facts import Fact
from ostinato.ir.leaves import check_shape
from ostinato.ir.op import Attr, Op
from ostinato.ir.types import TensorType
from ostinato.ops.base import Composite, normalize_axis
from ostinato.variables import (
    Dim,
    Expr,
    Requirement,
    Symbol,
    bounds,
    ceil_div,
    data_symbols,
    difference,
    prod,
    provably_at_most,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = [
    "BROADCAST_TO",
    "CONCAT",
    "DIM_VALUE",
    "FAMILY",
    "FLIP",
    "IOTA",
    "PAD",
    "PAD_BORDER",
    "PERMUTE_DIMS",
    "RESHAPE",
    "SLICE",
    "TILE",
    "TRIL",
    "TRIU",
]


class Reshape(Op):
    """The same elements, in C order, under another shape."""

    takes_narrow = True
    name = "reshape"

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        self.expect_count(operands, 1)
        (x,) = operands
        shape = check_shape(self.name, attrs["shape"])
        size = prod(shape)
        if not data_symbols(size) | data_symbols(x.size):
            if size != x.size and _is_variable(shape[:1]) and _is_variable(x.shape[:1]):
                # Two names of one batch, most likely: with these equal, the rest may be too.
                self.expect_equal(x.shape[0], shape[0], self._problem(x, shape))
            self.expect_equal(size, x.size, self._problem(x, shape))
        self.expect_facts(operands, attrs)
        return (TensorType(x.dtype, shape),)

    def facts(self, operands: Sequence[TensorType], attrs: dict[str, Attr]) -> Iterator[Fact]:
        """Sizes that depend on data need not be equal as expressions: a run checks them."""
        (x,) = operands
        shape = check_shape(self.name, attrs["shape"])
        size = prod(shape)
        if size != x.size:
            yield Fact(size - x.size, 0, self._problem(x, shape))
            yield Fact(x.size - size, 0, self._problem(x, shape))

    @staticmethod
    def _problem(x: TensorType, shape: Sequence[Dim]) -> str:
        return f"shape {_shown(shape)} holds {prod(shape)} elements, the operand {x.size}"

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        return xp.reshape(operands[0], attrs["shape"])


def _is_variable(dims: Sequence[Dim]) -> bool:
    """Whether these are dims that begin with a Variable, not a number or an expression."""
    if not dims or isinstance(dims[0], int):
        return False
    match dims[0].terms:
        case (((Symbol(),), 1),):
            return dims[0].const == 0
    return False


class PermuteDims(Op):
    """Axes in another order: axis ``i`` of the result is axis ``axes[i]`` of the operand."""

    takes_narrow = True
    name = "permute_dims"

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        self.expect_count(operands, 1)
        (x,) = operands
        axes = attrs["axes"]
        self.expect(
            sorted(axes) == list(range(x.ndim)),
            f"axes {tuple(axes)} are no permutation of {x.ndim} dimensions",
        )
        return (TensorType(x.dtype, tuple(x.shape[a] for a in axes)),)

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        return xp.permute_dims(operands[0], attrs["axes"])


class BroadcastTo(Op):
    """Elements repeated along new leading axes, and along axes of size 1."""

    takes_narrow = True
    name = "broadcast_to"

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        self.expect_count(operands, 1)
        (x,) = operands
        shape = check_shape(self.name, attrs["shape"])
        aligned = shape[len(shape) - x.ndim :] if len(shape) >= x.ndim else ()
        fits = len(aligned) == x.ndim and all(
            d in (1, s) for d, s in zip(x.shape, aligned, strict=True)
        )
        self.expect(fits, f"{x} does not broadcast to {_shown(shape)}")
        return (TensorType(x.dtype, shape),)

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        return xp.broadcast_to(operands[0], attrs["shape"])


class Slice(Op):
    """Every ``steps[i]``-th element from ``starts[i]`` up to ``stops[i]`` of each axis.

    All bounds count from the front and lie within the operand; steps are positive ints. Python's
    conventions are the vocabulary's business.
    """

    takes_narrow = True
    name = "slice"

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        self.expect_count(operands, 1)
        (x,) = operands
        starts, stops, steps = attrs["starts"], attrs["stops"], attrs["steps"]
        self.expect(
            len(starts) == len(stops) == len(steps) == x.ndim,
            f"expected a start, a stop and a step for each of {x.ndim} axes",
        )
        shape: list[Dim] = []
        for start, stop, step in zip(starts, stops, steps, strict=True):
            self.expect(_is_int(step) and step > 0, f"a step is a positive int, got {step!r}")
            shape.append(ceil_div(difference(stop, start), step))
        self.expect_facts(operands, attrs)
        return (TensorType(x.dtype, tuple(shape)),)

    def facts(self, operands: Sequence[TensorType], attrs: dict[str, Attr]) -> Iterator[Fact]:
        (x,) = operands
        ranges = zip(x.shape, attrs["starts"], attrs["stops"], strict=True)
        for axis, (size, start, stop) in enumerate(ranges):
            problem = f"{start}..{stop} is no range within axis {axis} of {x}"
            for low, high in ((0, start), (start, stop), (stop, size)):
                if not provably_at_most(low, high):
                    yield Fact(high - low, 0, problem)

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        ranges = zip(attrs["starts"], attrs["stops"], attrs["steps"], strict=True)
        return operands[0][tuple(builtins.slice(*r) for r in ranges)]


class Flip(Op):
    """The order of elements reversed along ``axes``."""

    takes_narrow = True
    name = "flip"

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        self.expect_count(operands, 1)
        (x,) = operands
        axes = attrs["axes"]
        self.expect(
            all(_is_int(a) and 0 <= a < x.ndim for a in axes) and len(set(axes)) == len(axes),
            f"axes {axes} are no distinct axes of {x.ndim} dimensions",
        )
        return (x,)

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        return xp.flip(operands[0], attrs["axes"])


class Concat(Op):
    """Operands of one dtype, end to end along ``axis``."""

    takes_narrow = True
    name = "concat"
    reads_once = True
    writes_subviews = True

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        self.expect(bool(operands), "takes at least one operand")
        first = operands[0]
        axis = normalize_axis(attrs["axis"], first.ndim)
        total: Dim = 0
        for x in operands:
            self.expect(x.dtype == first.dtype, f"operands are of {first.dtype} and of {x.dtype}")
            others = x.shape[:axis] + x.shape[axis + 1 :]
            problem = f"{x} and {first} differ in more than axis {axis}"
            self.expect(x.ndim == first.ndim, problem)
            for a, b in zip(others, first.shape[:axis] + first.shape[axis + 1 :], strict=True):
                self.expect_equal(a, b, problem)
            total = total + x.shape[axis]
        shape = (*first.shape[:axis], total, *first.shape[axis + 1 :])
        return (TensorType(first.dtype, shape),)

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        return xp.concat(operands, axis=attrs["axis"])


class Pad(Op):
    """``before`` and ``after`` elements of ``value`` added around each axis."""

    name = "pad"
    reads_once = True

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        self.expect_count(operands, 1)
        (x,) = operands
        _check_widths(self, x, attrs["before"], attrs["after"])
        value = attrs["value"]
        self.expect(isinstance(value, int | float), f"value is a number, got {value!r}")
        return (_padded(x, attrs["before"], attrs["after"]),)

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        return xp.pad(operands[0], attrs["before"], attrs["after"], attrs["value"])


class PadBorder(Composite):
    """A border made of the operand's own elements.

    ``mode`` is ``"edge"`` (the outermost element again), ``"reflect"`` (mirrored about it) or
    ``"wrap"`` (from the other end).
    """

    name = "pad_border"
    widens = False

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        self.expect_count(operands, 1)
        (x,) = operands
        before, after, mode = attrs["before"], attrs["after"], attrs["mode"]
        _check_widths(self, x, before, after)
        self.expect(mode in ("edge", "reflect", "wrap"), f"there is no padding mode {mode!r}")
        for size, *widths in zip(x.shape, before, after, strict=True):
            least = {"edge": 1, "reflect": max(widths) + 1, "wrap": max(widths)}[mode]
            if any(widths) and bounds(size)[0] < least:
                raise GraphError.of(
                    f"padding by {max(widths)} in mode {mode!r} takes an axis of at least {least}, "
                    f"got {size}",
                    Requirement(size - least, equal=False),
                )
        return (_padded(x, before, after),)

    def rule(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        (x,) = operands
        widths = zip(attrs["before"], attrs["after"], strict=True)
        for axis, (before, after) in enumerate(widths):
            if before or after:
                x = _bordered(xp, x, axis, before, after, attrs["mode"])
        return x


def _bordered(xp: Any, x: Any, axis: int, before: int, after: int, mode: str) -> Any:
    size = x.shape[axis]

    def part(start: Dim, stop: Dim) -> Any:
        return x[(builtins.slice(None),) * axis + (builtins.slice(start, stop),)]

    def repeated(line: Any, count: int) -> Any:
        return xp.broadcast_to(line, (*x.shape[:axis], count, *x.shape[axis + 1 :]))

    if mode == "edge":
        low, high = repeated(part(0, 1), before), repeated(part(size - 1, size), after)
    elif mode == "reflect":
        low = xp.flip(part(1, before + 1), axis)
        high = xp.flip(part(size - after - 1, size - 1), axis)
    else:
        low, high = part(size - before, size), part(0, after)
    pieces = ([low] if before else []) + [x] + ([high] if after else [])
    return xp.concat(pieces, axis=axis)


class Iota(Op):
    """A tensor of ``shape`` that holds each element's position along ``axis``."""

    name = "iota"

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        self.expect_count(operands, 0)
        shape, dtype = check_shape(self.name, attrs["shape"]), attrs["dtype"]
        normalize_axis(attrs["axis"], len(shape))
        self.expect(isinstance(dtype, DType), f"dtype is a DType, got {dtype!r}")
        self.expect(not dtype.is_bool, "positions are numbers, not bools")
        return (TensorType(dtype, shape),)

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        return xp.iota(attrs["shape"], attrs["axis"], attrs["dtype"])


class DimValue(Op):
    """The run-time value of a symbolic dim, as an int64 scalar."""

    name = "dim_value"

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        self.expect_count(operands, 0)
        dim = attrs["dim"]
        self.expect(isinstance(dim, Expr) or _is_int(dim), f"dim is a dim, got {dim!r}")
        return (TensorType(INT64, ()),)

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        return xp.full((), attrs["dim"], INT64)


class Tile(Composite):
    """The whole operand repeated ``repeats[i]`` times along each axis."""

    takes_narrow = True
    name = "tile"
    widens = False

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        self.expect_count(operands, 1)
        (x,) = operands
        repeats = check_shape(self.name, attrs["repeats"])
        self.expect(
            len(repeats) == x.ndim, f"{len(repeats)} repeats are given for {x.ndim} dimensions"
        )
        shape = tuple(d * r for d, r in zip(x.shape, repeats, strict=True))
        return (TensorType(x.dtype, shape),)

    def rule(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        (x,) = operands
        pairs = list(zip(attrs["repeats"], x.shape, strict=True))
        split = xp.reshape(x, tuple(d for _, size in pairs for d in (1, size)))
        repeated = xp.broadcast_to(split, tuple(d for pair in pairs for d in pair))
        return xp.reshape(repeated, tuple(r * size for r, size in pairs))


class Triangle(Composite):
    """A triangle of the last two axes; the rest is zero. ``k`` moves the diagonal to the right."""

    widens = False

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        self.expect_count(operands, 1)
        (x,) = operands
        self.expect(x.ndim >= 2, f"takes at least 2 dimensions, got {x}")
        self.expect(_is_int(attrs["k"]), f"k is an int, got {attrs['k']!r}")
        return (x,)

    @staticmethod
    def positions(xp: Any, x: Any) -> tuple[Any, Any]:
        """The row and the column of every element of the last two axes."""
        matrix = tuple(x.shape[-2:])
        return xp.iota(matrix, 0, INT64), xp.iota(matrix, 1, INT64)


class Tril(Triangle):
    """The elements on and below diagonal ``k``."""

    name = "tril"

    def rule(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        (x,) = operands
        row, column = self.positions(xp, x)
        # False is a zero of every dtype.
        return xp.where(column <= row + attrs["k"], x, False)


class Triu(Triangle):
    """The elements on and above diagonal ``k``."""

    name = "triu"

    def rule(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        (x,) = operands
        row, column = self.positions(xp, x)
        return xp.where(column >= row + attrs["k"], x, False)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _shown(shape: Sequence[Dim]) -> str:
    return f"[{','.join(map(str, shape))}]"


def _check_widths(op: Op, x: TensorType, before: Any, after: Any) -> None:
    op.expect(
        len(before) == len(after) == x.ndim,
        f"expected a width before and after each of {x.ndim} axes, got {before} and {after}",
    )
    for width in (*before, *after):
        if not _is_int(width) or width < 0:
            raise GraphError(f"a padding width is an int from 0 up, got {width!r}")


def _padded(x: TensorType, before: Sequence[int], after: Sequence[int]) -> TensorType:
    widened = zip(x.shape, before, after, strict=True)
    return TensorType(x.dtype, tuple(size + b + a for size, b, a in widened))


RESHAPE, PERMUTE_DIMS, BROADCAST_TO, SLICE = Reshape(), PermuteDims(), BroadcastTo(), Slice()
FLIP, CONCAT, PAD, PAD_BORDER, TILE = Flip(), Concat(), Pad(), PadBorder(), Tile()
IOTA, DIM_VALUE, TRIL, TRIU = Iota(), DimValue(), Tril(), Triu()

FAMILY: tuple[Op, ...] = (
    RESHAPE,
    PERMUTE_DIMS,
    BROADCAST_TO,
    SLICE,
    FLIP,
    CONCAT,
    PAD,
    PAD_BORDER,
    TILE,
    IOTA,
    DIM_VALUE,
    TRIL,
    TRIU,
)
