"""The text of kernels: what it says, and when two kernels are the same."""

from __future__ import annotations

from dataclasses import replace

from ostinato.backends.cpu.rules.gemm import Gemm
from ostinato.dtypes import FLOAT32, INT64
from ostinato.lower.loopir.nest import LoopNest
from ostinato.lower.loopir.nodes import (
    Accumulator,
    Apply,
    Arg,
    Binding,
    Guard,
    Load,
    Number,
    Reduce,
    Ref,
    Scan,
    Stage,
    Store,
    Temp,
)
from ostinato.lower.loopir.text import digest, kernel_text
from ostinato.variables import Dim, Expr, Symbol, Variable, axis


def symbol(expr: Dim) -> Symbol:
    assert isinstance(expr, Expr)
    found = expr.terms[0][0][0]
    assert isinstance(found, Symbol)
    return found


def rows(row: str = "i", column: str = "j", register: str = "total", high: int = 99) -> LoopNest:
    size = Variable("S", 1, 512)
    i, j = axis(row, 8), axis(column, size)
    data = Symbol("d", 0, high)
    picked = Load(1, i, INT64)
    index = Expr({(data,): 1}, 0) * size + j
    x = Load(0, index, FLOAT32, (Binding(data, picked),))
    inside = Guard((j - 3,), x, Number(0.0, FLOAT32), FLOAT32)
    quotient = Apply("divide", (inside, Ref(register, FLOAT32)), FLOAT32)
    leaky = Apply("leaky_relu", (quotient,), FLOAT32, (("alpha", 0.1),))
    return LoopNest(
        args=(Arg(FLOAT32), Arg(INT64), Arg(FLOAT32, False, True)),
        axes=(symbol(i),),
        stages=(
            Stage((symbol(j),), (Reduce(register, "sum", inside, FLOAT32),)),
            Stage((symbol(j),), (Scan("sum", leaky, FLOAT32, 3, j, exclusive=True),)),
            Stage(
                (symbol(j),),
                (Store(2, i * size + j, Load(3, j, FLOAT32), update="max", conditions=(j - 1,)),),
            ),
        ),
        temps=(Temp(FLOAT32, 512),),
        variables=(size.symbol,),
    )


EXPECTED = """\
loops, parallel
  variable $S: 1..512
  arg b0: f32, read
  arg b1: i64, read
  arg b2: f32, written
  temp b3: f32[512]
  for i0: 0..7
  stage for i1: 0..511 < $S
    %0 = load i64 b1[i0]
    d2: 0..99 = %0
    %1 = load f32 b0[$S*d2 + i1]
    %2 = guard f32 %1 if i1 - 3 >= 0 else 0.0:f32
    r0 = sum f32 %2
  stage for i1: 0..511 < $S
    %3 = divide f32(%2, r0)
    %4 = leaky_relu f32(%3, alpha=0.1)
    b3[i1] = running sum f32 %4 before it
  stage for i1: 0..511 < $S
    %5 = load f32 b3[i1]
    b2[$S*i0 + i1] = max %5 if i1 - 1 >= 0
"""


def test_a_nest_reads_as_a_program():
    assert kernel_text(rows()) == EXPECTED


def test_names_of_axes_and_registers_make_no_difference():
    renamed = rows("zebra", "aardvark", "s")
    assert kernel_text(renamed) == EXPECTED
    assert digest(renamed) == digest(rows())


def test_whatever_changes_the_code_changes_the_text():
    nest = rows()
    others = [
        rows(high=100),
        replace(nest, parallel=False),
        replace(nest, block=64, inner_axis=symbol(axis("l", 5))),
        replace(nest, temps=(Temp(FLOAT32, 513),)),
        replace(nest, args=(Arg(FLOAT32, True, True), *nest.args[1:])),
        replace(nest, stages=nest.stages[:2]),
        replace(nest, variables=(Variable("S", 2, 512).symbol,)),
    ]
    digests = {digest(other) for other in [nest, *others]}
    assert len(digests) == 1 + len(others)


def test_a_variable_named_like_an_axis_is_no_axis():
    size = Variable("i0", 1, 8)
    i = axis("k", 8)
    store = Store(0, i * 8 + size, Number(1.0, FLOAT32))
    nest = LoopNest((Arg(FLOAT32, False, True),), (symbol(i),), (Stage((), (store,)),))
    text = kernel_text(replace(nest, variables=(size.symbol,)))
    assert "b0[$i0 + 8*i0] = 1.0:f32" in text


def test_a_gemm():
    m, n, k = axis("m", 64), axis("n", 96), axis("k", 32)
    total = Apply("add", (Accumulator(FLOAT32), Load(2, n, FLOAT32)), FLOAT32)
    kernel = Gemm(
        args=(Arg(FLOAT32), Arg(FLOAT32), Arg(FLOAT32), Arg(FLOAT32, False, True)),
        batch=(),
        m=symbol(m),
        n=symbol(n),
        k=(symbol(k),),
        a=0,
        a_dtype=FLOAT32,
        a_index=m * 32 + k,
        b=1,
        b_group=0,
        panel=48,
        rows=8,
        acc=FLOAT32,
        epilogue=(Store(3, m * 96 + n, total),),
    )
    assert kernel_text(kernel) == (
        "gemm\n"
        "  arg b0: f32, read\n"
        "  arg b1: f32, read\n"
        "  arg b2: f32, read\n"
        "  arg b3: f32, written\n"
        "  rows i0: 0..63 by 8\n"
        "  columns i1: 0..95 by 48\n"
        "  sum over i2: 0..31\n"
        "  accumulate f32 f32 b0[32*i0 + i2] * b1.group[0]\n"
        "    %0 = load f32 b2[i1]\n"
        "    %1 = add f32(acc:f32, %0)\n"
        "    b3[96*i0 + i1] = %1\n"
    )
    assert digest(kernel) != digest(replace(kernel, rows=12))
