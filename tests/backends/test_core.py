"""The native core on one Python thread: memory, binding, variables, lifetime, and every refusal."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import tracemalloc
import weakref
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from ostinato.backends.cpu import _core

LENGTH = 16
NBYTES = 8 * LENGTH


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def arrays(count: int) -> list[np.ndarray]:
    return [np.arange(LENGTH, dtype=np.int64) + 100 * i for i in range(count)]


@pytest.fixture
def pool():
    return _core.ThreadPool(1)


@pytest.fixture
def adder(pool, kernels):
    """external 0 = external 1 + external 2 + vars[0], for the first vars[0] rows."""
    step = (kernels.add, ((0, 0), (1, 0), (2, 0)), 0, kernels.first_variable, 4, 0)
    size = kernels.eight_bytes_each
    slots = [(NBYTES, True, size), (NBYTES, False, size), (NBYTES, False, size)]
    return _core.Program(pool, slots, [step], 1)


# ---- Arena -----------------------------------------------------------------------------------


@pytest.mark.parametrize("nbytes", [0, 1, 4095, 4096, 100_000, (2 << 20) - 1, 2 << 20, 5_000_001])
@pytest.mark.parametrize("huge_pages", [True, False])
def test_arena_is_zeroed_aligned_writable_memory(nbytes, huge_pages):
    arena = _core.Arena(nbytes, huge_pages=huge_pages)
    assert arena.nbytes == nbytes
    assert arena.address % 4096 == 0
    assert arena.address > 0
    if huge_pages and nbytes >= 2 << 20:
        assert arena.address % (2 << 20) == 0
    view = np.frombuffer(arena, dtype=np.uint8) if nbytes else np.empty(0, np.uint8)
    assert not view.any()
    view[:] = 255
    assert bytes(memoryview(arena)) == b"\xff" * nbytes


def test_arena_outlives_its_name_while_viewed():
    arena = _core.Arena(1 << 20)
    view = np.frombuffer(arena, dtype=np.uint8)
    del arena
    gc.collect()
    view[:] = 7
    assert view.sum() == 7 << 20


@pytest.mark.parametrize(
    ("args", "error", "message"),
    [
        ((-1,), ValueError, "nbytes is -1"),
        ((sys.maxsize,), MemoryError, "arena"),
        ((1 << 62,), MemoryError, "arena"),
        ((1 << 80,), OverflowError, None),
        (("x",), TypeError, None),
        ((), TypeError, "nbytes"),
    ],
)
def test_arena_refuses(args, error, message):
    with pytest.raises(error, match=message):
        _core.Arena(*args)


@pytest.mark.parametrize("nbytes", [0, 1, 4097, (2 << 20) - 1, 2 << 20, (4 << 20) + 4097])
@pytest.mark.parametrize("shared", [True, False])
def test_arena_of_a_file_starts_where_huge_pages_do(tmp_path, nbytes, shared):
    path = tmp_path / "file"
    contents = np.random.default_rng(nbytes).integers(0, 256, nbytes + 5, np.uint8).tobytes()
    path.write_bytes(contents)
    with path.open("r+b") as file:
        arena = _core.Arena.map_file(file.fileno(), nbytes, shared=shared)
    assert arena.nbytes == nbytes
    assert arena.address % (2 << 20 if nbytes >= 2 << 20 else 4096) == 0
    assert bytes(memoryview(arena)) == contents[:nbytes]
    if nbytes:
        np.frombuffer(arena, np.uint8)[-1] ^= 1
    last = bytes([contents[nbytes - 1] ^ 1]) if nbytes and shared else contents[nbytes - 1 : nbytes]
    assert path.read_bytes() == contents[: nbytes - 1] + last + contents[nbytes:] or not nbytes


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="Linux lists what is mapped")
@pytest.mark.parametrize("nbytes", [1, 4 << 20])
def test_a_file_that_can_not_be_mapped_leaves_no_memory(tmp_path, nbytes):
    path, maps = tmp_path / "file", Path("/proc/self/maps")
    path.write_bytes(bytes(nbytes))
    descriptor = os.open(path, os.O_WRONLY)
    try:
        with pytest.raises(PermissionError):
            _core.Arena.map_file(descriptor, nbytes)
        before = maps.read_text().count("\n")
        for _ in range(20):
            with pytest.raises(PermissionError):
                _core.Arena.map_file(descriptor, nbytes)
        assert maps.read_text().count("\n") < before + 20
    finally:
        os.close(descriptor)


# ---- running ---------------------------------------------------------------------------------


def test_run_follows_the_arrays_and_variables_of_each_call(adder):
    out, a, b = arrays(3)
    adder.run([out, a, b], [LENGTH])
    assert (out == a + b + LENGTH).all()

    other = np.zeros_like(out)
    adder.run((other, a, a))  # another array, a tuple, and the variables of last time
    assert (other == 2 * a + LENGTH).all()

    adder.run(buffers=[out, a, b], vars=(3,))
    assert (out[:3] == (a + b + 3)[:3]).all()
    assert (out[3:] == (a + b + LENGTH)[3:]).all()

    adder.set_vars([0])  # an extent of 0 runs nothing
    before = out.copy()
    adder.run([out, a, b])
    assert (out == before).all()


def test_fixed_memory_offsets_and_order_of_steps(pool):
    arena = _core.Arena(64)
    source = ints(11, 22)
    steps = [
        (_core.memcpy_kernel, ((0, 8), (1, 8)), 8, 0, 1, 0),  # arena[8:16] = source[1]
        (_core.memcpy_kernel, ((0, 32), (0, 8)), 8, 0, 1, 0),  # arena[32:40] = arena[8:16]
        (_core.memcpy_kernel, ((2, 0), (0, 32)), 8, 0, 1, 0),  # external = arena[32:40]
    ]
    program = _core.Program(pool, [arena, source, (8, True)], steps, 0)
    assert (program.n_steps, program.n_externals, program.n_vars) == (3, 1, 0)
    out = ints(0)
    program.run([out])
    assert out[0] == 22
    source[1] = 33
    program.run([out])
    assert out[0] == 33


def test_program_without_steps_or_slots(pool):
    program = _core.Program(pool, [], [], 0)
    program.run()
    program.run([], [])
    program.run((), None)
    program.bind()()
    assert program.run_profiled() == []


def test_empty_memory_may_be_pointed_into(pool, kernels):
    empty = np.empty(0, np.int64)
    steps = [(kernels.nothing, ((0, 0), (1, 0), (2, 0)), 1, 0, 1, 0)]
    program = _core.Program(pool, [empty, b"", (0, True)], steps, 0)
    program.run([np.empty((0, 3))])


def test_any_exporter_is_a_buffer(adder):
    out = np.zeros(LENGTH, np.int64)
    a = _core.Arena(NBYTES)
    adder.run([out, a, b"\x01" + bytes(NBYTES - 1)], [4])
    assert out[:4].tolist() == [5, 4, 4, 4]
    adder.run([memoryview(out).cast("B"), bytearray(NBYTES), a], [2])
    assert out[:4].tolist() == [2, 2, 4, 4]


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, np.float16, bool])
def test_element_types_unknown_to_the_buffer_protocol(pool, dtype):
    source = np.arange(8).astype(dtype)
    out = np.zeros_like(source)
    slots = [(source.nbytes, True), (source.nbytes, False)]
    step = (_core.memcpy_kernel, ((0, 0), (1, 0)), source.nbytes, 0, 1, 0)
    _core.Program(pool, slots, [step], 0).run([out, source])
    assert (out == source).all()


def test_profile_has_one_time_per_step(pool, kernels):
    steps = [(kernels.dawdle, (), 20, 0, 1, 0), (kernels.nothing, (), 1, 0, 1, 0)]
    slow, fast = _core.Program(pool, [], steps, 0).run_profiled()
    assert slow > fast >= 0.0


@pytest.fixture
def limited(pool, kernels):
    """The adder, with a slot of 8 bytes for limits that kernels read; and that memory."""
    memory = ints(0)
    step = (kernels.add, ((1, 0), (2, 0), (3, 0)), 0, kernels.first_variable, 4, 0)
    size = kernels.eight_bytes_each
    slots = [memory, (NBYTES, True, size), (NBYTES, False, size), (NBYTES, False, size)]
    return _core.Program(pool, slots, [step], 1, limit_slot=0), memory


def limits(*values: int) -> bytes:
    return ints(*values).tobytes()


def rows_run(call, out, a, b) -> int:
    """The number of rows, of three, that a call computes."""
    out[:] = -1
    call()
    count = int((out != -1).sum())
    assert (out[:count] == (a + b + 3)[:count]).all()
    return count


def test_limits_cut_steps_and_come_with_what_kernels_read(limited):
    program, memory = limited
    out, a, b = arrays(3)
    program.set_vars([3])
    call = program.bind([out, a, b])
    program.set_limits(limits(2, 7))
    assert rows_run(lambda: program.run([out, a, b], [3]), out, a, b) == 2
    assert memory == [7]
    assert rows_run(call, out, a, b) == 2
    program.set_limits(limits(2**63 - 1, 0))
    assert rows_run(call, out, a, b) == 3
    program.set_limits(limits(0, 5))
    assert rows_run(call, out, a, b) == 0
    assert memory == [5]
    program.set_limits(None)
    assert rows_run(call, out, a, b) == 3
    assert memory == [0]


def test_limits_of_a_thread_hold_for_its_runs_alone(limited):
    program, memory = limited
    out, a, b = arrays(3)
    program.set_vars([3])
    call = program.bind([out, a, b])
    program.set_limits(limits(1, 10))
    program.push_limits(limits(2, 20))
    assert rows_run(call, out, a, b) == 2
    program.push_limits(None)
    assert rows_run(call, out, a, b) == 3
    counts = []
    thread = threading.Thread(target=lambda: counts.append((rows_run(call, out, a, b), memory[0])))
    thread.start()
    thread.join()
    assert counts == [(1, 10)]
    program.pop_limits()
    assert (rows_run(call, out, a, b), memory[0]) == (2, 20)
    program.pop_limits()
    assert (rows_run(call, out, a, b), memory[0]) == (1, 10)
    with pytest.raises(RuntimeError, match="no limits"):
        program.pop_limits()


@pytest.mark.parametrize("method", ["set_limits", "push_limits"])
@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (limits(-1, 5), ValueError, "step 0: the limit is negative"),
        (b"", ValueError, "limits have 0 bytes, but 16 are needed"),
        (limits(1, 1, 1), ValueError, "limits have 24 bytes"),
        (7, TypeError, "bytes"),
    ],
)
def test_bad_limits_change_nothing(limited, method, wrong, error, message):
    program, memory = limited
    out, a, b = arrays(3)
    with pytest.raises(error, match=message):
        getattr(program, method)(wrong)
    assert memory == [0]
    program.run([out, a, b], [LENGTH])
    assert (out == a + b + LENGTH).all()


def test_programs_without_a_slot_for_limits_take_none(adder, pool):
    with pytest.raises(ValueError, match="limit_slot"):
        adder.set_limits(limits(1))
    with pytest.raises(IndexError, match="no fixed slot 4"):
        _core.Program(pool, [], [], 0, limit_slot=4)


def test_bound_call_follows_the_program_unless_bound_with_variables(adder):
    out, a, b = arrays(3)
    following = adder.bind([out, a, b])
    fixed = adder.bind([out, a, b], [2])
    adder.set_vars([LENGTH])
    assert following() is None
    assert (out == a + b + LENGTH).all()
    fixed()
    assert (out[:2] == (a + b + 2)[:2]).all()
    assert (out[2:] == (a + b + LENGTH)[2:]).all()
    following()
    assert (out == a + b + LENGTH).all()


def test_two_bound_calls_of_one_program_keep_their_arrays_apart(adder):
    adder.set_vars([LENGTH])
    first, second, a, b = arrays(4)
    calls = [adder.bind([first, a, b]), adder.bind([second, b, b])]
    for _ in range(3):
        for call in calls:
            call()
    assert (first == a + b + LENGTH).all()
    assert (second == 2 * b + LENGTH).all()


# ---- refusals: a run that is refused has run nothing and changed nothing -----------------------


def strided() -> np.ndarray:
    return np.zeros(2 * LENGTH, np.int64)[::2]


def read_only() -> np.ndarray:
    array = np.zeros(LENGTH, np.int64)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("position", "bad", "error", "message"),
    [
        (1, strided(), ValueError, "slot 1: the buffer must be C-contiguous"),
        (0, strided(), ValueError, "slot 0: the buffer must be C-contiguous and writable"),
        (2, np.asfortranarray(np.zeros((4, 4), np.int64)), ValueError, "slot 2: .*C-contiguous"),
        (0, read_only(), ValueError, "slot 0: .*writable"),
        (0, bytes(NBYTES), ValueError, "slot 0: .*writable"),
        (2, np.zeros(LENGTH - 1, np.int64), ValueError, "slot 2: .*120 bytes, but 128 are needed"),
        (1, [1, 2, 3], TypeError, "slot 1: <class 'list'> is no buffer"),
        (1, None, TypeError, "slot 1: <class 'NoneType'> is no buffer"),
    ],
)
@pytest.mark.parametrize("method", ["run", "run_profiled", "bind"])
def test_bad_buffers(adder, method, position, bad, error, message):
    buffers = arrays(3)
    buffers[position] = bad
    adder.set_vars([1])
    before = [np.array(b) for b in buffers if isinstance(b, np.ndarray)]
    with pytest.raises(error, match=message):
        getattr(adder, method)(buffers, [LENGTH])
    after = [b for b in buffers if isinstance(b, np.ndarray)]
    assert all((x == y).all() for x, y in zip(before, after, strict=True))
    out, a, b = arrays(3)
    adder.run([out, a, b])
    assert out[1] == 1, "the variables of a refused call were kept"


@pytest.mark.parametrize(
    ("args", "error", "message"),
    [
        (([],), ValueError, "3 external slots, but 0 buffers"),
        ((), ValueError, "3 external slots, but 0 buffers"),
        ((arrays(4),), ValueError, "3 external slots, but 4 buffers"),
        ((5,), TypeError, None),
        ((arrays(3), [1, 2]), ValueError, "1 variables, but 2 values"),
        ((arrays(3), []), ValueError, "1 variables, but 0 values"),
        ((arrays(3), ["x"]), TypeError, "variable 0: value must be an int"),
        ((arrays(3), [1.5]), TypeError, "variable 0: value must be an int"),
        ((arrays(3), [1 << 63]), ValueError, "variable 0: value is 9223372036854775808"),
        ((arrays(3), 7), TypeError, None),
        ((1, 2, 3), TypeError, "at most 2"),
    ],
)
def test_bad_calls(adder, args, error, message):
    for method in (adder.run, adder.run_profiled, adder.bind):
        with pytest.raises(error, match=message):
            method(*args)


def test_bad_keywords_and_bad_calls_of_a_bound_call(adder):
    with pytest.raises(TypeError, match="'colour'"):
        adder.run(arrays(3), colour=1)
    with pytest.raises(TypeError, match="'buffers'"):
        adder.run(arrays(3), buffers=arrays(3))
    bound = adder.bind(arrays(3))
    with pytest.raises(TypeError, match="no arguments"):
        bound(1)
    with pytest.raises(TypeError, match="no arguments"):
        bound(x=1)
    with pytest.raises(TypeError):
        _core.BoundCall()
    with pytest.raises(ValueError, match="2 values"):
        adder.set_vars([1, 2])


def test_sizes_that_depend_on_variables(adder):
    few = [np.zeros(4, np.int64) for _ in range(3)]
    adder.run(few, [4])
    with pytest.raises(ValueError, match="32 bytes, but 40 are needed"):
        adder.run(few, [5])
    adder.run(few)  # the refused call left the 4 in place
    adder.bind(few, [4])()
    with pytest.raises(ValueError, match="32 bytes, but 128 are needed"):
        adder.bind(few)  # follows the variables, so it needs room for the most


@pytest.mark.parametrize("method", ["run", "run_profiled", "bind"])
def test_written_memory_may_overlap_no_other(adder, method):
    memory = np.zeros(3 * LENGTH, np.int64)
    other = np.zeros(LENGTH, np.int64)
    call = getattr(adder, method)
    for start in (LENGTH, 1, 2 * LENGTH - 1):
        near, out = memory[start : start + LENGTH], memory[LENGTH : 2 * LENGTH]
        with pytest.raises(ValueError, match="slot 0: the buffer overlaps that of slot 2"):
            call([out, other, near], [LENGTH])
        with pytest.raises(ValueError, match="slot 0: the buffer overlaps that of slot 1"):
            call([out, near, other], [LENGTH])
        call([other, near, out], [LENGTH])  # what is only read may overlap
    call([memory[LENGTH : 2 * LENGTH], memory[:LENGTH], memory[2 * LENGTH :]], [LENGTH])
    empty = memory[LENGTH + 1 : LENGTH + 1]
    call([memory[:LENGTH], empty, empty], [0])
    call([empty, memory, memory], [0])


def test_buffers_are_released_after_success_and_failure(adder):
    out = bytearray(NBYTES)
    adder.run([out, *arrays(2)], [1])
    with pytest.raises(ValueError, match="slot 2"):
        adder.run([out, arrays(1)[0], b"short"], [1])
    out.append(0)  # a bytearray that is still exported refuses to grow


def test_hostile_sequences(adder):
    class Shrinking:
        """Claims three items and has none."""

        def __len__(self):
            return 3

        def __getitem__(self, index):
            raise IndexError(index)

    with pytest.raises(IndexError):
        adder.run(Shrinking())
    with pytest.raises(IndexError):
        adder.bind(Shrinking())

    class Nosy:
        """Runs the program while the program is reading its variables."""

        def __index__(self):
            adder.run(arrays(3), [2])
            return 3

    out, a, b = arrays(3)
    adder.run([out, a, b], [Nosy()])
    assert out[2] == a[2] + b[2] + 3


GOOD = {
    "kernel_address": _core.memcpy_kernel,
    "args": ((0, 0), (1, 0)),
    "extent": 8,
    "extent_address": 0,
    "grain": 1,
    "scratch_bytes": 0,
}


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"kernel_address": 0}, ValueError, "step 1: kernel_address is 0"),
        ({"kernel_address": None}, TypeError, "step 1: kernel_address must be an int"),
        ({"kernel_address": -1}, ValueError, "step 1: kernel_address is -1"),
        ({"args": 3}, TypeError, "step 1: args must be a sequence"),
        ({"args": ((0, 0), 5)}, TypeError, "step 1: an argument must be a sequence"),
        ({"args": ((0, 0), (1,))}, ValueError, r"step 1: argument 1 must be \(slot, byte_offset\)"),
        ({"args": ((0, 0), (2, 0))}, IndexError, "step 1: argument 1 is in slot 2.* has 2 slots"),
        ({"args": ((-1, 0),)}, IndexError, "step 1: argument 0 is in slot -1"),
        ({"args": ((0, 0), (1, 9))}, ValueError, "step 1: argument 1 starts at byte 9.* 8 bytes"),
        ({"args": ((0, 17),)}, ValueError, "step 1: argument 0 starts at byte 17.* 16 bytes"),
        ({"args": ((0, -1),)}, ValueError, "step 1: argument 0 starts at byte -1"),
        ({"args": ((0, "a"),)}, TypeError, "step 1: the offset of an argument must be an int"),
        ({"extent": -1}, ValueError, "step 1: extent is -1"),
        ({"extent": 1 << 64}, ValueError, "step 1: extent is 18446744073709551616"),
        ({"extent_address": -8}, ValueError, "step 1: extent_address is -8"),
        ({"grain": 0}, ValueError, r"step 1: grain is 0, but must lie in 1\.\."),
        ({"grain": 2.5}, TypeError, "step 1: grain must be an int, not <class 'float'>"),
        ({"scratch_bytes": -1}, ValueError, "step 1: scratch_bytes is -1"),
        ({"scratch_bytes": 1 << 62}, MemoryError, None),
    ],
)
def test_bad_steps(pool, changes, error, message):
    slots = [_core.Arena(16), (8, False)]
    good = tuple(GOOD.values())
    bad = tuple((GOOD | changes).values())
    _core.Program(pool, slots, [good, good], 0)
    with pytest.raises(error, match=message):
        _core.Program(pool, slots, [good, bad], 0)


@pytest.mark.parametrize(
    ("slots", "steps", "n_vars", "error", "message"),
    [
        ([3], [], 0, TypeError, "slot 0 must be a buffer, or .* not <class 'int'>"),
        ([None], [], 0, TypeError, "slot 0 must be a buffer"),
        ([(1,)], [], 0, ValueError, "slot 0: an external slot is"),
        ([(1, True, 0, 0)], [], 0, ValueError, "slot 0: an external slot is"),
        ([(-1, True)], [], 0, ValueError, "slot 0: nbytes is -1"),
        ([("8", True)], [], 0, TypeError, "slot 0: nbytes must be an int"),
        ([(8, True, -1)], [], 0, ValueError, "slot 0: nbytes_address is -1"),
        ([b"", strided()], [], 0, ValueError, "slot 1: the buffer must be C-contiguous"),
        (None, [], 0, TypeError, None),
        ([], None, 0, TypeError, None),
        ([], [5], 0, TypeError, "step 0: its description must be a sequence"),
        ([], [(1, 2)], 0, ValueError, "step 0 has 2 items"),
        ([], [], -1, ValueError, "n_vars is -1"),
        ([], [], _core.MAX_VARS + 1, ValueError, f"n_vars is {_core.MAX_VARS + 1}"),
    ],
)
def test_bad_programs(pool, slots, steps, n_vars, error, message):
    with pytest.raises(error, match=message):
        _core.Program(pool, slots, steps, n_vars)


def test_program_refuses_what_is_no_pool():
    with pytest.raises(TypeError, match="pool must be a ThreadPool"):
        _core.Program(object(), [], [], 0)


def test_program_takes_exclusive_with_programs_only(pool):
    with pytest.raises(TypeError, match="exclusive_with must be a Program"):
        _core.Program(pool, [], [], 0, exclusive_with=pool)
    _core.Program(pool, [], [], 0, exclusive_with=None).run()


# ---- lifetime --------------------------------------------------------------------------------


class Tracked(np.ndarray):
    """An array whose end a weak reference can see."""


def tracked() -> Tracked:
    return np.arange(LENGTH, dtype=np.int64).view(Tracked)


def test_program_keeps_its_memory_pool_and_owner(kernels):
    arena, owner = _core.Arena(NBYTES), tracked()
    fixed = tracked()
    ends = [weakref.ref(owner), weakref.ref(fixed)]
    step = (_core.memcpy_kernel, ((0, 0), (1, 0)), NBYTES, 0, 1, 0)
    copy_out = (_core.memcpy_kernel, ((2, 0), (0, 0)), NBYTES, 0, 1, 0)
    program = _core.Program(
        _core.ThreadPool(2), [arena, fixed, (NBYTES, True)], [step, copy_out], 0, owner=owner
    )
    del arena, fixed, owner
    gc.collect()
    assert all(end() is not None for end in ends)
    out = np.zeros(LENGTH, np.int64)
    program.run([out])
    assert (out == np.arange(LENGTH)).all()
    del program
    assert all(end() is None for end in ends)


def test_bound_call_keeps_program_and_arrays(adder):
    array = tracked()
    end = weakref.ref(array)
    out = np.zeros(LENGTH, np.int64)
    call = adder.bind([out, array, array], [LENGTH])
    del array, adder
    gc.collect()
    call()
    assert (out == 2 * np.arange(LENGTH) + LENGTH).all()
    del call
    gc.collect()
    assert end() is None


def test_memory_in_use_can_not_move(pool, kernels):
    fixed, external = bytearray(8), bytearray(8)
    step = (_core.memcpy_kernel, ((1, 0), (0, 0)), 8, 0, 1, 0)
    program = _core.Program(pool, [fixed, (8, True)], [step], 0)
    call = program.bind([external])
    for array in (fixed, external):
        with pytest.raises(BufferError):
            array.append(0)
    call()
    del call
    external.append(0)
    del program
    fixed.append(0)


def test_cycles_are_collected_and_finalizers_may_not_run_what_is_gone(pool, kernels):
    seen = []

    class Finalized(np.ndarray):
        def __del__(self):
            if hasattr(self, "call"):
                try:
                    self.call()
                except RuntimeError as error:
                    seen.append(str(error))
                else:
                    seen.append("ran")

    for _ in range(2):
        fixed = np.zeros(1).view(Finalized)
        program = _core.Program(
            pool, [fixed, (8, True)], [(kernels.nothing, ((0, 0), (1, 0)), 1, 0, 1, 0)], 0
        )
        external = np.zeros(1).view(Finalized)
        fixed.call = external.call = program.bind([external])
        end = weakref.ref(fixed)
        del fixed, external, program
        gc.collect()
        assert end() is None
    assert len(seen) == 4


@pytest.mark.skipif("asan" in os.environ.get("LD_PRELOAD", ""), reason="asan delays every free")
def test_runs_do_not_grow_the_process(adder):
    def resident_pages() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1])

    if not Path("/proc/self/statm").exists():
        pytest.skip("needs /proc")
    buffers = arrays(3)
    call = adder.bind(buffers, [LENGTH])
    tracemalloc.start()
    try:
        for _ in range(100):
            call()
            adder.run(buffers, [LENGTH])
        traced, resident = tracemalloc.get_traced_memory()[0], resident_pages()
        for _ in range(10_000):
            call()
            adder.run(buffers, [LENGTH])
        assert tracemalloc.get_traced_memory()[0] - traced < 1000
        assert resident_pages() - resident < 64  # one lost malloc per run would take 150
    finally:
        tracemalloc.stop()


COUNT_ALLOCATIONS = """
import ctypes, itertools, sys
from ostinato.backends.cpu import _core

