"""Copies that the native core makes: against NumPy, and against the loops that they stand for."""

from __future__ import annotations

import ctypes
import itertools
import math

import numpy as np
import pytest

from ostinato.backends.cpu.compiler import KernelCompiler, builtin_kernel
from ostinato.cache.objects import ObjectCache
from ostinato.codegen.llvm.toolchain import TargetSpec
from ostinato.dtypes import ALL_DTYPES, BOOL, FLOAT32, INT64
from ostinato.ir.types import TensorType
from ostinato.lower.copying import Copying, copying
from ostinato.lower.loops import Apply, Arg, Guard, Load, LoopNest, Number, Stage, Store
from ostinato.lower.nests import symbols_of
from ostinato.lower.program import Call, LoweredBuffer, Role
from ostinato.variables import Variable, axis

KERNEL = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p
)
EXTENTS = (1, 2, 3, 5, 7, 8, 9, 13, 16, 17, 31, 64, 65, 100)
COPIED = [dtype for dtype in ALL_DTYPES if dtype != BOOL]


class Case:
    """A random copy: a nest, and for each position of the target what should be there."""

    def __init__(self, rng: np.random.Generator, dtype=FLOAT32) -> None:
        self.dtype = dtype
        count = int(rng.integers(1, 6))
        extents = [int(rng.choice(EXTENTS)) for _ in range(count)]
        while math.prod(extents) > 60_000:
            extents[int(np.argmax(extents))] //= 2
        self.axes = [axis(f"i{n}", extent) for n, extent in enumerate(extents)]
        self.grid = np.indices(extents, dtype=np.int64, sparse=True)
        self.symbols = symbols_of(self.axes)
        self._choose_target(rng, extents)
        self._choose_source(rng, extents)
        self._choose_guard(rng, extents)

    def _choose_target(self, rng, extents) -> None:
        """Each element once, now and then with room in between, and not always in order."""
        steps, size = [0] * len(extents), int(rng.integers(1, 3))
        order = list(range(len(extents)))[::-1]
        if rng.random() < 0.3:
            rng.shuffle(order)
        for n in order:
            steps[n] = size
            size *= extents[n] + int(rng.integers(0, 2))
        self.target_steps, self.target_start = steps, int(rng.integers(0, 3))

    def _choose_source(self, rng, extents) -> None:
        steps, size = [0] * len(extents), 1
        for n in rng.permutation(len(extents)):
            steps[n] = size * int(rng.choice([1, 1, 1, 2, -1, 0]))
            size *= extents[n]
        self.source_steps = steps

    def _choose_guard(self, rng, extents) -> None:
        """Conditions that cut off some of an axis, at either end, or along a diagonal."""
        self.tests = []
        for _ in range(int(rng.choice([0, 0, 1, 2, 3]))):
            factors = [0] * len(extents)
            n = int(rng.integers(len(extents)))
            factors[n] = int(rng.choice([-3, -2, -1, 1, 2]))
            if rng.random() < 0.3:
                factors[int(rng.integers(len(extents)))] += int(rng.choice([-1, 1]))
            reach = abs(factors[n]) * extents[n]
            self.tests.append((factors, int(rng.integers(-reach, reach + 1))))
        fill = rng.integers(0, 100) if rng.random() < 0.7 else 0
        self.fill = np.array(fill).astype(self.dtype.numpy)

    def _at(self, steps, of):
        return sum(step * i for step, i in zip(steps, of, strict=True))

    @property
    def shape(self):
        return tuple(a.size for a in self.grid)

    def call(self) -> Call:
        inside = self._inside()
        places = np.broadcast_to(self._at(self.source_steps, self.grid), self.shape)
        reached = places[inside]
        low, high = (int(reached.min()), int(reached.max())) if reached.size else (0, 0)
        self.source_start, self.source_size = -low, high - low + 1
        value = Load(0, self._at(self.source_steps, self.axes) + self.source_start, self.dtype)
        if self.tests:
            conditions = tuple(self._at(factors, self.axes) + c for factors, c in self.tests)
            number = Number(self.fill.item(), self.dtype)
            value = Guard(conditions, value, number, self.dtype)
        index = self._at(self.target_steps, self.axes) + self.target_start
        nest = LoopNest(
            (Arg(self.dtype), Arg(self.dtype, False, True)),
            self.symbols[:-1],
            (Stage((), (Store(1, index, value),)),),
            lane_axis=self.symbols[-1] if self.symbols else None,
            block=4096,
        )
        ends = [s * (e - 1) for s, e in zip(self.target_steps, self.shape, strict=True)]
        self.target_size = self.target_start + sum(ends) + 1
        return call_of(nest, self.dtype, self.source_size, self.target_size)

    def _inside(self):
        inside = np.ones(self.shape, bool)
        for factors, constant in self.tests:
            inside &= self._at(factors, self.grid) + constant >= 0
        return inside

    def expected(self, source, untouched):
        result = untouched.copy()
        inside = self._inside()
        where = np.broadcast_to(self._at(self.target_steps, self.grid), self.shape)
        where = where + self.target_start
        places = np.broadcast_to(self._at(self.source_steps, self.grid), self.shape)
        result[where[inside]] = source[places[inside] + self.source_start]
        result[where[~inside]] = self.fill
        return result


def call_of(nest, dtype, source=64, target=64) -> Call:
    buffers = [
        LoweredBuffer(TensorType(dtype, (size,)), Role.TEMP, name)
        for size, name in ((source, "source"), (target, "target"))
    ]
    return Call(nest, tuple(buffers), ("copied",), "pack")


