"""Profiles of runs: the time and throughput of each kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.records import dataclass

if TYPE_CHECKING:
    from ostinato.plan.prepared import PreparedKernel

__all__ = ["KernelProfile", "Profile"]


@dataclass(frozen=True)
class KernelProfile:
    """One dispatch of one kernel.

    Attributes:
        kernel: the kernel.
        device: the device that ran it.
        num_buffers: number of its arguments.
        elapsed: seconds.
        flops: floating point operations, at the sizes of this run.
        bytes: bytes that it read and wrote, at the sizes of this run: each element of a buffer
            counts once, however often it is used.
        node_names: labels of the graph's nodes that it computes.
    """

    kernel: PreparedKernel
    device: Any
    num_buffers: int
    elapsed: float
    flops: int
    bytes: int
    node_names: tuple[str, ...]

    @property
    def name(self) -> str:
        """The kernel's title (``"matmul+gelu"``)."""
        return self.kernel.name

    @property
    def source(self) -> str:
        """The kernel's source; see :class:`PreparedKernel`."""
        return self.kernel.source

    @property
    def gflops(self) -> float:
        """Achieved, in 10⁹ floating point operations a second."""
        return 1e-9 * self.flops / self.elapsed if self.elapsed > 0 else 0.0

    @property
    def gbytes(self) -> float:
        """Achieved, in 10⁹ bytes a second."""
        return 1e-9 * self.bytes / self.elapsed if self.elapsed > 0 else 0.0

    def __str__(self) -> str:
        return (
            f"{self.name:<40.40} {1e6 * self.elapsed:>11,.1f} µs "
            f"{self.gflops:>9,.1f} GFLOP/s {self.gbytes:>9,.1f} GB/s"
        )


class Profile(list[KernelProfile]):
    """The kernels of one run, in the order in which they ran; prints as a table."""

    @property
    def elapsed(self) -> float:
        """Seconds that all of them took together."""
        return sum(record.elapsed for record in self)

    def __str__(self) -> str:
        total = f"{f'{len(self)} kernels':<40} {1e6 * self.elapsed:>11,.1f} µs"
        return "\n".join([*map(str, self), total])
