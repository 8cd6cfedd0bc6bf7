"""One node of a program as its converter sees it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import numpy as np

from ostinato.conversion import round_to
from ostinato.dtypes import BOOL
from ostinato.frontends.torch.element_types import COMPLEX, ELEMENT_TYPES, result_type
from ostinato.frontends.torch.program import Named, ScalarMeta, TensorMeta
from ostinato.ir.graph import Value
from ostinato.records import dataclass
from ostinato.variables import Expr

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ostinato.dtypes import DType
    from ostinato.frontends.torch.program import Program, ProgramNode
    from ostinato.frontends.torch.symbols import SymbolTable
    from ostinato.ops.builder import Graph, NestedGraph
    from ostinato.variables import Dim

__all__ = ["Call", "Complex", "Converter", "NotSupported", "SizeCondition", "Unavailable", "Writes"]


class NotSupported(Exception):
    """Raised by a converter for what cannot be expressed; the import collects the reasons."""


@dataclass(frozen=True, eq=False)
class Complex:
    """A tensor of complex numbers.

    Attributes:
        pairs: real and imaginary parts along a last axis of size 2, as ``torch.view_as_real``.
    """

    pairs: Value

    @property
    def shape(self) -> tuple[Dim, ...]:
        return self.pairs.shape[:-1]

    @property
    def ndim(self) -> int:
        return self.pairs.ndim - 1


@dataclass(frozen=True)
class Unavailable:
    """A result that a converter does not compute; a node that reads it is not supported.

    Attributes:
        what: the result, for messages.
    """

    what: str


@dataclass(frozen=True)
class SizeCondition:
    """A condition on sizes that is not decided before a run.

    Attributes:
        excess: a size that is not negative exactly where the condition holds.
    """

    excess: Dim


@dataclass(frozen=True, eq=False)
class Writes:
    """The result of a converter whose op writes to operands besides.

    Attributes:
        result: of the op.
        written: by the name of an argument, the new elements of its tensor. That of an in-place op
            is not among them: its converter gives the elements as the result.
    """

    result: Any
    written: Mapping[str, Value]


#: A converter takes the call and the op's arguments, by PyTorch's names and with its defaults.
#: Tensors arrive as values or :class:`Complex`, sizes as dims, lists as tuples. It gives the
#: op's result: a value, a dim or number, a tuple of these, or :class:`Writes`.
Converter: TypeAlias = "Callable[..., Any]"


@dataclass(frozen=True)
class Call:
    """One node, ready for conversion.

    Attributes:
        g: the graph under construction.
        node: the node.
        symbols: the dims that the program's symbols stand for.
        nested: converts a nested program within a nested graph of ``g``, given its arguments, and
            gives its results.
    """

    g: Graph
    node: ProgramNode
    symbols: SymbolTable
    nested: Callable[[Program, NestedGraph, Sequence[Any]], list[Any]]

    def unsupported(self, reason: str) -> NoReturn:
        """Report that the node cannot be expressed, and why."""
        raise NotSupported(reason)

    # -- results ----------------------------------------------------------------------------

    def meta(self, index: int = 0) -> TensorMeta:
        """The type that PyTorch gives to a result."""
        found = self.node.metas[index] if index < len(self.node.metas) else None
        if not isinstance(found, TensorMeta):
            self.unsupported(f"its result {index} is no tensor")
        return found

    @property
    def dtype(self) -> DType:
        """The dtype of the first result; that of its parts where it is complex."""
        return self.element_type(self.meta().dtype)

    @property
    def is_complex(self) -> bool:
        """Whether the first result is complex."""
        return self.meta().dtype in COMPLEX

    @property
    def shape(self) -> tuple[Dim, ...]:
        """The shape of the first result."""
        return self.shape_of(0)

    def shape_of(self, index: int) -> tuple[Dim, ...]:
        """The shape of a result."""
        return tuple(self.symbols.dim(size) for size in self.meta(index).shape)

    def element_type(self, dtype: str | Named) -> DType:
        """The dtype that PyTorch calls ``dtype``; that of its parts where it is complex."""
        name = dtype.name if isinstance(dtype, Named) else dtype
        found = ELEMENT_TYPES.get(name) or COMPLEX.get(name)
        if found is None:
            self.unsupported(f"torch.{name} has no equivalent")
        return found

    # -- operands ---------------------------------------------------------------------------

    def value(self, operand: Any, dtype: DType | None = None) -> Value:
        """A tensor or a number as a value, of ``dtype`` if one is given."""
        if isinstance(operand, Complex):
            self.unsupported("it takes no complex tensors here")
        if isinstance(operand, Value):
            return operand if dtype in (None, operand.dtype) else self.g.cast(operand, dtype)
        if isinstance(operand, Expr):
            size = self.g.dim_value(operand)
            return size if dtype in (None, size.dtype) else self.g.cast(size, dtype)
        if not isinstance(operand, bool | int | float):
            self.unsupported(f"it takes no {type(operand).__name__} here")
        return self._constant(operand, dtype or result_type([operand]))

    def _constant(self, number: float, dtype: DType) -> Value:
        """A number as a constant: integers wrap, as PyTorch's do."""
        if dtype.is_bool:
            return self.g.constant(bool(number), dtype)
        if dtype.is_float:
            with np.errstate(over="ignore"):  # beyond the range of the dtype is infinite
                return self.g.constant(round_to(np.float64(number), dtype), dtype)
        if not math.isfinite(number):
            self.unsupported(f"{number} as an element of {dtype}")
        wrapped = int(number) & (1 << dtype.bits) - 1
        if dtype.is_signed and wrapped >> dtype.bits - 1:
            wrapped -= 1 << dtype.bits
        return self.g.constant(np.asarray(wrapped, dtype.numpy))

    def promoted(self, *operands: Any) -> list[Value]:
        """Operands of an arithmetic op, as values of the first result's dtype."""
        return [self.value(operand, self.dtype) for operand in operands]

    def truth(self, operand: Any) -> Value:
        """A tensor or a number as a truth value: whether it is not zero."""
        return self.value(self.value(operand), BOOL)

    def widened(self, *operands: Any) -> list[Value]:
        """Operands of a formula of several ops, as values of the dtype that it accumulates in.

        PyTorch computes formulas of 16-bit floats in float32 and rounds once: see :meth:`rounded`.
        """
        dtype = self.dtype.accumulator
        return [self.value(operand, dtype) for operand in operands]

    def rounded(self, value: Value) -> Value:
        """The result of a formula, in the first result's dtype."""
        return self.g.cast(value, self.dtype)

    def compared(self, *operands: Any) -> list[Value]:
        """Operands of a comparison, as values of the dtype in which PyTorch compares."""
        dtype = result_type(operands)
        return [self.value(operand, dtype) for operand in operands]

    def axis(self, dim: int, rank: int) -> int:
        """An axis counted from the front; tensors without dims have one."""
        if not isinstance(dim, int) or not -max(rank, 1) <= dim < max(rank, 1):
            self.unsupported(f"dim {dim} of a tensor of {rank} dims")
        return dim % max(rank, 1)

    def axes(self, dims: Any, rank: int) -> tuple[int, ...]:
        """Axes counted from the front; all of them for ``None`` or none."""
        if dims is None or dims == ():
            return tuple(range(rank))
        listed = dims if isinstance(dims, tuple) else (dims,)
        return tuple(self.axis(dim, rank) for dim in listed) if rank else ()

    def position(self, index: Any, size: Dim) -> Dim:
        """A position on an axis, counted from the front."""
        if not isinstance(index, int | Expr):
            self.unsupported("a position that is computed during a run")
        return index + size if isinstance(index, int) and index < 0 else index

    def fixed(self, size: Dim, what: str) -> int:
        """A size that must be a number."""
        if not isinstance(size, int):
            self.unsupported(f"its {what} is {size}, which is not known before a run")
        return size

    def known(self, number: Any, what: str) -> Any:
        """A number that must not depend on sizes or data."""
        if isinstance(number, Expr | Value | Complex):
            self.unsupported(f"its {what} is not known before a run")
        return number

    # -- sizes ------------------------------------------------------------------------------

    def require(self, excess: Dim, problem: str) -> None:
        """Let runs check that ``excess`` is not negative.

        Args:
            excess: a size.
            problem: the words for sizes at which it is.
        """
        self.symbols.requirements.append((excess, f"{self.node.name!r}: {problem}"))

    @property
    def unbacked_bound(self) -> int | None:
        """The greatest value of a size that the graph computes as the first result.

        ``None`` where the result is no integer, may be negative, or is without a bound.
        """
        found = self.node.metas[0] if self.node.metas else None
        if not isinstance(found, ScalarMeta) or found.kind != "int":
            return None
        return self.symbols.bound(found.value)
