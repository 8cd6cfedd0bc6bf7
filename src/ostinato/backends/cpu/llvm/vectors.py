"""Vectorising a run of elements: vector width, unrolling, and the remainder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llvmlite import ir

from ostinato.backends.cpu.llvm.indices import lane_stride
from ostinato.backends.cpu.llvm.kernel import counted_loop
from ostinato.backends.cpu.llvm.lanes import Lane
from ostinato.backends.cpu.llvm.scopes import Mask, Scope
from ostinato.backends.cpu.llvm.types import I64, register_dtype, vector_of
from ostinato.dtypes import INT64, DType
from ostinato.lower.fusion.cost import LONG, instructions
from ostinato.lower.loopir.dependences import Dependences, reached, roots
from ostinato.lower.loopir.nodes import (
    Apply,
    Load,
    Reduce,
    Scalar,
    Scan,
    Stage,
    Statement,
    Store,
    values,
)
from ostinato.ops.elementwise import ELEMENTWISE
from ostinato.records import dataclass, replace
from ostinato.variables import Symbol, symbols

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ostinato.backends.cpu.llvm.toolchain import TargetSpec

__all__ = ["Strip", "VectorPlan", "plan_vectors", "strip_mine"]


#: Vectors of a run from which on long ops of several are interleaved.
_WORTH_INTERLEAVING = 16

#: Ops whose code has branches.
_BRANCHING = frozenset({"sin", "cos", "tan"})


@dataclass(frozen=True)
class Strip:
    """A loop over vectors.

    Attributes:
        width: lanes of a vector.
        unroll: vectors that one pass of the loop works on.
        masked: whether the last vector may be partly beyond the end.
        counted: whether it is known how many lanes of the last vector are not.
    """

    width: int
    unroll: int = 1
    masked: bool = False
    counted: bool = True


@dataclass(frozen=True)
class VectorPlan:
    """The vectorisation of a loop along an axis.

    Attributes:
        width: lanes of a vector.
        unroll: vectors at a time, as long as that many are left.
        masks: whether a partial vector runs under a mask rather than element by element.
        whole: whether there may be a whole vector.
    """

    width: int
    unroll: int
    masks: bool
    whole: bool = True

    @property
    def partial(self) -> VectorPlan:
        """The same for fewer elements than a vector has."""
        return replace(self, whole=False)

    def dividing(self, count: int) -> VectorPlan:
        """The same with as many vectors at a time as divide ``count`` elements."""
        vectors = max(1, count // self.width)
        unroll = max(n for n in range(1, self.unroll + 1) if vectors % n == 0)
        return replace(self, unroll=unroll)

    def strips(self, count: int | None) -> tuple[Strip, ...]:
        """The loops that cover ``count`` elements, in order; ``None`` if it is not known yet."""
        found: list[Strip] = []
        rest = count
        single = self.masks and count is not None and self.width > 1 and count % self.width == 1
        whole = [Strip(self.width, self.unroll)] if self.whole else []
        if self.whole and self.unroll > 1 and (single or not self.masks):
            whole.append(Strip(self.width))
        for strip in whole:
            step = strip.width * strip.unroll
            if rest is None or rest >= step:
                found.append(strip)
                rest = None if rest is None else rest % step
        if rest == 0 or self.width == 1:
            return tuple(found)
        # One element is an element, not a vector under a mask of one lane: see _tail_mask.
        if self.masks and not single:
            partial = rest is None or rest % self.width != 0
            found.append(Strip(self.width, masked=partial, counted=rest is not None))
        else:
            found.append(Strip(1))
        return tuple(found)


def plan_vectors(
    lane: Symbol,
    count: int,
    stages: Sequence[Stage],
    target: TargetSpec,
    dependences: Dependences,
    alignment: int = 0,
    repeats: int = 1,
) -> VectorPlan:
    """The plan for running ``stages`` with ``lane`` as vector lanes.

    Args:
        count: elements of ``lane`` in one run, at most.
        alignment: runs start at multiples of it; 0 if at 0 alone. Vectors start at multiples of
            their width, which :func:`~ostinato.backends.cpu.llvm.indices.lane_stride` relies on.
        repeats: how often a run is repeated in an item.
    """
    statements = [s for stage in stages for s in stage.statements]
    dtypes = _data_dtypes(statements)
    width = target.lanes(_dominant_size(dtypes))
    while width > 1 and (count <= width // 2 or alignment % width):
        width //= 2
    if any(_in_order(stage, lane, width, dependences) for stage in stages):
        return VectorPlan(1, 1, masks=False)
    vectors = max(1, count // width)
    unroll = min(vectors, _unroll(statements, vectors * repeats, columns=alignment > 0))
    masks = target.vector_bytes >= 64 or (
        target.vector_bytes >= 32 and all(d.itemsize >= 4 for d in dtypes)
    )
    return VectorPlan(width, unroll, masks)


def strip_mine(
    builder: ir.IRBuilder,
    lane: Symbol,
    bounds: tuple[ir.Value, ir.Value],
    count: int | None,
    plan: VectorPlan,
    shared: Scope,
    body: Callable[[Scope, list[Scope]], None],
) -> None:
    """Runs ``body`` for all vectors of ``lane`` between ``bounds``.

    Args:
        count: elements between the bounds, where known.
        body: takes a scope for what the vectors of a pass share, and the scope of each.
    """
    position, stop = bounds
    rest = count
    for strip in plan.strips(count):
        step = strip.width * strip.unroll
        covered = stop
        trips = None
        if rest is not None:
            trips = -(-rest // step) if strip.masked else rest // step
            rest = max(rest - trips * step, 0)
        if not strip.masked and step > 1:
            left = builder.sub(stop, position)
            covered = builder.sub(stop, builder.urem(left, I64(step)))

        def run(index: ir.Value, strip: Strip = strip) -> None:
            inner = shared.child()
            body(inner, _vector_scopes(builder, lane, strip, index, stop, inner))

        counted_loop(builder, position, covered, step, run, trips=trips, name=lane.name)
        position = covered


def _vector_scopes(
    builder: ir.IRBuilder,
    lane: Symbol,
    strip: Strip,
    index: ir.Value,
    stop: ir.Value,
    shared: Scope,
) -> list[Scope]:
    mask = _tail_mask(builder, strip, index, stop) if strip.masked else None
    scopes = []
    for vector in range(strip.unroll):
        offset = vector * strip.width
        first = builder.add(index, I64(offset)) if offset else index
        scopes.append(Scope((shared,), lane, strip.width, mask, {lane: first}))
    return scopes


def _tail_mask(builder: ir.IRBuilder, strip: Strip, index: ir.Value, stop: ir.Value) -> Mask | None:
    """The lanes from ``index`` on that lie before ``stop``.

    Of a masked store of narrowed values that is known to write one lane, LLVM 22 makes a store as
    wide as they were before, for AVX-512: it runs over what comes next. Where lowering knows the
    count there is no such mask; where it does not, LLVM must not find out either.
    """
    width = strip.width
    if width == 1:
        return None
    left = Lane(builder, builder.sub(stop, index), INT64, 1)
    left = left.like(left.integers.extremum("min", left.value, I64(width)))
    if not strip.counted:
        left = left.like(_hidden(builder, left.value))
    # As narrow as the lane numbers allow: one comparison of one register.
    number = ir.IntType(8 if width > 16 else 32)
    steps = ir.Constant(vector_of(number, width), list(range(width)))
    narrow = builder.trunc(left.value, number)
    undefined = ir.Constant(steps.type, ir.Undefined)
    first = builder.insert_element(undefined, narrow, ir.IntType(32)(0))
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), width), None)
    limit = builder.shuffle_vector(first, undefined, zeros)
    return Mask(builder.icmp_unsigned("<", steps, limit), nonempty=True)


def _hidden(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """``value``, about which the optimizer knows nothing. Takes no instruction."""
    signature = ir.FunctionType(value.type, [value.type])
    return builder.call(ir.InlineAsm(signature, "", "=r,0"), [value])


def _values(statements: Iterable[Statement]) -> Iterator[Scalar]:
    """The expressions that make up the statements' values, those of indices aside."""
    waiting: list[Scalar] = [s.value for s in statements]
    seen: set[int] = set()
    while waiting:
        scalar = waiting.pop()
        if id(scalar) not in seen:
            seen.add(id(scalar))
            yield scalar
            waiting.extend(values(scalar))


