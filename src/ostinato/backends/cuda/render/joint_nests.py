"""Rendering kernels that a block of a segment runs at the same time.

Each nest has threads of its own, warps of them, as long as there are some that have none yet. The
statements of each kernel mention its own arguments.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.cuda.kernel import CudaLoopNest
from ostinato.backends.cuda.render import nests
from ostinato.backends.cuda.render.joint_bodies import Section, joined
from ostinato.backends.cuda.target import SEGMENT_BLOCK, WARP
from ostinato.lower.rules.gpu_nest import most_points

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.backends.cuda.kernel import CudaKernel
    from ostinato.backends.cuda.render.body import Body
    from ostinato.backends.cuda.target import CudaTarget
    from ostinato.lower.loopir.nodes import Arg

__all__ = ["body"]


def body(
    args: Sequence[Arg],
    kernels: Sequence[CudaKernel],
    places: Sequence[Sequence[int]],
    target: CudaTarget,
) -> Body:
    """The code of all kernels.

    Args:
        args: those of the whole.
        kernels: nests, behind what they all wait for.
        places: by kernel, the positions of its arguments.
        target: the GPU, with the blocks of a segment.
    """
    sections, taken = [], 0
    for kernel, own in zip(kernels, places, strict=True):
        if isinstance(kernel, CudaLoopNest):
            made = nests.body_of_block(kernel, taken % SEGMENT_BLOCK)
            taken += -(-most_points(kernel.outer_axes) // WARP) * WARP
            sections.append(Section(made, own))
        else:
            found = kernel.body(target)
            assert found is not None
            sections.append(Section(found, own, behind=["OST_SYNC();"]))
    return joined(args, sections)
