"""Rendering products of the same rows whose right operands do not come through a ring.

Each has blocks of its own, as far as there are some, as it would have as a part of its own.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

from ostinato.backends.cuda.abi import Launch
from ostinato.backends.cuda.render.body import SharedArray
from ostinato.backends.cuda.render.joint_bodies import Section, joined
from ostinato.backends.cuda.target import SEGMENT_BLOCK
from ostinato.records import replace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.backends.cuda.render.body import Body
    from ostinato.backends.cuda.rules.product import Matmul
    from ostinato.backends.cuda.target import CudaTarget
    from ostinato.lower.loopir.nodes import Arg

__all__ = ["body", "launch"]


def launch(kernels: Sequence[Matmul], target: CudaTarget) -> Launch:
    """Blocks for all products."""
    return Launch(sum(kernel.launch(target).grid for kernel in kernels), SEGMENT_BLOCK)


def body(
    args: Sequence[Arg],
    kernels: Sequence[Matmul],
    places: Sequence[Sequence[int]],
    target: CudaTarget,
) -> Body:
    """The code of all products, one after the other.

    Args:
        args: those of the whole.
        kernels: the products.
        places: by kernel, the positions of its arguments.
        target: the GPU, with the blocks of a segment.
    """
    launches = [kernel.launch(target) for kernel in kernels]
    before = accumulate((each.grid for each in launches), initial=0)
    sections, most = [], 0
    for kernel, own, each, first in zip(kernels, places, launches, before, strict=False):
        made = kernel.body(target)
        assert made is not None, f"{kernel.name} is part of a segment"
        block = f"const ost::place own = {{ost::counted_on(whole, all, {first})}};"
        sections.append(Section(made, own, [block, *made.memory("arrays")], ["OST_SYNC();"]))
        most = max(most, made.array_bytes + each.shared_bytes)
    arrays = (SharedArray("unsigned char", 1, "arrays", (most,)),) if most else ()
    found = joined(args, sections, ["const ost::place whole = own;"], arrays)
    return replace(found, includes=f'{found.includes}#include "segments.cuh"\n')
