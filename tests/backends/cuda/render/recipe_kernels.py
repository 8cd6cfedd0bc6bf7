"""The kernels that the recipes of the conformance suite are lowered to."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import numpy as np

import ostinato as ost
from ostinato.backends.cuda.capabilities import CAPABILITIES, lowering_options
from ostinato.backends.cuda.kernel import CudaKernel
from ostinato.backends.cuda.rules.table import lower_for_cuda
from ostinato.ir.graph_facts import graph_facts
from ostinato.passes.pipeline import run_passes
from tests.conformance.draw import Draw
from tests.conformance.recipes import recipes

__all__ = ["kernels_of", "recipe_kernels"]


def recipe_kernels(*, every_dtype: bool) -> dict[str, CudaKernel]:
    """Kernels by name, of all ops; each on every dtype, or on the first one that it takes."""
    found: dict[str, CudaKernel] = {}
    for name, (_, dtypes) in recipes().items():
        for dtype in dtypes if every_dtype else dtypes[:1]:
            for optimize in (True, False) if every_dtype else (True,):
                found.update((kernel.name, kernel) for kernel in _kernels(name, dtype, optimize))
    return found


def _kernels(name: str, dtype: str, optimize: bool) -> Iterator[CudaKernel]:
    graph = ost.Graph(name)
    draw = Draw(graph, np.random.default_rng(zlib.crc32(f"{name} {dtype}".encode())))
    made = recipes()[name][0](draw, dtype)
    graph.set_outputs(made if isinstance(made, list | tuple) else [made])
    return kernels_of(graph, optimize)


def kernels_of(
    graph: ost.Graph, optimize: bool = True, *, rounds: bool = False
) -> Iterator[CudaKernel]:
    """The kernels of a graph; `rounds`: float32 rows beside bfloat16 weights may be rounded."""
    options = ost.CompileOptions(optimize=optimize, bfloat16_dots=rounds)
    lowered, _ = run_passes(graph, capabilities=CAPABILITIES, optimize=optimize)
    program, _ = lower_for_cuda(
        lowered, lowering_options(options, capability=90), facts=graph_facts(graph)
    )
    for call in (*program.prepare, *program.calls):
        if isinstance(call.kernel, CudaKernel):
            yield call.kernel
