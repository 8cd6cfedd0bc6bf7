"""Loop nests as WGSL: a mapping of points to threads, and the code of each kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.webgpu.render.code import NestCode
from ostinato.backends.webgpu.render.mapping import THREADS, Shape, mapping_of
from ostinato.backends.webgpu.render.ordered import in_order
from ostinato.backends.webgpu.render.points import every_stage, thread_per_point
from ostinato.backends.webgpu.render.rows import threads_per_point
from ostinato.lower.loopir.nodes import max_extent

if TYPE_CHECKING:
    from ostinato.backends.webgpu.kernel import Bindings, Shader
    from ostinato.backends.webgpu.target import WebGpuTarget
    from ostinato.lower.loopir.nest import LoopNest
    from ostinato.variables import Dim

__all__ = ["shader"]


def shader(
    nest: LoopNest, target: WebGpuTarget, bindings: Bindings, scratch_groups: int = 0
) -> Shader:
    """A nest, rendered for a device.

    Args:
        nest: the loops.
        target: the device.
        bindings: of the nest's arguments.
        scratch_groups: workgroups that the nest's last argument has temps for; 0: temps are in
            workgroup memory.

    Raises:
        OstinatoError: the nest refers to something that it does not define: a bug of lowering.
    """
    code = NestCode(nest, target, bindings)
    mapping = mapping_of(nest, target, scratch_groups)
    groups: Dim = 0
    if all(max_extent(axis) > 0 for axis in nest.outer_axes):
        match mapping.shape:
            case Shape.STAGES:
                groups = every_stage(code)
            case Shape.POINTS:
                groups = thread_per_point(code)
            case Shape.ORDERED:
                groups = in_order(code)
            case Shape.ROWS:
                groups = threads_per_point(code, mapping)
    threads = mapping.threads if mapping.shape is Shape.ROWS else THREADS
    return code.shader(threads, groups)
