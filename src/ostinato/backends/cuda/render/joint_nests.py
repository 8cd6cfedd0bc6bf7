"""Rendering kernels that a block of a segment runs at the same time.

Each nest has threads of its own, warps of them, as long as there are some that have none yet. The
statements of each kernel mention its own arguments.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.cuda.kernel import CudaLoopNest
from ostinato.backends.cuda.render import nests
from ostinato.backends.cuda.render.body import Body, aliases
from ostinato.backends.cuda.target import SEGMENT_BLOCK, WARP
from ostinato.lower.rules.gpu_nest import most_points

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.backends.cuda.kernel import CudaKernel
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
    types: dict[int, str] = {}
    includes: dict[str, None] = {}
    lines: list[str] = []
    taken = 0
    for kernel, own in zip(kernels, places, strict=True):
        if isinstance(kernel, CudaLoopNest):
            made = nests.body_of_block(kernel, taken % SEGMENT_BLOCK)
            taken += -(-most_points(kernel.outer_axes) // WARP) * WARP
            wait = []
        else:
            found = kernel.body(target)
            assert found is not None
            made, wait = found, ["    OST_SYNC();"]
        includes |= dict.fromkeys(made.includes.splitlines())
        lines.append("    {")
        lines += [f"        {line}" for line in aliases(own)]
        for type_, place in zip(made.types(), own, strict=False):
            types[place] = type_.removeprefix("const ") if args[place].writes else type_
        lines += [f"    {line}" for line in made.text.splitlines()]
        lines += ["    }", *wait]
    parameters = [f"{types[place]} joint{place}" for place in range(len(args))]
    return Body(
        "".join(f"{line}\n" for line in includes),
        (*parameters, "const long long* vars"),
        "".join(f"{line}\n" for line in lines),
        SEGMENT_BLOCK,
    )
