"""Accesses of several neighbouring elements at once, in the innermost loops of a stage."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.common.clike.runs import begins_aligned, is_same, loads_along
from ostinato.backends.common.clike.scopes import Index
from ostinato.backends.common.clike.statements import interleaves
from ostinato.lower.loopir.dependences import roots
from ostinato.lower.loopir.independence import reads_its_writes
from ostinato.lower.loopir.nodes import Load, Reduce, Scan, Store, extent_of
from ostinato.records import dataclass
from ostinato.variables import remainder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ostinato.backends.common.clike.scopes import Scope
    from ostinato.backends.cuda.render.code import NestCode
    from ostinato.backends.cuda.render.reductions import RunningReduction
    from ostinato.dtypes import DType
    from ostinato.lower.loopir.dependences import Dependences
    from ostinato.lower.loopir.nodes import Stage
    from ostinato.variables import Symbol

__all__ = ["KeptPacks", "may_take", "pack_type", "packed_body", "widest_pack"]

#: Bytes of the widest access, and of the narrowest that is worth the trouble.
_WIDEST, _NARROWEST = 16, 4

#: Elements that a thread has at a time, at most.
_MOST_LANES = 8


@dataclass(frozen=True)
class KeptPacks:
    """The packs of neighbours that threads keep from stage to stage.

    Attributes:
        loads: by the identity of a load, the variable of its pack.
        temps: by temp, the variable that it is.
        absent: those of the loads whose variables have no value yet.
    """

    loads: Mapping[int, str]
    temps: Mapping[int, str]
    absent: frozenset[int]


_NO_PACKS = KeptPacks({}, {}, frozenset())


def widest_pack(
    stage: Stage, axis: Symbol, dtypes: Sequence[DType], dependences: Dependences
) -> int:
    """The neighbours along ``axis`` that a thread may take at once; 1 where it may not."""
    statements = stage.statements
    loads = loads_along(statements, axis, dependences)
    if loads is None:
        return 1
    # Elements that are the same for some neighbours do not say for how many.
    buffers = [load.buffer for load in loads if begins_aligned(load.index, axis, 1)]
    buffers += [store.buffer for store in _stores(stage)]
    sizes = [dtypes[buffer].itemsize for buffer in buffers]
    if not sizes:
        return 1
    lanes = min(_WIDEST // min(sizes), _MOST_LANES)
    while lanes > 1 and not may_take(stage, axis, lanes, dependences):
        lanes //= 2
    return lanes if lanes * min(sizes) >= _NARROWEST else 1


def may_take(stage: Stage, axis: Symbol, lanes: int, dependences: Dependences) -> bool:
    """Whether a thread may take so many neighbours along ``axis`` at once.

    All elements that it reads have to be neighbours that begin at an aligned place, or the same for
    all of them; those that it writes, neighbours.
    """
    statements, stores = stage.statements, _stores(stage)
    if interleaves(statements) or reads_its_writes(statements):
        return False
    plain = all(s.update == "set" and not s.conditions and not s.bindings for s in stores)
    if not plain or len({s.buffer for s in stores}) < len(stores):
        return False
    loads = loads_along(statements, axis, dependences)
    if loads is None or any(isinstance(s, Scan) for s in statements):
        return False
    return (
        remainder(extent_of(axis), lanes) == 0
        and all(begins_aligned(store.index, axis, lanes) for store in stores)
        and all(
            begins_aligned(load.index, axis, lanes) or is_same(load.index, axis, lanes)
            for load in loads
        )
    )


def _stores(stage: Stage) -> list[Store]:
    return [s for s in stage.statements if isinstance(s, Store)]


def packed_body(
    code: NestCode,
    stage: Stage,
    axis: Symbol,
    lanes: int,
    scope: Scope,
    first: Index,
    running: Mapping[Reduce, RunningReduction],
    stores_if: Callable[[Store], str] = lambda _: "",
    kept: KeptPacks = _NO_PACKS,
) -> None:
    """The statements of a stage at ``lanes`` neighbouring points of an axis.

    Args:
        code: the function.
        stage: the statements.
        axis: whose points are taken together.
        lanes: the number of points.
        scope: around them.
        first: the value of ``axis`` at the first one.
        running: the states of the stage's reductions.
        stores_if: a condition for a store, or nothing.
        kept: the packs that stay.
    """
    writer, scalars, dependences = code.writer, code.scalars, code.dependences
    base = scope.child({axis: first})
    loads = loads_along(stage.statements, axis, dependences)
    stores = _stores(stage)
    assert loads is not None
    starts = [root for statement in stage.statements for root in roots(statement)]
    scalars.hoist(starts, base, frozenset((axis,)))
    packs: list[tuple[Load, str]] = []
    loaded: set[str] = set()
    for load in loads:
        if is_same(load.index, axis, lanes):
            base.values[id(load)] = scalars.value(load, base)
            continue
        pack, own = pack_type(code, load.buffer, lanes), kept.loads.get(id(load))
        name = own or writer.fresh("w")
        if own is None or (id(load) in kept.absent and own not in loaded):
            element = scalars.indices.value(load.index, base).text
            declared = f"const {pack} {name}" if own is None else name
            writer.line(f"{declared} = {pack}::load(b{load.buffer} + {element});")
        loaded.add(name)
        packs.append((load, name))
    results = [kept.temps.get(store.buffer) or writer.fresh("w") for store in stores]
    for store, name in zip(stores, results, strict=True):
        if store.buffer not in kept.temps:
            writer.line(f"{pack_type(code, store.buffer, lanes)} {name};")
    lane, position = writer.fresh("l"), writer.fresh("i")
    writer.line("#pragma unroll")
    with writer.block(f"for (int {lane} = 0; {lane} < {lanes}; ++{lane})"):
        type_ = code.dialect.index_type(first.wide)
        writer.line(code.dialect.declare(type_, position, f"{first.text} + {lane}"))
        # Not inside of the scope of the first lane: its indices are that lane's alone.
        inside = scope.child({axis: Index(position, first.wide)})
        inside.values.update(base.values)
        for load, name in packs:
            element = code.dialect.from_memory(f"{name}.at[{lane}]", load.dtype)
            inside.values[id(load)] = code.code.keep(load.dtype, element, rounded=True)
        code.evaluate(stage.statements, inside)
        names = iter(results)
        for statement in stage.statements:
            if isinstance(statement, Reduce):
                running[statement].add(inside)
                continue
            dtype = code.dtype(statement.buffer)
            value = scalars.value(statement.value, inside).astype(dtype)
            writer.line(f"{next(names)}.at[{lane}] = {value.stored};")
    for store, name in zip(stores, results, strict=True):
        if store.buffer in kept.temps:
            continue
        condition = stores_if(store)
        element = scalars.indices.value(store.index, base).text
        head = f"if ({condition}) " if condition else ""
        writer.line(f"{head}{name}.store(b{store.buffer} + {element});")


def pack_type(code: NestCode, buffer: int, lanes: int) -> str:
    """The type of a pack of an argument's elements, or of a temp's."""
    return f"ost::pack<{code.dialect.memory_type(code.dtype(buffer))}, {lanes}>"
