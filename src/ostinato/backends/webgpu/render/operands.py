"""Elements of operands, four at a time where they are neighbours, and stores of sums."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.common.clike.values import CValue
from ostinato.backends.common.clike.vectors import run_of
from ostinato.backends.webgpu.render.arrays import element_type, word
from ostinato.backends.webgpu.render.dialect import wrapped
from ostinato.backends.webgpu.render.parts import parts_of
from ostinato.dtypes import INT32
from ostinato.lower.loopir.nodes import Stage, extent_of
from ostinato.variables import remainder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.backends.common.clike.scopes import Scope
    from ostinato.backends.webgpu.render.code import KernelCode
    from ostinato.dtypes import DType
    from ostinato.lower.loopir.nodes import Scalar, Store
    from ostinato.variables import Symbol

__all__ = ["LANES", "are_neighbours", "four_along", "store_row"]

#: Elements of a vector.
LANES = 4


def are_neighbours(scalar: Scalar, axis: Symbol) -> bool:
    """Whether four elements along an axis are loaded at once."""
    run = run_of(scalar, axis, extent_of(axis))
    return run is not None and run.count >= LANES and run.load.dtype.itemsize <= INT32.itemsize


def four_along(
    code: KernelCode, scalar: Scalar, axis: Symbol, first: str, scope: Scope, dtype: DType
) -> str:
    """A vector of four elements along an axis.

    Args:
        code: the kernel.
        scalar: an element.
        axis: the axis, of at least one point. Elements beyond its end are some of those in it.
        first: the number of the first point, an i32 that is a multiple of four.
        scope: around the elements.
        dtype: the dtype that elements are converted to.
    """
    run = run_of(scalar, axis, extent_of(axis))
    stop, lanes = code.size(extent_of(axis), scope), []
    if run is not None and are_neighbours(scalar, axis):
        base = code.at({axis: code.declare("e", f"min({first}, {stop} - {LANES})")}, scope)
        index = word(code.scalars.indices.value(run.load.index, base))
        type_ = f"vec4<{element_type(run.load.dtype)}>"
        found = code.declare("v", code.arrays.four(run.load.buffer, index), type_)
        for lane in range(LANES):
            inside = base.child()
            inside.values[id(run.load)] = CValue(code.code, f"{found}[{lane}]", run.load.dtype)
            lanes.append(code.value(scalar, dtype, inside))
    else:
        whole = remainder(extent_of(axis), LANES) == 0
        start = code.declare("e", f"min({first}, {stop} - {LANES})") if whole else first
        for lane in range(LANES):
            at = f"{start} + {lane}"
            number = code.declare("e", at if whole else f"min({at}, {stop} - 1)")
            lanes.append(code.value(scalar, dtype, code.at({axis: number}, scope)))
    type_ = f"vec4<{element_type(dtype)}>"
    return code.declare("v", f"{type_}({', '.join(lanes)})", type_)


def store_row(
    code: KernelCode,
    stores: Sequence[Store],
    axis: Symbol,
    first: str,
    count: int,
    scope: Scope,
    totals: tuple[str, str, DType],
) -> None:
    """Stores of results at neighbouring points of an axis, some of which may be beyond its end.

    Args:
        code: the kernel.
        stores: in which ``Accumulator`` stands for the result.
        axis: the axis.
        first: the number of the first point, an i32 that is a multiple of ``count``.
        count: points, a multiple of four.
        scope: around them.
        totals: an array that has the results, the position of the first one, and their dtype.
    """
    array, start, acc = totals
    stage, writer = Stage((), tuple(stores)), code.writer
    stop = code.size(extent_of(axis), scope)
    parts = parts_of(code, stage, axis, alone=False)
    step = 1 if parts is None else parts.lanes
    name = writer.fresh("j")
    with writer.block(f"for (var {name} = 0i; {name} < {count}; {name} += {step})"):
        point = code.declare("e", f"{first} + {name}")
        with writer.block(f"if ({point} < {stop})"):

            def total(position: str) -> CValue:
                text = wrapped(f"{array}[{start} + {position} - {first}]", acc)
                return code.code.keep(acc, text)

            if parts is None:
                inside = code.at({axis: point}, scope)
                for store in stores:
                    code.store(store, inside, total(point))
            else:
                parts.write(scope, point, total=total)
