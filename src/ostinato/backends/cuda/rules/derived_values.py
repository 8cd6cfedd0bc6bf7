"""Results that follow from others: their readers compute them.

The epilogue of a product may have several results for each element: a sum as bfloat16 for the
residual, the same as float32 for a norm, its square for the norm's mean; so may a norm, such as
its elements and their absolute values. Each would travel to those that read it. One is enough, the
narrowest: readers widen it, or square it, to the same bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.cuda.kernel import CudaLoopNest
from ostinato.backends.cuda.rules.product import Matmul
from ostinato.ir.types import TensorType
from ostinato.lower.loopir.dependences import reached, roots
from ostinato.lower.loopir.nodes import (
    Accumulator,
    Apply,
    Arg,
    Load,
    Number,
    Scalar,
    Stage,
    Statement,
    Store,
)
from ostinato.lower.loopir.rewrite import Rewriter
from ostinato.lower.program import Call, LoweredBuffer, Role
from ostinato.records import dataclass, replace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence, Set


__all__ = ["without_derived"]


@dataclass(frozen=True, eq=False)
class _Derived:
    """A value as a function of another one.

    Attributes:
        source: the buffer of the other one.
        value: the function; ``leaf`` stands for the other value.
        leaf: see above.
        narrows: whether it is stored as the other value, which nothing else stores.
    """

    source: LoweredBuffer
    value: Scalar
    leaf: Load
    narrows: bool = False


def without_derived(calls: Sequence[Call], outside: Set[LoweredBuffer]) -> list[Call]:
    """The calls of a segment, without results that follow from others.

    Those of products and of loop nests are.

    Args:
        calls: in order.
        outside: buffers that are read elsewhere.
    """
    found = list(calls)
    for position, call in enumerate(found):
        if not _stages(call):
            continue
        others = found[:position] + found[position + 1 :]
        derived = _derived(call, others, outside)
        if not derived:
            continue
        found[position] = _writer(call, derived)
        for number in range(position + 1, len(found)):
            found[number] = _reader(found[number], derived)
    return found


def _derived(
    call: Call, others: Sequence[Call], outside: Set[LoweredBuffer]
) -> dict[LoweredBuffer, _Derived]:
    """The results of a call that its readers can compute."""
    found: dict[LoweredBuffer, _Derived] = {}
    for stores in _stages(call):
        found |= _derived_of_stage(stores, call, others, outside)
    return found


def _stages(call: Call) -> Sequence[Sequence[Store]]:
    """The stores of a product, or those of each stage of a nest; none of other kernels."""
    kernel = call.kernel
    if isinstance(kernel, Matmul):
        return [kernel.stores]
    if type(kernel) is CudaLoopNest and kernel.parallel and not kernel.scratch_groups:
        return [[s for s in stage.statements if isinstance(s, Store)] for stage in kernel.stages]
    return []


def _derived_of_stage(
    stores: Sequence[Store], call: Call, others: Sequence[Call], outside: Set[LoweredBuffer]
) -> dict[LoweredBuffer, _Derived]:
    """The results of stores that stand at the same point."""
    found: dict[LoweredBuffer, _Derived] = {}
    temps = len(call.buffers)
    plain = [s for s in stores if s.buffer < temps and _is_plain(s, call)]
    kept: dict[LoweredBuffer, tuple[Store, Scalar]] = {}
    for store in sorted(plain, key=lambda s: (s.value.dtype.itemsize, _size(s.value))):
        buffer = call.buffers[store.buffer]
        private = (
            buffer.role is Role.TEMP
            and buffer.home is None
            and buffer not in outside
            and all(_rewrites(other, buffer) for other in others)
        )
        source = _source(store, kept) if private else None
        if source is not None:
            found[buffer] = source
            continue
        value = store.value
        if private and isinstance(value, Apply) and value.op == "cast":
            (inner,) = value.operands
            if inner.dtype.is_float and inner.dtype.itemsize < value.dtype.itemsize:
                type_ = TensorType(inner.dtype, buffer.type.shape)
                narrow = LoweredBuffer(type_, Role.TEMP, f"{buffer.name}.narrow")
                leaf = Load(0, 0, inner.dtype)
                widened = replace(value, operands=(leaf,))
                found[buffer] = _Derived(narrow, widened, leaf, narrows=True)
                kept[narrow] = (store, inner)
                continue
        kept[buffer] = (store, value)
    return found


def _is_plain(store: Store, call: Call) -> bool:
    """Whether a store writes its value as it is, to a buffer that the call uses nowhere else."""
    buffer = call.buffers[store.buffer]
    own = [s for s in _stores(call) if call.buffers[s.buffer] is buffer]
    plain = store.update == "set" and not store.bindings and not store.conditions
    return (
        plain
        and len(own) == 1
        and call.buffers.count(buffer) == 1
        and buffer not in call.reads()
        and store.value.dtype == buffer.type.dtype
    )


def _stores(call: Call) -> list[Store]:
    own = [store for stores in _stages(call) for store in stores]
    return [store for store in own if store.buffer < len(call.buffers)]


def _rewrites(call: Call, buffer: LoweredBuffer) -> bool:
    """Whether a call does not use a buffer, or reads it where another value may be put."""
    if buffer not in call.buffers:
        return True
    kernel = call.kernel
    if buffer in call.writes() or call.buffers.count(buffer) != 1:
        return False
    number = call.buffers.index(buffer)
    starts: list[Scalar]
    if type(kernel) is CudaLoopNest and not kernel.scratch_groups:
        starts = [root for s in kernel.stages for t in s.statements for root in roots(t)]
    elif isinstance(kernel, Matmul):
        if any(_reads(scalar, number) for scalar in reached(kernel.operands)):
            return False
        starts = [root for store in kernel.stores for root in roots(store)]
    else:
        return False
    return all(not s.bindings for s in reached(starts) if _reads(s, number) and isinstance(s, Load))


def _reads(scalar: Scalar, number: int) -> bool:
    return isinstance(scalar, Load) and scalar.buffer == number


def _source(store: Store, kept: Mapping[LoweredBuffer, tuple[Store, Scalar]]) -> _Derived | None:
    """A stored value as a function of one that is stored at the same place."""
    for buffer, (other, value) in kept.items():
        if other.index != store.index:
            continue
        leaf = Load(0, 0, value.dtype)
        if (found := _in_terms_of(store.value, value, leaf)) is not None:
            return _Derived(buffer, found, leaf)
    return None


def _in_terms_of(scalar: Scalar, value: Scalar, leaf: Load) -> Scalar | None:
    """A scalar with ``leaf`` in the place of every ``value``; ``None``: more than that is in it."""
    if _same(scalar, value):
        return leaf
    if isinstance(scalar, Number):
        return scalar
    if not isinstance(scalar, Apply):
        return None
    known: dict[Scalar, Scalar | None] = {}
    for operand in scalar.operands:
        if operand not in known:
            known[operand] = _in_terms_of(operand, value, leaf)
    operands = [known[operand] for operand in scalar.operands]
    if any(operand is None for operand in operands):
        return None
    return replace(scalar, operands=tuple(o for o in operands if o is not None))


def _same(one: Scalar, other: Scalar) -> bool:
    """Whether two scalars have the same text."""
    if one is other:
        return True
    match one, other:
        case Number(), Number():
            return (one.value, one.dtype) == (other.value, other.dtype)
        case Accumulator(), Accumulator():
            return (one.dtype, one.number) == (other.dtype, other.number)
        case Load(), Load():
            plain = not one.bindings and not other.bindings
            return plain and (one.buffer, one.index) == (other.buffer, other.index)
        case Apply(), Apply():
            return (
                (one.op, one.dtype, one.attrs) == (other.op, other.dtype, other.attrs)
                and len(one.operands) == len(other.operands)
                and all(map(_same, one.operands, other.operands))
            )
    return False


def _size(scalar: Scalar) -> int:
    return sum(1 for _ in reached([scalar]))


def _writer(call: Call, derived: Mapping[LoweredBuffer, _Derived]) -> Call:
    """A call without the results that its readers compute."""
    kernel = call.kernel
    assert isinstance(kernel, CudaLoopNest | Matmul)
    buffers, args = list(call.buffers), list(kernel.args)
    stored: dict[Statement, Store] = {}  # those that are left, by what they were
    for store in _stores(call):
        buffer = call.buffers[store.buffer]
        if buffer not in derived:
            stored[store] = store
            continue
        source, value = derived[buffer].source, store.value
        if derived[buffer].narrows:
            assert isinstance(value, Apply)
            buffers[store.buffer] = source
            args[store.buffer] = Arg(source.type.dtype, reads=False, writes=True)
            stored[store] = replace(store, value=value.operands[0])
    gone = [n for n, buffer in enumerate(buffers) if buffer in derived]
    temps = len(kernel.temps) if isinstance(kernel, CudaLoopNest) else 0
    numbers = _numbers(len(args) + temps, gone)
    rewriter = Rewriter(buffer=lambda number: numbers[number])
    left = tuple(arg for n, arg in enumerate(args) if n not in gone)
    made: CudaLoopNest | Matmul
    if isinstance(kernel, CudaLoopNest):
        own = set(_stores(call))
        stages = []
        for stage in kernel.stages:
            kept = [stored.get(s) if s in own else s for s in stage.statements]
            statements = tuple(rewriter.statement(s) for s in kept if s is not None)
            stages.append(Stage(stage.axes, statements))
        made = replace(kernel, args=left, stages=tuple(stages))
    else:
        made = replace(
            kernel.rewritten(rewriter.scalar),
            args=left,
            stores=tuple(_store(rewriter, store) for store in stored.values()),
        )
    return replace(
        call, kernel=made, buffers=tuple(b for n, b in enumerate(buffers) if n not in gone)
    )


def _store(rewriter: Rewriter, store: Store) -> Store:
    made = rewriter.statement(store)
    assert isinstance(made, Store)
    return made


def _numbers(count: int, gone: Sequence[int]) -> dict[int, int]:
    """By number of an argument or temp, its number without some arguments."""
    return {n: n - sum(g < n for g in gone) for n in range(count)}


class _Deriving(Rewriter):
    """Puts functions of other values in the places of loads.

    Args:
        given: by buffer number, the function, and the number of the buffer that has the value.
        buffer: what other buffer numbers become.
    """

    def __init__(
        self, given: Mapping[int, tuple[_Derived, int]], buffer: Callable[[int], int]
    ) -> None:
        super().__init__(buffer=buffer)
        self._given = given

    def _rebuild(self, scalar: Scalar) -> Scalar:
        if isinstance(scalar, Load) and scalar.buffer in self._given:
            derived, number = self._given[scalar.buffer]
            load = Load(number, scalar.index, derived.leaf.dtype)
            return _with_leaf(derived.value, derived.leaf, load)
        return super()._rebuild(scalar)


def _with_leaf(scalar: Scalar, leaf: Load, load: Load) -> Scalar:
    """A function of ``leaf`` at ``load``; what is the same stays the same."""
    known: dict[Scalar, Scalar] = {leaf: load}

    def made(scalar: Scalar) -> Scalar:
        if scalar not in known:
            known[scalar] = (
                replace(scalar, operands=tuple(map(made, scalar.operands)))
                if isinstance(scalar, Apply)
                else scalar
            )
        return known[scalar]

    return made(scalar)


def _reader(call: Call, derived: Mapping[LoweredBuffer, _Derived]) -> Call:
    """A call that computes for itself what it read of ``derived``."""
    read = [buffer for buffer in call.buffers if buffer in derived]
    if not read:
        return call
    kernel, buffers = call.kernel, list(call.buffers)
    assert isinstance(kernel, CudaLoopNest | Matmul)
    args, gone = list(kernel.args), []
    sources: dict[int, tuple[_Derived, int]] = {}
    for buffer in read:
        number, source = call.buffers.index(buffer), derived[buffer].source
        if source in buffers:
            gone.append(number)
        else:
            buffers[number] = source
            args[number] = Arg(source.type.dtype)
        sources[number] = (derived[buffer], buffers.index(source))
    temps = len(kernel.temps) if isinstance(kernel, CudaLoopNest) else 0
    numbers = _numbers(len(args) + temps, gone)
    given = {n: (found, numbers[at]) for n, (found, at) in sources.items()}
    rewriter = _Deriving(given, lambda number: numbers[number])
    left = tuple(arg for n, arg in enumerate(args) if n not in gone)
    made: CudaLoopNest | Matmul
    if isinstance(kernel, CudaLoopNest):
        stages = tuple(
            Stage(stage.axes, tuple(map(rewriter.statement, stage.statements)))
            for stage in kernel.stages
        )
        made = replace(kernel, args=left, stages=stages)
    else:
        made = replace(
            kernel.rewritten(rewriter.scalar),
            args=left,
            stores=tuple(_store(rewriter, store) for store in kernel.stores),
        )
    kept = tuple(buffer for n, buffer in enumerate(buffers) if n not in gone)
    return replace(call, kernel=made, buffers=kept)
