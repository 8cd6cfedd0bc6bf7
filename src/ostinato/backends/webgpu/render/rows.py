"""Nests whose outer points are shared by threads of a workgroup: rows, and few long columns.

All threads of a workgroup stay together, so that they may exchange values: those that have no point
repeat the last one, and store nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.common.clike.statements import stage_buffers
from ostinato.backends.common.clike.values import CValue
from ostinato.backends.webgpu.render.arrays import TempArray
from ostinato.backends.webgpu.render.mapping import register_bytes, temp_words
from ostinato.backends.webgpu.render.parts import parts_of
from ostinato.backends.webgpu.render.reductions import RunningReduction, combined
from ostinato.lower.loopir.dependences import roots, written_buffers
from ostinato.lower.loopir.nodes import Reduce, Scan, Store, extent_of
from ostinato.records import dataclass
from ostinato.variables import ceil_div, prod, provably_less

if TYPE_CHECKING:
    from ostinato.backends.common.clike.scopes import Scope
    from ostinato.backends.webgpu.render.code import NestCode
    from ostinato.backends.webgpu.render.mapping import Mapping
    from ostinato.lower.loopir.nodes import Stage, Statement
    from ostinato.variables import Dim

__all__ = ["threads_per_point"]


def threads_per_point(code: NestCode, mapping: Mapping) -> Dim:
    """Threads of a workgroup run all stages at each of its points.

    Args:
        code: the kernel.
        mapping: of its points.

    Returns:
        The number of workgroups.
    """
    return _Rows(code, mapping).render()


@dataclass(eq=False)
class _Touched:
    """The buffers that the stages since the last barrier read, and that they wrote."""

    read: set[int]
    written: set[int]

    def conflicts(self, read: set[int], written: set[int]) -> bool:
        """Whether a stage may not start before all threads have finished those before it."""
        return bool(self.written & (read | written) or self.read & written)


class _Rows:
    def __init__(self, code: NestCode, mapping: Mapping) -> None:
        self.code = code
        self.mapping = mapping
        self.writer = code.writer
        self.members, self.points = mapping.members, mapping.points
        #: by type, the arrays through which threads exchange values
        self.exchanged: dict[str, list[str]] = {}
        self.count = prod(map(extent_of, code.nest.outer_axes))
        whole = isinstance(self.count, int) and self.count % self.points == 0
        #: whether some threads may have no point while others of the workgroup have
        self.partial = self.points > 1 and not whole
        #: whether temps are in a storage buffer
        self.scratch = mapping.groups > 0

    def render(self) -> Dim:
        code, writer = self.code, self.writer
        writer.line(f"let member = i32(thread % {self.members}u);")
        writer.line(f"let slot = i32(thread / {self.members}u);")
        self._place_temps()
        points = code.size(self.count, code.outermost)
        base = writer.fresh("p")
        first = f"i32(group * {self.points}u)"
        if self.scratch:
            step = self.mapping.groups * self.points
            head = f"for (var {base} = {first}; {base} < {points}; {base} += {step})"
            with code.repeat(head, ceil_div(self.count, step)):
                self._point(base, points)
                writer.line("storageBarrier();")
                writer.line("workgroupBarrier();")
            return self.mapping.groups
        writer.line(f"let {base} = {first};")
        with writer.block(f"if ({base} < {points})"):
            self._point(base, points)
        return ceil_div(self.count, self.points)

    def _point(self, base: str, points: str) -> None:
        """All stages at the points that begin at ``base``."""
        code, writer = self.code, self.writer
        if self.partial:
            writer.line(f"let present = {base} + slot < {points};")
            point = code.declare("p", f"min({base} + slot, {points} - 1)")
        else:
            point = code.declare("p", f"{base} + slot")
        scope = code.enter(code.nest.outer_axes, point, code.outermost)
        touched = _Touched(set(), set())
        for stage in code.nest.stages:
            touched = self._stage(stage, scope, touched)

    def _place_temps(self) -> None:
        """The temps of each point, in workgroup memory or in the last argument."""
        code, nest = self.code, self.code.nest
        if self.scratch:
            offset = 0
            row = temp_words(nest.temps)
            for number, temp in enumerate(nest.temps, len(nest.args)):
                code.arrays.scratch(number, temp.dtype, f"group * {row}u + {offset}u")
                offset += temp.elements * register_bytes(temp.dtype) // 4
            return
        for number, temp in enumerate(nest.temps, len(nest.args)):
            type_ = code.dialect.memory_type(temp.dtype)
            name = code.shared(type_, temp.elements * self.points)
            start = f"u32(slot) * {temp.elements}u" if self.points > 1 else "0u"
            code.arrays.temps[number] = TempArray(name, start)

    # -- stages -----------------------------------------------------------------------------

    def _stage(self, stage: Stage, scope: Scope, touched: _Touched) -> _Touched:
        read, written = stage_buffers(stage)
        if touched.conflicts(read, written):
            self._barrier()
            touched = _Touched(set(), set())
        running = {
            s: RunningReduction.start(self.code, s)
            for s in stage.statements
            if isinstance(s, Reduce)
        }
        if not stage.axes:
            self._once(stage, scope, running)
        elif any(isinstance(s, Scan) for s in stage.statements):
            self._scan_loop(stage, scope)
        else:
            self._member_loop(stage, scope, running)
        for reduction in running.values():
            if stage.axes and self.members > 1:
                reduction.across(
                    self.members,
                    self.mapping.threads,
                    [self._exchange(t, n) for n, t in enumerate(reduction.types)],
                )
            reduction.result(scope)
        return _Touched(touched.read | read, touched.written | written)

    def _once(self, stage: Stage, scope: Scope, running: dict[Reduce, RunningReduction]) -> None:
        """A stage of a single point: all members know its reductions, one stores."""
        others = [s for s in stage.statements if not isinstance(s, Reduce)]
        for reduction in running.values():
            reduction.add(scope)
        if others:
            conditions = ["member == 0"] * (self.members > 1) + ["present"] * self.partial
            with self.writer.block(f"if ({' && '.join(conditions)})" if conditions else ""):
                inside = scope.child()
                self.code.evaluate(others, inside)
                for statement in others:
                    assert isinstance(statement, Store)
                    self.code.store(statement, inside)

    def _member_loop(
        self, stage: Stage, scope: Scope, running: dict[Reduce, RunningReduction]
    ) -> None:
        """A stage over axes, its points dealt out to the members."""
        code, writer = self.code, self.writer
        extent = prod(map(extent_of, stage.axes))
        if provably_less(0, extent):
            starts = [root for s in stage.statements for root in roots(s)]
            code.scalars.hoist(starts, scope, frozenset(stage.axes) | written_buffers(stage))
        alone = not code.nest.outer_axes
        parts = parts_of(code, stage, stage.axes[0], alone=alone) if len(stage.axes) == 1 else None
        lanes = 1 if parts is None else parts.lanes
        stop, name = code.size(extent, scope), writer.fresh("j")
        start = f"member * {lanes}" if lanes > 1 else "member"
        step = self.members * lanes
        head = f"for (var {name} = {start}; {name} < {stop}; {name} += {step})"
        with code.repeat(head, ceil_div(extent, step)):
            if parts is not None:
                parts.write(scope, name, running, "present" if self.partial else "")
                return
            inside = code.enter(stage.axes, name, scope)
            code.evaluate(stage.statements, inside)
            for statement in stage.statements:
                if isinstance(statement, Reduce):
                    running[statement].add(inside)
                else:
                    self._store(statement, inside)

    def _store(self, statement: Statement, scope: Scope) -> None:
        assert isinstance(statement, Store)
        private = statement.buffer >= len(self.code.nest.args)
        with self.writer.block("if (present)" if self.partial and not private else ""):
            self.code.store(statement, scope.child())

    # -- exchange ---------------------------------------------------------------------------

    def _exchange(self, type_: str, number: int) -> str:
        """The array through which threads exchange the ``number``-th part of a state."""
        arrays = self.exchanged.setdefault(type_, [])
        while len(arrays) <= number:
            arrays.append(self.code.shared(type_, self.mapping.threads))
        return arrays[number]

    def _barrier(self) -> None:
        if self.members > 1:
            self.writer.line("workgroupBarrier();")
            self.writer.line("storageBarrier();")

    # -- scans ------------------------------------------------------------------------------

    def _scan_loop(self, stage: Stage, scope: Scope) -> None:
        """A stage of one axis with running sums: as many points at a time as there are members."""
        code, writer, (axis,) = self.code, self.writer, stage.axes
        scans = [s for s in stage.statements if isinstance(s, Scan)]
        assert len(scans) == len(stage.statements)
        stop = code.size(extent_of(axis), scope)
        carries = {scan: self._start(scan) for scan in scans}
        base, name = writer.fresh("j"), writer.fresh("j")
        head = f"for (var {base} = 0i; {base} < {stop}; {base} += {self.members})"
        with code.repeat(head, ceil_div(extent_of(axis), self.members)):
            writer.line(f"let {name} = {base} + member;")
            for scan in scans:
                self._scan(scan, code.at({axis: name}, scope), name, carries[scan], stop)

    def _start(self, scan: Scan) -> str:
        neutral = self.code.dialect.literal(scan.dtype, scan.neutral)
        return self.code.variable("s", neutral, self.code.dialect.register_type(scan.dtype))

    def _scan(self, scan: Scan, scope: Scope, index: str, carry: str, stop: str) -> None:
        code, writer, dtype = self.code, self.writer, scan.dtype
        dialect = code.dialect
        type_ = dialect.memory_type(dtype)
        array = self._exchange(type_, 0)
        mine = self._start(scan)
        with writer.block(f"if ({index} < {stop})"):
            writer.line(f"{mine} = {code.scalars.value(scan.value, scope.child()).text};")
        writer.line(f"{array}[thread] = {dialect.to_memory(mine, dtype)};")
        writer.line("workgroupBarrier();")
        step = writer.fresh("s")
        head = f"for (var {step} = 1u; {step} < {self.members}u; {step} <<= 1u)"
        with code.repeat(head, self.members.bit_length() - 1):
            with writer.block(f"if (u32(member) >= {step})"):
                other = self._element(array, f"thread - {step}", scan)
                total = combined(scan.op, other, CValue(code.code, mine, dtype))
                writer.line(f"{mine} = {total.text};")
            writer.line("workgroupBarrier();")
            writer.line(f"{array}[thread] = {dialect.to_memory(mine, dtype)};")
            writer.line("workgroupBarrier();")
        last = self._element(array, f"u32(slot + 1) * {self.members}u - 1u", scan)
        before = CValue(code.code, mine, dtype)
        if scan.exclusive:
            shifted = self._start(scan)
            with writer.block("if (member > 0)"):
                writer.line(f"{shifted} = {self._element(array, 'thread - 1u', scan).text};")
            before = CValue(code.code, shifted, dtype)
        total = CValue(code.code, carry, dtype)
        written = combined(scan.op, total, before)
        guard = f"{index} < {stop}" + (" && present" if self.partial else "")
        with writer.block(f"if ({guard})"):
            code.scalars.put(
                scan.buffer, code.dtype(scan.buffer), scan.index, written, scope.child()
            )
        writer.line(f"{carry} = {combined(scan.op, total, last).text};")
        writer.line("workgroupBarrier();")

    def _element(self, array: str, at: str, scan: Scan) -> CValue:
        code = self.code
        return code.code.keep(scan.dtype, code.dialect.from_memory(f"{array}[{at}]", scan.dtype))