kernels = ctypes.CDLL(sys.argv[1])
add = ctypes.cast(kernels.add, ctypes.c_void_p).value
allocations = ctypes.CDLL(None).allocations
out, a, b = (_core.Arena(512) for _ in range(3))
step = (add, ((0, 0), (1, 0), (2, 0)), 64, 0, 1, 0)
program = _core.Program(_core.ThreadPool(2), [(512, True), (512, False), (512, False)], [step], 1)
bound, buffers, variables = program.bind([out, a, b]), [out, a, b], [0]

def count(call, *args):
    call(*args)
    before = allocations()
    for _ in itertools.repeat(None, 1000):
        call(*args)
    return allocations() - before

print(count(callable, None), count(bound), count(program.run, buffers, variables))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="replaces glibc's malloc")
@pytest.mark.skipif("asan" in os.environ.get("LD_PRELOAD", ""), reason="asan replaces malloc too")
def test_a_run_allocates_nothing(kernels, shared_library):
    """Counts every malloc of the process, Python's own objects included (PYTHONMALLOC).

    Arenas, not arrays: NumPy allocates for each buffer it exports, which ``bind`` does once and
    ``run`` every time.
    """
    counter = shared_library("malloc_counter.c")
    environment = os.environ | {"LD_PRELOAD": str(counter), "PYTHONMALLOC": "malloc"}
    done = subprocess.run(
        [sys.executable, "-c", COUNT_ALLOCATIONS, str(kernels.path)],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    baseline, bound, run = map(int, done.stdout.split())
    assert max(bound, run) < baseline + 10  # of 1000 runs: the counting itself takes a few
