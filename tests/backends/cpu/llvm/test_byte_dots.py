"""Sums of products of bytes: every way in which a processor may have to compute them."""

from __future__ import annotations

import ctypes
import itertools
from dataclasses import replace

import numpy as np
import pytest
from llvmlite import ir

from ostinato.backends.cpu.llvm.byte_dots import add_products
from ostinato.backends.cpu.llvm.toolchain import TargetSpec, compile_module
from ostinato.backends.cpu.llvm.types import BYTE_POINTER, I8, I32
from ostinato.backends.cpu.loader.link import load
from ostinato.dtypes import INT8, UINT8, DType

HOST = TargetSpec.host()
#: The code for a processor without such instructions.
FOREIGN = replace(HOST, triple="aarch64-unknown-linux-gnu")


def add(
    target: TargetSpec, lanes: int, steps: int, dtypes: tuple[DType, DType], *arrays: np.ndarray
) -> None:
    """Calls ``add_products`` on ``(total, left, right)``; the first receives the result."""
    module = ir.Module()
    signature = ir.FunctionType(ir.VoidType(), [BYTE_POINTER] * 3)
    function = ir.Function(module, signature, "add")
    builder = ir.IRBuilder(function.append_basic_block())
    types = [ir.VectorType(I32, lanes), *[ir.VectorType(I8, lanes * steps)] * 2]
    total, *factors = (
        builder.load(pointer, align=1, typ=typ)
        for pointer, typ in zip(function.args, types, strict=True)
    )
    result = add_products(builder, target, total, (factors[0], factors[1]), dtypes, steps)
    builder.store(result, function.args[0], align=1)
    builder.ret_void()
    code = load([(compile_module(module, HOST), ["add"])])
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3)(code.address("add"))
    call(*(array.ctypes.data for array in arrays))


WAYS = [(FOREIGN, 4, 2), (FOREIGN, 16, 2), (HOST, 4, 2), (HOST, 8, 2), (HOST, 16, 2)]
if HOST.has_byte_dots:
    WAYS.append((HOST, HOST.lanes(4), 4))


@pytest.mark.parametrize(("target", "lanes", "steps"), WAYS)
def test_products(target: TargetSpec, lanes: int, steps: int) -> None:
    rng = np.random.default_rng(0)
    if target is HOST and lanes > HOST.lanes(4):
        pytest.skip("this machine has no registers of that width")
    for dtypes in itertools.product((INT8, UINT8), repeat=2):
        if steps == 4 and dtypes[0] == dtypes[1]:
            continue  # the instruction takes unlike ones
        left, right = (
            rng.choice([np.iinfo(d.numpy).min, 1, np.iinfo(d.numpy).max], lanes * steps)
            for d in dtypes
        )
        start = rng.integers(-(2**31), 2**31, lanes)
        want = start + (left * right).reshape(lanes, steps).sum(1)
        total = start.astype(np.int32)
        add(
            target,
            lanes,
            steps,
            dtypes,
            total,
            left.astype(dtypes[0].numpy),
            right.astype(dtypes[1].numpy),
        )
        np.testing.assert_array_equal(total, want.astype(np.int32))
