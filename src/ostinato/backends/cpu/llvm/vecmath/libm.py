"""The system's scalar mathematics, lane by lane: for arguments and functions off the hot path.

The calls live in one cold function per module, width and function, so they do not crowd the
kernel that has them as its last resort. Symbols are resolved in the process at link time.
"""

from __future__ import annotations

from llvmlite import ir

from ostinato.backends.cpu.llvm.conversion import overload_suffix
from ostinato.backends.cpu.llvm.lanes import Lane, where
from ostinato.backends.cpu.llvm.types import I64, call_intrinsic, register_type
from ostinato.dtypes import FLOAT32

__all__ = ["any_lane", "each_lane", "unless_any"]


def each_lane(name: str, *arguments: Lane) -> Lane:
    """C's function ``name`` (its float form for float32) applied to every lane."""
    first = arguments[0]
    symbol = f"{name}f" if first.dtype == FLOAT32 else name
    values = [lane.value for lane in arguments]
    if first.lanes == 1:
        return first.like(call_intrinsic(first.builder, symbol, first.value.type, values))
    function = _loop_over_lanes(symbol, first, len(arguments))
    return first.like(first.builder.call(function, values))


def any_lane(condition: Lane) -> ir.Value:
    """An ``i1``: whether the condition holds in any lane."""
    b = condition.builder
    if condition.lanes == 1:
        return condition.value
    packed = ir.IntType(condition.lanes)
    return b.icmp_unsigned("!=", b.bitcast(condition.value, packed), packed(0))


def unless_any(condition: Lane, usual: Lane, name: str, *arguments: Lane) -> Lane:
    """``usual``, but what C's ``name`` gives in the lanes with the (rare) condition.

    Only those lanes: a result must not depend on what its neighbours are. Adds basic blocks.
    """
    b = usual.builder
    before = b.block
    with b.if_then(any_lane(condition), likely=False):
        rare = where(condition, each_lane(name, *arguments), usual)
        inside = b.block
    result = b.phi(usual.value.type)
    result.add_incoming(usual.value, before)
    result.add_incoming(rare.value, inside)
    return usual.like(result)


def _loop_over_lanes(symbol: str, like: Lane, count: int) -> ir.Function:
    module = like.builder.module
    name = f"ostinato.each.{symbol}.{overload_suffix(like.dtype, like.lanes)}"
    existing = module.globals.get(name)
    if existing is not None:
        return existing
    vector = like.value.type
    element = register_type(like.dtype)
    function = ir.Function(module, ir.FunctionType(vector, [vector] * count), name)
    function.linkage = "internal"
    for attribute in ("noinline", "cold", "nounwind"):
        function.attributes.add(attribute)
    entry = function.append_basic_block("entry")
    loop = function.append_basic_block("loop")
    done = function.append_basic_block("done")
    b = ir.IRBuilder(entry)
    b.branch(loop)
    b.position_at_end(loop)
    index = b.phi(I64)
    partial = b.phi(vector)
    inputs = [b.extract_element(argument, index) for argument in function.args]
    value = call_intrinsic(b, symbol, element, inputs)
    updated = b.insert_element(partial, value, index)
    following = b.add(index, I64(1))
    index.add_incoming(I64(0), entry)
    index.add_incoming(following, loop)
    partial.add_incoming(ir.Constant(vector, ir.Undefined), entry)
    partial.add_incoming(updated, loop)
    b.cbranch(b.icmp_unsigned("<", following, I64(like.lanes)), loop, done)
    b.position_at_end(done)
    b.ret(updated)
    return function
