"""Calls of the functions of a segment: in front of each, its operand comes through the ring."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.backends.cuda.render.segment_functions import SegmentFunction
    from ostinato.backends.cuda.render.segment_layout import SegmentLayout

__all__ = ["call"]


def call(
    layout: SegmentLayout,
    function: SegmentFunction,
    name: str,
    arrays: str,
    addresses: Sequence[str],
) -> list[str]:
    """Statements that call a function for a part, of which the block has ``own`` of ``all``.

    Args:
        layout: of the segment.
        function: the function; if it is run for shares of attention, ``item`` is there.
        name: its symbol.
        arrays: the address of its arrays.
        addresses: those of its arguments, then of the packets of those that are received.
    """
    *types, _ = function.body.types(function.sent, function.polled, function.received)
    given = [f"({type_}){address}" for type_, address in zip(types, addresses, strict=False)]
    for i, argument in enumerate(function.received, len(types)):
        stored = function.body.stored_type(argument)
        given[argument] = f"{{(const {stored}*){addresses[i]}, ({stored}*){addresses[argument]}}}"
    for argument in function.brought:
        given[argument] = f"({types[argument]})nullptr"  # it comes through the ring
    before, after, place = [], [], ["own", "all"]
    if (operand := layout.brought(function)) is not None:
        before = ["const auto stage = ring.await();"]
        given[operand.argument] = f"({types[operand.argument]})(stage - {operand.offset})"
        after = [
            "OST_SYNC();",
            "if (threadIdx.x / 32 < ost::ring::sharing) ring.release();",
            "ring.advance();",
        ]
    elif function.shares:
        items, each, *strides = function.shares
        place = ["{item}", f"{{{items}}}"] if function.repeated else ["{0}", "{1}"]
        given = [
            f"{argument} + (long long)(item / {each}) * {stride}" if stride else argument
            for argument, stride in zip(given, strides, strict=True)
        ]
    if layout.stamped and function.receives:  # the first warp waits for what others receive
        after.append("{ const ost::waiting timed(&ost::waits::values); OST_SYNC(); }")
    streamed = ["ring"] * bool(function.streams)
    values = ", ".join([*place, arrays, *streamed, *given, "variables"])
    return [*before, f"{name}({values});", *after]
