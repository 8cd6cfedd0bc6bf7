"""The emulator of CUDA kernels: right kernels compute, wrong ones are named with their fault."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.devices.cuda_emulation.emulator import EmulationError, Memory, load_kernels
from tests.devices.cuda_emulation.toolchain import COMPILER, CompileError

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs gcc and g++")

Array = np.ndarray[Any, Any]

SUMS = """
extern "C" __global__ void row_sums(float* y, const float* x, const long long* vars) {
    __shared__ float parts[8];
    const long long n = vars[0];
    for (long long row = blockIdx.x; row < vars[1]; row += gridDim.x) {
        float sum = 0;
        for (long long i = threadIdx.x; i < n; i += blockDim.x) sum += x[row * n + i];
        for (int step = 16; step; step >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, step);
        if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
        __syncthreads();
        if (threadIdx.x == 0) {
            for (int i = 1; i < blockDim.x / 32; i++) sum += parts[i];
            y[row] = sum;
        }
        BARRIER
    }
}
"""

#: In one object, so that the compiler runs once.
BODIES = {
    "reads_beyond": "y[0] = x[vars[0]];",
    "writes_beyond": "y[threadIdx.x] = 1;",
    "writes_what_is_read_only": "((float*)x)[threadIdx.x] = 1;",
    "reads_what_is_unset": "if (threadIdx.x == 0) y[0] = y[0] + 1;",
    "races_on_memory": "y[threadIdx.x / 2] = x[0];",
    "races_on_shared": "__shared__ float s[64]; s[threadIdx.x] = 1; __syncthreads(); "
    "y[threadIdx.x] = s[63 - threadIdx.x]; s[threadIdx.x] = 2;",
    "races_on_a_part": "__shared__ int4 s[1]; const int4 all = make_int4(1, 2, 3, 4); "
    "if (threadIdx.x == 0) s[0] = all; if (threadIdx.x == 1) y[0] = ((short*)s)[5];",
    "races_on_a_whole": "__shared__ int4 s[1]; if (threadIdx.x < 8) ((short*)s)[threadIdx.x] = 3; "
    "__syncthreads(); if (threadIdx.x == 0) ((short*)s)[5] = 4; "
    "const int4 all = s[0]; if (threadIdx.x == 1) y[0] = all.x;",
    "accesses_parts": """
        __shared__ int4 s[64];
        const int other = 63 - threadIdx.x;
        const int4 own = make_int4(threadIdx.x, 2, 3, 4);
        s[threadIdx.x] = own;
        __syncthreads();
        ((int*)s)[4 * other + 1] += ((int*)s)[4 * other];
        ((short*)s)[8 * other + 6] = 5;
        __syncthreads();
        const int4 found = s[threadIdx.x];
        if (threadIdx.x < 60) y[threadIdx.x] = found.x + found.y + found.z + found.w;""",
    "reads_unset_shared": "__shared__ float s[64]; y[threadIdx.x] = s[threadIdx.x];",
    "diverges": "if (threadIdx.x < 32) __syncthreads();",
    "shuffles_alone": "if (threadIdx.x < 3) y[threadIdx.x] = __shfl_sync(~0u, 1.0f, 0);",
    "is_misaligned": "y[threadIdx.x] = *(const float*)((const char*)x + 2);",
    "divides_by_zero": "y[threadIdx.x] = int(vars[0]) / int(vars[1] - 64);",
    "depends_on_order": "atomicAdd((int*)y, threadIdx.x); if (threadIdx.x == 0) ((int*)y)[1] = "
    "atomicAdd((int*)y, 0);",
    "publishes": """
        if (threadIdx.x == 0) y[blockIdx.x] = x[blockIdx.x];
        __threadfence();
        if (threadIdx.x == 0 && atomicAdd((int*)y + 60, 1) == gridDim.x - 1) {
            float sum = 0;
            for (int i = 0; i < gridDim.x; i++) sum += y[i];
            y[61] = sum;
        }""",
    "reads_unpublished": """
        if (threadIdx.x == 0) y[blockIdx.x] = x[blockIdx.x] + (blockIdx.x ? y[0] : 0);""",
    "votes": """
        unsigned odd = __ballot_sync(~0u, threadIdx.x & 1);
        bool any = __any_sync(~0u, threadIdx.x == 7), all = __all_sync(~0u, threadIdx.x < 32);
        int up = __shfl_up_sync(~0u, int(threadIdx.x), 2, 8);
        double down = __shfl_down_sync(~0u, double(threadIdx.x), 1);
        y[threadIdx.x] = (odd == 0xaaaaaaaau) + 2 * any + 4 * all + 8 * up + 1000 * float(down);""",
    "passes_a_flag": """
        unsigned* const flags = (unsigned*)y + 32;
        __shared__ float own;
        if (threadIdx.x == 1) y[blockIdx.x] = own = x[blockIdx.x];
        __syncthreads();
        if (threadIdx.x == 0) {
            __atomic_fetch_add(flags, 1u, __ATOMIC_RELEASE);
            while (__atomic_load_n(flags, __ATOMIC_ACQUIRE) < gridDim.x) __nanosleep(0);
            y[8 + blockIdx.x] = own + 10 * y[(blockIdx.x + 1) % gridDim.x];
        }""",
    "passes_a_value": """
        int* const to = (int*)y + blockIdx.x, *const from = (int*)y + (blockIdx.x + 1) % gridDim.x;
        if (threadIdx.x == 0) {
            __atomic_store_n(to, int(x[blockIdx.x]) + 1, __ATOMIC_RELAXED);
            while (__atomic_load_n(from, __ATOMIC_RELAXED) == 0) __nanosleep(0);
            y[8 + blockIdx.x] = *from;
        }""",
    "passes_nothing_along": """
        unsigned* const flags = (unsigned*)y + 32;
        if (threadIdx.x == 1) y[blockIdx.x] = x[blockIdx.x];
        __syncthreads();
        if (threadIdx.x == 0) {
            __atomic_fetch_add(flags, 1u, __ATOMIC_RELAXED);
            while (__atomic_load_n(flags, __ATOMIC_RELAXED) < gridDim.x) __nanosleep(0);
            y[8 + blockIdx.x] = y[(blockIdx.x + 1) % gridDim.x];
        }""",
    "writes_the_same": """
        y[threadIdx.x] = x[threadIdx.x];
        __syncthreads();
        if (threadIdx.x == 0) y[32 + blockIdx.x] = y[5] + y[7];""",
    "writes_its_own": "if (threadIdx.x == 0) y[0] = blockIdx.x;",
    "waits_for_ever": """
        int* const other = (int*)y + 1 - blockIdx.x;
        if (threadIdx.x == 0)
            while (__atomic_load_n(other, __ATOMIC_RELAXED) == 0) __nanosleep(0);""",
    "has_dynamic_memory": """
        extern __shared__ __align__(16) unsigned char bytes[];
        float* s = (float*)bytes;
        s[threadIdx.x] = x[threadIdx.x];
        __syncthreads();
        y[threadIdx.x] = s[63 - threadIdx.x];""",
}

SOURCES = {
    "row_sums": SUMS.replace("BARRIER", "__syncthreads();"),
    "row_sums_racing": SUMS.replace("BARRIER", "").replace("row_sums", "row_sums_racing"),
    **{
        name: f"""extern "C" __global__ void {name}(
    float* y, const float* x, const long long* vars) {{ {body} }}"""
        for name, body in BODIES.items()
    },
}


def launch(
    name: str, y: Array, x: Array, *variables: int, grid: int = 1, block: int = 64, **options: Any
) -> None:
    kernel = load_kernels(SOURCES)[name]
    memory = [
        Memory("b0", y, reads=options.pop("reads", False), writes=True),
        Memory("b1", x),
        Memory("vars", np.array(variables, np.int64)),
    ]
    kernel.run(grid, block, memory, **options)


@pytest.mark.parametrize("grid", [1, 3, 7])
@pytest.mark.parametrize("block", [32, 64, 256])
def test_a_reduction_by_blocks(grid: int, block: int) -> None:
    x = np.arange(5 * 301, dtype=np.float32).reshape(5, 301)
    y = np.full(5, np.nan, np.float32)
    launch("row_sums", y, x.ravel(), 301, 5, grid=grid, block=block, seeds=(0, 1, 2))
    np.testing.assert_array_equal(y, x.sum(1))


def test_a_missing_barrier_is_a_race() -> None:
    x, y = np.ones(64 * 5, np.float32), np.zeros(5, np.float32)
    with pytest.raises(EmulationError, match=r"row_sums_racing: data race: writes .* shared"):
        launch("row_sums_racing", y, x, 64, 5, seeds=(1,))


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("reads_beyond", "reads 4 bytes at element 64 of b1, which has 64 elements"),
        ("writes_beyond", "writes 4 bytes at element 60 of b0, which has 60 elements"),
        ("writes_what_is_read_only", "writes b1, which is read only"),
        ("reads_what_is_unset", "reads element 0 of b0, which nothing has written"),
        ("races_on_memory", "data race: writes element 0 of b0, which thread 0 of the same block"),
        ("races_on_shared", "data race: .* of shared memory"),
        ("races_on_a_part", "data race: reads element .* of shared memory"),
        ("races_on_a_whole", "data race: reads element .* of shared memory"),
        ("reads_unset_shared", "reads element .* of shared memory, which nothing has written"),
        ("diverges", "divergent barrier in block 0: thread 0 waits .* thread 32 has ended"),
        ("shuffles_alone", "divergent barrier"),
        ("is_misaligned", "reads 4 misaligned bytes of b1"),
        ("divides_by_zero", "divides an integer by zero"),
    ],
)
def test_a_fault_is_named(name: str, problem: str) -> None:
    x, y = np.ones(64, np.float32), np.zeros(60, np.float32)
    with pytest.raises(EmulationError, match=f"{name}: {problem}") as caught:
        launch(name, y, x, 64, 64)
    assert f"void {name}(" in str(caught.value)
    assert not y.any()


def test_parts_of_what_was_written_at_once() -> None:
    """Vectors, words and halves of them, each behind a barrier."""
    x, y = np.ones(64, np.float32), np.zeros(60, np.float32)
    launch("accesses_parts", y, x, seeds=(0, 1, 2))
    np.testing.assert_array_equal(y, 2 * np.arange(60) + 2 + 3 + 5)


def test_a_fault_names_its_line() -> None:
    x, y = np.ones(64, np.float32), np.zeros(64, np.float32)
    with pytest.raises(EmulationError, match=r"at line 2: float\* y"):
        launch("reads_beyond", y, x, 64, 64)


def test_results_that_depend_on_order_are_refused() -> None:
    x, y = np.ones(64, np.float32), np.zeros(60, np.float32)
    with pytest.raises(EmulationError, match="element 1 of b0 depends on the order"):
        launch("depends_on_order", y, x, seeds=(0, 1), reads=True)


def test_blocks_publish_by_a_fence_and_an_atomic() -> None:
    x, y = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    launch("publishes", y, x, grid=5, block=32, seeds=(0, 1, 2), reads=True)
    assert y[61] == 10
    with pytest.raises(EmulationError, match=r"data race: .* of another block"):
        launch("reads_unpublished", y, x, grid=5, block=32)


def test_blocks_that_run_together_pass_flags_and_values() -> None:
    x = np.arange(1, 65, dtype=np.float32)
    for seeds in ((0, 1, 2), (3,)):
        y = np.zeros(64, np.float32)
        launch("passes_a_flag", y, x, grid=3, block=32, together=True, seeds=seeds, reads=True)
        assert y[8:11].tolist() == [21, 32, 13]
        y = np.zeros(64, np.float32)
        launch("passes_a_value", y, x, grid=2, block=32, together=True, seeds=seeds, reads=True)
        assert y[8:10].tolist() == [3, 2]
        y = np.zeros(64, np.float32)
        launch("writes_the_same", y, x, grid=2, block=32, together=True, seeds=seeds, reads=True)
        assert y[32:34].tolist() == [14, 14]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("passes_nothing_along", r"data race: reads .* of another block has written"),
        ("writes_its_own", r"data race: writes .* of another block has written"),
        ("waits_for_ever", "waits for what never comes"),
    ],
)
def test_faults_of_blocks_that_run_together(name: str, problem: str) -> None:
    x, y = np.ones(64, np.float32), np.zeros(64, np.float32)
    with pytest.raises(EmulationError, match=f"{name}: {problem}"):
        launch(name, y, x, grid=2, block=32, together=True, reads=True)
    with pytest.raises(EmulationError, match="5 blocks together, more than 4"):
        launch(name, y, x, grid=5, block=32, together=True, reads=True)


def test_votes_and_shuffles() -> None:
    x, y = np.ones(1, np.float32), np.zeros(32, np.float32)
    launch("votes", y, x, block=32, seeds=(0, 1, 2))
    lane = np.arange(32)
    up = np.where(lane % 8 < 2, lane, lane - 2)
    np.testing.assert_array_equal(y, 7 + 8 * up + 1000 * np.minimum(lane + 1, 31))


def test_dynamic_shared_memory_has_bounds() -> None:
    x, y = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    launch("has_dynamic_memory", y, x, shared_bytes=256)
    np.testing.assert_array_equal(y, x[::-1])
    with pytest.raises(EmulationError, match="writes 4 bytes at element 252 of shared memory"):
        launch("has_dynamic_memory", y, x, shared_bytes=252)


def test_arguments_may_share_memory() -> None:
    x = np.arange(64, dtype=np.float32)
    memory = [Memory("b0", x, writes=True), Memory("b1", x), Memory("vars", np.zeros(1, np.int64))]
    source = """extern "C" __global__ void adds(float* y, const float* x, const long long* vars) {
        y[threadIdx.x] = x[threadIdx.x] + 1; }"""
    load_kernels({"adds": source})["adds"].run(1, 64, memory)
    np.testing.assert_array_equal(x, np.arange(64) + 1)


def test_text_that_is_no_program_is_refused() -> None:
    with pytest.raises(CompileError, match=r"wrong\.cu"):
        load_kernels({"wrong": 'extern "C" __global__ void wrong() { float x = y; }'})
