"""The GPU that kernels are rendered and compiled for: what code generation depends on."""

from __future__ import annotations

from functools import cached_property

from ostinato.errors import OstinatoError
from ostinato.records import dataclass

__all__ = ["SEGMENT_BLOCK", "WARP", "CudaTarget"]

WARP = 32
"""Threads of a warp, the same on every NVIDIA GPU."""

SEGMENT_BLOCK = 256
"""Threads of every block of a segment that compute."""


@dataclass(frozen=True)
class CudaTarget:
    """An NVIDIA GPU as the compiler sees it.

    Attributes:
        arch: the architecture that code is compiled for, in NVRTC's spelling: ``"sm_90"``.
        multiprocessors: the number of streaming multiprocessors.
        shared_bytes_per_block: the most shared memory that a block may ask for, in bytes.
        threads_per_multiprocessor: the most resident threads of a multiprocessor.
        vector_accesses: whether kernels load and store several elements at once where they can.
        block: the threads of a block, where a kernel leaves the choice to its mapping; 0: any.
        alone: whether one block has all points of a kernel, as every block of a segment may.
        early_starts: whether kernels start before those in front of them have ended, and wait for
            that themselves, where the GPU can.
        tiled_transposes: whether elements that change places go by way of shared memory.
        warp_groups: whether tensor cores multiply for groups of four warps, where the GPU can.
        bulk_tiles: whether one thread copies the operands of large products in bulk for them.
        fragments: whether tensor cores multiply the keys of a few rows.
        divided_features: whether the warps of such a part divide the features where keys are few.
        kept_rows: whether threads keep rows in registers between the stages of a loop nest.
    """

    arch: str
    multiprocessors: int
    shared_bytes_per_block: int
    threads_per_multiprocessor: int = 2048
    vector_accesses: bool = True
    block: int = 0
    alone: bool = False
    early_starts: bool = True
    tiled_transposes: bool = True
    warp_groups: bool = True
    bulk_tiles: bool = True
    fragments: bool = True
    divided_features: bool = True
    kept_rows: bool = True

    @staticmethod
    def of_arch(arch: str) -> CudaTarget:
        """A typical GPU of an architecture, for compiling where there is none.

        Raises:
            OstinatoError: the architecture is not known.
        """
        if arch not in _TYPICAL:
            known = ", ".join(sorted(_TYPICAL))
            raise OstinatoError(f"CUDA architecture: expected one of {known}, got {arch!r}")
        return CudaTarget(arch, *_TYPICAL[arch])

    @property
    def capability(self) -> int:
        """The compute capability as one number: 90 for ``"sm_90"``."""
        return int("".join(c for c in self.arch if c.isdigit()))

    @property
    def starts_kernels_early(self) -> bool:
        """Whether kernels are launched so that they start early: GPUs can since Hopper."""
        return self.early_starts and self.capability >= 90

    @property
    def copies_in_bulk(self) -> bool:
        """Whether a thread copies whole rows into shared memory: GPUs can since Hopper."""
        return self.capability >= 90

    @property
    def has_wide_rings(self) -> bool:
        """Whether a block has room for bulk copies beside all that a part of a segment may have."""
        return self.copies_in_bulk and self.shared_bytes_per_block >= _WIDE_RING_BYTES

    @property
    def multiplies_by_groups(self) -> bool:
        """Whether groups of four warps give tensor cores what is in shared memory: Hopper's do."""
        return self.warp_groups and self.capability == 90

    @property
    def multiplies_in_bulk(self) -> bool:
        """Whether the operands of such products are copied in bulk where they are matrices."""
        return self.bulk_tiles and self.multiplies_by_groups

    @cached_property
    def identity(self) -> str:
        """Everything that generated code depends on."""
        return (
            f"{self.arch} {self.multiprocessors} {self.shared_bytes_per_block} "
            f"{self.threads_per_multiprocessor} {self.vector_accesses} {self.early_starts} "
            f"{self.tiled_transposes} {self.warp_groups} {self.bulk_tiles} {self.fragments} "
            f"{self.divided_features} {self.kept_rows} {self.block} {self.alone}"
        )


#: Shared memory of a block that leaves room for a ring beside all that there may be: values of a
#: segment (48 KiB), a left operand (40), sums (9), tables and copies (34), four large stages (72).
_WIDE_RING_BYTES = 208 << 10

#: By architecture: multiprocessors, shared bytes of a block, threads of a multiprocessor.
_TYPICAL = {
    "sm_75": (40, 64 << 10, 1024),
    "sm_80": (108, 163 << 10, 2048),
    "sm_86": (84, 99 << 10, 1536),
    "sm_89": (128, 99 << 10, 1536),
    "sm_90": (132, 227 << 10, 2048),
    "sm_100": (148, 227 << 10, 2048),
    "sm_120": (170, 99 << 10, 1536),
}
