"""Profiles of runs: the time and throughput of each kernel, and of the parts of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.plan.prepared import PreparedKernel

__all__ = ["KernelProfile", "PartProfile", "PartTime", "Profile", "StepTime", "TimedStep"]


@dataclass(frozen=True)
class PartTime:
    """The time of a part of a kernel whose blocks go through all parts on their own.

    ``elapsed`` adds up to the time of the kernel, and so do the three others together.

    Attributes:
        elapsed: seconds from the end of all parts before it, in all blocks, to its own end.
        working: seconds of a block, on average over all blocks, that are none of the following.
        waiting: the same, for values of other blocks.
        fetching: the same, for weights that are under way from memory.
        blocks: the number of blocks that have work in it.
    """

    elapsed: float
    working: float
    waiting: float
    fetching: float
    blocks: int

    def __add__(self, other: PartTime) -> PartTime:
        """The time of two runs of the part."""
        return PartTime(
            self.elapsed + other.elapsed,
            self.working + other.working,
            self.waiting + other.waiting,
            self.fetching + other.fetching,
            self.blocks,
        )


class TimedStep(NamedTuple):
    """The seconds of a step, and the times of its parts."""

    elapsed: float
    parts: Sequence[PartTime]


#: The time of a step, as devices measure it: seconds, or with those of its parts.
StepTime: TypeAlias = float | TimedStep


@dataclass(frozen=True)
class _Measured:
    """Work, and the time that it took.

    Attributes:
        elapsed: seconds.
        flops: floating point operations, at the sizes of this run.
        bytes: bytes that it read and wrote, at the sizes of this run: each element of a buffer
            counts once, however often it is used.
        node_names: labels of the graph's nodes that it computes.
    """

    elapsed: float
    flops: int
    bytes: int
    node_names: tuple[str, ...]

    @property
    def gflops(self) -> float:
        """Achieved, in 10⁹ floating point operations a second."""
        return 1e-9 * self.flops / self.elapsed if self.elapsed > 0 else 0.0

    @property
    def gbytes(self) -> float:
        """Achieved, in 10⁹ bytes a second."""
        return 1e-9 * self.bytes / self.elapsed if self.elapsed > 0 else 0.0

    def _row(self, title: str) -> str:
        return (
            f"{title:<40.40} {1e6 * self.elapsed:>11,.1f} µs "
            f"{self.gflops:>9,.1f} GFLOP/s {self.gbytes:>9,.1f} GB/s"
        )


@dataclass(frozen=True)
class PartProfile(_Measured):
    """A part of a kernel.

    Parts overlap: weights that one reads are fetched during those before it. So the throughput of a
    part may be more than the memory's.

    Attributes:
        name: its title (``"matmul+silu"``).
        time: where its time went.
    """

    name: str
    time: PartTime

    def __str__(self) -> str:
        time = self.time
        return (
            f"{self._row(f'  {self.name}')}  working {1e6 * time.working:,.1f}, "
            f"waiting {1e6 * time.waiting:,.1f}, fetching {1e6 * time.fetching:,.1f} µs, "
            f"{time.blocks} blocks"
        )


@dataclass(frozen=True)
class KernelProfile(_Measured):
    """One dispatch of one kernel.

    Attributes:
        kernel: the kernel.
        device: the device that ran it.
        num_buffers: number of its arguments.
        parts: of a kernel that several were joined to, where the device measures them.
    """

    kernel: PreparedKernel
    device: Any
    num_buffers: int
    parts: tuple[PartProfile, ...] = ()

    @property
    def name(self) -> str:
        """The kernel's title (``"matmul+gelu"``)."""
        return self.kernel.name

    @property
    def source(self) -> str:
        """The kernel's source; see :class:`PreparedKernel`."""
        return self.kernel.source

    def __str__(self) -> str:
        return "\n".join([self._row(self.name), *map(str, self.parts)])


class Profile(list[KernelProfile]):
    """The kernels of one run, in the order in which they ran; prints as a table."""

    @property
    def elapsed(self) -> float:
        """Seconds that all of them took together."""
        return sum(record.elapsed for record in self)

    def __str__(self) -> str:
        total = f"{f'{len(self)} kernels':<40} {1e6 * self.elapsed:>11,.1f} µs"
        return "\n".join([*map(str, self), total])
