"""Loop nests as WGSL: a mapping of points to threads, and the code of each kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.webgpu.render.code import NestCode
from ostinato.backends.webgpu.render.mapping import THREADS, Shape, mapping_of
from ostinato.backends.webgpu.render.ordered import in_order
from ostinato.backends.webgpu.render.points import every_stage, thread_per_point
from ostinato.backends.webgpu.render.rows import threads_per_point
from ostinato.lower.loopir.nodes import max_extent
from ostinato.lower.rules.gpu_nest import most_points

if TYPE_CHECKING:
    from ostinato.backends.webgpu.kernel import Bindings, Shader
    from ostinato.backends.webgpu.target import WebGpuTarget
    from ostinato.lower.loopir.nest import LoopNest
    from ostinato.variables import Dim

__all__ = ["leading_groups", "shader"]


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


def leading_groups(
    nest: LoopNest, target: WebGpuTarget, scratch_groups: int, wanted: int
) -> int | None:
    """The workgroups that have the first ``wanted`` values of the outermost axis.

    Args:
        nest, target, scratch_groups: see :func:`shader`; the sizes of outer axes are numbers.
        wanted: the number of values.

    Returns:
        ``None`` where workgroups have points from anywhere.
    """
    size = max_extent(nest.outer_axes[0])
    mapping = mapping_of(nest, target, scratch_groups)
    inside = [()] if mapping.shape is not Shape.STAGES else [stage.axes for stage in nest.stages]
    points = max(most_points((*nest.outer_axes, *axes)) for axes in inside) // max(size, 1) * wanted
    if mapping.shape is Shape.ORDERED or mapping.groups:
        return None
    return -(-points // (mapping.points if mapping.shape is Shape.ROWS else THREADS))
