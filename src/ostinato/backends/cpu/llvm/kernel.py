"""Building blocks of all renderers: the kernel's signature, prologue, loops and stack slots.

Every kernel is ``void name(ptr buffers, ptr vars, i64 begin, i64 end, ptr scratch)``; see
:class:`KernelFunction` for what the five are. A kernel whose parallel extent is symbolic comes
with ``i64 name_extent(ptr vars)``.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from llvmlite import ir

from ostinato.backends.cpu.llvm.indices import Indices
from ostinato.backends.cpu.llvm.scopes import Scope
from ostinato.backends.cpu.llvm.types import BYTE_POINTER, I1, I8, I64
from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ostinato.backends.cpu.llvm.toolchain import TargetSpec
    from ostinato.backends.cpu.rules.kernel import CpuKernel
    from ostinato.variables import Dim, Symbol

__all__ = [
    "KernelFunction",
    "counted_loop",
    "define_extent",
    "extent_symbol",
    "kernel_module",
    "open_kernel",
    "stack_slot",
    "when",
]


@dataclass(frozen=True, eq=False)
class KernelFunction:
    """A kernel under construction; the builder stands where its body goes.

    Attributes:
        module: holds the kernel alone, and its extent function where it has one.
        builder: emits at the current position.
        target: the processor to render for.
        buffers: the address of each argument's first byte.
        variables: the live value of each Variable, an i64.
        begin: the first step of the parallel range to run.
        end: the step after the last.
        scratch: memory private to the calling thread, 64-byte aligned.
    """

    module: ir.Module
    builder: ir.IRBuilder
    target: TargetSpec
    buffers: tuple[ir.Value, ...]
    variables: dict[Symbol, ir.Value]
    begin: ir.Value
    end: ir.Value
    scratch: ir.Value


def open_kernel(
    name: str, target: TargetSpec, buffer_count: int, variables: Sequence[Symbol] = ()
) -> KernelFunction:
    """A module with the function ``name``, its arguments taken apart, its body yet to come.

    The caller emits the body and ends it with ``builder.ret_void()``.
    """
    module = ir.Module(name)
    signature = ir.FunctionType(ir.VoidType(), [BYTE_POINTER, BYTE_POINTER, I64, I64, BYTE_POINTER])
    function = ir.Function(module, signature, name)
    target.decorate(function)
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    table, values, begin, end, scratch = function.args
    buffers = tuple(
        builder.load(_slot(builder, table, i, BYTE_POINTER), align=8, typ=BYTE_POINTER)
        for i in range(buffer_count)
    )
    live = _load_variables(builder, values, variables)
    return KernelFunction(module, builder, target, buffers, live, begin, end, scratch)


def kernel_module(
    described: CpuKernel, name: str, target: TargetSpec, emit: Callable[[KernelFunction], None]
) -> ir.Module:
    """A module with the kernel ``name``, and ``name_extent`` if its extent is symbolic.

    Args:
        described: the kernel's arguments, Variables and extent.
        name: of the function.
        target: the processor to render for.
        emit: emits the body and ends it; not called for a kernel that never has anything to do.
    """
    kernel = open_kernel(name, target, len(described.args), described.variables)
    if described.extent == 0:
        kernel.builder.ret_void()
    else:
        emit(kernel)
    if not isinstance(described.extent, int):
        define_extent(kernel.module, name, described.variables, described.extent)
    return kernel.module


def extent_symbol(name: str) -> str:
    """The name of the function that gives the parallel extent of the kernel ``name``."""
    return f"{name}_extent"


def define_extent(module: ir.Module, name: str, variables: Sequence[Symbol], extent: Dim) -> None:
    """Adds ``i64 name_extent(ptr vars)``, which returns ``extent``."""
    function = ir.Function(module, ir.FunctionType(I64, [BYTE_POINTER]), extent_symbol(name))
    function.attributes.add("nounwind")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    values = _load_variables(builder, function.args[0], variables)
    builder.ret(Indices(builder).scalar(extent, Scope(symbols=values)))


def stack_slot(builder: ir.IRBuilder, typ: ir.Type) -> ir.Value:
    """Memory for one value in the function's frame, which LLVM turns into a register."""
    with builder.goto_entry_block():
        return builder.alloca(typ)


@contextmanager
def when(builder: ir.IRBuilder, condition: ir.Value | bool) -> Iterator[None]:
    """Run what is emitted inside only under ``condition``; ``True`` costs no branch."""
    if condition is True:
        yield
    else:
        flag = I1(0) if condition is False else condition
        with builder.if_then(flag):
            yield


def counted_loop(
    builder: ir.IRBuilder,
    start: ir.Value,
    stop: ir.Value,
    step: int,
    body: Callable[[ir.Value], None],
    *,
    trips: int | None = None,
    name: str = "i",
) -> None:
    """Runs ``body`` for ``start``, ``start + step``, … while below ``stop``.

    Args:
        trips: how often, where that is known: no loop is emitted for none or one, and no check
            before the first.
    """
    if trips == 0:
        return
    if trips == 1:
        body(start)
        return
    with when(builder, True if trips else builder.icmp_signed("<", start, stop)):
        before = builder.block
        loop = builder.append_basic_block(f"{name}.loop")
        after = builder.append_basic_block(f"{name}.done")
        builder.branch(loop)
        builder.position_at_end(loop)
        index = builder.phi(I64, name)
        index.add_incoming(start, before)
        body(index)
        following = builder.add(index, I64(step), flags=("nsw",))
        index.add_incoming(following, builder.block)
        builder.cbranch(builder.icmp_signed("<", following, stop), loop, after)
        builder.position_at_end(after)


def _load_variables(
    builder: ir.IRBuilder, values: ir.Value, variables: Sequence[Symbol]
) -> dict[Symbol, ir.Value]:
    return {
        symbol: builder.load(_slot(builder, values, i, I64), align=8, typ=I64)
        for i, symbol in enumerate(variables)
    }


def _slot(builder: ir.IRBuilder, base: ir.Value, position: int, typ: ir.Type) -> ir.Value:
    return builder.gep(base, [I64(8 * position)], source_etype=I8)
