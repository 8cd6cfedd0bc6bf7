"""Rows whose elements stay in registers between the stages of a nest.

A stage deals the elements of a row out to the threads of a group, packs of neighbours each. Another
stage over as many elements deals them out alike. So what both of them read is loaded once, and a
temp that one of them writes and later ones read needs no memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.common.clike.runs import is_same, loads_along
from ostinato.lower.loopir.dependences import Dependences, reached, roots
from ostinato.lower.loopir.nodes import Load, Reduce, Store, extent_of, max_extent
from ostinato.lower.loopir.views import linear_index
from ostinato.records import dataclass
from ostinato.variables import Expr, Symbol, substitute

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ostinato.dtypes import DType
    from ostinato.lower.loopir.nest import LoopNest
    from ostinato.lower.loopir.nodes import Stage
    from ostinato.variables import Dim

__all__ = ["KeptRows", "kept_rows"]

#: Packs of a row that a thread keeps, at most: loops over them are unrolled, and it takes longer to
#: fetch instructions that run once than to load elements again. A block that has all points for
#: itself would go through all stages several times.
_MOST_PACKS, _MOST_PACKS_ALONE = 1, 4


@dataclass(frozen=True)
class KeptRows:
    """The rows that a group of threads keeps.

    Attributes:
        lanes: neighbouring elements of a pack.
        packs: packs of a row that a thread has.
        stages: the numbers of the stages that share rows.
        buffers: by row, the argument or temp that its elements belong to.
        loads: by the identity of a load, the row that it reads.
        temps: by temp, its row: it is nowhere else.
        extent: elements of a row.
        whole: the arguments that are the rows of all outer points, one behind the other, each
            loaded once.
    """

    lanes: int
    packs: int
    stages: frozenset[int]
    buffers: tuple[int, ...]
    loads: Mapping[int, int]
    temps: Mapping[int, int]
    extent: int
    whole: frozenset[int]


def kept_rows(
    nest: LoopNest, lanes: Sequence[int], members: int, most_bytes: int, *, alone: bool
) -> KeptRows | None:
    """The rows that groups of threads may keep.

    Args:
        nest: the loops.
        lanes: by stage, the neighbours that a thread takes at once.
        members: threads of a group.
        most_bytes: that a thread has registers for.
        alone: whether a block has all points for itself.
    """
    most_packs = _MOST_PACKS_ALONE if alone else _MOST_PACKS
    groups: dict[tuple[int, int], list[int]] = {}
    for number, stage in enumerate(nest.stages):
        extent = extent_of(stage.axes[0]) if len(stage.axes) == 1 else None
        if isinstance(extent, int) and lanes[number] > 1:
            groups.setdefault((extent, lanes[number]), []).append(number)
    for (extent, width), stages in groups.items():
        packs = -(-extent // (members * width))
        if len(stages) > 1 and packs <= most_packs:
            search = _Search(nest, stages, extent, width)
            if search.find(packs * width, most_bytes):
                return KeptRows(
                    width,
                    packs,
                    frozenset(stages),
                    tuple(search.buffers),
                    search.loads,
                    search.temps,
                    extent,
                    search.whole(),
                )
    return None


class _Search:
    """The rows that some stages of a nest share.

    Args:
        nest: the loops.
        stages: their numbers.
        extent: the elements of a row.
        lanes: neighbours that a thread takes at once.

    Attributes:
        buffers: see :class:`KeptRows`, as are the others.
        loads: the rows of loads.
        temps: those of temps.
    """

    def __init__(self, nest: LoopNest, stages: Sequence[int], extent: int, lanes: int) -> None:
        self._nest = nest
        self._column = Symbol("column", 0, extent - 1, extent)
        self._first_temp = len(nest.args)
        dependences = Dependences(nest.stages)
        self.buffers: list[int] = []
        self.loads: dict[int, int] = {}
        self.temps: dict[int, int] = {}
        self._loads: list[tuple[int, Load, tuple[int, Dim]]] = []
        self._stores: list[tuple[int, tuple[int, Dim]]] = []
        for number in stages:
            stage = nest.stages[number]
            for load in loads_along(stage.statements, stage.axes[0], dependences) or ():
                if is_same(load.index, stage.axes[0], lanes):
                    continue
                self._loads.append((number, load, (load.buffer, self._at(load.index, stage))))
            for store in stage.statements:
                if isinstance(store, Store):
                    self._stores.append((number, (store.buffer, self._at(store.index, stage))))

    def find(self, elements: int, most_bytes: int) -> bool:
        """Whether there are rows; they are found.

        Args:
            elements: of a row that a thread has.
            most_bytes: of all rows that a thread has.
        """
        readers: dict[tuple[int, Dim], list[tuple[int, Load]]] = {}
        for number, load, place in self._loads:
            readers.setdefault(place, []).append((number, load))
        for place, found in readers.items():
            buffer, _ = place
            is_temp = buffer >= self._first_temp
            if not (self._is_private(place, found) if is_temp else self._is_shared(place, found)):
                continue
            nbytes = elements * self._dtype(buffer).itemsize
            if nbytes > most_bytes:
                continue
            most_bytes -= nbytes
            if is_temp:
                self.temps[buffer] = len(self.buffers)
            self.loads |= {id(load): len(self.buffers) for _, load in found}
            self.buffers.append(buffer)
        return bool(self.buffers)

    def whole(self) -> frozenset[int]:
        """The arguments that are all rows, one behind the other, and that nothing else reads."""
        axes = (*self._nest.outer_axes, self._column)
        extents = [extent_of(axis) for axis in axes]
        if not all(isinstance(extent, int) for extent in extents):
            return frozenset()
        places = [0 if max_extent(axis) == 1 else Expr({(axis,): 1}, 0) for axis in axes]
        start = linear_index(extents, places)
        rows = {buffer for _, load, (buffer, at) in self._loads if at == start}
        others = {load.buffer for load in self._every_load() if id(load) not in self.loads}
        return frozenset(rows - others) & set(self.buffers) - self.temps.keys()

    def _every_load(self) -> Iterator[Load]:
        """All loads of the nest."""
        statements = [s for stage in self._nest.stages for s in stage.statements]
        for scalar in reached(root for statement in statements for root in roots(statement)):
            if isinstance(scalar, Load):
                yield scalar

    def _at(self, index: Dim, stage: Stage) -> Dim:
        """An index by the number of the column."""
        return substitute(index, {stage.axes[0]: Expr({(self._column,): 1}, 0)})

    def _dtype(self, buffer: int) -> DType:
        if buffer < self._first_temp:
            return self._nest.args[buffer].dtype
        return self._nest.temps[buffer - self._first_temp].dtype

    def _is_shared(self, place: tuple[int, Dim], readers: Sequence[tuple[int, Load]]) -> bool:
        """Whether several stages read elements that no stage writes."""
        written = {
            statement.buffer
            for stage in self._nest.stages
            for statement in stage.statements
            if isinstance(statement, Store)
        }
        return place[0] not in written and len({number for number, _ in readers}) > 1

    def _is_private(self, place: tuple[int, Dim], readers: Sequence[tuple[int, Load]]) -> bool:
        """Whether one stage writes a temp, and later ones read the same elements of it."""
        buffer, _ = place
        writers = [
            (number, statement)
            for number, stage in enumerate(self._nest.stages)
            for statement in stage.statements
            if not isinstance(statement, Reduce) and statement.buffer == buffer
        ]
        known = {id(load) for _, load in readers}
        all_known = all(id(load) in known for load in self._every_load() if load.buffer == buffer)
        return (
            all_known
            and len(writers) == 1
            and [other for _, other in self._stores].count(place) == 1
            and all(number > writers[0][0] for number, _ in readers)
        )