def _data_dtypes(statements: Iterable[Statement]) -> set[DType]:
    return {scalar.dtype for scalar in _values(statements)}


def _dominant_size(dtypes: Iterable[DType]) -> int:
    """Bytes in a register of the values that most of the work is on: floats, if there are any."""
    held = [register_dtype(dtype) for dtype in dtypes]
    floats = [dtype for dtype in held if dtype.is_float]
    return max(dtype.itemsize for dtype in floats or held)


def _unroll(statements: Sequence[Statement], vectors: int, *, columns: bool) -> int:
    """Vectors at a time that keep the units busy, of so many in a run.

    Out-of-order execution overlaps the passes of a map of short ops by itself, but not the chains
    of instructions that long ops are: several are interleaved, where there are enough vectors to be
    worth the time of compiling them. A reduction must not wait for its own last step, and one down
    columns should use all that it touches of a memory page (480 × 4096 float32: 265 µs with four
    vectors at a time, 160 µs with eight).
    """
    ops = [scalar.op for scalar in _values(statements) if isinstance(scalar, Apply)]
    cost = sum(instructions(ELEMENTWISE[op]) for op in ops)
    reduces = sum(isinstance(statement, Reduce) for statement in statements)
    if any(isinstance(statement, Reduce) and statement.fused for statement in statements):
        return 1 << (max(1, 8 // reduces)).bit_length() - 1
    if cost < LONG:
        return (8 if columns else 4) if reduces else 2
    short = cost < 3 * LONG
    if vectors < _WORTH_INTERLEAVING or not _BRANCHING.isdisjoint(ops):
        return 2 if reduces and short else 1
    return 4 if short else 2


def _in_order(stage: Stage, lane: Symbol, width: int, dependences: Dependences) -> bool:
    """Whether the elements of a stage must be worked on one after the other along ``lane``."""
    if any(isinstance(s, Scan) for s in stage.statements) and lane == stage.axes[-1]:
        return True
    stores = [s for s in stage.statements if isinstance(s, Store)]
    if any(_may_collide(s, lane, width, dependences) for s in stores):
        return True
    indices = {s.buffer: s.index for s in stage.statements if isinstance(s, Store | Scan)}
    loads = reached(root for s in stage.statements for root in roots(s))
    return any(
        isinstance(node, Load) and node.index != indices.get(node.buffer, node.index)
        for node in loads
    )


def _may_collide(store: Store, lane: Symbol, width: int, dependences: Dependences) -> bool:
    """Whether several lanes may write one element, other than by a plain, ordered scatter."""
    by_data = any(
        lane in dependences.of(dependences.data[s])
        for s in symbols(store.index)
        if s in dependences.data
    )
    stride = None if by_data else lane_stride(store.index, lane, width)
    return stride == 0 or (stride is None and store.update != "set")
