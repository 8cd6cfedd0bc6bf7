"""The loop IR's scalar expressions, statements and stages, which any renderer can print as code.

Scalar expressions (:class:`Load`, :class:`Apply`, …) form a DAG whose nodes are compared by
identity, so a shared operand is computed once. Statements write memory or feed a reduction. A
:class:`~ostinato.lower.loopir.nest.LoopNest` runs *stages* one after another for every point of its
outer axes; stages share the outer loops, so softmax, the norms and whole row-wise chains become one
kernel.

Index expressions are :mod:`ostinato.variables` expressions over the axes, over the graph's
Variables, and over *data symbols*, which stand for integers read from memory (gathers, scatters).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from ostinato.records import dataclass
from ostinato.variables import Dim, Symbol, bounds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ostinato.dtypes import DType
    from ostinato.ir.op import Attr
    from ostinato.ops.reduction import Running

__all__ = [
    "Accumulator",
    "Apply",
    "Arg",
    "Binding",
    "Guard",
    "IndexValue",
    "Load",
    "Number",
    "Reduce",
    "Ref",
    "Scalar",
    "Scan",
    "Stage",
    "Statement",
    "Store",
    "Temp",
    "extent_of",
    "max_extent",
    "operands",
    "values",
]

# -- scalar expressions ----------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Binding:
    """Gives a data symbol its value: an integer expression, already within the symbol's bounds."""

    symbol: Symbol
    value: Scalar


@dataclass(frozen=True, eq=False)
class Load:
    """An element of an argument, or of a temp (numbered after the arguments).

    Attributes:
        buffer: the argument's position.
        index: the element's offset from the argument's first element.
        dtype: the element type of the buffer.
        bindings: the data symbols that ``index`` mentions.
    """

    buffer: int
    index: Dim
    dtype: DType
    bindings: tuple[Binding, ...] = ()


@dataclass(frozen=True, eq=False)
class Number:
    """A number known while compiling."""

    value: bool | int | float
    dtype: DType


@dataclass(frozen=True, eq=False)
class IndexValue:
    """An index expression as a number: iota, and the run-time value of a dim.

    Attributes:
        index: what the number is.
        dtype: its type.
        bindings: the data symbols that ``index`` mentions.
    """

    index: Dim
    dtype: DType
    bindings: tuple[Binding, ...] = ()


@dataclass(frozen=True, eq=False)
class Apply:
    """An elementwise op of the vocabulary, whose rule also emits its code.

    The operands have the op's operand dtype already; the result is rounded to ``dtype``.
    """

    op: str
    operands: tuple[Scalar, ...]
    dtype: DType
    attrs: tuple[tuple[str, Attr], ...] = ()


@dataclass(frozen=True, eq=False)
class Guard:
    """``body`` where every condition is ``>= 0``, else ``otherwise``.

    ``body`` may load from addresses that are valid only under the conditions: it is evaluated
    under a mask, and reads nothing where the mask is off.

    Attributes:
        bindings: the data symbols that the conditions mention.
    """

    conditions: tuple[Dim, ...]
    body: Scalar
    otherwise: Scalar
    dtype: DType
    bindings: tuple[Binding, ...] = ()


@dataclass(frozen=True, eq=False)
class Ref:
    """The result of an earlier reduction of the same outer point."""

    name: str
    dtype: DType


@dataclass(frozen=True, eq=False)
class Accumulator:
    """The finished sum at ``(batch, m, n)``, inside the epilogue of a matmul.

    Attributes:
        dtype: of the sum.
        number: which of several right operands the sum is with.
    """

    dtype: DType
    number: int = 0


Scalar: TypeAlias = Load | Number | IndexValue | Apply | Guard | Ref | Accumulator

# -- statements ------------------------------------------------------------------------------

Update: TypeAlias = Literal["set", "add", "mul", "min", "max"]
Reduction: TypeAlias = Literal["sum", "prod", "max", "min", "any", "all", "argmax", "argmin"]


@dataclass(frozen=True, eq=False)
class Store:
    """Writes ``value`` (or combines it, by ``update``) to an element of an argument or temp.

    Attributes:
        conditions: nothing is written unless every one is ``>= 0`` (an out-of-range scatter).
    """

    buffer: int
    index: Dim
    value: Scalar
    bindings: tuple[Binding, ...] = ()
    update: Update = "set"
    conditions: tuple[Dim, ...] = ()


@dataclass(frozen=True, eq=False)
class Reduce:
    """Reduces ``value`` over the stage's axes into the scalar ``name``.

    ``value`` has the accumulator's dtype; for argmax and argmin the scalar is the int64
    ``index`` of the first extreme element (NaN counts as the extreme, as in NumPy).

    Attributes:
        fused: of a sum whose ``value`` is a product: a product need not be rounded before it is
            added, since no node of the graph has it as its result.
    """

    name: str
    op: Reduction
    value: Scalar
    dtype: DType
    index: Dim = 0
    fused: bool = False


@dataclass(frozen=True, eq=False)
class Scan:
    """A running reduction along the stage's last axis, stored at every step.

    ``value`` has the accumulator's dtype and is rounded to the buffer's on the way out.
    """

    op: Running
    value: Scalar
    dtype: DType
    buffer: int
    index: Dim
    exclusive: bool = False

    @property
    def combine(self) -> str:
        """The elementwise op that takes a value into the result so far."""
        return _COMBINE[self.op]

    @property
    def neutral(self) -> int | float:
        """The result before the first value."""
        match self.op:
            case "sum" | "prod":
                return int(self.op == "prod")
            case "min":
                return self.dtype.highest
            case _:
                return self.dtype.lowest


_COMBINE: dict[Running, str] = {
    "sum": "add",
    "prod": "multiply",
    "max": "maximum",
    "min": "minimum",
    "logsumexp": "logaddexp",
}

Statement: TypeAlias = Store | Reduce | Scan

# -- arguments and stages -------------------------------------------------------------------------


@dataclass(frozen=True)
class Arg:
    """A kernel's argument: ``dtype`` elements, read and/or written."""

    dtype: DType
    reads: bool = True
    writes: bool = False


@dataclass(frozen=True)
class Temp:
    """Memory private to an outer point while it runs, ``elements`` long."""

    dtype: DType
    elements: int


@dataclass(frozen=True, eq=False)
class Stage:
    """Loops over ``axes`` (outermost first) around some statements; no axes: they run once."""

    axes: tuple[Symbol, ...]
    statements: tuple[Statement, ...]


# -- what expressions are made of ----------------------------------------------------------------


def operands(scalar: Scalar) -> Iterator[Scalar]:
    """The expressions that ``scalar`` is made of, those of its bindings included."""
    yield from values(scalar)
    if isinstance(scalar, Load | IndexValue | Guard):
        for binding in scalar.bindings:
            yield binding.value


def values(scalar: Scalar) -> Iterator[Scalar]:
    """The expressions that ``scalar`` is computed from, those of its indices aside."""
    match scalar:
        case Apply():
            yield from scalar.operands
        case Guard():
            yield scalar.body
            yield scalar.otherwise


def extent_of(symbol: Symbol) -> Dim:
    """The number of values that an axis takes."""
    return symbol.max + 1 if symbol.extent is None else symbol.extent


def max_extent(symbol: Symbol) -> int:
    """The number of values that an axis takes at the largest value of every Variable."""
    return bounds(extent_of(symbol))[1]
