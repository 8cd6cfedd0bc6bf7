"""The kernels of the WebGPU device: the interface of all kernels, plus their rendering as WGSL.

A kernel of a program that is a :class:`WebGpuKernel` without an :meth:`~WebGpuKernel.obstacle` runs
on the device. Of the others, decisions of control flow and steps about sizes are the runtime's, and
all that remain run on the CPU, on copies.

The interface of a rendered kernel, a module with one entry point, is::

    @group(0) @binding(k) var<storage, read_write> m0: array<u32>;   // or read; any element type
    @group(1) @binding(0) var<uniform> offsets: array<vec4<u32>, A>;
    @group(1) @binding(1) var<uniform> variables: array<vec4<u32>, V>;

    @compute @workgroup_size(THREADS)
    fn main(@builtin(workgroup_id) at: vec3<u32>, @builtin(num_workgroups) grid: vec3<u32>, ...)

**Memory** is that of the host, byte by byte: elements lie densely in their own size, integers of 64
bits as two words, the lower one first, a bool as a byte (any other than 0 is true, 1 is written).
Kernels that write elements narrower than a word leave the other bytes of that word as they are,
also if other threads write those at the same time.

**Bindings** are given by :class:`Bindings`, since arguments may be in the same buffer.

**Offsets**: argument ``i`` begins at element ``offsets[i / 4][i % 4]`` of its buffer, counted in
elements of its dtype, but for 64-bit ones in words of 32 bits. Most offsets are multiples of 64
bytes; those of single ops may be any whole element. One more word follows, which is 0.

**Variables** are int64, two words each, in the order of :attr:`Kernel.variables`: number ``j`` is
the words ``2 * (j % 2)`` and ``2 * (j % 2) + 1`` of ``variables[j / 2]``. A Variable whose bounds
fit an i32 is its lower word. A module needs to declare neither block if it does not use it.

**Workgroups** are counted along one line. Where there are more than 65,535 of them, they are folded
into two dimensions: the number of a workgroup is ``at.x + at.y * grid.x``, and those from
:attr:`Shader.groups` on do nothing.
"""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from ostinato.lower.loopir.kernel import Kernel
from ostinato.lower.loopir.text import digest
from ostinato.records import dataclass

if TYPE_CHECKING:
    from ostinato.backends.webgpu.target import WebGpuTarget
    from ostinato.variables import Dim

__all__ = ["ENTRY_POINT", "Bindings", "Shader", "WebGpuKernel"]

#: The name of every entry point.
ENTRY_POINT = "main"


@dataclass(frozen=True)
class Bindings:
    """The storage buffers that a kernel's arguments are in: its bind group 0.

    A block of memory is one buffer, or, where it is larger than the device binds, several of
    :attr:`WebGpuTarget.part_bytes` bytes and a last one. Each is bound once, so arguments in the
    same block share a binding. An argument that begins in one buffer and ends in a later one has
    several bindings, in order: its offset counts from the beginning of the first of them.

    Attributes:
        arguments: by argument, the numbers of its bindings; mostly one.
        writable: by binding, whether it is ``read_write``; else it is ``read``.
        aligned: whether every argument begins at a multiple of 16 bytes, and is followed by bytes
            that fill its last 16.
    """

    arguments: tuple[tuple[int, ...], ...]
    writable: tuple[bool, ...]
    aligned: bool = True

    @staticmethod
    def apart(kernel: Kernel) -> Bindings:
        """Each argument in a buffer of its own."""
        return Bindings(
            tuple((position,) for position in range(len(kernel.args))),
            tuple(arg.writes for arg in kernel.args),
        )


@dataclass(frozen=True)
class Shader:
    """A rendered kernel.

    Attributes:
        source: the module, as WGSL.
        threads: of a workgroup, along one line.
        groups: the number of workgroups at given values of the Variables.
        iterations: of a thread's loops, all together, at most.
    """

    source: str
    threads: int
    groups: Dim
    iterations: Dim = 0


class WebGpuKernel(Kernel):
    """A kernel that a WebGPU device may run; the module has its interface.

    Attributes:
        prefix: the first part of its name.
    """

    prefix: ClassVar[str] = "kernel"

    @cached_property
    def name(self) -> str:
        """A name, the same for kernels with the same description."""
        return f"{self.prefix}_{digest(self)[:20]}"

    def obstacle(self, target: WebGpuTarget) -> str:
        """The reason for which the device cannot run it, for reports; empty if it can.

        A kernel that may have one is a loop nest, too, which the CPU runs in its place.
        """
        return ""

    def groups_for(self, wanted: int, target: WebGpuTarget) -> int | None:
        """The workgroups that compute the first ``wanted`` values of :attr:`row_axis`.

        ``None``: only all of them do. A device may be given more than that.
        """
        return None

    @abstractmethod
    def shader(self, target: WebGpuTarget, bindings: Bindings) -> Shader:
        """The kernel, rendered for a device and for arguments in these buffers."""
