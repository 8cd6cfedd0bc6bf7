"""Rendering products of the same rows whose right operands do not come through a ring."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.cuda.render.body import Body, SharedArray, aliases
from ostinato.backends.cuda.target import SEGMENT_BLOCK

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.backends.cuda.rules.product import Matmul
    from ostinato.backends.cuda.target import CudaTarget

__all__ = ["body"]


def body(kernels: Sequence[Matmul], places: Sequence[Sequence[int]], target: CudaTarget) -> Body:
    """The code of all products, one after the other.

    Args:
        kernels: the products.
        places: by kernel, the positions of its arguments.
        target: the GPU, with the blocks of a segment.
    """
    types: dict[int, str] = {}
    includes: dict[str, None] = {}
    lines: list[str] = []
    most = 0
    for kernel, own in zip(kernels, places, strict=True):
        made, dynamic = kernel.body(target), kernel.launch(target).shared_bytes
        assert made is not None, f"{kernel.name} is part of a segment"
        includes |= dict.fromkeys(made.includes.splitlines())
        types |= dict(zip(own, made.types(), strict=False))
        lines += ["    OST_SYNC();"] * bool(lines)
        lines += ["    {", *(f"        {line}" for line in aliases(own))]
        lines += [f"    {line}" for line in made.memory("arrays")]
        lines += [f"    {line}" for line in made.text.splitlines()]
        lines.append("    }")
        most = max(most, made.array_bytes + dynamic)
    parameters = [f"{types[place]} joint{place}" for place in sorted(types)]
    return Body(
        "".join(f"{line}\n" for line in includes),
        (*parameters, "const long long* vars"),
        "".join(f"{line}\n" for line in lines),
        SEGMENT_BLOCK,
        (SharedArray("unsigned char", 1, "arrays", (most,)),) if most else (),
    )
