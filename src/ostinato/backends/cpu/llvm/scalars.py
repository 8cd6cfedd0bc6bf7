"""Scalar expressions as code: one value, or one per lane, at a point of a kernel."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any

from llvmlite import ir

from ostinato.backends.common.scalar_code import ScalarCode
from ostinato.backends.cpu.llvm.indices import IndexLanes, Indices
from ostinato.backends.cpu.llvm.lanes import Lane, broadcast, round_to, where
from ostinato.backends.cpu.llvm.memory import address, gather, load, scatter, splat, store
from ostinato.backends.cpu.llvm.scopes import Mask, Scope
from ostinato.backends.cpu.llvm.types import I1, I32, I64, call_intrinsic, register_type
from ostinato.backends.cpu.llvm.uniform_division import UniformDivisor
from ostinato.dtypes import BOOL, FLOAT32, DType
from ostinato.errors import OstinatoError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.lower.loopir.dependences import Dependences
    from ostinato.lower.loopir.nodes import Apply, Guard, IndexValue
    from ostinato.variables import Dim, Symbol

__all__ = ["Scalars", "condition_mask"]


#: The float32 of a vector of AVX-512, whose division takes longer than five multiply-adds.
_WIDE_LANES = 16


class Scalars(ScalarCode[Lane, Scope]):
    """Emits scalar expressions and the memory accesses of statements.

    A value has ``scope.width`` lanes, or one where all lanes agree.

    Args:
        builder: emits at its current position.
        namespace: the ``xp`` of the ops' rules.
        buffers: the addresses of the arguments, then of the temps.
        dependences: of the nest that the expressions belong to.

    Attributes:
        long_run: whether what is emitted now runs for many vectors, so that it pays to prepare a
            divisor that all of them share.
    """

    def __init__(
        self,
        builder: ir.IRBuilder,
        namespace: Any,
        buffers: Sequence[ir.Value],
        dependences: Dependences,
    ) -> None:
        super().__init__(namespace, dependences)
        self.builder = builder
        self.indices = Indices(builder, self)
        self._buffers = buffers
        self.long_run = False
        self._divisors: dict[ir.Value, UniformDivisor] = {}

    # -- values -----------------------------------------------------------------------------

    def _number(self, value: Any, dtype: DType) -> Lane:
        return splat(self.builder, value, dtype, 1)

    def _result(self, found: Any, dtype: DType) -> Lane:
        if isinstance(found, Lane):
            return round_to(found, dtype)
        return splat(self.builder, found, dtype, 1)

    def _apply(self, scalar: Apply, scope: Scope) -> Lane:
        if self.long_run and scalar.op == "divide":
            x, y = (self.value(operand, scope) for operand in scalar.operands)
            if x.lanes == _WIDE_LANES and y.lanes == 1 and x.dtype == y.dtype == FLOAT32:
                return x.like(self._divisor(y).quotient(x.value))
        return super()._apply(scalar, scope)

    def _divisor(self, y: Lane) -> UniformDivisor:
        """A number as a divisor of vectors, prepared once."""
        if y.value not in self._divisors:
            self._divisors[y.value] = UniformDivisor(self.builder, y.value, _WIDE_LANES)
        return self._divisors[y.value]

    def _position(self, scalar: IndexValue, scope: Scope) -> Lane:
        return self.indices.vector(scalar.index, scope).astype(scalar.dtype)

    def data(self, symbol: Symbol, scope: Scope) -> Lane:
        """The value of a data symbol: one lane, or ``scope.width``."""
        return self.value(self.dependences.value_of(symbol), scope)

    def data_varies(self, symbol: Symbol, scope: Scope) -> bool:
        """Whether a data symbol differs from lane to lane."""
        return scope.lane in self.dependences.of(self.dependences.value_of(symbol))

    # -- guards -----------------------------------------------------------------------------

    def _choice(self, guard: Guard, conditions: Sequence[Dim], scope: Scope) -> Lane:
        shared = [c for c in conditions if self.indices.stride(c, scope) == 0]
        moving = [c for c in conditions if c not in shared]
        if not shared:
            return self._guard_lanes(guard, moving, scope)
        holds = condition_mask(self.indices, shared, scope)
        return self._guard_branch(guard, holds, moving, scope)

    def _guard_branch(self, guard: Guard, holds: ir.Value, moving: list[Dim], scope: Scope) -> Lane:
        """A branch on a condition that all lanes share."""
        b = self.builder
        width = scope.width if scope.lane in self.dependences.of(guard) else 1
        with b.if_else(holds) as (then, otherwise):
            with then:
                inner = scope.child()
                chosen = (
                    self._guard_lanes(guard, moving, inner)
                    if moving
                    else self.value(guard.body, inner)
                )
                chosen = broadcast(chosen.astype(guard.dtype), width)
                then_block = b.block
            with otherwise:
                other = self.value(guard.otherwise, scope.child()).astype(guard.dtype)
                other = broadcast(other, width)
                else_block = b.block
        result = b.phi(register_type(guard.dtype, width))
        result.add_incoming(chosen.value, then_block)
        result.add_incoming(other.value, else_block)
        return Lane(b, result, guard.dtype, width)

    def _guard_lanes(self, guard: Guard, moving: list[Dim], scope: Scope) -> Lane:
        """A select between lanes, each side computed under the mask of its own lanes."""
        holds = condition_mask(self.indices, moving, scope)
        inside = self.under(scope, holds)
        outside = self.under(scope, self.builder.not_(holds))
        body, other = self.value(guard.body, inside), self.value(guard.otherwise, outside)
        return where(Lane(self.builder, holds, BOOL, scope.width), body, other)

    def under(self, scope: Scope, holds: ir.Value) -> Scope:
        """A scope inside ``scope`` for the lanes in which ``holds`` is set."""
        if scope.mask is not None:
            holds = self.builder.and_(scope.mask.value, holds)
        return scope.child(mask=Mask(holds, nonempty=False))

    # -- memory -----------------------------------------------------------------------------

    def load(self, buffer: int, dtype: DType, index_: Dim, scope: Scope) -> Lane:
        """The elements at ``index_``; zero in the lanes that the scope's mask leaves out."""
        base, b = self._buffers[buffer], self.builder
        index = self.indices.lanes(index_, scope)
        mask = None if scope.mask is None else scope.mask.value
        if index.stride == 0:
            return load(b, base, dtype, index.base, 1, self._any(scope))
        if index.stride == 1:
            return load(b, base, dtype, index.base, scope.width, mask)
        if index.stride == -1:
            mask = None if mask is None else _reversed(b, mask)
            last = b.sub(index.base, I64(scope.width - 1))
            lane = load(b, base, dtype, last, scope.width, mask)
            return lane.like(_reversed(b, lane.value))
        pointer = address(b, base, dtype, index.base)
        return gather(b, pointer, dtype, index.offsets, mask)

    def address(self, buffer: int, dtype: DType, index: Dim, scope: Scope) -> ir.Value:
        """The address of the element at ``index``, in lane 0."""
        element = self.indices.scalar(index, scope)
        return address(self.builder, self._buffers[buffer], dtype, element)

    def store(
        self,
        buffer: int,
        dtype: DType,
        index: Dim,
        lane: Lane,
        scope: Scope,
        *,
        streaming: bool = False,
    ) -> None:
        """Writes ``lane`` at ``index``, in the lanes of the scope's mask.

        Args:
            streaming: write past the caches where whole vectors are written, which are aligned.
        """
        base, b = self._buffers[buffer], self.builder
        where_to = self.indices.lanes(index, scope)
        mask = None if scope.mask is None else scope.mask.value
        lane = broadcast(lane, scope.width)
        if scope.width == 1 or where_to.stride == 1:
            whole = streaming and mask is None and scope.width > 1
            store(b, base, dtype, where_to.base, lane, mask, streaming=whole)
        elif where_to.stride == -1:
            mask = None if mask is None else _reversed(b, mask)
            last = b.sub(where_to.base, I64(scope.width - 1))
            store(b, base, dtype, last, lane.like(_reversed(b, lane.value)), mask)
        else:
            pointer = address(b, base, dtype, where_to.base)
            scatter(b, pointer, dtype, _offsets(where_to), lane, mask)

    def _any(self, scope: Scope) -> ir.Value | None:
        """Whether what all lanes share may be read; ``None`` when it may in any case."""
        mask = scope.mask
        if mask is None or mask.nonempty:
            return None
        if scope.width == 1:
            return mask.value
        name = f"llvm.vector.reduce.or.v{scope.width}i1"
        return call_intrinsic(self.builder, name, I1, [mask.value])


def condition_mask(indices: Indices, conditions: Sequence[Dim], scope: Scope) -> ir.Value:
    """Whether all conditions are ``>= 0``: per lane, or one ``i1`` where all lanes agree."""
    flags = [indices.vector(condition, scope) >= 0 for condition in conditions]
    return reduce(lambda x, y: x & y, flags).value


def _offsets(index: IndexLanes) -> ir.Value:
    if index.offsets is None:
        raise OstinatoError("several lanes store to one element at once")
    return index.offsets


def _reversed(builder: ir.IRBuilder, vector: ir.Value) -> ir.Value:
    lanes = vector.type.count
    order = ir.Constant(ir.VectorType(I32, lanes), list(range(lanes - 1, -1, -1)))
    return builder.shuffle_vector(vector, vector, order)
