"""An adapter, and single dispatches on it."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ostinato.backends.webgpu.kernel import ENTRY_POINT, Bindings, WebGpuKernel
from ostinato.backends.webgpu.target import WebGpuTarget
from ostinato.variables import Symbol, evaluate

__all__ = ["TARGET", "device", "run"]

Array = np.ndarray[Any, Any]

#: What kernels are rendered for, unless a test asks for more.
TARGET = WebGpuTarget()

_MOST_GROUPS = 65535


@functools.cache
def device() -> Any:
    """A device of an adapter; ``None`` where there is no adapter, or no ``wgpu``."""
    try:
        import wgpu

        adapter = wgpu.gpu.request_adapter_sync(power_preference="high-performance")
        name = "max-storage-buffers-per-shader-stage"
        features = [name for name in ("shader-f16",) if name in adapter.features]
        return adapter.request_device_sync(
            required_features=features, required_limits={name: adapter.limits[name]}
        )
    except (ImportError, RuntimeError):
        return None


def run(kernel: WebGpuKernel, buffers: Sequence[Array], values: Mapping[Symbol, int]) -> None:
    """Run a kernel on arrays, some of which it changes.

    Args:
        kernel: the kernel.
        buffers: its arguments, as vectors.
        values: of the Variables.
    """
    import wgpu

    shader = kernel.shader(TARGET, Bindings.apart(kernel))
    groups = evaluate(shader.groups, {symbol.name: value for symbol, value in values.items()})
    if groups == 0:
        return
    gpu, usages = device(), wgpu.BufferUsage
    storages = [
        gpu.create_buffer_with_data(data=_padded(array), usage=usages.STORAGE | usages.COPY_SRC)
        for array in buffers
    ]
    offsets = np.zeros(4 * -(-len(buffers) // 4), np.uint32)
    variables = np.zeros(max(len(kernel.variables) + len(kernel.variables) % 2, 2), np.int64)
    for i, variable in enumerate(kernel.variables):
        variables[i] = values[variable]
    uniforms = [
        gpu.create_buffer_with_data(data=numbers.tobytes(), usage=usages.UNIFORM)
        for numbers in (offsets, variables)
    ]
    pipeline, layouts = _pipeline(shader.source, tuple(arg.writes for arg in kernel.args))
    encoder = gpu.create_command_encoder()
    compute = encoder.begin_compute_pass()
    compute.set_pipeline(pipeline)
    for number, (layout, bound) in enumerate(zip(layouts, (storages, uniforms), strict=True)):
        entries = [{"binding": i, "resource": {"buffer": b}} for i, b in enumerate(bound)]
        compute.set_bind_group(number, gpu.create_bind_group(layout=layout, entries=entries))
    across = min(groups, _MOST_GROUPS)
    compute.dispatch_workgroups(across, -(-groups // across), 1)
    compute.end()
    gpu.queue.submit([encoder.finish()])
    for arg, array, storage in zip(kernel.args, buffers, storages, strict=True):
        if arg.writes and array.nbytes:
            data = np.frombuffer(gpu.queue.read_buffer(storage), np.uint8)
            array.view(np.uint8)[:] = data[: array.nbytes]
    for buffer in (*storages, *uniforms):
        buffer.destroy()


@functools.cache
def _pipeline(source: str, writes: tuple[bool, ...]) -> tuple[Any, tuple[Any, Any]]:
    """The pipeline of a module, and the layouts of its bind groups."""
    gpu = device()
    layouts = tuple(
        gpu.create_bind_group_layout(
            entries=[
                {"binding": i, "visibility": "COMPUTE", "buffer": {"type": kind}}
                for i, kind in enumerate(kinds)
            ]
        )
        for kinds in (
            ["storage" if written else "read-only-storage" for written in writes],
            ["uniform", "uniform"],
        )
    )
    pipeline = gpu.create_compute_pipeline(
        layout=gpu.create_pipeline_layout(bind_group_layouts=layouts),
        compute={"module": gpu.create_shader_module(code=source), "entry_point": ENTRY_POINT},
    )
    return pipeline, layouts


def _padded(array: Array) -> bytes:
    """The bytes of an array, and some more that fill the last 16."""
    data = array.tobytes()
    return data + bytes(16 - len(data) % 16)
