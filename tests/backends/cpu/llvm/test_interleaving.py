"""Chains of instructions in turn: each behind its operands, and none where memory is written."""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from ostinato.backends.cpu.llvm.interleaving import emit_interleaved

FLOAT = ir.FloatType()


def function() -> tuple[ir.IRBuilder, ir.Argument]:
    found = ir.Function(ir.Module(), ir.FunctionType(FLOAT, [FLOAT]), "f")
    return ir.IRBuilder(found.append_basic_block("entry")), found.args[0]


def chain(builder: ir.IRBuilder, name: str, start: ir.Value, length: int) -> Callable[[], None]:
    def emit() -> None:
        value = start
        for step in range(length):
            value = builder.fadd(value, start, name=f"{name}{step}")

    return emit


def names(builder: ir.IRBuilder) -> list[str]:
    return [instruction.name for instruction in builder.block.instructions]


def test_chains_take_turns_until_each_ends() -> None:
    builder, x = function()
    emit_interleaved(builder, [chain(builder, "a", x, 2), chain(builder, "b", x, 4)])
    assert names(builder) == ["a0", "b0", "a1", "b1", "b2", "b3"]


def test_a_chain_waits_for_operands_of_the_one_before() -> None:
    builder, x = function()
    shared: list[ir.Value] = []

    def first() -> None:
        shared.append(builder.fmul(builder.fadd(x, x, name="a0"), x, name="a1"))

    def second() -> None:
        builder.fsub(builder.fadd(x, shared[0], name="b0"), x, name="b1")

    emit_interleaved(builder, [first, second])
    assert names(builder) == ["a0", "a1", "b0", "b1"]


def test_instructions_around_the_chains_stay_where_they_are() -> None:
    builder, x = function()
    builder.fadd(x, x, name="before")
    emit_interleaved(builder, [chain(builder, name, x, 2) for name in "ab"])
    builder.fadd(x, x, name="after")
    assert names(builder) == ["before", "a0", "b0", "a1", "b1", "after"]


def test_chains_that_store_stay_one_behind_the_other() -> None:
    builder, x = function()
    slot = builder.alloca(FLOAT, name="slot")

    def emit(name: str) -> Callable[[], None]:
        def body() -> None:
            builder.store(builder.fadd(x, x, name=f"{name}0"), slot)
            builder.load(slot, name=f"{name}1")

        return body

    emit_interleaved(builder, [emit("a"), emit("b")])
    assert [n for n in names(builder) if "." not in n] == ["slot", "a0", "a1", "b0", "b1"]


def test_chains_with_branches_stay_one_behind_the_other() -> None:
    builder, x = function()

    def emit(name: str) -> Callable[[], None]:
        def body() -> None:
            value = builder.fadd(x, x, name=f"{name}0")
            with builder.if_then(builder.fcmp_ordered("<", value, x, name=f"{name}1")):
                pass

        return body

    entry = builder.block
    emit_interleaved(builder, [emit("a"), emit("b")])
    assert [i.name for i in entry.instructions[:2]] == ["a0", "a1"]


def test_switched_off_all_chains_stay_one_behind_the_other() -> None:
    builder, x = function()
    chains = [chain(builder, name, x, 2) for name in "ab"]
    emit_interleaved(builder, chains, alternate=False)
    assert names(builder) == ["a0", "a1", "b0", "b1"]
