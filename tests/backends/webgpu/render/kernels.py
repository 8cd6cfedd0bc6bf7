"""The kernels that the recipes of the conformance suite are lowered to."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import numpy as np

import ostinato as ost
from ostinato.backends.webgpu.capabilities import CAPABILITIES, lowering_options
from ostinato.backends.webgpu.kernel import WebGpuKernel
from ostinato.backends.webgpu.rules.table import lower_for_webgpu
from ostinato.backends.webgpu.target import WebGpuTarget
from ostinato.ir.graph_facts import graph_facts
from ostinato.passes.pipeline import run_passes
from tests.conformance.draw import Draw
from tests.conformance.recipes import recipes

__all__ = ["kernels_of", "recipe_kernels"]


def recipe_kernels(*, every_dtype: bool) -> dict[str, WebGpuKernel]:
    """Kernels by name, of all ops; each on every dtype, or on one of them."""
    found: dict[str, WebGpuKernel] = {}
    for number, (name, (_, dtypes)) in enumerate(recipes().items()):
        for dtype in dtypes if every_dtype else [dtypes[number % len(dtypes)]]:
            for optimize in (True, False) if every_dtype else (True,):
                found.update((kernel.name, kernel) for kernel in _kernels(name, dtype, optimize))
    return found


def _kernels(name: str, dtype: str, optimize: bool) -> Iterator[WebGpuKernel]:
    graph = ost.Graph(name)
    draw = Draw(graph, np.random.default_rng(zlib.crc32(f"{name} {dtype}".encode())))
    made = recipes()[name][0](draw, dtype)
    graph.set_outputs(made if isinstance(made, list | tuple) else [made])
    return kernels_of(graph, optimize)


def kernels_of(graph: ost.Graph, optimize: bool = True) -> Iterator[WebGpuKernel]:
    """The kernels of a graph that the device runs."""
    options = ost.CompileOptions(optimize=optimize)
    lowered, _ = run_passes(graph, capabilities=CAPABILITIES, optimize=optimize)
    program, _ = lower_for_webgpu(lowered, lowering_options(options), facts=graph_facts(graph))
    for call in (*program.prepare, *program.calls):
        kernel = call.kernel
        if isinstance(kernel, WebGpuKernel) and not kernel.obstacle(WebGpuTarget()):
            yield kernel
