"""Rendering a :class:`~ostinato.backends.cuda.rules.segment_kernel.SegmentKernel`.

The kernels become functions, each once, however often it is part of the segment. A table of records
has, for each part, its function, its arguments, its number of blocks and whether there is a barrier
in front; every block goes through it. Shared memory has the addresses of all arguments, then the
records, then the arrays of the part that runs.
"""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

from ostinato.backends.cuda.abi import ARRIVED, FAILED, Launch
from ostinato.backends.cuda.render.dialect import CudaDialect
from ostinato.backends.cuda.target import SEGMENT_BLOCK
from ostinato.records import replace

if TYPE_CHECKING:
    from ostinato.backends.cuda.kernel import CudaKernel
    from ostinato.backends.cuda.render.body import Body
    from ostinato.backends.cuda.rules.segment_kernel import SegmentKernel
    from ostinato.backends.cuda.target import CudaTarget

__all__ = ["launch", "source"]

#: Blocks that share a multiprocessor, at most.
_RESIDENT = 2

#: Bytes of shared memory that the driver takes for each block.
_RESERVED = 1 << 10

_WARP = 32

#: Fields of a record before the arguments: the function, whether there is a barrier of the grid in
#: front, the number of blocks that have work, and the first of them.
_FIELDS = 4


def launch(segment: SegmentKernel, target: CudaTarget) -> Launch:
    """The launch of a segment: as many blocks as are resident at the same time."""
    return _Renderer(segment, target).launch


def source(segment: SegmentKernel, target: CudaTarget) -> str:
    """CUDA C++ with the kernel of a segment."""
    return _Renderer(segment, target).source()


class _Renderer:
    """The text of a segment."""

    def __init__(self, segment: SegmentKernel, target: CudaTarget) -> None:
        self.segment = segment
        self.target = target
        self.inside = replace(target, block=SEGMENT_BLOCK, early_starts=False)
        kernels = {part.kernel.name: part.kernel for part in segment.parts}
        self.kernels = list(kernels.values())
        self.numbers = {name: number for number, name in enumerate(kernels)}
        self.launches = [kernel.launch(self.inside) for kernel in self.kernels]
        self.width = _FIELDS + max(len(part.arguments) for part in segment.parts)

    @cached_property
    def bodies(self) -> list[Body]:
        """The code of each kernel."""
        return [_body(kernel, self.inside) for kernel in self.kernels]

    @property
    def address_bytes(self) -> int:
        """Bytes of the table of addresses."""
        return _whole(8 * len(self.segment.args))

    @property
    def record_bytes(self) -> int:
        """Bytes of the table of records."""
        return _whole(2 * self.width * len(self.segment.parts))

    @cached_property
    def launch(self) -> Launch:
        """See :func:`launch`."""
        pool = max(
            body.array_bytes + found.shared_bytes
            for body, found in zip(self.bodies, self.launches, strict=True)
        )
        shared = self.address_bytes + self.record_bytes + pool
        fits = _RESIDENT * (shared + _RESERVED) <= self.target.shared_bytes_per_block
        resident = _RESIDENT if fits else 1
        grid = resident * self.target.multiprocessors
        return Launch(grid, SEGMENT_BLOCK, shared, cooperative=True)

    def source(self) -> str:
        """The whole text."""
        segment, dialect, name = self.segment, CudaDialect(), self.segment.name
        includes = dict.fromkeys(
            line for body in self.bodies for line in body.includes.splitlines() if line
        )
        functions = [body.part(f"{name}_{i}") for i, body in enumerate(self.bodies)]
        parameters = ", ".join(
            f"{'' if arg.writes else 'const '}{dialect.memory_type(arg.dtype)}* b{i}"
            for i, arg in enumerate(segment.args)
        )
        resident = self.launch.grid // self.target.multiprocessors
        return "\n".join(
            [
                '#include "segments.cuh"',
                *includes,
                *functions,
                self._records(),
                f'extern "C" __global__ void __launch_bounds__({SEGMENT_BLOCK}, {resident})',
                f"{name}({parameters}, const long long* vars) {{",
                f"    extern __shared__ __align__(16) unsigned char {name}_memory[];",
                *([f"    if (vars[{FAILED}] != 0) return;"] if segment.guarded else []),
                f"    const void** const at = (const void**){name}_memory;",
                *self._addresses(),
                "    unsigned short* const records = "
                f"(unsigned short*)({name}_memory + {self.address_bytes});",
                f"    for (int i = threadIdx.x; i < {len(segment.parts) * self.width}; "
                f"i += {SEGMENT_BLOCK})",
                f"        records[i] = {name}_records[i];",
                f"    unsigned char* const pool = {name}_memory + "
                f"{self.address_bytes + self.record_bytes};",
                *self._loop(),
                "}\n",
            ]
        )

    def _addresses(self) -> list[str]:
        """Statements that bring the addresses of arguments into memory that has an index."""
        lines = []
        count, warps = len(self.segment.args), SEGMENT_BLOCK // _WARP
        share = -(-count // warps)
        for warp in range(-(-count // share)):
            lines.append(f"    if (threadIdx.x == {warp * _WARP}) {{")
            own = range(warp * share, min((warp + 1) * share, count))
            lines += [f"        at[{i}] = b{i};" for i in own]
            lines.append("    }")
        return lines

    def _records(self) -> str:
        """The table, as constants."""
        blocks = self.launch.grid
        rows, first = [], 0
        for before, part in pairwise((None, *self.segment.parts)):
            assert part is not None
            number = self.numbers[part.kernel.name]
            waits = before is not None and before.level != part.level
            grid = self.launches[number].grid
            fields = [number, int(waits), min(grid, blocks), first, *part.arguments]
            fields += [0] * (self.width - len(fields))
            rows.append(f"    {', '.join(map(str, fields))},")
            first = (first + grid) % blocks
        size = f"{len(rows) * self.width}"
        head = f"static __device__ const unsigned short {self.segment.name}_records[{size}] = {{"
        return "\n".join([head, *rows, "};"])

    def _loop(self) -> list[str]:
        """The loop over all parts."""
        lines = [
            f"    unsigned* const arrived = (unsigned*)(vars + {ARRIVED});",
            "    unsigned awaited = gridDim.x;",
            f"    for (int i = 0; i < {len(self.segment.parts)}; i++) {{",
            "        __syncthreads();",
            f"        const unsigned short* const record = records + i * {self.width};",
            "        if (record[1]) {",
            "            ost::arrive_and_wait(arrived, awaited);",
            "            awaited += gridDim.x;",
            "        }",
            "        const ost::place own = {ost::turned(record[3])};",
            "        const ost::place all = {gridDim.x < record[2] ? gridDim.x : record[2]};",
            "        if (own.x >= all.x) continue;",
            "        switch (record[0]) {",
        ]
        for number, body in enumerate(self.bodies):
            *types, _ = (parameter.rpartition(" ")[0] for parameter in body.parameters)
            given = [f"({type_})at[record[{_FIELDS + i}]]" for i, type_ in enumerate(types)]
            call = ", ".join(["own", "all", "pool", *given, "vars"])
            lines.append(f"        case {number}: {self.segment.name}_{number}({call}); break;")
        return [*lines, "        }", "    }", "    ost::arrive_last(arrived, awaited);"]


def _body(kernel: CudaKernel, target: CudaTarget) -> Body:
    body = kernel.body(target)
    assert body is not None, f"{kernel.name} is a part of a segment"
    return body


def _whole(nbytes: int) -> int:
    """Bytes up to the next multiple of 16."""
    return -(-nbytes // 16) * 16
