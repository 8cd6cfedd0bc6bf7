"""Objects laid out without a linker run as linked ones do; all others are left to the linker."""

from __future__ import annotations

import ctypes
import random
import sys

import pytest
from llvmlite import ir

from ostinato.backends.cpu import _core
from ostinato.backends.cpu.llvm.toolchain import TargetSpec, compile_module
from ostinato.backends.cpu.loader.elf import lay_out
from ostinato.backends.cpu.loader.link import load
from ostinato.errors import OstinatoError

LINUX = sys.platform == "linux" and TargetSpec.host().triple.startswith("x86_64")
pytestmark = pytest.mark.skipif(not LINUX, reason="for ELF files of x86-64")


def compiled(body: str, *names: str) -> tuple[bytes, list[str]]:
    return compile_module(body, TargetSpec.host()), list(names)


def function(name: str, value: float) -> tuple[bytes, list[str]]:
    return compiled(
        f"define double @{name}(double %x) {{\n"
        f"  %y = fmul double %x, {value}\n  ret double %y\n}}\n",
        name,
    )


def run(code, name: str, x: float) -> float:
    kind = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)
    return kind(code.address(name))(x)


TABLE = """
define double @chosen(double %x) {
  %i = fptosi double %x to i64
  switch i64 %i, label %other [ i64 0, label %a  i64 1, label %b  i64 2, label %c
                                i64 3, label %d  i64 4, label %e  i64 5, label %f ]
a: ret double 7.0
b: ret double 17.5
c: ret double 2.25
d: ret double 9.0
e: ret double 11.0
f: ret double -1.0
other: ret double 100.0
}
"""

OUTSIDE = """
declare double @atan2(double, double)
declare double @cbrt(double)
define double @outside(double %x) {
  %a = call double @cbrt(double %x)
  %b = call double @atan2(double %a, double 1.0)
  ret double %b
}
"""


def test_constants_and_several_objects() -> None:
    objects = [function("two", 2.5), function("three", 3.25), compiled(TABLE, "chosen")]
    assert lay_out(objects) is not None
    code = load(objects)
    assert run(code, "two", 4.0) == 10.0
    assert run(code, "three", 4.0) == 13.0
    values = [run(code, "chosen", float(i)) for i in range(-1, 7)]
    assert values == [100.0, 7.0, 17.5, 2.25, 9.0, 11.0, -1.0, 100.0]


def test_functions_of_the_c_library() -> None:
    import math

    objects = [compiled(OUTSIDE, "outside"), function("two", 2.0)]
    block = lay_out(objects)
    assert block is not None
    assert sorted(block.imports) == ["atan2", "cbrt"]
    assert run(load(objects), "outside", 8.0) == math.atan2(2.0, 1.0)


def test_the_first_of_a_name_stands_for_it() -> None:
    code = load([function("f", 2.0), function("f", 3.0), function("g", 4.0)])
    assert [run(code, name, 1.0) for name in "fg"] == [2.0, 4.0]


def test_data_to_be_written_is_left_to_the_linker() -> None:
    body = """
    @count = internal global i64 0
    define double @next(double %x) {
      %old = load i64, i64* @count
      %new = add i64 %old, 1
      store i64 %new, i64* @count
      %y = sitofp i64 %new to double
      ret double %y
    }
    """
    objects = [compiled(body, "next")]
    assert lay_out(objects) is None
    code = load(objects)
    assert [run(code, "next", 0.0) for _ in range(2)] == [1.0, 2.0]


@pytest.mark.parametrize(
    "data", [b"", b"not an object", b"\x7fELF", b"\x7fELF\x01\x01\x01" + bytes(80)]
)
def test_other_files(data: bytes) -> None:
    assert lay_out([(data, ["f"])]) is None
    with pytest.raises(OstinatoError):
        load([(data, ["f"])])


def test_a_symbol_that_is_not_there() -> None:
    data, _ = function("f", 2.0)
    assert lay_out([(data, ["g"])]) is None
    with pytest.raises(OstinatoError):
        load([(data, ["g"])])
    missing = "declare double @no_such_thing(double)\n" + (
        "define double @f(double %x) {\n  %y = call double @no_such_thing(double %x)\n"
        "  ret double %y\n}\n"
    )
    with pytest.raises(OstinatoError):
        load([compiled(missing, "f")])


@pytest.mark.parametrize("seed", range(50))
def test_damage_is_found_or_leaves_the_layout_within_bounds(seed: int) -> None:
    data, names = compiled(TABLE, "chosen")
    chance = random.Random(seed)
    broken = bytearray(data)
    for _ in range(3):
        broken[chance.randrange(len(broken))] = chance.randrange(256)
    lay_out([(bytes(broken), names)])  # nothing but None or a block; it is not run


def test_sealed_memory_is_read_only() -> None:
    memory = _core.Arena(100, huge_pages=False)
    memoryview(memory)[:3] = b"abc"
    memory.seal()
    view = memoryview(memory)
    assert view.readonly
    assert bytes(view[:3]) == b"abc"


def test_llvmlite_modules_compile_to_this_kind() -> None:
    """So that the shortcut is taken for what the code generator makes."""
    module = ir.Module()
    double = ir.DoubleType()
    built = ir.Function(module, ir.FunctionType(double, [double]), "f")
    builder = ir.IRBuilder(built.append_basic_block())
    builder.ret(builder.fadd(built.args[0], ir.Constant(double, 1.5)))
    assert lay_out([(compile_module(module, TargetSpec.host()), ["f"])]) is not None
