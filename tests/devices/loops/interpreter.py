"""An interpreter of loop nests on NumPy, which computes all points of a block at once.

The axes of a nest are the axes of arrays. An index expression is an array of offsets, a load is an
indexed read, a reduction reduces the axes of its stage, and a store is an indexed write.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ostinato.conversion import convert, round_to
from ostinato.lower.loopir.nest import LoopNest
from ostinato.lower.loopir.nodes import (
    Apply,
    Binding,
    Guard,
    IndexValue,
    Load,
    Number,
    Reduce,
    Ref,
    Scalar,
    Scan,
    Stage,
    Statement,
    Store,
    extent_of,
)
from ostinato.ops import OPS
from ostinato.ops.namespace import ORACLE, as_oracle
from ostinato.variables import Dim, Maximum, Minimum, Quotient, Symbol

__all__ = ["run_nest"]

Array = np.ndarray[Any, Any]

#: Points that are computed at once, about, which bounds the memory of intermediate arrays.
_BLOCK = 1 << 20

_RUNNING = {
    "sum": ORACLE.cumsum,
    "prod": ORACLE.cumprod,
    "max": ORACLE.cummax,
    "min": ORACLE.cummin,
    "logsumexp": ORACLE.logcumsumexp,
}
_UPDATES = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}


def run_nest(nest: LoopNest, buffers: Sequence[Array], sizes: Mapping[Symbol, int]) -> None:
    """Run a nest on one-dimensional buffers.

    Args:
        nest: the kernel.
        buffers: one for each of its arguments.
        sizes: the values of the graph's Variables.
    """
    stages = [math.prod(_extents(stage.axes, sizes)) for stage in nest.stages]
    temps = [temp.elements for temp in nest.temps]
    points = _BLOCK // max(1, *stages, *temps)
    for block in _blocks(_extents(nest.outer_axes, sizes), points):
        _Block(nest, buffers, sizes, block).run()


def _index_values(dim: Dim, values: Mapping[Symbol, Any]) -> Any:
    """The value of ``dim``; an array where a symbol's value is one."""
    if isinstance(dim, int):
        return dim
    total: Any = dim.const
    for monomial, factor in dim.terms:
        term: Any = factor
        for atom in monomial:
            if isinstance(atom, Symbol):
                term = term * values[atom]
                continue
            left, right = _index_values(atom.left, values), _index_values(atom.right, values)
            match atom:
                case Quotient():
                    term = term * (left // right)
                case Minimum():
                    term = term * np.minimum(left, right)
                case Maximum():
                    term = term * np.maximum(left, right)
                case _:
                    term = term * (left % right)
        total = total + term
    return total


def _extents(axes: Sequence[Symbol], sizes: Mapping[Symbol, int]) -> list[int]:
    return [_index_values(extent_of(axis), sizes) for axis in axes]


def _blocks(extents: Sequence[int], points: int) -> Iterator[tuple[range, ...]]:
    """Boxes of about ``points`` points that cover all of them, in the order of the loops."""
    if not extents:
        yield ()
        return
    first, *rest = extents
    step = max(points // max(math.prod(rest), 1), 1)
    for start in range(0, first, step):
        for others in _blocks(rest, points // step):
            yield (range(start, min(start + step, first)), *others)


class _Block:
    """A box of outer points of a nest.

    Attributes:
        outer: by outer axis, the points.
        shape: points by axis, those of the current stage included.
        values: the values of Variables, axes and data symbols.
        results: by name, the reductions so far, an element for each outer point.
        known: the scalars of the current stage that have been computed.
        guards: the number of guards around the scalar that is computed.
    """

    def __init__(
        self,
        nest: LoopNest,
        buffers: Sequence[Array],
        sizes: Mapping[Symbol, int],
        outer: tuple[range, ...],
    ) -> None:
        self.nest = nest
        self.sizes = sizes
        self.outer = outer
        lengths = tuple(map(len, outer))
        numbers = np.arange(math.prod(lengths)).reshape(lengths)
        rows = [np.zeros(numbers.size * t.elements, t.dtype.numpy) for t in nest.temps]
        self.buffers = [*buffers, *rows]
        self.rows = [numbers * temp.elements for temp in nest.temps]
        self.results: dict[str, Array] = {}
        self.shape = lengths
        self.values: dict[Symbol, Any] = {}
        self.known: dict[Scalar, Any] = {}
        self.guards = 0

    def run(self) -> None:
        for stage in self.nest.stages:
            self._enter(stage)
            for statement in stage.statements:
                self._statement(statement)

    def _enter(self, stage: Stage) -> None:
        """Span the arrays of a stage: the outer axes, then its own."""
        ranges = [*self.outer, *map(range, _extents(stage.axes, self.sizes))]
        self.shape = tuple(map(len, ranges))
        self.values = dict(self.sizes)
        self.known = {}
        for position, axis in enumerate((*self.nest.outer_axes, *stage.axes)):
            line = [1] * len(ranges)
            line[position] = -1
            points = ranges[position]
            self.values[axis] = np.arange(points.start, points.stop).reshape(line)

    # -- statements --------------------------------------------------------------------------------

    def _statement(self, statement: Statement) -> None:
        match statement:
            case Store():
                self._bind(statement.bindings)
                self._store(statement)
            case Reduce():
                self.results[statement.name] = self._reduced(statement)
            case Scan():
                scanned = round_to(self._scanned(statement), statement.dtype)
                target = self.buffers[statement.buffer]
                index = self._everywhere(self._offset(statement.buffer, statement.index))
                target[index.ravel()] = scanned.astype(target.dtype).ravel()

    def _store(self, store: Store) -> None:
        target = self.buffers[store.buffer]
        value = self._everywhere(self._scalar(store.value)).ravel()
        index = self._everywhere(self._offset(store.buffer, store.index)).ravel()
        if store.conditions:
            inside = self._everywhere(self._hold(store.conditions)).ravel()
            value, index = value[inside], index[inside]
        _check(index, target)
        if store.update == "set":
            target[index] = value  # of several writes to one element the last one stays
        else:
            _UPDATES[store.update].at(target, index, value)

    def _reduced(self, reduce: Reduce) -> Array:
        value = as_oracle(self._by_row(self._scalar(reduce.value)))
        if reduce.op not in ("argmax", "argmin"):
            return round_to(getattr(ORACLE, reduce.op)(value, axis=-1), reduce.dtype)
        best: Array = getattr(ORACLE, reduce.op)(value, axis=-1, keepdims=True)
        if not value.shape[-1]:
            return best[..., 0]
        index = self._by_row(_index_values(reduce.index, self.values))
        return np.take_along_axis(index, best, axis=-1)[..., 0]

    def _scanned(self, scan: Scan) -> Array:
        value = as_oracle(self._everywhere(self._scalar(scan.value)))
        if len(self.shape) == len(self.outer):  # a single step has no axis
            value = value[..., None]
        result: Array = _RUNNING[scan.op](value, axis=-1)
        if scan.exclusive:
            start = np.full_like(result[..., :1], scan.neutral)
            result = np.concatenate([start, result[..., :-1]], axis=-1)
        return result.reshape(self.shape)

    def _everywhere(self, value: Any) -> Array:
        """``value`` with an element for each point."""
        return np.broadcast_to(value, self.shape)

    def _by_row(self, value: Any) -> Array:
        """``value`` with an axis for all points of the stage after the outer axes."""
        outer, inner = self.shape[: len(self.outer)], self.shape[len(self.outer) :]
        return self._everywhere(value).reshape(*outer, math.prod(inner))

    # -- indices -----------------------------------------------------------------------------------

    def _bind(self, bindings: Sequence[Binding]) -> None:
        for binding in bindings:
            self.values[binding.symbol] = self._scalar(binding.value)

    def _hold(self, conditions: Sequence[Dim]) -> Any:
        held: Any = True
        for condition in conditions:
            held = held & (_index_values(condition, self.values) >= 0)
        return held

    def _offset(self, buffer: int, index: Dim) -> Any:
        """The offsets of elements; those of a temp count from the row of their outer point."""
        offset = _index_values(index, self.values)
        temp = buffer - len(self.nest.args)
        return offset if temp < 0 else offset + self._of_outer(self.rows[temp])

    def _of_outer(self, values: Array) -> Array:
        """An element for each outer point, with the rank of the current stage."""
        return values.reshape(values.shape + (1,) * (len(self.shape) - len(self.outer)))

    # -- scalars -----------------------------------------------------------------------------------

    def _scalar(self, scalar: Scalar) -> Any:
        if scalar not in self.known:
            self.known[scalar] = self._computed(scalar)
        return self.known[scalar]

    def _computed(self, scalar: Scalar) -> Any:
        match scalar:
            case Number():
                return round_to(np.asarray(scalar.value), scalar.dtype)
            case Ref():
                return self._of_outer(self.results[scalar.name])
            case Load():
                self._bind(scalar.bindings)
                return self._loaded(scalar)
            case IndexValue():
                self._bind(scalar.bindings)
                return convert(_index_values(scalar.index, self.values), scalar.dtype)
            case Guard():
                self._bind(scalar.bindings)
                inside = self._hold(scalar.conditions)
                self.guards += 1
                body = self._scalar(scalar.body)
                self.guards -= 1
                return np.where(inside, body, self._scalar(scalar.otherwise))
            case Apply():
                operands = [as_oracle(self._scalar(operand)) for operand in scalar.operands]
                result = OPS[scalar.op].evaluate(ORACLE, *operands, **dict(scalar.attrs))
                return round_to(result, scalar.dtype)
        raise AssertionError(f"{scalar} is no scalar of a loop nest")

    def _loaded(self, load: Load) -> Array:
        """The elements; arbitrary ones for addresses outside that a guard masks off."""
        buffer = self.buffers[load.buffer]
        index = np.asarray(self._offset(load.buffer, load.index))
        if 0 in self.shape:  # no point loads anything
            index = self._everywhere(index)
        if not self.guards:
            _check(index, buffer)
        elif buffer.size == 0:
            return np.zeros(index.shape, buffer.dtype)
        else:
            index = np.clip(index, 0, buffer.size - 1)
        found: Array = buffer[index]
        return found


def _check(index: Array, buffer: Array) -> None:
    """Refuse offsets outside of the buffer."""
    if index.size and not 0 <= index.min() <= index.max() < buffer.size:
        raise IndexError(
            f"offsets {index.min()} to {index.max()} of a buffer of {buffer.size} elements"
        )
