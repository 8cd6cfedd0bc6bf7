"""Loop nests that only move elements, which a device's runtime does without code of their own.

Weights that are packed into panels, transposed weights, pieces of larger tensors: for each element
of the target, where in the source it is, or that it is a padding. What goes where is a few numbers,
so one kernel does for all of them, and nothing has to be compiled.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ostinato.backends.cpu.rules.kernel import GRAIN_POINTS, CpuKernel
from ostinato.dtypes import BOOL, INT64
from ostinato.ir.types import TensorType
from ostinato.lower.loopir.nest import LoopNest
from ostinato.lower.loopir.nodes import Arg, Guard, Load, Number, Store, extent_of
from ostinato.lower.program import Call, LoweredBuffer, Role
from ostinato.records import dataclass, replace
from ostinato.variables import coefficient

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ostinato.dtypes import DType
    from ostinato.lower.loopir.text import KernelText
    from ostinato.variables import Dim, Symbol

__all__ = ["Copy", "builtin_copy"]

#: As in csrc/copying.h.
_MAX_AXES = 8

#: Elements of a block; more make no difference to how long a block takes, fewer do.
_BLOCK = 4096

#: Bytes of the source that lie in one line of the cache: so many, side by side, are used at once.
_LINE = 64

#: Lanes that pay for finding out where they are.
_FEWEST_LANES = 8


@dataclass(frozen=True, eq=False)
class Copy(CpuKernel):
    """Moves elements of one buffer to another.

    Arguments: the source; the target; the plan, made of constants, as csrc/copying.h has it.

    Attributes:
        nest: the same as loops.
        blocks: how many blocks of elements there are.
        block: elements of a block.
    """

    args: tuple[Arg, ...]
    nest: LoopNest
    blocks: int
    block: int
    variables: tuple[Symbol, ...] = ()

    builtin: ClassVar[str | None] = "copy"

    @property
    def directing(self) -> Mapping[int, object]:
        return {len(self.args) - 1: None}

    def describe(self, text: KernelText) -> None:
        text.line(0, f"copy, {self.block} elements at a time")
        self.nest.describe(text)

    @property
    def extent(self) -> int:
        return self.blocks

    @property
    def grain(self) -> int:
        """Blocks that are worth handing to a thread together."""
        return max(1, GRAIN_POINTS // self.block)


@dataclass(frozen=True)
class _Axis:
    """An axis of the target: its steps, and by how many elements each moves."""

    extent: int
    source: int
    target: int
    factors: tuple[int, ...]


@dataclass(frozen=True)
class _Plan:
    """The strides of a copy, in elements; see csrc/copying.h."""

    axes: tuple[_Axis, ...]
    source_start: int
    target_start: int
    conditions: tuple[int, ...]
    rows: int
    lanes: int

    @property
    def extent(self) -> int:
        *outer, row, lane = self.axes
        blocks = -(-row.extent // self.rows) * -(-lane.extent // self.lanes)
        return math.prod(axis.extent for axis in outer) * blocks

    def numbers(self, dtype: DType, fill: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        size, missing = dtype.itemsize, _MAX_AXES - len(self.axes)
        numbers = [
            size, self.source_start * size, self.target_start * size, fill,
            self.rows, self.lanes, len(self.axes), len(self.conditions),
        ]  # fmt: skip
        for axis in self.axes:
            numbers += [axis.extent, axis.source * size, axis.target * size]
        numbers += [0] * (3 * missing)
        for number, constant in enumerate(self.conditions):
            numbers += [constant, *(axis.factors[number] for axis in self.axes), *[0] * missing]
        return np.array(numbers, np.int64)


def builtin_copy(call: Call) -> Call:
    """The call as a :class:`Copy`, if copying is all it does; else the call itself."""
    nest = call.kernel
    found = _only_copy(nest) if isinstance(nest, LoopNest) else None
    if found is None:
        return call
    assert isinstance(nest, LoopNest)
    store, load, guard = found
    plan = _plan(nest, store, load, guard.conditions if guard is not None else ())
    if plan is None:
        return call
    fill = 0
    if guard is not None:
        assert isinstance(guard.otherwise, Number)
        fill = _bits(guard.otherwise)
    numbers = plan.numbers(load.dtype, fill)
    name = f"{call.buffers[1].name}.plan"
    described = LoweredBuffer(TensorType(INT64, numbers.shape), Role.CONSTANT, name, data=numbers)
    args = (*nest.args, Arg(INT64))
    kernel = Copy(args, nest, plan.extent, plan.rows * plan.lanes, nest.variables)
    return replace(call, kernel=kernel, buffers=(*call.buffers, described))


def _only_copy(nest: LoopNest) -> tuple[Store, Load, Guard | None] | None:
    """The one store of a nest that stores what it loads, or a number where a guard says so."""
    statements = [s for stage in nest.stages for s in stage.statements if not stage.axes]
    if len(nest.stages) != 1 or len(statements) != 1 or not nest.parallel or nest.temps:
        return None
    (store,) = statements
    reads = [(arg.reads, arg.writes) for arg in nest.args]
    if not isinstance(store, Store) or reads != [(True, False), (False, True)]:
        return None
    guard: Guard | None = None
    value = store.value
    if isinstance(value, Guard) and isinstance(value.otherwise, Number) and not value.bindings:
        guard, value = value, value.body
    if not isinstance(value, Load) or value.bindings:
        return None
    if store.bindings or store.conditions or store.update != "set" or store.buffer != 1:
        return None
    # Memory of a bool may hold any byte before it is first loaded.
    same = value.dtype == nest.args[0].dtype == nest.args[1].dtype != BOOL
    return (store, value, guard) if same and value.dtype.bits % 8 == 0 else None


def _plan(nest: LoopNest, store: Store, load: Load, conditions: Sequence[Dim]) -> _Plan | None:
    """The plan of a copy, if all of it is known and goes in even steps."""
    symbols = [*nest.axes, *([nest.inner_axis] if nest.inner_axis is not None else [])]
    indices = [_affine(index, symbols) for index in (load.index, store.index, *conditions)]
    extents = [extent_of(symbol) for symbol in symbols]
    if None in indices or not all(isinstance(extent, int) and extent > 0 for extent in extents):
        return None
    (source, source_start), (target, target_start), *tests = [i for i in indices if i is not None]
    axes = [
        _Axis(extent, source[n], target[n], tuple(factors[n] for factors, _ in tests))
        for n, extent in enumerate(extents)
        if isinstance(extent, int) and extent > 1
    ]
    if len(axes) > _MAX_AXES:
        return None
    still = [_Axis(1, 0, 0, (0,) * len(tests)) for _ in range(2 - len(axes))]
    axes = _rows_and_lanes([*still, *axes])
    row, lane = axes[-2:]
    if lane.extent < _FEWEST_LANES <= math.prod(axis.extent for axis in axes):
        return None
    lanes = min(lane.extent, _BLOCK)
    side_by_side = abs(row.source) == 1 and lane.source != 1
    rows = _LINE // load.dtype.itemsize if side_by_side else max(1, _BLOCK // lanes)
    constants = tuple(constant for _, constant in tests)
    return _Plan(tuple(axes), source_start, target_start, constants, min(row.extent, rows), lanes)


def _rows_and_lanes(axes: list[_Axis]) -> list[_Axis]:
    """The axes so that the last one walks the target, and the one before the source, in order."""
    lane = min(axes[::-1], key=lambda axis: (axis.extent == 1, abs(axis.target)))
    rest = [axis for axis in axes if axis is not lane]
    if lane.source != 1:
        row = min(rest[::-1], key=lambda axis: abs(axis.source) != 1)
        rest = [*(axis for axis in rest if axis is not row), row]
    return [*rest, lane]


def _affine(index: Dim, axes: Iterable[Symbol]) -> tuple[tuple[int, ...], int] | None:
    """The stride of ``index`` along each axis, and its start; ``None``: it is not affine."""
    factors = []
    for axis in axes:
        parts = coefficient(index, axis)
        if parts is None or not isinstance(parts[0], int):
            return None
        factors.append(parts[0])
        index = parts[1]
    return (tuple(factors), index) if isinstance(index, int) else None


def _bits(number: Number) -> int:
    """A number as memory has it, in the low bytes."""
    data = np.array(number.value, number.dtype.numpy).tobytes()
    return int.from_bytes(data.ljust(8, b"\0"), "little", signed=True)
