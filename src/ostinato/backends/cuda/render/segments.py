"""Rendering a :class:`~ostinato.backends.cuda.rules.segment_kernel.SegmentKernel`.

The kernels become functions, each once, however often it is part of the segment. The arrays that
they have in shared memory lie at the same addresses: no two parts run on a block at a time.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING

from ostinato.backends.cuda.abi import ARRIVED, Launch
from ostinato.backends.cuda.render.dialect import CudaDialect
from ostinato.backends.cuda.target import SEGMENT_BLOCK
from ostinato.records import replace

if TYPE_CHECKING:
    from ostinato.backends.cuda.rules.segment_kernel import SegmentKernel
    from ostinato.backends.cuda.target import CudaTarget

__all__ = ["launch", "source"]

#: Blocks that share a multiprocessor.
_RESIDENT = 2

#: Bytes of shared memory for the arrays of any part.
_POOL = 32 << 10

#: Bytes of it that the driver takes for each block.
_RESERVED = 1 << 10

_HEAD = re.compile(r'extern "C" __global__ void __launch_bounds__\([\d, ]+\) (\w+)\(')
_ARRAYS = re.compile(
    r"__shared__ (?:__align__\(\d+\) )?([\w:<>, ]+?) ((?:\w+(?:\[[^\]]+\])+(?:, )?)+);"
)

#: One of them: its name and its sizes.
_ARRAY = re.compile(r"(\w+)((?:\[[^\]]+\])+)")


def launch(segment: SegmentKernel, target: CudaTarget) -> Launch:
    """The launch of a segment: as many blocks as are resident at the same time.

    Parts that need no barrier between them have blocks of their own.
    """
    inside = _inside(target)
    launches = [part.kernel.launch(inside) for part in segment.parts]
    shared = max(found.shared_bytes for found in launches)
    if _is_level(segment):
        grid, early = sum(found.grid for found in launches), target.starts_kernels_early
        return Launch(grid, SEGMENT_BLOCK, shared, programmatic=early)
    fits = _RESIDENT * (_POOL + shared + _RESERVED) <= target.shared_bytes_per_block
    resident = _RESIDENT if fits else 1
    return Launch(resident * target.multiprocessors, SEGMENT_BLOCK, shared, cooperative=True)


def source(segment: SegmentKernel, target: CudaTarget) -> str:
    """CUDA C++ with the kernel of a segment."""
    inside, dialect = _inside(target), CudaDialect()
    functions = {part.kernel.name: _function(part.kernel.source(inside)) for part in segment.parts}
    parameters = ", ".join(
        f"{'' if arg.writes else 'const '}{dialect.memory_type(arg.dtype)}* b{i}"
        for i, arg in enumerate(segment.args)
    )
    level, early = _is_level(segment), target.starts_kernels_early
    lines = [
        '#include "segments.cuh"',
        *functions.values(),
        f'extern "C" __global__ void __launch_bounds__({SEGMENT_BLOCK}, {_RESIDENT})',
        f"{segment.name}({parameters}, const long long* vars) {{",
        f"    __shared__ __align__(16) unsigned char pool[{_POOL}];",
    ]
    if not level:
        lines.append(f"    unsigned* arrived = (unsigned*)(vars + {ARRIVED});")
        lines.append("    unsigned awaited = gridDim.x;")
    elif early:
        lines.append("    ost::wait_for_earlier_kernels();")
    first = 0
    for before, part in pairwise((None, *segment.parts)):
        assert part is not None
        if before is not None and before.level == part.level:
            lines.append("    __syncthreads();")
        elif before is not None:
            lines.append("    ost::arrive_and_wait(arrived, awaited);")
            lines.append("    awaited += gridDim.x;")
            first = 0
        grid = part.kernel.launch(inside).grid
        given = ", ".join(f"b{position}" for position in part.arguments)
        lines += [
            "    {",
            f"        ost::place all = {{gridDim.x < {grid} ? gridDim.x : {grid}}};",
            f"        ost::place own = {{ost::turned({first})}};",
            f"        if (own.x < all.x) {part.kernel.name}(own, all, pool, {given}, vars);",
            "    }",
        ]
        first += grid
    last = [] if level else ["    ost::arrive_last(arrived, awaited);"]
    return "\n".join([*lines, *last, "}\n"])


def _is_level(segment: SegmentKernel) -> bool:
    """Whether no part waits for another one."""
    return segment.parts[0].level == segment.parts[-1].level


def _inside(target: CudaTarget) -> CudaTarget:
    """The target of kernels that are parts of a segment."""
    return replace(target, block=SEGMENT_BLOCK, early_starts=False)


def _function(text: str) -> str:
    """A kernel as a function that takes its place in the grid, and shared memory."""
    head = r"static __device__ OST_APART void \1(ost::place own, ost::place all, "
    text = _HEAD.sub(head + "unsigned char* pool, ", text)
    text = text.replace("blockIdx.", "own.").replace("gridDim.", "all.")
    pool = _Pool()
    return _ARRAYS.sub(pool.arrays, text)


class _Pool:
    """Places the arrays of a function one behind the other."""

    def __init__(self) -> None:
        self._end = "0"

    def arrays(self, found: re.Match[str]) -> str:
        """Arrays of a type as references into the pool."""
        type_, names = found.groups()
        return "\n    ".join(self._array(type_, *array) for array in _ARRAY.findall(names))

    def _array(self, type_: str, name: str, sizes: str) -> str:
        start = f"({self._end} + 15) / 16 * 16"
        self._end = f"end_{name}"
        return (
            f"constexpr int at_{name} = {start}, "
            f"end_{name} = at_{name} + (int)sizeof({type_}{sizes});\n"
            f'    static_assert(end_{name} <= {_POOL}, "shared memory of a part");\n'
            f"    {type_}(&{name}){sizes} = *({type_}(*){sizes})(pool + at_{name});"
        )
