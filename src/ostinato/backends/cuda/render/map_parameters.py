"""The parameters of kernels that take tensor maps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.cuda.abi import TensorMap

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["opening"]


def opening(maps: Sequence[TensorMap], before: str) -> list[str]:
    """The head of a kernel up to its opening brace; for a host, it makes its maps itself.

    Args:
        maps: of the kernel.
        before: the head up to its last other parameter.
    """
    if not maps:
        return [f"{before}) {{"]
    rows = []
    for each in maps:
        fields = [*each[TensorMap._fields.index("words") : -1], str(each.swizzled).lower()]
        address = f"(const unsigned char*)b{each.argument} + {each.offset}"
        rows.append(f"        {{{', '.join([address, *map(str, fields)])}}},")
    return [
        "#ifdef __CUDA_ARCH__",
        f"{before}, const __grid_constant__ ost::tensor_maps<{len(maps)}> maps) {{",
        "#else",
        f"{before}) {{",
        f"    const ost::tensor_maps<{len(maps)}> maps = {{{{",
        *rows,
        "    }};",
        "#endif",
    ]
