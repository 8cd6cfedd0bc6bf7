"""Stores of sums, with what is done to them first, for several neighbouring columns at once."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from ostinato.backends.common.clike.runs import is_same, loads_along
from ostinato.backends.common.clike.scopes import Index
from ostinato.backends.common.clike.values import CValue
from ostinato.backends.cuda.render.dialect import CudaDialect
from ostinato.backends.cuda.render.packs import widest_pack
from ostinato.lower.loopir.dependences import Dependences, reached, roots
from ostinato.lower.loopir.nodes import Accumulator, Stage
from ostinato.variables import symbols

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ostinato.backends.cuda.render.frame import Frame, Point
    from ostinato.dtypes import DType
    from ostinato.lower.loopir.nodes import Arg, Load, Store
    from ostinato.variables import Symbol

__all__ = [
    "Results",
    "pack_type",
    "packed_loads",
    "packed_stores",
    "packed_values",
    "store_lanes",
    "varies_by_element",
]


class Results(NamedTuple):
    """The results of a kernel that makes sums.

    Attributes:
        args: of the kernel.
        stores: of the results.
        column: the axis of neighbouring sums.
        acc: the dtype of sums.
    """

    args: Sequence[Arg]
    stores: Sequence[Store]
    column: Symbol
    acc: DType

    @property
    def dtypes(self) -> list[DType]:
        """The dtypes of the kernel's arguments."""
        return [arg.dtype for arg in self.args]


def store_lanes(results: Results) -> int:
    """The columns of a result that a thread may store at once; 1: one by one."""
    stores, column = tuple(results.stores), results.column
    stage = Stage((column,), stores)
    return widest_pack(stage, column, results.dtypes, _dependences(stores))


def packed_stores(
    frame: Frame,
    results: Results,
    lanes: int,
    depth: int,
    names: Mapping[Symbol, str],
    *totals: str,
) -> str:
    """Statements that store results of ``lanes`` columns.

    Args:
        frame: of the kernel.
        results: its results.
        lanes: see :func:`store_lanes`.
        depth: of the statements, in blocks.
        names: by axis, the variable that has its value, of columns the first one's.
        totals: the packs that have the sums, by number.
    """
    point = frame.point(depth, names)
    packs = packed_values(point, results, lanes, *totals)
    for store, name in zip(results.stores, packs, strict=True):
        point.writer.line(f"{name}.store(b{store.buffer} + {point.index(store.index)});")
    return point.text


def packed_loads(results: Results, lanes: int) -> list[Load]:
    """Neighbouring elements that results of ``lanes`` columns read, as packs."""
    along = loads_along(results.stores, results.column, _dependences(results.stores))
    return [load for load in along or () if not is_same(load.index, results.column, lanes)]


def pack_type(dtype: DType, lanes: int) -> str:
    """The type of a pack of elements as they are in memory."""
    return f"ost::pack<{CudaDialect().memory_type(dtype)}, {lanes}>"


def packed_values(
    point: Point,
    results: Results,
    lanes: int,
    *totals: str,
    held: Mapping[Load, str] = MappingProxyType({}),
) -> list[str]:
    """Write statements that compute results of ``lanes`` columns: the packs, by store.

    Args:
        point: where they stand, at the first of the columns.
        results, lanes, totals: see :func:`packed_stores`.
        held: by what is read, the pack that has it already.
    """
    writer, scalars, dialect = point.writer, point.scalars, point.scalars.code.dialect
    dtypes, column = results.dtypes, point.scope.symbols[results.column]
    stores = results.stores
    loads = []
    for load in packed_loads(results, lanes):
        name = held.get(load)
        if name is None:
            name, type_ = writer.fresh("w"), pack_type(dtypes[load.buffer], lanes)
            at = f"b{load.buffer} + {point.index(load.index)}"
            writer.line(f"const {type_} {name} = {type_}::load({at});")
        loads.append((load, name))
    stored = [writer.fresh("w") for _ in stores]
    for store, name in zip(stores, stored, strict=True):
        writer.line(f"{pack_type(dtypes[store.buffer], lanes)} {name};")
    lane = writer.fresh("l")
    writer.line("#pragma unroll")
    with writer.block(f"for (int {lane} = 0; {lane} < {lanes}; ++{lane})"):
        index = Index(f"({column.text} + {lane})", column.wide)
        inside = point.scope.child({results.column: index})
        for load, name in loads:
            element = dialect.from_memory(f"{name}.at[{lane}]", load.dtype)
            inside.values[id(load)] = scalars.code.keep(load.dtype, element, rounded=True)
        sums = [CValue(scalars.code, f"{each}.at[{lane}]", results.acc) for each in totals]
        for store, name in zip(stores, stored, strict=True):
            for scalar in reached(roots(store)):
                if isinstance(scalar, Accumulator):
                    inside.values[id(scalar)] = sums[scalar.number]
            dtype = dtypes[store.buffer]
            value = scalars.value(store.value, inside).astype(dtype)
            writer.line(f"{name}.at[{lane}] = {value.stored};")
    return stored


def varies_by_element(results: Results, row: Symbol) -> bool:
    """Whether what results read is other for each row and column, or may be."""
    along = loads_along(results.stores, results.column, _dependences(results.stores))
    return along is None or any(row in symbols(load.index) for load in along)


def _dependences(stores: Sequence[Store]) -> Dependences:
    return Dependences([Stage((), tuple(stores))])
