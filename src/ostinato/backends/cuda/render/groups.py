"""Nests whose outer points are shared by groups of threads: rows, and columns of few points.

All threads of a block stay together, so that they may exchange values: a group that has no point
left repeats the last one, and stores nothing.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from ostinato.backends.common.clike.namespace import CNamespace
from ostinato.backends.common.clike.runs import loads_along
from ostinato.backends.common.clike.scopes import Index, Scope
from ostinato.backends.common.clike.statements import stage_buffers
from ostinato.backends.common.clike.values import CValue
from ostinato.backends.cuda.render.body import SharedArray
from ostinato.backends.cuda.render.mapping import Shape, temp_bytes
from ostinato.backends.cuda.render.packs import KeptPacks, pack_type, packed_body
from ostinato.backends.cuda.render.reductions import OPERATORS, RunningReduction
from ostinato.backends.cuda.target import WARP
from ostinato.lower.loopir.dependences import roots, written_buffers
from ostinato.lower.loopir.nodes import Reduce, Scan, Store, extent_of
from ostinato.records import dataclass
from ostinato.variables import coefficient, prod, provably_less

if TYPE_CHECKING:
    from ostinato.backends.cuda.render.code import NestCode
    from ostinato.backends.cuda.render.mapping import Mapping
    from ostinato.lower.loopir.nodes import Stage, Statement

__all__ = ["group_per_point"]

#: The most bytes of the state of a reduction: a value of 8 bytes and its index.
_STATE_BYTES = 16

_NAMESPACE = CNamespace()


def group_per_point(code: NestCode, mapping: Mapping, *, scratch: bool) -> None:
    """A group of threads runs all stages at each of its points.

    Args:
        code: the function.
        mapping: of its points.
        scratch: whether the last argument has the memory of temps.
    """
    _Groups(code, mapping, scratch).render()


@dataclass(eq=False)
class _Touched:
    """The buffers that the stages since the last barrier read, and that they wrote."""

    read: set[int]
    written: set[int]

    def conflicts(self, read: set[int], written: set[int]) -> bool:
        """Whether a stage may not start before all threads have finished those before it."""
        return bool(self.written & (read | written) or self.read & written)


class _Groups:
    def __init__(self, code: NestCode, mapping: Mapping, scratch: bool) -> None:
        self.code = code
        self.mapping = mapping
        self.scratch = scratch
        self.writer = code.writer
        self.scalars = code.scalars
        self.members, self.points = mapping.members, mapping.points
        self.block = mapping.launch.block
        self.member = Index("member", False)
        self.shared: dict[str, str] = {}
        self.exchanged = False
        count = prod(map(extent_of, code.nest.outer_axes))
        #: whether a group has one point at most
        self.once = isinstance(count, int) and count <= self.points
        self.kept = mapping.kept
        kept = {} if self.kept is None else self.kept.temps
        numbered = enumerate(code.nest.temps, len(code.nest.args))
        #: the temps that are in memory, by number
        self.temps = {number: temp for number, temp in numbered if number not in kept}
        #: the names of kept rows, and those that have been loaded
        self.rows: list[str] = []
        self.loaded = set[int]() if self.kept is None else set(self.kept.temps.values())
        #: whether a group may have no point left while others of its block have
        self.partial = self.points > 1 and not (isinstance(count, int) and count % self.points == 0)

    def render(self) -> None:
        code, writer = self.code, self.writer
        if self.mapping.shape is Shape.COLUMNS:
            slot, member = f"threadIdx.x % {self.points}", f"threadIdx.x / {self.points}"
        else:
            slot, member = f"threadIdx.x / {self.members}", f"threadIdx.x % {self.members}"
        writer.line(f"const int slot = {slot}, member = {member};")
        self._declare_memory()
        axes = code.nest.outer_axes
        step = self.mapping.launch.grid * self.points
        points = code.size(prod(map(extent_of, axes)), code.outermost, step)
        type_, base = code.dialect.index_type(points.wide), writer.fresh("p")
        head = (
            f"for ({type_} {base} = ({type_})own.x * {self.points}; {base} < {points.text}; "
            f"{base} += ({type_})all.x * {self.points})"
        )
        with writer.block(head):
            point = writer.fresh("p")
            if self.partial:
                writer.line(f"const bool active = {base} + slot < {points.text};")
                writer.line(f"const {type_} {point} = active ? {base} + slot : {points.text} - 1;")
            else:
                writer.line(f"const {type_} {point} = {base} + slot;")
            scope = code.enter(axes, Index(point, points.wide), code.outermost)
            self._declare_rows()
            touched = _Touched(set(), set())
            for number in range(len(code.nest.stages)):
                touched = self._stage(number, scope, touched)
            if (self.temps or self.exchanged) and not self.once:
                self._barrier()  # the next point's values are written where this one's are read

    def _declare_memory(self) -> None:
        """The exchange memory of reductions, and the temps of a group."""
        code, nest = self.code, self.code.nest
        if self.mapping.shape is Shape.COLUMNS:
            for stage in nest.stages:
                for statement in stage.statements:
                    if isinstance(statement, Reduce):
                        type_ = RunningReduction(code, statement, "").type
                        if type_ not in self.shared:
                            self.shared[type_] = self._array(type_, self.block)
        if not self.temps:
            return
        row = temp_bytes(self.temps.values())
        if self.scratch:
            memory = f"b{len(nest.args) - 1}"
            start = f"{memory} + (long long)(own.x * {self.points} + slot) * {row}"
        else:
            code.dynamic = "memory"
            start = f"{code.dynamic} + slot * {row}"
        self.writer.line(f"unsigned char* const temps = {start};")
        offset = 0
        for number, temp in self.temps.items():
            type_ = code.dialect.memory_type(temp.dtype)
            self.writer.line(f"{type_}* const b{number} = ({type_}*)(temps + {offset});")
            offset += -(-temp.elements * temp.dtype.itemsize // 16) * 16

    def _declare_rows(self) -> None:
        """The packs of kept rows."""
        if self.kept is None:
            return
        for buffer in self.kept.buffers:
            name, pack = self.writer.fresh("k"), pack_type(self.code, buffer, self.kept.lanes)
            self.writer.line(f"{pack} {name}[{self.kept.packs}];")
            self.rows.append(name)

    def _array(self, type_: str, size: int) -> str:
        """An array for states of reductions."""
        name = self.writer.fresh("shared")
        self.code.arrays.append(SharedArray(type_, _STATE_BYTES, name, (size,)))
        return name

    # -- stages -----------------------------------------------------------------------------

    def _stage(self, number: int, scope: Scope, touched: _Touched) -> _Touched:
        stage = self.code.nest.stages[number]
        lanes = self.mapping.lanes[number] if self.mapping.shape is Shape.ROWS else 1
        read, written = stage_buffers(stage)
        if self.kept is not None:
            read, written = read - self.kept.temps.keys(), written - self.kept.temps.keys()
        if touched.conflicts(read, written):
            self._barrier()
            touched = _Touched(set(), set())
        running = [
            RunningReduction.start(self.code, s) for s in stage.statements if isinstance(s, Reduce)
        ]
        scan = next((s for s in stage.statements if isinstance(s, Scan)), None)
        if not stage.axes:
            self._once(stage, scope, running)
        elif scan is not None:
            self._scan_loop(stage, scope, running)
        else:
            keeps = self.kept is not None and number in self.kept.stages
            self._member_loop(stage, lanes, scope, running, keeps=keeps)
        touched = _Touched(touched.read | read, touched.written | written)
        if stage.axes and running and self.members > WARP and self.mapping.shape is Shape.ROWS:
            self._across_warps(running)
            touched = _Touched(set(), set())  # there was a barrier
        elif stage.axes:
            for reduction in running:
                self._across_members(reduction)
        for reduction in running:
            reduction.result(scope)
        return touched

    def _once(self, stage: Stage, scope: Scope, running: list[RunningReduction]) -> None:
        """A stage of a single point: all members know its reductions, one stores."""
        others = [s for s in stage.statements if not isinstance(s, Reduce)]
        for reduction in running:
            reduction.add(scope)
        if others:
            conditions = ["member == 0"] if self.members > 1 else []
            conditions += ["active"] if self.partial else []
            head = f"if ({' && '.join(conditions)})" if conditions else ""
            with self.writer.block(head):
                inside = scope.child()
                self.code.evaluate(others, inside)
                for statement in others:
                    self._effect(statement, inside)

    def _member_loop(
        self,
        stage: Stage,
        lanes: int,
        scope: Scope,
        running: list[RunningReduction],
        *,
        keeps: bool,
    ) -> None:
        """A stage over axes, its points dealt out to the members of a group."""
        code, writer = self.code, self.writer
        extent = prod(map(extent_of, stage.axes))
        if provably_less(0, extent):
            starts = [root for s in stage.statements for root in roots(s)]
            blocked = frozenset(stage.axes) | written_buffers(stage)
            self.scalars.hoist(starts, scope, blocked)
        step = self.members * lanes
        stop = code.size(extent, scope, step)
        type_, name = code.dialect.index_type(stop.wide), writer.fresh("j")
        start = f"member * {lanes}" if lanes > 1 else "member"
        if keeps:
            self._loop_over_packs(stage, scope, running, name)
            return
        head = f"for ({type_} {name} = {start}; {name} < {stop.text}; {name} += {step})"
        with writer.block(head):
            number = Index(name, stop.wide)
            if lanes > 1:
                states = {state.reduction: state for state in running}
                (axis,) = stage.axes
                packed_body(code, stage, axis, lanes, scope, number, states, self._stores_if)
                return
            inside = code.enter(stage.axes, number, scope)
            code.evaluate(stage.statements, inside)
            remaining = iter(running)
            for statement in stage.statements:
                if isinstance(statement, Reduce):
                    next(remaining).add(inside)
                else:
                    self._guarded(statement, inside)

    def _loop_over_packs(
        self, stage: Stage, scope: Scope, running: list[RunningReduction], name: str
    ) -> None:
        """The same of a stage that shares kept rows: a loop whose length is known."""
        code, writer, kept, (axis,) = self.code, self.writer, self.kept, stage.axes
        assert kept is not None
        extent, step = extent_of(axis), self.members * kept.lanes
        assert isinstance(extent, int)
        states = {state.reduction: state for state in running}
        self._load_rows(stage, scope)
        with ExitStack() as blocks:
            pack, place = "0", f"member * {kept.lanes}"
            if kept.packs > 1:
                pack = writer.fresh("v")
                writer.line("#pragma unroll")
                head = f"for (int {pack} = 0; {pack} < {kept.packs}; ++{pack})"
                blocks.enter_context(writer.block(head))
                place += f" + {pack} * {step}"
            writer.line(f"const int {name} = {place};")
            if extent % step:
                blocks.enter_context(writer.block(f"if ({name} < {extent})"))
            first, packs = Index(name, False), self._packs(pack)
            lanes, stores_if = kept.lanes, self._stores_if
            packed_body(code, stage, axis, lanes, scope, first, states, stores_if, packs)
        loads = loads_along(stage.statements, axis, code.dependences) or ()
        self.loaded.update(kept.loads[id(load)] for load in loads if id(load) in kept.loads)

    def _load_rows(self, stage: Stage, scope: Scope) -> None:
        """Load the kept rows of a stage that are neighbours from end to end, if nothing has."""
        kept, (axis,) = self.kept, stage.axes
        assert kept is not None
        step, extent = self.members * kept.lanes, extent_of(axis)
        for load in loads_along(stage.statements, axis, self.code.dependences) or ():
            row = kept.loads.get(id(load))
            along = coefficient(load.index, axis)
            if row is None or row in self.loaded or along is None or along[0] != 1:
                continue
            first = self.writer.fresh("j")
            self.writer.line(f"const int {first} = member * {kept.lanes};")
            index = self.scalars.indices.value(load.index, scope.child({axis: Index(first, False)}))
            start = f"b{load.buffer} + {index.text}"
            given = ", ".join([self.rows[row], start, first, *["active"] * self.partial])
            self.writer.line(f"ost::load_row<{step}, {extent}>({given});")
            self.loaded.add(row)

    def _packs(self, pack: str) -> KeptPacks:
        """The packs of kept rows with a number."""
        kept = self.kept
        assert kept is not None
        names = [f"{row}[{pack}]" for row in self.rows]
        return KeptPacks(
            {load: names[row] for load, row in kept.loads.items()},
            {temp: names[row] for temp, row in kept.temps.items()},
            frozenset(load for load, row in kept.loads.items() if row not in self.loaded),
        )

    def _stores_if(self, store: Store) -> str:
        """The condition under which a group stores."""
        return "active" if self.partial and not self._is_private(store) else ""

    def _guarded(self, statement: Statement, scope: Scope) -> None:
        if not self.partial or self._is_private(statement):
            self._effect(statement, scope)
            return
        with self.writer.block("if (active)"):
            self._effect(statement, scope.child())

    def _is_private(self, statement: Statement) -> bool:
        """Whether a statement writes a temp, of which each group has its own."""
        return not isinstance(statement, Reduce) and statement.buffer >= len(self.code.nest.args)

    def _effect(self, statement: Statement, scope: Scope) -> None:
        assert isinstance(statement, Store)
        self.scalars.store(statement, self.code.dtype(statement.buffer), scope)

    # -- exchange ---------------------------------------------------------------------------

    def _across_members(self, reduction: RunningReduction) -> None:
        name, operator = reduction.name, reduction.operator
        if self.mapping.shape is Shape.COLUMNS:
            shared = self.shared[reduction.type]
            call = f"reduce_columns<{self.points}, {self.members}>({name}, {operator}, {shared})"
        elif self.members > 1:
            call = f"reduce_warp<{self.members}>({name}, {operator})"
        else:
            return
        self.writer.line(f"{name} = ost::{call};")

    def _across_warps(self, running: list[RunningReduction]) -> None:
        """The results of reductions by members of several warps, behind one barrier."""
        arrays = [self._array(reduction.type, self.block // WARP) for reduction in running]
        self.exchanged = True
        for reduction, array in zip(running, arrays, strict=True):
            call = f"reduce_in_warps({reduction.name}, {reduction.operator}, {array})"
            self.writer.line(f"ost::{call};")
        self._barrier()
        for reduction, array in zip(running, arrays, strict=True):
            call = f"reduce_of_warps<{self.members}>({reduction.operator}, {array})"
            self.writer.line(f"{reduction.name} = ost::{call};")

    def _barrier(self) -> None:
        if self.members > WARP or self.mapping.shape is Shape.COLUMNS:
            self.writer.line("OST_SYNC();")
        elif self.members > 1:
            self.writer.line("__syncwarp();")

    # -- scans ------------------------------------------------------------------------------

    def _scan_loop(self, stage: Stage, scope: Scope, running: list[RunningReduction]) -> None:
        """A stage of one axis with running sums: a group takes as many points as it has members."""
        code, writer, (axis,) = self.code, self.writer, stage.axes
        assert not running
        scans = [s for s in stage.statements if isinstance(s, Scan)]
        assert len(scans) == len(stage.statements)
        stop = code.size(extent_of(axis), scope, self.members)
        carries = {scan: self._start_scan(scan) for scan in scans}
        type_, base, name = code.dialect.index_type(stop.wide), writer.fresh("j"), writer.fresh("j")
        with writer.block(
            f"for ({type_} {base} = 0; {base} < {stop.text}; {base} += {self.members})"
        ):
            writer.line(f"const {type_} {name} = {base} + member;")
            for scan in scans:
                self._scan(scan, scope.child({axis: Index(name, stop.wide)}), carries[scan], stop)

    def _start_scan(self, scan: Scan) -> str:
        name = self.writer.fresh("s")
        type_ = self.code.dialect.register_type(scan.dtype)
        self.writer.line(f"{type_} {name} = {self._neutral(scan)};")
        return name

    def _neutral(self, scan: Scan) -> str:
        return self.code.dialect.literal(scan.dtype, scan.neutral)

    def _scan(self, scan: Scan, scope: Scope, carry: str, stop: Index) -> None:
        code, writer = self.code, self.writer
        (index,) = scope.symbols.values()
        type_, value = code.dialect.register_type(scan.dtype), writer.fresh("v")
        writer.line(f"{type_} {value} = {self._neutral(scan)};")
        with writer.block(f"if ({index.text} < {stop.text})"):
            writer.line(f"{value} = {self.scalars.value(scan.value, scope.child()).text};")
        operator = OPERATORS[scan.op]
        writer.line(f"{value} = ost::scan_warp<{self.members}>({value}, {operator});")
        last = code.code.keep(scan.dtype, f"ost::last_of_warp<{self.members}>({value})")
        shifted = value
        if scan.exclusive:
            first = self._neutral(scan)
            shifted = writer.fresh("v")
            call = f"ost::shift_warp<{self.members}>({value}, {first})"
            writer.line(f"const {type_} {shifted} = {call};")
        combine = getattr(_NAMESPACE, scan.combine)
        total = CValue(code.code, carry, scan.dtype)
        written = combine(total, CValue(code.code, shifted, scan.dtype))
        guard = f"{index.text} < {stop.text}" + (" && active" if self.partial else "")
        with writer.block(f"if ({guard})"):
            dtype = code.dtype(scan.buffer)
            self.scalars.put(scan.buffer, dtype, scan.index, written, scope.child())
        writer.line(f"{carry} = {combine(total, last).text};")
