"""Stages as code: loops over a stage's axes around its statements."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ostinato.backends.cpu.llvm.interleaving import emit_interleaved
from ostinato.backends.cpu.llvm.kernel import counted_loop, stack_slot, when
from ostinato.backends.cpu.llvm.lanes import Lane, broadcast
from ostinato.backends.cpu.llvm.memory import prefetch, splat
from ostinato.backends.cpu.llvm.namespace import LaneNamespace
from ostinato.backends.cpu.llvm.reductions import (
    RunningReduction,
    State,
    across_vectors,
    finished,
    updated,
)
from ostinato.backends.cpu.llvm.scalars import Scalars, condition_mask
from ostinato.backends.cpu.llvm.types import I64, register_type
from ostinato.backends.cpu.llvm.vectors import VectorPlan, plan_vectors, strip_mine
from ostinato.lower.loopir.dependences import Dependence, reached, roots, written_buffers
from ostinato.lower.loopir.nodes import (
    Apply,
    Load,
    Reduce,
    Scan,
    Stage,
    Statement,
    Store,
    extent_of,
    max_extent,
)
from ostinato.records import dataclass, field
from ostinato.variables import Dim, Symbol, provably_less, provably_nonnegative

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from llvmlite import ir

    from ostinato.backends.cpu.llvm.scopes import Scope
    from ostinato.backends.cpu.llvm.toolchain import TargetSpec
    from ostinato.dtypes import DType
    from ostinato.lower.loopir.nodes import Scalar

__all__ = ["StageEmitter"]

_NAMESPACE = LaneNamespace()

_LONG_RUN = 32
"""Vectors of a row from which on it pays to prepare divisors: with 64, a softmax takes 0.77 times
as long on Emerald Rapids, with 8 it took 1.1 times."""

_LONGEST_WRITTEN_OUT = 7
"""Iterations of a loop over a window that are written out, so that they share what they load."""


@dataclass(eq=False)
class _Run:
    """One stage being emitted.

    Attributes:
        rows: how its last axis becomes vectors; ``None`` where it is a plain loop.
        running: the state of each reduction, by lanes of a vector and number of the vector.
        sums: the state of each scan, by number of the vector.
        fetched: the element whose line each vector fetches, to be written later; ``None``: none.
    """

    stage: Stage
    rows: VectorPlan | None
    running: dict[tuple[Reduce, int, int], RunningReduction] = field(default_factory=dict)
    sums: dict[tuple[Scan, int], ir.Value] = field(default_factory=dict)
    fetched: Load | None = None

    @property
    def written(self) -> frozenset[int]:
        return written_buffers(self.stage)


class StageEmitter:
    """Emits the stages of one nest.

    Args:
        dtypes: the element types of the arguments, then of the temps.
        streamed: the store that goes past the caches, in a stage whose vectors are aligned in its
            memory; ``None``: there is none.
        fetched: the element whose line the first stage fetches at each point; ``None``: none.
    """

    def __init__(
        self,
        builder: ir.IRBuilder,
        target: TargetSpec,
        scalars: Scalars,
        dtypes: Sequence[DType],
        streamed: Store | None = None,
        fetched: Load | None = None,
    ) -> None:
        self.streamed = streamed
        self.fetched = fetched
        self.builder = builder
        self.target = target
        self.scalars = scalars
        self.dtypes = dtypes

    # -- whole stages -----------------------------------------------------------------------

    def row(self, stage: Stage, point: Scope, *, first: bool = False) -> None:
        """A stage whose last axis becomes vectors; its reductions become refs of ``point``.

        Args:
            first: whether it is the nest's first one.
        """
        if not stage.axes:
            self.columns(stage, point, [point])
            return
        last = stage.axes[-1]
        plan = plan_vectors(last, max_extent(last), [stage], self.target, self.scalars.dependences)
        run = _Run(stage, plan, fetched=self.fetched if first else None)
        strips = plan.strips(_constant(extent_of(last)))
        for reduction in _reductions(stage):
            for strip in strips:
                for vector in range(strip.unroll):
                    self._start_reduction(run, reduction, strip.width, vector)
        long_run = max_extent(last) >= _LONG_RUN * plan.width
        self.scalars.long_run = self.target.reciprocals and long_run
        self._loops(run, stage.axes, point, [])
        self.scalars.long_run = False
        for reduction in _reductions(stage):
            running = [f for (r, _, _), f in run.running.items() if r is reduction]
            if not running:
                running = [RunningReduction.start(self.builder, reduction, 1)]
            point.refs[reduction.name] = finished(reduction, across_vectors(running))

    def columns(self, stage: Stage, shared: Scope, vectors: Sequence[Scope]) -> None:
        """A stage that each of ``vectors`` runs on its own; so do its reductions' refs."""
        run = _Run(stage, None)
        for reduction in _reductions(stage):
            for number, vector in enumerate(vectors):
                self._start_reduction(run, reduction, vector.width, number)
        self._loops(run, stage.axes, shared, vectors)
        for (reduction, _, number), reduced in run.running.items():
            vectors[number].refs[reduction.name] = finished(reduction, reduced.state())

    def _start_reduction(self, run: _Run, reduction: Reduce, width: int, vector: int) -> None:
        key = (reduction, width, vector)
        if key not in run.running:
            run.running[key] = RunningReduction.start(self.builder, reduction, width)

    # -- loops ------------------------------------------------------------------------------

    def _loops(
        self, run: _Run, axes: Sequence[Symbol], shared: Scope, vectors: Sequence[Scope]
    ) -> None:
        if not axes:
            self._body(run, vectors)
            return
        axis, inner_axes = axes[0], axes[1:]
        extent = extent_of(axis)
        stop = self.scalars.indices.scalar(extent, shared)
        some: bool | ir.Value = True
        if not provably_less(0, extent):
            some = self.builder.icmp_signed(">", stop, I64(0))
        with when(self.builder, some):
            shared = shared.child()
            vectors = [vector.child() for vector in vectors]
            self._hoist(run.stage, axes, shared, vectors)
            if not inner_axes:
                self._reset_scans(run, vectors or [shared])
            if run.rows is not None and not inner_axes:
                self._vector_loop(run, axis, stop, shared)
            else:
                self._plain_loop(run, axes, stop, shared, vectors)

    def _plain_loop(
        self,
        run: _Run,
        axes: Sequence[Symbol],
        stop: ir.Value,
        shared: Scope,
        vectors: Sequence[Scope],
    ) -> None:
        axis = axes[0]

        def body(index: ir.Value) -> None:
            inside = shared.child(symbols={axis: index})
            self._loops(run, axes[1:], inside, [vector.child(inside) for vector in vectors])

        if len(axes) == 1 and _is_written_out(run.stage):
            for index in range(max_extent(axis)):
                body(I64(index))
        else:
            counted_loop(self.builder, I64(0), stop, 1, body, name=axis.name)

    def _vector_loop(self, run: _Run, axis: Symbol, stop: ir.Value, shared: Scope) -> None:
        assert run.rows is not None
        self.strip_mine(
            run.stage.statements,
            axis,
            (I64(0), stop),
            _constant(extent_of(axis)),
            run.rows,
            shared,
            lambda _, vectors: self._body(run, vectors),
        )

    def strip_mine(
        self,
        statements: Sequence[Statement],
        lane: Symbol,
        bounds: tuple[ir.Value, ir.Value],
        count: int | None,
        plan: VectorPlan,
        shared: Scope,
        body: Callable[[Scope, list[Scope]], None],
    ) -> None:
        """All vectors of ``lane``, those of a streamed store aligned in its memory.

        Args:
            statements: all that ``body`` runs; the others as for
                :func:`~ostinato.backends.cpu.llvm.vectors.strip_mine`.
        """
        b, streamed = self.builder, self.streamed
        if streamed is None or plan.width == 1 or streamed not in statements:
            strip_mine(b, lane, bounds, count, plan, shared, body)
            return
        first, stop = bounds
        dtype = self.dtypes[streamed.buffer]
        start = shared.child(symbols={lane: first})
        place = self.scalars.address(streamed.buffer, dtype, streamed.index, start)
        bytes_before = b.and_(b.neg(b.ptrtoint(place, I64)), I64(plan.width * dtype.itemsize - 1))
        left, before = b.sub(stop, first), b.udiv(bytes_before, I64(dtype.itemsize))
        aligned = b.add(first, b.select(b.icmp_signed("<", before, left), before, left))
        strip_mine(b, lane, (first, aligned), None, plan.partial, shared, body)
        strip_mine(b, lane, (aligned, stop), None, plan, shared, body)

    def _hoist(
        self, stage: Stage, axes: Sequence[Symbol], shared: Scope, vectors: Sequence[Scope]
    ) -> None:
        """Computes what does not change in the loops over ``axes`` in front of them."""
        starts = [root for s in stage.statements for root in roots(s)]
        blocked: frozenset[Dependence] = frozenset(axes) | written_buffers(stage)
        lanes = {vector.lane for vector in vectors if vector.lane is not None}
        # What a reduction of each vector left is not the same in all of them.
        per_vector = {n for vector in vectors for n in self._ref_names(vector)}
        self.scalars.hoist(starts, shared, blocked | lanes | per_vector)
        for vector in vectors:
            self.scalars.hoist(starts, vector, blocked)

    def _ref_names(self, scope: Scope) -> set[str]:
        return set(scope.refs).union(*(self._ref_names(p) for p in scope.parents))

    # -- statements -------------------------------------------------------------------------

    def _body(self, run: _Run, vectors: Sequence[Scope]) -> None:
        """All statements in all vectors: everything is read before anything is written.

        Only a statement that reads what one before it wrote makes them alternate.
        """
        statements = run.stage.statements
        scopes = [vector.child() for vector in vectors]
        if (fetched := run.fetched) is not None:
            for scope in scopes:
                line = self.scalars.address(fetched.buffer, fetched.dtype, fetched.index, scope)
                prefetch(self.builder, line, I64(0), write=True)
        if not _interleaves(statements):
            evaluations = [partial(self._evaluate, statements, scope) for scope in scopes]
            emit_interleaved(self.builder, evaluations, alternate=self.target.interleaves)
        for number, scope in enumerate(scopes):
            for statement in statements:
                self._effect(run, statement, scope, number)

    def _evaluate(self, statements: Sequence[Statement], scope: Scope) -> None:
        for statement in statements:
            for root in _evaluated(statement):
                self.scalars.value(root, scope)

    def _effect(self, run: _Run, statement: Statement, scope: Scope, vector: int) -> None:
        self._evaluate([statement], scope)
        match statement:
            case Store():
                self._store(statement, scope)
            case Reduce():
                self._accumulate(run, statement, scope, vector)
            case Scan():
                self._scan(run, statement, scope, vector)

    def _store(self, statement: Store, scope: Scope) -> None:
        indices = self.scalars.indices
        conditions = [c for c in statement.conditions if not provably_nonnegative(c)]
        shared = [c for c in conditions if indices.stride(c, scope) == 0]
        moving = [c for c in conditions if c not in shared]
        inside = scope.child()
        if moving:
            holds = condition_mask(indices, moving, inside)
            inside = self.scalars.under(inside, holds)
        permitted = condition_mask(indices, shared, inside) if shared else True
        with when(self.builder, permitted):
            self._write(statement, inside.child())

    def _write(self, statement: Store, scope: Scope) -> None:
        dtype = self.dtypes[statement.buffer]
        lane = self.scalars.value(statement.value, scope)
        if statement.update != "set":
            old = self.scalars.load(statement.buffer, dtype, statement.index, scope)
            lane = updated(statement.update, old, lane.astype(dtype))
        streaming = statement is self.streamed
        self.scalars.store(
            statement.buffer, dtype, statement.index, lane, scope, streaming=streaming
        )

    def _accumulate(self, run: _Run, statement: Reduce, scope: Scope, vector: int) -> None:
        if statement.fused:
            self._accumulate_product(run, statement, scope, vector)
            return
        state: State = (self.scalars.value(statement.value, scope),)
        if statement.op in ("argmax", "argmin"):
            state += (self.scalars.indices.vector(statement.index, scope),)
        mask = None if scope.mask is None else scope.mask.value
        run.running[statement, scope.width, vector].add(state, mask)

    def _accumulate_product(self, run: _Run, statement: Reduce, scope: Scope, vector: int) -> None:
        assert isinstance(statement.value, Apply)
        factors = [self.scalars.value(factor, scope) for factor in statement.value.operands]
        run.running[statement, scope.width, vector].add_product(*factors)

    # -- scans ------------------------------------------------------------------------------

    def _reset_scans(self, run: _Run, vectors: Sequence[Scope]) -> None:
        for statement in run.stage.statements:
            if isinstance(statement, Scan):
                for number, vector in enumerate(vectors):
                    typ = register_type(statement.dtype, vector.width)
                    slot = run.sums[statement, number] = stack_slot(self.builder, typ)
                    start, dtype = statement.neutral, statement.dtype
                    neutral = splat(self.builder, start, dtype, vector.width)
                    self.builder.store(neutral.value, slot)

    def _scan(self, run: _Run, statement: Scan, scope: Scope, vector: int) -> None:
        b, slot = self.builder, run.sums[statement, vector]
        value = broadcast(self.scalars.value(statement.value, scope), scope.width)
        typ = register_type(statement.dtype, scope.width)
        before = Lane(b, b.load(slot, typ=typ), statement.dtype, scope.width)
        after = getattr(_NAMESPACE, statement.combine)(before, value)
        b.store(after.value, slot)
        written = before if statement.exclusive else after
        dtype = self.dtypes[statement.buffer]
        self.scalars.store(statement.buffer, dtype, statement.index, written, scope)


def _evaluated(statement: Statement) -> Iterator[Scalar]:
    """The expressions that are computed before a statement takes effect."""
    if isinstance(statement, Reduce) and statement.fused:
        assert isinstance(statement.value, Apply)
        yield from statement.value.operands
    else:
        yield from roots(statement)


def _is_written_out(stage: Stage) -> bool:
    """Whether the innermost loop of a stage is short, and its iterations share operands."""
    fused = all(isinstance(s, Reduce) and s.fused for s in stage.statements)
    extent = extent_of(stage.axes[-1])
    return fused and isinstance(extent, int) and extent <= _LONGEST_WRITTEN_OUT


def _reductions(stage: Stage) -> list[Reduce]:
    return [s for s in stage.statements if isinstance(s, Reduce)]


def _constant(dim: Dim) -> int | None:
    return dim if isinstance(dim, int) else None


def _interleaves(statements: Sequence[Statement]) -> bool:
    """Whether a statement reads a buffer that one before it writes."""
    written: set[int] = set()
    for statement in statements:
        read = {n.buffer for n in reached(roots(statement)) if isinstance(n, Load)}
        if read & written:
            return True
        if not isinstance(statement, Reduce):
            written.add(statement.buffer)
    return False
