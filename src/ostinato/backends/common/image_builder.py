"""Build the compiled program's image from a lowered graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ostinato.backends.common.program_image import (
    External,
    ParamLocation,
    ProgramImage,
    ProgramPreparation,
    Slot,
    StateLocation,
)
from ostinato.lower.program import Role
from ostinato.plan.buffer import bytes_of
from ostinato.plan.preparation import preparations
from ostinato.variables import capacity, data_symbols, minimum

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ostinato.backends.common.lowered_graph import LoweredGraph
    from ostinato.backends.common.program_image import ObjectCode, RoutingLocation
    from ostinato.lower.program import Call, LoweredBuffer, Program
    from ostinato.variables import Dim

__all__ = ["build_image", "external_bytes", "with_results_on_host"]

AnyImage = TypeVar("AnyImage", bound=ProgramImage[Any])


def build_image(
    kind: type[AnyImage],
    lowered: LoweredGraph[Any],
    step: Callable[[Call], tuple[Any, ...]],
    *,
    objects: Iterable[ObjectCode] = (),
    size_symbol: Callable[[Dim], str] = lambda _: "",
    routings: Iterable[RoutingLocation] = (),
) -> AnyImage:
    """The image of a lowered graph.

    Args:
        kind: the device's class of images.
        lowered: the graph.
        step: the device's step for a call; :meth:`LoweredGraph.place` has its arguments.
        objects: the kernels' code.
        size_symbol: the symbol of the function that returns a size in bytes; empty: it is constant,
            or the device has no need of it.
        routings: of the layers that choose experts, in order.
    """
    program: Program = lowered.program
    layout = lowered.layout

    def external(buffer: LoweredBuffer) -> External:
        symbol = size_symbol(external_bytes(buffer))
        written = buffer.role in (Role.OUTPUT, Role.STATE)
        return External(buffer.nbytes, written, symbol, buffer.is_inout)

    return kind(
        objects=tuple(objects),
        steps=tuple(map(step, program.calls)),
        preparations=tuple(
            ProgramPreparation(tuple(sorted(part.params)), tuple(map(step, part.calls)))
            for part in preparations(program.prepare)
        ),
        sizes=layout.sizes,
        results=layout.results,
        intermediate_bytes=layout.placement.arena_bytes,
        constants=tuple(
            (offset, bytes_of(np.ascontiguousarray(buffer.data)))
            for buffer, offset in layout.members(Slot.CONSTANTS)
        ),
        params={
            name: ParamLocation(buffer.nbytes, layout.locations.get(buffer))
            for name, buffer in program.params.items()
        },
        states={
            name: _state(buffer, layout.locations[buffer])
            for name, buffer in program.states.items()
            if not buffer.is_inout
        },
        externals=tuple(map(external, program.externals)),
        variables=tuple(
            (v.name, max(v.min, lowered.least.get(v.name, v.min)), v.max) for v in program.variables
        ),
        routings=tuple(routings),
        live_sizes={name: layout.locations[b][1] for name, b in program.live_sizes.items()},
    )


def with_results_on_host(image: AnyImage) -> AnyImage:
    """An image whose results, where they are not returned, have memory of the host.

    The arena has intermediate values only, and the offsets of results begin at 0.
    """
    arena = image.intermediate_bytes
    sizes = list(image.sizes)
    sizes[Slot.ARENA] = arena
    results = tuple(offset - arena for offset in image.results)
    return image._replace(sizes=tuple(sizes), results=results)


def external_bytes(buffer: LoweredBuffer) -> Dim:
    """The bytes that an input or output needs, at most where that depends on data."""
    nbytes = buffer.type.size * buffer.type.dtype.itemsize
    return minimum(capacity(nbytes), buffer.nbytes) if data_symbols(nbytes) else nbytes


def _state(buffer: LoweredBuffer, place: tuple[int, int]) -> StateLocation:
    assert buffer.value is not None
    initial = buffer.value.node.attrs["init"]
    shape = tuple(map(int, initial.shape))
    if not any(initial.strides):  # one element, broadcast
        initial = initial[(slice(1),) * initial.ndim]
    return StateLocation(
        buffer.type.dtype.name, shape, place, bytes_of(np.ascontiguousarray(initial))
    )
