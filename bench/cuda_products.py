"""The CUDA device's kernels of matmuls and attention next to PyTorch's: errors and times.

    python bench/cuda_products.py [--only float8] [--json FILE]

Each case is a kernel or a few of the device's own, launched by themselves, and the product by
cuBLASLt where the device leaves it to that, by the algorithm that the library guesses. 8-bit floats
are scaled by rows and columns, with bfloat16 results; PyTorch's are those of ``_scaled_mm``. Times
are medians between events, over buffers that together exceed the second-level cache. Needs a GPU,
PyTorch and cuda-bindings.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import torch

import ostinato as ost
from ostinato.backends.cuda.compiler import compile_text
from ostinato.backends.cuda.cublaslt import CublasLt, find_library
from ostinato.backends.cuda.driver import nvidia_driver
from ostinato.backends.cuda.kernel import CudaKernel
from ostinato.backends.cuda.rules.library import LibraryProduct, LibrarySettings
from ostinato.backends.cuda.rules.table import CudaLowering, lower_for_cuda
from ostinato.backends.cuda.target import CudaTarget
from ostinato.lower.program import Call, Role

_REPEATS = 15
_CACHE_BYTES = 200 << 20


class Case(NamedTuple):
    """A matmul: rows, columns, depth, dtype, and whether the weight is stored by columns."""

    m: int
    n: int
    k: int
    dtype: str
    transposed: bool

    def __str__(self) -> str:
        order = "^T" if self.transposed else ""
        return f"{self.m}x{self.k} @ {self.k}x{self.n}{order} {self.dtype}"


CASES = [
    *(
        Case(m, n, k, dtype, transposed)
        for m in (1, 4, 16)
        for n, k in ((2048, 2048), (8192, 2048), (2048, 8192))
        for dtype in ("bfloat16", "float32")
        for transposed in (False, True)
    ),
    *(
        Case(m, n, k, "bfloat16", transposed)
        for m, n, k in ((128, 768, 768), (128, 3072, 768), (1024, 3072, 768), (4096, 4096, 4096))
        for transposed in (False, True)
    ),
    *(
        Case(2048, n, k, "bfloat16", transposed)
        for n, k in ((512, 2048), (2048, 2048), (8192, 2048), (2048, 8192))
        for transposed in (False, True)
    ),
    *(Case(1024, n, k, "float16", False) for n, k in ((768, 768), (2304, 768), (768, 3072))),
    *(Case(m, m, m, "float16", False) for m in (512, 1024, 2048)),
    *(Case(m, n, k, "float32", False) for m, n, k in ((128, 768, 768), (2048, 2048, 2048))),
    *(Case(m, 4096, 4096, "float8_e4m3fn", True) for m in (1, 16, 128, 4096)),
    Case(1000, 1001, 999, "bfloat16", False),
    Case(1000, 1001, 999, "float32", True),
    Case(33, 65, 77, "float64", False),
    Case(2048, 2048, 2048, "float64", False),
]


class Heads(NamedTuple):
    """Attention: batch, heads, key heads, queries, keys, head size, and whether it is causal."""

    batch: int
    heads: int
    key_heads: int
    queries: int
    keys: int
    size: int
    causal: bool

    def __str__(self) -> str:
        sizes = "x".join(map(str, self[:-1]))
        return f"attention {sizes}{' causal' if self.causal else ''} bfloat16"


HEADS = [
    Heads(1, 12, 12, 128, 128, 64, False),
    Heads(8, 12, 12, 512, 512, 64, False),
    Heads(1, 32, 8, 2048, 2048, 64, True),
    Heads(1, 32, 8, 2048, 2048, 128, True),
    Heads(1, 32, 8, 1, 512, 64, False),
    Heads(1, 32, 8, 1, 4096, 128, False),
    Heads(16, 32, 8, 1, 1024, 128, False),
]


def calls_of(case: Case | Heads, *, with_library: bool = False) -> list[Call]:
    """The calls that the device makes of a case; its buffers are ``a``, ``b``, ... and ``out``."""
    graph = ost.Graph("case")
    if isinstance(case, Heads):
        shape = (case.batch, case.key_heads, case.keys, case.size)
        q = graph.input("a", (case.batch, case.heads, case.queries, case.size), "bfloat16")
        k, v = (graph.input(name, shape, "bfloat16") for name in "bc")
        graph.set_outputs({"out": graph.attention(q, k, v, causal=case.causal)})
    else:
        left = graph.input("a", (case.m, case.k), case.dtype)
        shape = (case.n, case.k) if case.transposed else (case.k, case.n)
        right = graph.input("b", shape, case.dtype)
        if case.transposed:
            right = graph.permute_dims(right, (1, 0))
        if is_float8(case):
            scales = graph.input("c", (case.m, 1)), graph.input("d", (case.n,))
            graph.set_outputs({"out": graph.scaled_matmul(left, right, *scales, "bfloat16")})
        else:
            graph.set_outputs({"out": graph.matmul(left, right)})
    library = (
        LibrarySettings(float8=True, row_scales=True) if with_library and find_library() else None
    )
    program, _ = lower_for_cuda(graph, CudaLowering(library=library))
    return program.calls


def is_float8(case: Case | Heads) -> bool:
    """Whether a case multiplies 8-bit floats."""
    return isinstance(case, Case) and case.dtype.startswith("float8")


def launcher(
    call: Call, target: CudaTarget, scratch: dict[str, torch.Tensor]
) -> Callable[[Mapping[str, torch.Tensor]], None]:
    """Launches a kernel on tensors by name, in PyTorch's stream.

    Args:
        call: the kernel and its buffers.
        target: the GPU.
        scratch: memory between the kernels of a case, by name.
    """
    kernel = call.kernel
    if isinstance(kernel, LibraryProduct):
        return library_launcher(call, kernel, scratch)
    assert isinstance(kernel, CudaKernel)
    driver, launch = nvidia_driver(), kernel.launch(target)
    library = driver.load(compile_text(kernel.source(target), target.arch))
    function = driver.function(library, kernel.name, launch.shared_bytes)
    block = torch.zeros(16, dtype=torch.int64, device="cuda")
    names = [buffer.name for buffer in call.buffers]
    take_scratch(call, scratch)

    def run(tensors: Mapping[str, torch.Tensor]) -> None:
        held = {**scratch, **tensors}
        addresses = [held[name].data_ptr() for name in names] + [block.data_ptr() + 32]
        driver.launch(function, launch, addresses, torch.cuda.current_stream().cuda_stream)

    return run


def library_launcher(
    call: Call, kernel: LibraryProduct, scratch: dict[str, torch.Tensor]
) -> Callable[[Mapping[str, torch.Tensor]], None]:
    """The same for a product by the library, by the algorithm that it guesses to be fastest."""
    path = find_library()
    assert path is not None
    multiplication = CublasLt(path).multiplication(kernel.product)
    algorithm, *_ = multiplication.algorithms(1)
    names = [buffer.name for buffer in call.buffers]
    take_scratch(call, scratch)

    def run(tensors: Mapping[str, torch.Tensor]) -> None:
        held = {**scratch, **tensors}
        places = kernel.arguments(list(enumerate([0] * len(names))))
        addresses = [held[names[number]].data_ptr() + offset for number, offset in places]
        multiplication.launch(algorithm, addresses, torch.cuda.current_stream().cuda_stream)

    return run


def take_scratch(call: Call, scratch: dict[str, torch.Tensor]) -> None:
    """Take the memory between the kernels of a case that a call uses."""
    for buffer in call.buffers:
        if buffer.role is Role.TEMP and buffer.name not in scratch:
            scratch[buffer.name] = torch.empty(buffer.nbytes, dtype=torch.uint8, device="cuda")


def times(call: Callable[[int], object], sets: int) -> float:
    """Microseconds of a call: the median of repeats, each over all sets of buffers."""
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for number in range(sets):
            call(number)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            for number in range(sets):
                call(number)
    found = []
    for _ in range(_REPEATS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        found.append(start.elapsed_time(end) * 1000 / sets)
    return statistics.median(found)


def measure(case: Case | Heads, target: CudaTarget) -> dict[str, object]:
    """The error and the times of a case."""
    calls = calls_of(case)
    by_library = calls_of(case, with_library=True)
    scratch: dict[str, torch.Tensor] = {}
    runs = [launcher(call, target, scratch) for call in calls]
    library_runs = [launcher(call, target, scratch) for call in by_library]

    def make(*size: int, dtype: str = "bfloat16") -> torch.Tensor:
        made = torch.randn(*size, device="cuda", dtype=torch.float32)
        return made.to(getattr(torch, dtype))

    if isinstance(case, Heads):
        shape = (case.batch, case.key_heads, case.keys, case.size)
        sizes = [(case.batch, case.heads, case.queries, case.size), shape, shape]
        sizes.append(sizes[0])
        flops = 4 * case.batch * case.heads * case.queries * case.keys * case.size
        flops //= 2 if case.causal else 1
        dtype = "bfloat16"
    else:
        weight = (case.n, case.k) if case.transposed else (case.k, case.n)
        sizes = [(case.m, case.k), weight, (case.m, case.n)]
        flops = 2 * case.m * case.n * case.k
        dtype = case.dtype
    dtypes = [dtype] * len(sizes)
    if is_float8(case):
        sizes[2:2] = [(case.m, 1), (case.n,)]
        dtypes = [dtype, dtype, "float32", "float32", "bfloat16"]
    pairs = list(zip(sizes, dtypes, strict=True))
    nbytes = sum(math.prod(size) * make(1, dtype=kind).element_size() for size, kind in pairs)
    sets = max(4, min(64, -(-_CACHE_BYTES // nbytes)))
    names = [*"abcd"[: len(sizes) - 1], "out"]
    data = [
        {name: make(*size, dtype=kind) for name, (size, kind) in zip(names, pairs, strict=True)}
        for _ in range(sets)
    ]

    def ours(number: int) -> None:
        for run in runs:
            run(data[number])

    def library(number: int) -> None:
        for run in library_runs:
            run(data[number])

    def theirs(number: int) -> torch.Tensor:
        return by_torch(case, *(data[number][name] for name in names[:-1]))

    ours(0)
    torch.cuda.synchronize()
    expected = exactly(case, *(data[0][name].double() for name in names[:-1]))
    error = (data[0]["out"].double() - expected).abs().max() / expected.abs().max()
    ours_us, theirs_us = times(ours, sets), times(theirs, sets)
    uses_library = any(isinstance(call.kernel, LibraryProduct) for call in by_library)
    return {
        "case": str(case),
        "kernel": "+".join(type(call.kernel).__name__ for call in calls),
        "error": error.item(),
        "us": ours_us,
        "library_us": times(library, sets) if uses_library else None,
        "torch_us": theirs_us,
        "tflops": flops / ours_us / 1e6,
        "tb_per_s": nbytes / ours_us / 1e6,
    }


def exactly(case: Case | Heads, *operands: torch.Tensor) -> torch.Tensor:
    """The result of a case in float64."""
    if not is_float8(case):
        return by_torch(case, *operands)
    left, right, *scales = operands
    return left @ right.T * scales[0] * scales[1]


def by_torch(case: Case | Heads, *operands: torch.Tensor) -> torch.Tensor:
    """The result of a case by PyTorch."""
    if is_float8(case):
        left, right, rows, columns = operands
        scales = {"scale_a": rows, "scale_b": columns[None]}
        return torch._scaled_mm(left, right.T, **scales, out_dtype=torch.bfloat16)
    if isinstance(case, Heads):
        attend = torch.nn.functional.scaled_dot_product_attention
        return attend(*operands, is_causal=case.causal, enable_gqa=case.heads != case.key_heads)
    left, right = operands
    return torch.matmul(left, right.T if case.transposed else right)


def main() -> None:
    """Measure all cases and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="cases that have this in their name")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    properties = torch.cuda.get_device_properties(0)
    torch.zeros(1, device="cuda")
    target = CudaTarget(
        f"sm_{properties.major}{properties.minor}",
        properties.multi_processor_count,
        properties.shared_memory_per_block_optin,
    )
    rows = []
    for case in (c for c in (*CASES, *HEADS) if arguments.only in str(c)):
        try:
            row = measure(case, target)
        except Exception as problem:  # a broken kernel must not hide the others' numbers
            print(f"{case!s:45} {type(problem).__name__}: {str(problem)[:300]}", flush=True)
            continue
        rows.append(row)
        print(
            f"{row['case']:45} {row['kernel']:22} error {row['error']:.1e}  "
            f"{row['us']:9.1f} us  library {row['library_us'] or math.nan:9.1f} us  "
            f"torch {row['torch_us']:9.1f} us  "
            f"{row['tflops']:7.1f} TFLOP/s {row['tb_per_s']:6.2f} TB/s",
            flush=True,
        )
        if arguments.json:
            arguments.json.write_text(json.dumps({"gpu": properties.name, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
