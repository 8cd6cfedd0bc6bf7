"""The scratch argument of nests of GPUs, and the choice of the groups that have it."""

from __future__ import annotations

import pytest

from ostinato.dtypes import FLOAT32, UINT8
from ostinato.ir.types import TensorType
from ostinato.lower.loopir.nest import LoopNest
from ostinato.lower.loopir.nodes import Arg, Load, Stage, Store, Temp
from ostinato.lower.program import Call, LoweredBuffer, Role
from ostinato.lower.rules.gpu_nest import GpuLoopNest, power_below, scratch_groups, with_scratch
from ostinato.variables import axis, symbols

POINT = axis("i", 1000)
(OUTER,) = symbols(POINT)
ARGS = (Arg(FLOAT32), Arg(FLOAT32, reads=False, writes=True))


class Nest(GpuLoopNest):
    """A nest whose groups need 40 bytes each."""

    @property
    def scratch_bytes(self) -> int:
        return 40 * self.scratch_groups


def copy_nest() -> LoopNest:
    """A copy through a temp, which is number 2."""
    first = Stage((), (Store(2, 0, Load(0, POINT, FLOAT32)),))
    second = Stage((), (Store(1, POINT, Load(2, 0, FLOAT32)),))
    return LoopNest(ARGS, (OUTER,), (first, second), (Temp(FLOAT32, 1),))


def test_temps_are_numbered_after_the_argument_that_holds_them() -> None:
    nest = Nest.with_groups(copy_nest(), 8)
    assert isinstance(nest, Nest)
    assert [arg.dtype for arg in nest.args] == [FLOAT32, FLOAT32, UINT8]
    first, second = (stage.statements[0] for stage in nest.stages)
    assert isinstance(first, Store)
    assert first.buffer == 3
    assert isinstance(second.value, Load)
    assert (second.value.buffer, second.value.index) == (3, 0)


def test_a_nest_without_groups_keeps_its_arguments() -> None:
    plain = copy_nest()
    nest = Nest.with_groups(plain, 0)
    assert (nest.args, nest.stages, nest.scratch_bytes) == (plain.args, plain.stages, 0)


@pytest.mark.parametrize("groups", [0, 8])
def test_a_call_gets_the_memory_that_its_kernel_needs(groups: int) -> None:
    plain = copy_nest()
    type_ = TensorType(FLOAT32, (1000,))
    buffers = tuple(LoweredBuffer(type_, Role.TEMP, name) for name in "xy")
    call = Call(plain, buffers, (), "copy")
    found = with_scratch(call, Nest.with_groups(plain, groups), Role.PREPARED)
    assert found.buffers[:2] == buffers
    extra = [(b.type, b.role, b.name) for b in found.buffers[2:]]
    assert extra == [(TensorType(UINT8, (320,)), Role.PREPARED, "temps of copy")] * (groups > 0)


def test_groups_are_limited_by_points_and_by_memory() -> None:
    nest = copy_nest()
    assert scratch_groups(nest, 100, 100) == 0
    assert scratch_groups(nest, 101, 100) == 256
    assert scratch_groups(nest, 1 << 20, 100) == 64
    assert scratch_groups(nest, 1 << 30, 100) == 1
    alone = LoopNest(nest.args, (), nest.stages, nest.temps)
    assert scratch_groups(alone, 101, 100) == 1


def test_powers_below() -> None:
    assert [power_below(n) for n in (1, 2, 3, 4, 7, 8, 1023)] == [1, 2, 2, 4, 4, 8, 512]