def run(address: int, kernel, *arrays) -> None:
    buffers = (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays))
    extent = kernel.extent
    pieces = itertools.pairwise([0, extent // 3, extent // 2, extent])
    for begin, end in reversed(list(pieces)):
        KERNEL(address)(buffers, None, begin, end, None)


def copied(case: Case, rng: np.random.Generator, memory):
    """What the core's kernel makes of random bytes, and what it should have made."""
    call = case.call()
    ready = copying(call)
    source = memory((case.source_size,), case.dtype)
    source.view(np.uint8)[...] = rng.integers(0, 256, source.nbytes, np.uint8)
    target = memory((case.target_size,), case.dtype)
    untouched = target.copy()
    if isinstance(ready.kernel, Copying):
        code = builtin_kernel(ready.kernel)
        plan = memory(ready.buffers[2].data.shape, INT64)
        plan[...] = ready.buffers[2].data
        run(code.address, ready.kernel, source, target, plan)
    return call, ready, source, target, untouched


@pytest.mark.parametrize("seed", range(150))
def test_any_copy_is_numpys(memory, seed):
    rng = np.random.default_rng(seed)
    case = Case(rng, COPIED[seed % len(COPIED)])
    _, ready, source, target, untouched = copied(case, rng, memory)
    if isinstance(ready.kernel, Copying):
        expected = case.expected(source, untouched)
        assert target.tobytes() == expected.tobytes()


def test_most_copies_need_no_code():
    cases = [Case(np.random.default_rng(seed)) for seed in range(150)]
    ready = [isinstance(copying(case.call()).kernel, Copying) for case in cases]
    assert sum(ready) > 100


@pytest.mark.parametrize("seed", range(20))
def test_the_loops_do_the_same(memory, tmp_path, seed):
    rng = np.random.default_rng(1000 + seed)
    case = Case(rng)
    while not isinstance(copying(case.call()).kernel, Copying):
        case = Case(rng)
    call, _, source, target, _ = copied(case, rng, memory)
    again = memory((case.target_size,), case.dtype)
    compiler = KernelCompiler(TargetSpec.host(), ObjectCache(tmp_path))
    code = compiler.compile([call.kernel], (), ())
    run(code.kernel(call.kernel).address, call.kernel, source, again)
    assert target.tobytes() == again.tobytes()


@pytest.mark.parametrize("dtype", COPIED, ids=str)
@pytest.mark.parametrize("shape", [(1, 64), (17, 16), (64, 64), (67, 130), (300, 5000)])
def test_transposing(memory, dtype, shape):
    rows, columns = shape
    i, j = axis("i", columns), axis("j", rows)
    store = Store(1, i * rows + j, Load(0, j * columns + i, dtype))
    nest = LoopNest(
        (Arg(dtype), Arg(dtype, False, True)),
        symbols_of([i]),
        (Stage((), (store,)),),
        lane_axis=symbols_of([j])[0],
    )
    ready = copying(call_of(nest, dtype, rows * columns, rows * columns))
    if not isinstance(ready.kernel, Copying):
        assert min(rows, columns) < 8
        return
    source, target = memory((rows * columns,), dtype), memory((rows * columns,), dtype)
    rng = np.random.default_rng(0)
    source.view(np.uint8)[...] = rng.integers(0, 256, source.nbytes, np.uint8)
    run(builtin_kernel(ready.kernel).address, ready.kernel, source, target, ready.buffers[2].data)
    assert target.tobytes() == np.ascontiguousarray(source.reshape(shape).T).tobytes()


def nest_of(value, *, dtype=FLOAT32, extent=64, **changed):
    """A nest that stores ``value(i)`` at ``i``, with some of it changed."""
    i = axis("i", extent)
    (symbol,) = symbols_of([i])
    store = Store(1, i, value(i), **changed.pop("store", {}))
    fields = {
        "args": (Arg(dtype), Arg(dtype, False, True)),
        "axes": (),
        "stages": (Stage((), (store,)),),
        "lane_axis": symbol,
        **changed,
    }
    return LoopNest(**fields)


def loaded(i, dtype=FLOAT32):
    return Load(0, i, dtype)


NOT_COPIES = {
    "arithmetic": nest_of(lambda i: Apply("neg", (loaded(i),), FLOAT32)),
    "a number": nest_of(lambda i: Number(1.0, FLOAT32)),
    "sums": nest_of(loaded, store={"update": "add"}),
    "under a condition": nest_of(loaded, store={"conditions": (axis("i", 64) - 3,)}),
    "in order": nest_of(loaded, parallel=False),
    "in place": nest_of(loaded, args=(Arg(FLOAT32), Arg(FLOAT32, True, True))),
    "bools": nest_of(lambda i: loaded(i, BOOL), dtype=BOOL),
    "another type": nest_of(loaded, args=(Arg(FLOAT32), Arg(INT64, False, True))),
    "uneven": nest_of(lambda i: loaded(i // 3)),
    "symbolic": nest_of(loaded, extent=Variable("n", 1, 64)),
    "shifted by a variable": nest_of(lambda i: loaded(i + Variable("n", 1, 64))),
    "few lanes": LoopNest(
        (Arg(FLOAT32), Arg(FLOAT32, False, True)),
        symbols_of([axis("a", 64)]),
        (
            Stage(
                (), (Store(1, axis("a", 64) * 4 + axis("b", 4), Load(0, axis("a", 64), FLOAT32)),)
            ),
        ),
        lane_axis=symbols_of([axis("b", 4)])[0],
    ),
}


@pytest.mark.parametrize("name", NOT_COPIES)
def test_what_is_more_than_a_copy_is_left_alone(name):
    call = call_of(NOT_COPIES[name], FLOAT32)
    assert copying(call) is call
