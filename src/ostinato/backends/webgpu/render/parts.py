"""Stores of elements narrower than a word by the threads that have all parts of a word."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.common.clike.runs import begins_aligned
from ostinato.backends.common.clike.statements import interleaves
from ostinato.backends.webgpu.render.arrays import word
from ostinato.backends.webgpu.render.dialect import bits_of
from ostinato.dtypes import BOOL, INT32
from ostinato.lower.loopir.dependences import roots, written_buffers
from ostinato.lower.loopir.independence import reads_its_writes
from ostinato.lower.loopir.nodes import Reduce, Store, extent_of
from ostinato.records import dataclass
from ostinato.variables import remainder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ostinato.backends.common.clike.scopes import Scope
    from ostinato.backends.common.clike.values import CValue
    from ostinato.backends.webgpu.render.code import KernelCode
    from ostinato.backends.webgpu.render.reductions import RunningReduction
    from ostinato.lower.loopir.nodes import Stage
    from ostinato.variables import Symbol

__all__ = ["Parts", "parts_of"]


@dataclass(frozen=True, eq=False)
class Parts:
    """The statements of a stage at neighbouring points, whose results fill words.

    Attributes:
        code: the kernel.
        stage: the statements.
        axis: the axis of neighbours.
        lanes: the number of points.
        whole: whether there are always so many.
    """

    code: KernelCode
    stage: Stage
    axis: Symbol
    lanes: int
    whole: bool

    def write(
        self,
        scope: Scope,
        first: str,
        running: Mapping[Reduce, RunningReduction] | None = None,
        only_if: str = "",
        total: Callable[[str], CValue] | None = None,
    ) -> None:
        """The statements at ``lanes`` points of an axis.

        Args:
            scope: around them.
            first: the number of the first point, a multiple of ``lanes``.
            running: the states of the stage's reductions.
            only_if: a condition for stores in arguments, or nothing.
            total: the value that ``Accumulator`` stands for at a point.
        """
        code, writer = self.code, self.code.writer
        stores = [s for s in self.stage.statements if isinstance(s, Store)]
        narrow = [s for s in stores if self._is_part(s)]
        words = {}
        for store in narrow:
            count = self.lanes * code.dtype(store.buffer).itemsize // INT32.itemsize
            name = words[store] = writer.fresh("w")
            writer.line(f"var {name} = array<u32, {count}>();")
        if total is None:
            starts = [root for s in self.stage.statements for root in roots(s)]
            blocked = frozenset((self.axis,)) | written_buffers(self.stage)
            code.scalars.hoist(starts, scope, blocked)
        stop = "" if self.whole else code.size(extent_of(self.axis), scope)
        lane, position = writer.fresh("l"), writer.fresh("e")
        with code.repeat(f"for (var {lane} = 0u; {lane} < {self.lanes}u; {lane}++)", self.lanes):
            writer.line(f"let {position} = {first} + i32({lane});")
            head = f"if ({position} < {stop})" if stop else ""
            with writer.block(head):
                inside = code.at({self.axis: position}, scope)
                if total is not None:
                    code.accumulate(stores, inside, total(position))
                self._lane(inside, lane, words, running or {}, only_if)
        with writer.block(f"if ({only_if})" if only_if else ""):
            for store, name in words.items():
                self._put(store, name, scope, first, stop)

    def _lane(
        self,
        scope: Scope,
        lane: str,
        words: Mapping[Store, str],
        running: Mapping[Reduce, RunningReduction],
        only_if: str,
    ) -> None:
        code, writer = self.code, self.code.writer
        code.evaluate(self.stage.statements, scope)
        for statement in self.stage.statements:
            if isinstance(statement, Reduce):
                running[statement].add(scope)
                continue
            assert isinstance(statement, Store)
            if statement not in words:
                guarded = only_if and statement.buffer < len(code.kernel.args)
                with writer.block(f"if ({only_if})" if guarded else ""):
                    code.store(statement, scope.child())
                continue
            dtype = code.dtype(statement.buffer)
            bits = bits_of(code.value(statement.value, dtype, scope), dtype)
            if dtype != BOOL:
                bits = f"({bits} & {(1 << dtype.bits) - 1}u)"
            per_word = INT32.itemsize // dtype.itemsize
            place = f"{lane} % {per_word}u * {dtype.bits}u"
            writer.line(f"{words[statement]}[{lane} / {per_word}u] |= {bits} << ({place});")

    def _put(self, store: Store, name: str, scope: Scope, first: str, stop: str) -> None:
        """Store the words; of the last ones of a row only the parts that it has."""
        code, writer = self.code, self.code.writer
        dtype = code.dtype(store.buffer)
        per_word, number = INT32.itemsize // dtype.itemsize, store.buffer
        base = code.at({self.axis: first}, scope)
        element = word(code.scalars.indices.value(store.index, base))
        at = code.declare("w", f"(offset{number}() + {element}) / {per_word}u", "u32")
        count = self.lanes // per_word
        if not stop:
            for k in range(count):
                writer.line(f"putword{number}({at} + {k}u, {name}[{k}]);")
            return
        left = code.declare("l", f"{stop} - {first}")
        for k in range(count):
            with writer.block(f"if ({left} >= {(k + 1) * per_word})"):
                writer.line(f"putword{number}({at} + {k}u, {name}[{k}]);")
            with writer.block(f"else if ({left} > {k * per_word})"):
                bits = f"u32({left} - {k * per_word}) * {dtype.bits}u"
                writer.line(f"merge{number}({at} + {k}u, (1u << ({bits})) - 1u, {name}[{k}]);")

    def _is_part(self, store: Store) -> bool:
        code = self.code
        in_memory = store.buffer < len(code.kernel.args)
        return in_memory and code.dtype(store.buffer).itemsize < INT32.itemsize


def parts_of(code: KernelCode, stage: Stage, axis: Symbol, *, alone: bool) -> Parts | None:
    """The points of a stage that a thread takes at once to have words for itself, if it can.

    Args:
        code: the kernel.
        stage: its statements, over ``axis`` or at its points.
        axis: whose points are neighbours.
        alone: whether words of other points of the axes around are never those of this one's.
    """
    if not code.arrays.aligned or interleaves(stage.statements):
        return None
    stores = []
    for statement in stage.statements:
        if isinstance(statement, Store):
            stores.append(statement)
        elif not isinstance(statement, Reduce):
            return None
    if reads_its_writes(stage.statements):
        return None
    narrow = [
        s
        for s in stores
        if s.buffer < len(code.kernel.args) and code.dtype(s.buffer).itemsize < INT32.itemsize
    ]
    plain = all(s.update == "set" and not s.conditions and not s.bindings for s in narrow)
    if not narrow or not plain or len({s.buffer for s in narrow}) < len(narrow):
        return None
    if any(code.arrays.may_split(s.buffer) for s in narrow):
        return None
    lanes = INT32.itemsize // min(code.dtype(s.buffer).itemsize for s in narrow)
    if not all(begins_aligned(s.index, axis, lanes) for s in narrow):
        return None
    whole = remainder(extent_of(axis), lanes) == 0
    if not whole and not alone:
        return None
    return Parts(code, stage, axis, lanes, whole)
