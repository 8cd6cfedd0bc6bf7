"""``compile_loops``: lane functions compiled into loops over arrays, many to a module."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest
from llvmlite import ir

from ostinato.backends.cpu.llvm.lanes import Lane
from ostinato.backends.cpu.llvm.memory import load, store
from ostinato.backends.cpu.llvm.toolchain import LinkedCode, TargetSpec, compile_module
from ostinato.backends.cpu.llvm.types import BYTE_POINTER, I64
from ostinato.backends.cpu.loader import link
from ostinato.dtypes import DType

Array = np.ndarray[Any, Any]


class ArrayLoop(NamedTuple):
    """A lane function to apply element by element.

    Attributes:
        function: takes one lane per input, gives the result lane.
        inputs: the dtypes of the input arrays.
        lanes: how many elements are handled at once.
    """

    function: Callable[..., Lane]
    inputs: tuple[DType, ...]
    lanes: int


class CompiledLoops:
    """The loops of one module; ``compiled(name, *arrays)`` runs one over whole arrays."""

    def __init__(
        self,
        loops: Mapping[str, tuple[Callable[..., Lane], tuple[DType, ...], int]],
        target: TargetSpec | None = None,
    ) -> None:
        target = target or TargetSpec.host()
        module = ir.Module()
        self._loops = {name: ArrayLoop(*loop) for name, loop in loops.items()}
        self._results = {
            name: _emit(module, name, loop, target) for name, loop in self._loops.items()
        }
        self._code: LinkedCode = link.load([(compile_module(module, target), list(loops))])

    def __call__(self, name: str, *arrays: Array) -> Array:
        loop = self._loops[name]
        size = arrays[0].size
        padded_size = -(-size // loop.lanes) * loop.lanes
        padded = [np.zeros(padded_size, a.dtype) for a in arrays]
        for whole, part in zip(padded, arrays, strict=True):
            whole[:size] = part
        result = np.empty(padded_size, self._results[name].numpy)
        pointers = (ctypes.c_void_p * (len(arrays) + 1))(
            result.ctypes.data, *(a.ctypes.data for a in padded)
        )
        signature = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)
        signature(self._code.address(name))(ctypes.addressof(pointers), padded_size)
        return result[:size]


def _emit(module: ir.Module, name: str, loop: ArrayLoop, target: TargetSpec) -> DType:
    signature = ir.FunctionType(ir.VoidType(), [BYTE_POINTER, I64])
    function = ir.Function(module, signature, name)
    target.decorate(function)
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    table, count = function.args
    pointers = [
        builder.load(builder.gep(table, [I64(k)], source_etype=BYTE_POINTER), typ=BYTE_POINTER)
        for k in range(len(loop.inputs) + 1)
    ]
    entry = builder.block
    body = function.append_basic_block("body")
    done = function.append_basic_block("done")
    builder.branch(body)
    builder.position_at_end(body)
    index = builder.phi(I64)
    lanes = [
        load(builder, pointer, dtype, index, loop.lanes)
        for pointer, dtype in zip(pointers[1:], loop.inputs, strict=True)
    ]
    result = loop.function(*lanes)
    store(builder, pointers[0], result.dtype, index, result)
    following = builder.add(index, I64(loop.lanes))
    index.add_incoming(I64(0), entry)
    index.add_incoming(following, builder.block)
    builder.cbranch(builder.icmp_signed("<", following, count), body, done)
    builder.position_at_end(done)
    builder.ret_void()
    return result.dtype


@pytest.fixture(scope="session")
def compile_loops() -> type[CompiledLoops]:
    """``compile_loops({name: (function, input dtypes, lanes)}, target)``."""
    return CompiledLoops
