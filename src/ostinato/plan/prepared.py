"""Prepared ops: what every plan, session and recording is a list of.

An op says which bytes it reads and which it writes; from that alone follows what must wait for
what (:mod:`ostinato.plan.hazards`). How a device carries it out is the device's business.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from ostinato.errors import PlanError
from ostinato.lazy import LazyModule
from ostinato.plan.hazards import overlap
from ostinato.records import dataclass, field
from ostinato.variables import evaluate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.lower.loopir import text, traffic
    from ostinato.lower.loopir.kernel import Kernel
    from ostinato.plan.buffer import Buffer
    from ostinato.variables import Dim
else:
    text = LazyModule("ostinato.lower.loopir.text")
    traffic = LazyModule("ostinato.lower.loopir.traffic")

__all__ = ["Copy", "KernelCall", "KernelCode", "PreparedKernel", "PreparedOp", "View"]


class KernelCode(Protocol):
    """A kernel as a device compiled it; what else it holds is for the device to know."""

    @property
    def source(self) -> str:
        """What the device's compiler was given."""

    @property
    def assembly(self) -> str | None:
        """What it made of it, where there is a text form."""


@dataclass(frozen=True, eq=False)
class PreparedKernel:
    """A compiled kernel.

    Attributes:
        name: what it computes, in a word or two (``"matmul+gelu"``).
        kernel: what was compiled.
        code: the device's own.
    """

    name: str
    kernel: Kernel = field(repr=False)  # long; see `loops`
    code: KernelCode = field(repr=False)

    @property
    def source(self) -> str:
        """The text that the device's compiler was given: on the CPU, LLVM IR."""
        return self.code.source

    @property
    def assembly(self) -> str | None:
        """What the compiler made of it, where there is a text form."""
        return self.code.assembly

    @property
    def loops(self) -> str:
        """What it computes, as loop IR: the same for every device."""
        return text.kernel_text(self.kernel)


@dataclass(frozen=True, eq=False, kw_only=True)
class PreparedOp:
    """One thing for a device to do.

    Attributes:
        id: its number in the plan.
        dependencies: ids of the ops that must be finished before it starts. Whoever makes an op
            lists only what its bytes do not tell; in a plan, what they tell is there as well.
    """

    id: int
    dependencies: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """What it does, for people."""
        raise NotImplementedError

    @property
    def reads(self) -> tuple[Buffer, ...]:
        """The bytes that it reads."""
        raise NotImplementedError

    @property
    def writes(self) -> tuple[Buffer, ...]:
        """The bytes that it writes."""
        raise NotImplementedError

    def __str__(self) -> str:
        return f"op {self.id} ({self.name})"


@dataclass(frozen=True, eq=False, kw_only=True)
class KernelCall(PreparedOp):
    """A kernel applied to buffers.

    Attributes:
        kernel: what to run.
        buffers: one per argument of the kernel.
        node_names: labels of the graph's nodes that it computes.
        flops: floating point operations.

    Raises:
        PlanError: the kernel has another number of arguments.
    """

    kernel: PreparedKernel
    buffers: tuple[Buffer, ...]
    node_names: tuple[str, ...] = ()
    flops: Dim = 0

    def __post_init__(self) -> None:
        wanted = len(self.kernel.kernel.args)
        if len(self.buffers) != wanted:
            raise PlanError(f"{self} takes {wanted} buffers, got {len(self.buffers)}")

    @property
    def name(self) -> str:
        return self.kernel.name

    @property
    def source(self) -> str:
        """The kernel's source; see :attr:`PreparedKernel.source`."""
        return self.kernel.source

    @property
    def reads(self) -> tuple[Buffer, ...]:
        pairs = zip(self.kernel.kernel.args, self.buffers, strict=True)
        return tuple(buffer for arg, buffer in pairs if arg.reads)

    @property
    def writes(self) -> tuple[Buffer, ...]:
        pairs = zip(self.kernel.kernel.args, self.buffers, strict=True)
        return tuple(buffer for arg, buffer in pairs if arg.writes)

    @cached_property
    def bytes(self) -> Dim:
        """Bytes that it reads and writes; see :func:`ostinato.lower.loopir.traffic.traffic`."""
        return traffic.traffic(self.kernel.kernel, [buffer.type for buffer in self.buffers])

    def work(self, sizes: Mapping[str, int]) -> tuple[int, int]:
        """Floating point operations and bytes at these values of the Variables."""
        return evaluate(self.flops, sizes), evaluate(self.bytes, sizes)


@dataclass(frozen=True, eq=False, kw_only=True)
class Copy(PreparedOp):
    """Copies the bytes of one buffer to another.

    Raises:
        PlanError: the sizes differ, or the buffers overlap.
    """

    source: Buffer
    target: Buffer

    def __post_init__(self) -> None:
        if self.source.nbytes != self.target.nbytes:
            raise PlanError(
                f"{self}: {self.source!r} and {self.target!r} differ in their number of bytes"
            )
        if overlap(self.source, self.target):
            raise PlanError(f"{self}: {self.source!r} and {self.target!r} overlap")

    @property
    def name(self) -> str:
        return "copy"

    @property
    def reads(self) -> tuple[Buffer, ...]:
        return (self.source,)

    @property
    def writes(self) -> tuple[Buffer, ...]:
        return (self.target,)


@dataclass(frozen=True, eq=False, kw_only=True)
class View(PreparedOp):
    """Sees bytes of one buffer as another: nothing to do, yet only right after its writers.

    Raises:
        PlanError: the target is not within the source.
    """

    source: Buffer
    target: Buffer

    def __post_init__(self) -> None:
        inside = self.source.offset <= self.target.offset and self.target.end <= self.source.end
        if self.source.storage is not self.target.storage or not inside:
            raise PlanError(f"{self}: {self.target!r} is not within {self.source!r}")

    @property
    def name(self) -> str:
        return "view"

    @property
    def reads(self) -> tuple[Buffer, ...]:
        return (self.source,)

    @property
    def writes(self) -> tuple[Buffer, ...]:
        return ()
