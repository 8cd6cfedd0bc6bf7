"""The code of a kernel before it is decided whether it is launched or part of a segment.

Both are the same statements. They take their place in the grid from ``own.x`` and ``all.x``, and
mention the arrays in shared memory and the arguments ``b0``, ``b1``, ... ``vars`` by name.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ostinato.backends.cuda.render.map_parameters import opening
from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Collection

    from ostinato.backends.cuda.abi import TensorMap

__all__ = ["Body", "SharedArray"]

#: Shared arrays begin at multiples of this, in bytes.
_ALIGNMENT = 16


@dataclass(frozen=True)
class SharedArray:
    """An array in the shared memory of a block.

    Attributes:
        type: of its elements, in C++.
        itemsize: bytes of an element, at least.
        name: of the array.
        sizes: by axis, outermost first.
    """

    type: str
    itemsize: int
    name: str
    sizes: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes up to the next array."""
        return -(-math.prod(self.sizes) * self.itemsize // _ALIGNMENT) * _ALIGNMENT

    @property
    def extents(self) -> str:
        """The sizes as they stand in a declaration."""
        return "".join(f"[{size}]" for size in self.sizes)


@dataclass(frozen=True)
class Body:
    """The code of a kernel.

    Attributes:
        includes: the lines that include headers.
        parameters: the declarations of its arguments, with ``vars`` last.
        arrays: in shared memory.
        text: the statements.
        threads: of a block.
        resident: blocks that a multiprocessor is to run at a time.
        dynamic: the name of the dynamic shared memory, if there is any.
        streams: whether it reads an operand through the ring of a segment's block: it is no kernel.
        start: statements before all others, which only a kernel of its own needs.
        touch: statements of a warp that bring what a block of a segment will read of arguments into
            the cache.
        maps: the tensor maps that a kernel of its own takes.
    """

    includes: str
    parameters: tuple[str, ...]
    text: str
    threads: int
    arrays: tuple[SharedArray, ...] = ()
    resident: int = 1
    dynamic: str = ""
    streams: bool = False
    start: str = ""
    touch: str = ""
    maps: tuple[TensorMap, ...] = ()

    @property
    def array_bytes(self) -> int:
        """Bytes of the arrays."""
        return sum(array.nbytes for array in self.arrays)

    def types(
        self,
        sent: Collection[int] = (),
        polled: Collection[int] = (),
        received: Collection[int] = (),
    ) -> list[str]:
        """The types of the parameters; see :meth:`part`."""
        types = [parameter.rpartition(" ")[0] for parameter in self.parameters]
        for position in sent:
            types[position] = f"ost::outbox<{self.stored_type(position)}>"
        for position in polled:
            types[position] = f"ost::inbox<{self.stored_type(position)}>"
        for position in received:
            types[position] = f"ost::received<{self.stored_type(position)}>"
        return types

    def stored_type(self, position: int) -> str:
        """The type of the elements of an argument in memory."""
        type_ = self.parameters[position].rpartition(" ")[0]
        return type_.removeprefix("const ").removesuffix("*")

    def kernel(self, name: str, before: str = "") -> str:
        """CUDA C++ with the kernel ``name``.

        Args:
            name: its symbol.
            before: functions that it calls.
        """
        bounds = f"{self.threads}, {self.resident}"
        lines = [
            f'extern "C" __global__ void __launch_bounds__({bounds})',
            *opening(self.maps, f"{name}({', '.join(self.parameters)}"),
            "    [[maybe_unused]] const ost::place own = {blockIdx.x}, all = {gridDim.x};",
        ]
        if self.start:
            lines.append(self.start)
        lines += [
            f"    __shared__ __align__(16) {array.type} {array.name}{array.extents};"
            for array in self.arrays
        ]
        if self.dynamic:
            lines.append(f"    extern __shared__ __align__(16) unsigned char {name}_dynamic[];")
            lines.append(f"    unsigned char* const {self.dynamic} = {name}_dynamic;")
        head = "\n".join(lines)
        return f"{self.includes}\n{before}{head}\n{self.text}}}\n"

    def part(
        self,
        name: str,
        sent: Collection[int] = (),
        polled: Collection[int] = (),
        awaited: Collection[tuple[int, int]] = (),
        received: Collection[int] = (),
        *,
        in_place: bool = False,
    ) -> str:
        """A function that does the same in a block of a segment.

        Its first parameters are the place of the block, the number of blocks, and shared memory for
        the arrays, with the dynamic one behind them; then the ring, if it reads one.

        Args:
            name: of the function.
            sent: the arguments whose elements are sent as they are written.
            polled: those whose elements are waited for as they are read.
            awaited: of these, those whose elements are waited for at the start, with their numbers.
            received: those that come in packets and are in memory of the block from then on.
            in_place: whether its code is part of what calls it.
        """
        first = "ost::place own, ost::place all, unsigned char* pool"
        names = [parameter.rpartition(" ")[2] for parameter in self.parameters]
        counts = dict(awaited)
        declared = [
            f"{type_} {'packets_of_' * (number in counts)}{own}"
            for number, (type_, own) in enumerate(
                zip(self.types(sent, polled, received), names, strict=True)
            )
        ]
        if self.streams:
            first += ", Ring& ring"
        declared = [*first.split(", "), *declared]
        how = "__forceinline__" if in_place else "OST_APART"
        lines = ["template <class Ring>"] * self.streams
        lines.append(f"static __device__ {how} void {name}({', '.join(declared)}) {{")
        lines += self.memory("pool")
        lines += [
            f"    const auto {names[number]} = ost::awaited<{count}>(packets_of_{names[number]});"
            for number, count in counts.items()
        ]
        return "\n".join([*lines, f"{self.text}}}\n"])

    def memory(self, start: str) -> list[str]:
        """Declarations of the arrays, and of the dynamic one behind them.

        Args:
            start: the address of memory for them.
        """
        lines, offset = [], 0
        for array in self.arrays:
            lines += [
                f'    static_assert(sizeof({array.type}) <= {array.itemsize}, "{array.name}");',
                f"    {array.type}(&{array.name}){array.extents} = "
                f"*({array.type}(*){array.extents})({start} + {offset});",
            ]
            offset += array.nbytes
        if self.dynamic:
            lines.append(f"    unsigned char* const {self.dynamic} = {start} + {offset};")
        return lines

    def touching(self, name: str) -> str:
        """A function of a segment that brings what :meth:`part` will read into the cache.

        Its first parameters are the place of the block and the number of blocks.

        Args:
            name: of the function.
        """
        lines = ", ".join(["ost::place own, ost::place all", *self.parameters])
        return f"static __device__ OST_APART void {name}({lines}) {{\n{self.touch}}}\n"
