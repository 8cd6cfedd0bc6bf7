"""Moving lanes between registers and memory.

Addresses are a byte pointer to element 0 plus an index counted in elements. Accesses assume no
more than the alignment of one element. A masked access touches no memory in its inactive lanes,
which read as zero; a masked access of one lane is a branch around the access.

Masked single-lane accesses add basic blocks: use ``builder.block`` afterwards, not a block that
was current before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from llvmlite import ir

from ostinato.backends.cpu.llvm.conversion import from_memory, to_memory
from ostinato.backends.cpu.llvm.lanes import Lane, broadcast
from ostinato.backends.cpu.llvm.types import (
    BYTE_POINTER,
    I1,
    I8,
    I32,
    Scalar,
    call_intrinsic,
    constant,
    memory_type,
    vector_of,
)

if TYPE_CHECKING:
    from ostinato.dtypes import DType

__all__ = ["address", "fence_streams", "gather", "load", "prefetch", "scatter", "splat", "store"]


def splat(builder: ir.IRBuilder, value: Scalar | Lane, dtype: DType, lanes: int) -> Lane:
    """A Python scalar, or a lane of one value, in all of ``lanes`` lanes of ``dtype``."""
    if isinstance(value, Lane):
        return broadcast(value.astype(dtype), lanes)
    return Lane(builder, constant(dtype, value, lanes), dtype, lanes)


def address(
    builder: ir.IRBuilder, base: ir.Value, dtype: DType, element_index: ir.Value
) -> ir.Value:
    """The address of an element: ``base + element_index * itemsize``."""
    return builder.gep(base, [element_index], source_etype=memory_type(dtype))


def load(
    builder: ir.IRBuilder,
    base: ir.Value,
    dtype: DType,
    element_index: ir.Value,
    lanes: int = 1,
    mask: ir.Value | None = None,
) -> Lane:
    """``lanes`` consecutive elements from ``element_index`` on.

    Args:
        base: pointer to element 0.
        element_index: an integer scalar, in elements.
        mask: an ``i1`` per lane; lanes without it are not read and give zero.
    """
    pointer = address(builder, base, dtype, element_index)
    stored_type = vector_of(memory_type(dtype), lanes)
    if mask is None:
        stored = builder.load(pointer, align=dtype.itemsize, typ=stored_type)
    elif lanes == 1:
        stored = _guarded_load(builder, pointer, dtype, mask)
    else:
        name = f"llvm.masked.load.{_overload(dtype, lanes)}.p0"
        zero = ir.Constant(stored_type, None)
        arguments = [pointer, I32(dtype.itemsize), mask, zero]
        stored = call_intrinsic(builder, name, stored_type, arguments)
    return Lane(builder, from_memory(builder, stored, dtype, lanes), dtype, lanes)


def store(
    builder: ir.IRBuilder,
    base: ir.Value,
    dtype: DType,
    element_index: ir.Value,
    lane: Lane,
    mask: ir.Value | None = None,
    *,
    streaming: bool = False,
) -> None:
    """Writes ``lane`` to consecutive elements from ``element_index`` on.

    The lane is converted to ``dtype`` first. Lanes without a set ``mask`` are not written.

    Args:
        streaming: write past the caches, all lanes of a vector that is aligned to its size. Other
            threads may read it after :func:`fence_streams`.
    """
    pointer = address(builder, base, dtype, element_index)
    stored = _to_stored(lane, dtype)
    if streaming:
        assert mask is None
        instruction = builder.store(stored, pointer, align=lane.lanes * dtype.itemsize)
        instruction.set_metadata("nontemporal", builder.module.add_metadata([I32(1)]))
    elif mask is None:
        builder.store(stored, pointer, align=dtype.itemsize)
    elif lane.lanes == 1:
        with builder.if_then(mask):
            builder.store(stored, pointer, align=dtype.itemsize)
    else:
        name = f"llvm.masked.store.{_overload(dtype, lane.lanes)}.p0"
        arguments = [stored, pointer, I32(dtype.itemsize), mask]
        call_intrinsic(builder, name, ir.VoidType(), arguments)


def fence_streams(builder: ir.IRBuilder) -> None:
    """Make streaming stores visible before any later store (x86)."""
    call_intrinsic(builder, "llvm.x86.sse.sfence", ir.VoidType(), [])


def prefetch(
    builder: ir.IRBuilder,
    base: ir.Value,
    distance: ir.Value,
    level: int = 2,
    *,
    write: bool = False,
) -> None:
    """Prefetch the cache line at ``base + distance`` bytes into the first or second-level cache.

    No access: any address will do.

    Args:
        write: take the line from other cores, to be written.
    """
    pointer = builder.gep(base, [distance], source_etype=I8)
    arguments = [pointer, I32(_WRITE if write else _READ), I32(_LOCALITY[level]), I32(_DATA)]
    call_intrinsic(builder, "llvm.prefetch.p0", ir.VoidType(), arguments)


#: The arguments of LLVM's ``prefetch``: the kind of access, the locality, the kind of cache.
_READ, _WRITE, _LOCALITY, _DATA = 0, 1, {1: 3, 2: 2}, 1


def gather(
    builder: ir.IRBuilder,
    base: ir.Value,
    dtype: DType,
    indices: ir.Value,
    mask: ir.Value | None = None,
) -> Lane:
    """Elements at ``indices`` (an integer scalar or vector, in elements), one per lane.

    32-bit indices are taken as signed; they gather faster than 64-bit ones.
    """
    lanes = _lane_count(indices)
    if lanes == 1:
        return load(builder, base, dtype, indices, 1, mask)
    stored_type = vector_of(memory_type(dtype), lanes)
    arguments = [
        _addresses(builder, base, dtype, indices),
        I32(dtype.itemsize),
        _all_lanes(lanes) if mask is None else mask,
        ir.Constant(stored_type, None),
    ]
    name = f"llvm.masked.gather.{_overload(dtype, lanes)}.v{lanes}p0"
    stored = call_intrinsic(builder, name, stored_type, arguments)
    return Lane(builder, from_memory(builder, stored, dtype, lanes), dtype, lanes)


def scatter(
    builder: ir.IRBuilder,
    base: ir.Value,
    dtype: DType,
    indices: ir.Value,
    lane: Lane,
    mask: ir.Value | None = None,
) -> None:
    """Writes ``lane`` to the elements at ``indices``; of equal indices the last lane wins."""
    if lane.lanes == 1:
        store(builder, base, dtype, indices, lane, mask)
        return
    arguments = [
        _to_stored(lane, dtype),
        _addresses(builder, base, dtype, indices),
        I32(dtype.itemsize),
        _all_lanes(lane.lanes) if mask is None else mask,
    ]
    name = f"llvm.masked.scatter.{_overload(dtype, lane.lanes)}.v{lane.lanes}p0"
    call_intrinsic(builder, name, ir.VoidType(), arguments)


def _to_stored(lane: Lane, dtype: DType) -> ir.Value:
    return to_memory(lane.builder, lane.astype(dtype).value, dtype, lane.lanes)


def _guarded_load(
    builder: ir.IRBuilder, pointer: ir.Value, dtype: DType, mask: ir.Value
) -> ir.Value:
    before = builder.block
    with builder.if_then(mask):
        loaded = builder.load(pointer, align=dtype.itemsize, typ=memory_type(dtype))
        inside = builder.block
    result = builder.phi(memory_type(dtype))
    result.add_incoming(ir.Constant(memory_type(dtype), None), before)
    result.add_incoming(loaded, inside)
    return result


def _addresses(builder: ir.IRBuilder, base: ir.Value, dtype: DType, indices: ir.Value) -> ir.Value:
    pointers = builder.gep(base, [indices], source_etype=memory_type(dtype))
    # llvmlite gives a gep the type of its base; indexed by a vector it is a vector of pointers.
    pointers.type = ir.VectorType(BYTE_POINTER, _lane_count(indices))
    return pointers


def _lane_count(value: ir.Value) -> int:
    return value.type.count if isinstance(value.type, ir.VectorType) else 1


def _all_lanes(lanes: int) -> ir.Constant:
    return ir.Constant(ir.VectorType(I1, lanes), [True] * lanes)


def _overload(dtype: DType, lanes: int) -> str:
    kind = "f" if dtype.is_float and dtype.itemsize > 2 else "i"
    return f"v{lanes}{kind}{dtype.bits}"
