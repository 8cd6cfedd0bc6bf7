"""The binary interface of CUDA kernels: signature, variable block and launch.

The signature of every kernel is

    extern "C" __global__ void NAME(T0* b0, const T1* b1, ..., const long long* vars)

with a pointer for each entry of ``args``, in order, ``const`` where the kernel only reads, and the
*variable block* in device memory: an int64 for each entry of ``variables``, in order. Kernels of
loop bodies have more Variables than those around them, so the words of the run itself precede the
first Variable:

    vars[FAILED]      0, or the code of the first step of the run that failed
    vars[FOUND]       the number that was out of bounds there
    vars[GOES_ON]     the decision of the last control kernel: 0 or 1
    vars[ARRIVED]     blocks that have arrived at barriers of the grid; 0 between kernels

A kernel of a program with sizes that depend on data (one that is ``guarded``) does nothing where
``vars[FAILED]`` is not 0: the run has ended. A step that gives a Variable its value takes
``long long* vars``.

In memory, a bool is an ``unsigned char`` (any other than 0 is true, 1 is written), a float16 or
bfloat16 an ``unsigned short``, a narrow type an ``unsigned char``, an int64 a ``long long``. Every
pointer is a multiple of 16.

A kernel whose launch has tensor maps takes them behind that, as
``const __grid_constant__ ost::tensor_maps<COUNT> maps``: each describes a matrix at the address of
an argument, for copies of its parts into shared memory.

A launch is known while compiling: grids are sized for the largest value of every Variable, and
kernels compute the extent of a run from ``vars``. A source is host C++, too, once the CUDA
built-ins are declared: what only a GPU has stands under ``#ifdef __CUDA_ARCH__``. There, kernels
make their tensor maps themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ostinato.variables import Symbol

__all__ = [
    "ARRIVED",
    "FAILED",
    "FOUND",
    "GOES_ON",
    "HEADER_WORDS",
    "MOST_PARAMETER_BYTES",
    "SIGNAL",
    "SIGNAL_LAUNCH",
    "TENSOR_MAP_BYTES",
    "Launch",
    "TensorMap",
    "is_guarded",
]

HEADER_WORDS = 4
"""int64 words of the variable block before the Variables, which so are aligned to 32 bytes."""

FAILED = -1
FOUND = -2
GOES_ON = -3
ARRIVED = -4

TENSOR_MAP_BYTES = 128
"""Bytes of an encoded tensor map."""

MOST_PARAMETER_BYTES = 32_764
"""Bytes of all parameters of a kernel, at most, where it takes tensor maps."""


class TensorMap(NamedTuple):
    """A matrix in memory, and the parts of it that are copied: see ``tensor_maps.cuh``.

    Rows are words of four bytes. Where they are divided into lines of 128 bytes, these are at a
    depth of their own; the depth is 1 where they are not.

    Attributes:
        argument: the position of the argument whose memory it is.
        offset: bytes before it.
        words, rows, depth: its extents.
        row_bytes: bytes from row to row: a multiple of 16.
        copied_words, copied_rows, copied_depth: the extents of a copy, each up to 256.
        swizzled: whether vectors of 16 bytes are exchanged: copies have 32 words of a row then.
    """

    argument: int
    offset: int
    words: int
    rows: int
    depth: int
    row_bytes: int
    copied_words: int
    copied_rows: int
    copied_depth: int
    swizzled: bool


@dataclass(frozen=True)
class Launch:
    """The shape of a kernel's launch; all of it is known while compiling.

    Attributes:
        grid: the number of blocks.
        block: threads of a block.
        shared_bytes: bytes of dynamic shared memory of a block.
        cooperative: whether all blocks have to be resident at the same time.
        programmatic: whether it may start before the kernel in front of it has ended. Such a kernel
            waits itself, by ``griddepcontrol.wait``, before it reads or writes anything that others
            write; so all kernels in front of it have ended where it goes on.
        maps: the fields of each :class:`TensorMap` that it takes.
    """

    grid: int
    block: int
    shared_bytes: int = 0
    cooperative: bool = False
    programmatic: bool = False
    maps: tuple[tuple[int, ...], ...] = ()


#: The symbol and the launch of the kernel that shows the host the end of a run.
SIGNAL = "signal_of_the_end"
SIGNAL_LAUNCH = Launch(1, 1)


def is_guarded(variables: Iterable[Symbol]) -> bool:
    """Whether a kernel with these Variables does nothing once a size of the run was refused.

    That ends the run: nothing may be written any more, neither by kernels that read that size nor
    to states.
    """
    return any(variable.bound is not None for variable in variables)
