"""Targets, compilation and linking."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from llvmlite import ir

from ostinato.backends.cpu.llvm import toolchain
from ostinato.backends.cpu.llvm.lanes import Lane
from ostinato.backends.cpu.llvm.memory import load, store
from ostinato.backends.cpu.llvm.namespace import LaneNamespace
from ostinato.backends.cpu.llvm.toolchain import (
    TargetSpec,
    assembly,
    compile_module,
    link,
    optimized,
)
from ostinato.backends.cpu.llvm.types import BYTE_POINTER, I64
from ostinato.backends.cpu.llvm.vecmath.exponential import exp
from ostinato.dtypes import FLOAT32
from ostinato.errors import DeviceUnavailableError, OstinatoError
from ostinato.records import replace

XP = LaneNamespace()


def module(rule, lanes, name="kernel", target=None):
    """``name(to, from)``: one vector through ``rule``."""
    result = ir.Module()
    signature = ir.FunctionType(ir.VoidType(), [BYTE_POINTER, BYTE_POINTER])
    function = ir.Function(result, signature, name)
    if target is not None:
        target.decorate(function)
    b = ir.IRBuilder(function.append_basic_block())
    to, source = function.args
    store(b, to, FLOAT32, I64(0), rule(load(b, source, FLOAT32, I64(0), lanes)))
    b.ret_void()
    return result


def constant_function(value, name="answer"):
    return f"define i64 @{name}() {{ ret i64 {value} }}"


def call(code, name="answer"):
    return ctypes.CFUNCTYPE(ctypes.c_int64)(code.address(name))()


def avx512():
    try:
        return TargetSpec.named("avx512")
    except DeviceUnavailableError as error:
        pytest.skip(str(error))


def test_host_describes_this_machine():
    host = TargetSpec.host()
    assert host is TargetSpec.host()
    assert host.vector_bytes in (16, 32, 64)
    assert host.lanes(4) == host.vector_bytes // 4
    assert host.lanes(1024) == 1


def test_unknown_level_is_refused():
    with pytest.raises(DeviceUnavailableError, match="avx512, avx2, sse2"):
        TargetSpec.named("avx3")


def test_identities_tell_targets_apart():
    levels = {TargetSpec.named(level).identity for level in ("host", "avx2", "sse2")}
    assert len(levels) == 3


def test_wide_vectors_use_wide_registers():
    target = avx512()
    assert "%zmm" in assembly(module(lambda x: x * x, 16, target=target), target)
    host = TargetSpec.host()
    assert "%zmm" in assembly(module(lambda x: x * x, 16, target=host), host)


def test_levels_use_their_registers():
    text = assembly(module(lambda x: x * x, 16), TargetSpec.named("avx2"))
    assert "%ymm" in text
    assert "%zmm" not in text
    assert "%ymm" not in assembly(module(lambda x: x * x, 16), TargetSpec.named("sse2"))


def test_arithmetic_is_not_contracted():
    text = assembly(module(lambda x: x * x + 1.0, 8), TargetSpec.named("avx2"))
    assert "vmulps" in text
    assert "vfm" not in text


def test_exponential_scales_in_one_instruction_on_avx512():
    assert "vscalefps" in assembly(module(XP.exp, 16), avx512())


@pytest.mark.parametrize("lanes", [1, 2, 3, 5, 8, 16, 24, 32])
def test_any_lane_count_compiles(lanes):
    x = np.linspace(-120, 100, lanes).astype(np.float32)
    widest = np.empty(lanes, np.float32)
    code = link([(compile_module(module(XP.exp, lanes), TargetSpec.host()), ["kernel"])])
    run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
    run(code.address("kernel"))(widest.ctypes.data, x.ctypes.data)
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(widest, np.exp(x), rtol=2e-7)


def test_optimized_text_is_ir():
    assert "define" in optimized(constant_function(1), TargetSpec.host())


def test_malformed_ir_is_reported():
    with pytest.raises(OstinatoError, match="malformed LLVM IR"):
        compile_module("define i32 @f() { ret i64 0 }", TargetSpec.host())


def test_link_resolves_each_symbol():
    host = TargetSpec.host()
    objects = [
        (compile_module(constant_function(k, f"answer{k}"), host), [f"answer{k}"]) for k in range(5)
    ]
    code = link(objects)
    assert [call(code, f"answer{k}") for k in range(5)] == list(range(5))
    assert set(code.addresses) == {f"answer{k}" for k in range(5)}
    with pytest.raises(OstinatoError, match="no symbol 'other'"):
        code.address("other")


def test_equal_names_do_not_clash():
    host = TargetSpec.host()
    first = compile_module(constant_function(1), host)
    second = compile_module(constant_function(2) + "\n" + constant_function(3, "more"), host)
    code = link([(first, ["answer"]), (first, ["answer"]), (second, ["answer", "more"])])
    assert call(code) == 1
    assert call(code, "more") == 3
    assert call(link([(second, ["answer"])])) == 2


def test_bodies_shared_by_name_link_together():
    """Every object that converts float16 without hardware carries the same routines."""
    target = TargetSpec.named("sse2")

    def rule(x):
        return x.astype(XP.float16).astype(FLOAT32) + 1.0

    objects = [
        (compile_module(module(rule, 4, f"kernel{k}"), target), [f"kernel{k}"]) for k in range(3)
    ]
    assert len(link(objects).addresses) == 3


def test_damaged_objects_and_missing_symbols_are_reported(capfd):
    with pytest.raises(OstinatoError, match="cannot link"):
        link([(b"not an object", ["answer"])])
    source = (
        "declare i64 @ostinato_nowhere()\n"
        "define i64 @f() { %1 = call i64 @ostinato_nowhere()\nret i64 %1 }"
    )
    with pytest.raises(OstinatoError, match="cannot link"):
        link([(compile_module(source, TargetSpec.host()), ["f"])])
    capfd.readouterr()


def test_code_outlives_the_objects_it_came_from():
    codes = [link([(compile_module(constant_function(k), TargetSpec.host()), ["answer"])])
             for k in range(3)]  # fmt: skip
    del codes[1]
    assert [call(code) for code in codes] == [0, 2]


def test_threads_may_compile_and_link_at_once():
    def build(number):
        text = constant_function(number)
        return call(link([(compile_module(text, TargetSpec.host()), ["answer"])]))

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(build, range(40))) == list(range(40))


def test_threads_compile_the_same_code_as_one():
    host = TargetSpec.host()
    texts = [str(module(getattr(XP, name), lanes)) for name in ("exp", "tanh", "log")
             for lanes in (1, 8, 16)]  # fmt: skip
    alone = [compile_module(text, host) for text in texts]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda text: compile_module(text, host), texts)) == alone


def test_importing_loads_no_compiler():
    script = (
        f"import sys; import {toolchain.__name__}; import ostinato.cache.objects; "
        "sys.exit('llvmlite' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


@pytest.mark.parametrize(
    ("triple", "cpu", "slow"),
    [
        ("x86_64-unknown-linux-gnu", "sapphirerapids", True),
        ("x86_64-unknown-linux-gnu", "x86-64-v3", True),
        ("x86_64-unknown-linux-gnu", "znver4", False),
        ("aarch64-unknown-linux-gnu", "neoverse-v2", False),
    ],
)
def test_underflow_is_slow_on_some_processors(triple: str, cpu: str, slow: bool) -> None:
    assert replace(TargetSpec.host(), triple=triple, cpu=cpu).slow_underflow == slow


@pytest.mark.parametrize("cpu", ["znver4", "sapphirerapids"])
def test_what_vanishes_is_scaled_apart_where_underflow_is_slow(cpu: str) -> None:
    module = ir.Module("exp")
    kind = ir.VectorType(ir.FloatType(), 16)
    function = ir.Function(module, ir.FunctionType(kind, [kind]), "vector_exp")
    builder = ir.IRBuilder(function.append_basic_block())
    builder.ret(exp(Lane(builder, function.args[0], FLOAT32, 16)).value)
    target = replace(TargetSpec.host(), cpu=cpu)
    if not target.has_avx512:
        pytest.skip("this machine has no AVX-512")
    assert ("{z}" in assembly(module, target)) == target.slow_underflow
