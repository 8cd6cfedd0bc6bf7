"""Index expressions as code: 64-bit scalars, and what they do from lane to lane.

Most indices step evenly along the lanes; then the address of lane 0 and a stride are all that is
needed. The rest become vectors of indices, 32 bits wide where every intermediate value fits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from llvmlite import ir

from ostinato.backends.cpu.llvm.integers import IntegerArithmetic
from ostinato.backends.cpu.llvm.lanes import Lane, broadcast
from ostinato.backends.cpu.llvm.types import I64, constant, vector_of
from ostinato.dtypes import INT32, INT64, DType
from ostinato.errors import OstinatoError
from ostinato.records import dataclass
from ostinato.variables import (
    Composite,
    Dim,
    Expr,
    Maximum,
    Minimum,
    Quotient,
    Remainder,
    Symbol,
    bounds,
    coefficient,
    provably_nonnegative,
    symbols,
)

if TYPE_CHECKING:
    from ostinato.backends.cpu.llvm.scopes import Scope

__all__ = ["DataSymbols", "IndexLanes", "Indices", "lane_stride"]

_INT32_MAX = (1 << 31) - 1


@dataclass(frozen=True, eq=False)
class IndexLanes:
    """An index in every lane: ``base`` plus, unless all lanes agree, ``offsets``.

    Attributes:
        base: an i64.
        stride: the constant step from lane to lane; ``None`` when it varies or is not known.
        offsets: a vector of 32- or 64-bit integers, ``None`` when the stride is 0, 1 or -1.
    """

    base: ir.Value
    stride: int | None
    offsets: ir.Value | None


class DataSymbols(Protocol):
    """Gives integers that are read from memory their values."""

    def data(self, symbol: Symbol, scope: Scope) -> Lane:
        """The value of ``symbol``: one lane, or ``scope.width``."""

    def data_varies(self, symbol: Symbol, scope: Scope) -> bool:
        """Whether ``symbol`` differs from lane to lane."""


class Indices:
    """Emits index expressions.

    Args:
        builder: emits at its current position.
        data: gives the values of data symbols; without it there are none.
    """

    def __init__(self, builder: ir.IRBuilder, data: DataSymbols | None = None) -> None:
        self.builder = builder
        self._data_symbols = data

    # -- scalars ----------------------------------------------------------------------------

    def scalar(self, dim: Dim, scope: Scope) -> ir.Value:
        """``dim`` in lane 0, as an i64."""
        if isinstance(dim, int):
            return I64(dim)
        known = scope.find(lambda s: s.indices.get(dim))
        if known is None:
            known = scope.indices[dim] = self._scalar_sum(dim, scope)
        return known

    def _scalar_sum(self, dim: Expr, scope: Scope) -> ir.Value:
        b = self.builder
        total: ir.Value | None = None
        for monomial, factor in dim.terms:
            term = self._scalar_atom(monomial[0], scope)
            for atom in monomial[1:]:
                term = b.mul(term, self._scalar_atom(atom, scope))
            if factor != 1:
                term = b.mul(term, I64(factor))
            total = term if total is None else b.add(total, term)
        if total is None:
            return I64(dim.const)
        return b.add(total, I64(dim.const)) if dim.const else total

    def _scalar_atom(self, atom: Symbol | Composite, scope: Scope) -> ir.Value:
        if isinstance(atom, Symbol):
            known = scope.find(lambda s: s.symbols.get(atom))
            return known if known is not None else self._data(atom, scope).astype(INT64).value
        left, right = self.scalar(atom.left, scope), self.scalar(atom.right, scope)
        return self._composite(atom, left, right, INT64, 1)

    # -- lanes ------------------------------------------------------------------------------

    def lanes(self, dim: Dim, scope: Scope) -> IndexLanes:
        """``dim`` in every lane of ``scope``."""
        fixed, moving = self._split(dim, scope)
        if moving == 0:
            return IndexLanes(self.scalar(fixed, scope), 0, None)
        stride = self.stride(moving, scope)
        if isinstance(stride, int):
            base = self.scalar(dim, scope)
            offsets = None
            if stride not in (0, 1, -1):
                dtype = INT32 if abs(stride) * scope.width <= _INT32_MAX else INT64
                offsets = _steps(dtype, stride, scope.width)
            return IndexLanes(base, stride, offsets)
        dtype = INT32 if _fits_32_bits(moving) else INT64
        offsets = self._vector_sum(moving, scope, dtype)
        return IndexLanes(self.scalar(fixed, scope), None, offsets)

    def vector(self, dim: Dim, scope: Scope) -> Lane:
        """``dim`` in every lane as numbers, int32 where they fit; one lane if all agree."""
        index = self.lanes(dim, scope)
        if index.stride == 0 or scope.width == 1:
            return Lane(self.builder, index.base, INT64, 1)
        dtype = INT32 if _fits_32_bits(dim) else INT64
        base = broadcast(Lane(self.builder, index.base, INT64, 1).astype(dtype), scope.width)
        if index.stride is not None:
            offsets = Lane(
                self.builder, _steps(dtype, index.stride, scope.width), dtype, scope.width
            )
        else:
            assert index.offsets is not None
            offsets = _as_lane(self.builder, index.offsets, scope.width).astype(dtype)
        return base + offsets

    def stride(self, dim: Dim, scope: Scope) -> int | None:
        """The constant step of ``dim`` from lane to lane, if there is one."""
        if scope.lane is None or scope.width == 1:
            return 0
        if any(self._varies(s, scope) and s != scope.lane for s in symbols(dim)):
            return None
        return lane_stride(dim, scope.lane, scope.width)

    def _varies(self, symbol: Symbol, scope: Scope) -> bool:
        """Whether ``symbol`` differs from lane to lane."""
        if scope.lane is None or scope.width == 1:
            return False
        if symbol == scope.lane:
            return True
        if scope.find(lambda s: s.symbols.get(symbol)) is not None:
            return False
        return self._data_symbols is not None and self._data_symbols.data_varies(symbol, scope)

    def _split(self, dim: Dim, scope: Scope) -> tuple[Dim, Dim]:
        """``dim`` as a sum of what all lanes share and what moves from lane to lane."""
        if isinstance(dim, int):
            return dim, 0
        moving = {
            monomial: factor
            for monomial, factor in dim.terms
            if any(self._atom_varies(atom, scope) for atom in monomial)
        }
        if not moving:
            return dim, 0
        rest = {m: c for m, c in dim.terms if m not in moving}
        return Expr(rest, dim.const) if rest else dim.const, Expr(moving, 0)

    def _atom_varies(self, atom: Symbol | Composite, scope: Scope) -> bool:
        if isinstance(atom, Symbol):
            return self._varies(atom, scope)
        found = symbols(atom.left) | symbols(atom.right)
        return any(self._varies(s, scope) for s in found)

    def _data(self, symbol: Symbol, scope: Scope) -> Lane:
        if self._data_symbols is None:
            raise OstinatoError(f"a kernel's index mentions {symbol.name!r}, which nothing defines")
        return self._data_symbols.data(symbol, scope)

    def _vector_sum(self, dim: Dim, scope: Scope, dtype: DType) -> ir.Value:
        b = self.builder
        if isinstance(dim, int):
            return constant(dtype, dim, scope.width)
        total: ir.Value = constant(dtype, dim.const, scope.width)
        for monomial, factor in dim.terms:
            term: ir.Value = constant(dtype, factor, scope.width)
            for atom in monomial:
                term = b.mul(term, self._vector_atom(atom, scope, dtype))
            total = b.add(total, term)
        return total

    def _vector_atom(self, atom: Symbol | Composite, scope: Scope, dtype: DType) -> ir.Value:
        if not self._atom_varies(atom, scope):
            return self._splat(self._scalar_atom(atom, scope), scope, dtype)
        if not isinstance(atom, Symbol):
            left = self._vector_sum(atom.left, scope, dtype)
            right = self._vector_sum(atom.right, scope, dtype)
            return self._composite(atom, left, right, dtype, scope.width)
        if atom == scope.lane:
            first = self._splat(self._scalar_atom(atom, scope), scope, dtype)
            return self.builder.add(first, _steps(dtype, 1, scope.width))
        return broadcast(self._data(atom, scope).astype(dtype), scope.width).value

    def _splat(self, value: ir.Value, scope: Scope, dtype: DType) -> ir.Value:
        return broadcast(Lane(self.builder, value, INT64, 1).astype(dtype), scope.width).value

    def _composite(
        self, atom: Composite, left: ir.Value, right: ir.Value, dtype: DType, lanes: int
    ) -> ir.Value:
        arithmetic = IntegerArithmetic(self.builder, dtype, lanes)
        if isinstance(atom, Minimum | Maximum):
            which = "min" if isinstance(atom, Minimum) else "max"
            return arithmetic.extremum(which, left, right)
        assert isinstance(atom, Quotient | Remainder)
        quotient = isinstance(atom, Quotient)
        if not (provably_nonnegative(atom.left) and provably_nonnegative(atom.right)):
            divide = arithmetic.divide_floor if quotient else arithmetic.remainder_floor
            return divide(left, right)
        if bounds(atom.right)[0] < 1:
            # A loop over nothing may leave its code in front of it: the division must not trap.
            right = arithmetic.extremum("max", right, arithmetic.constant(1))
        if lanes > 1 and atom.right.terms:
            divide = arithmetic.divide_truncated if quotient else arithmetic.remainder_truncated
            return divide(left, right)
        emit = self.builder.udiv if quotient else self.builder.urem
        return emit(left, right)


def lane_stride(dim: Dim, lane: Symbol, width: int) -> int | None:
    """The constant step of ``dim`` along ``lane`` within a vector of ``width`` lanes, if any.

    Vectors start at multiples of ``width``, so ``lane // 64`` stands still and ``lane % 64`` steps
    by one within each vector of up to 64 lanes.
    """
    if isinstance(dim, int):
        return 0
    affine = coefficient(dim, lane)
    if affine is not None:
        return affine[0] if isinstance(affine[0], int) else None
    total = 0
    for monomial, factor in dim.terms:
        strides = [_atom_stride(atom, lane, width) for atom in monomial]
        if all(stride == 0 for stride in strides):
            continue
        if len(strides) > 1 or strides[0] is None:
            return None
        total += factor * strides[0]
    return total


def _atom_stride(atom: Symbol | Composite, lane: Symbol, width: int) -> int | None:
    if isinstance(atom, Symbol):
        return int(atom == lane)
    left = lane_stride(atom.left, lane, width)
    if lane_stride(atom.right, lane, width) != 0:
        return None
    if left == 0:
        return 0
    if not isinstance(atom, Quotient | Remainder) or left is None or left < 0:
        return None
    if not _never_wraps(atom, left, lane, width):
        return None
    return 0 if isinstance(atom, Quotient) else left


def _never_wraps(atom: Composite, step: int, lane: Symbol, width: int) -> bool:
    """Whether ``left`` stays between two multiples of ``right`` within a vector."""
    span = step * width
    if atom.right.terms or atom.right.const % span or coefficient(atom.left, lane) is None:
        return False
    rest_aligned = all(factor % span == 0 for m, factor in atom.left.terms if lane not in m)
    return rest_aligned and atom.left.const % span < step


def _fits_32_bits(dim: Dim) -> bool:
    """Whether ``dim``, and everything that is divided or compared in it, is an int32."""
    low, high = bounds(dim)
    if low < -_INT32_MAX or high > _INT32_MAX:
        return False
    if isinstance(dim, int):
        return True
    for monomial, _ in dim.terms:
        for atom in monomial:
            if isinstance(atom, Composite) and not (
                _fits_32_bits(atom.left) and _fits_32_bits(atom.right)
            ):
                return False
    return True


def _steps(dtype: DType, stride: int, lanes: int) -> ir.Constant:
    return ir.Constant(
        vector_of(ir.IntType(dtype.bits), lanes), [stride * lane for lane in range(lanes)]
    )


def _as_lane(builder: ir.IRBuilder, value: ir.Value, lanes: int) -> Lane:
    dtype = INT32 if value.type.element.width == 32 else INT64
    return Lane(builder, value, dtype, lanes)
