"""Prepared ops: the elements of plans, sessions and recordings.

An op declares the bytes that it reads and writes; dependencies between ops follow from these alone
(:mod:`ostinato.plan.hazards`). Devices encode them in their own ways.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ostinato.errors import InputError, PlanError
from ostinato.lazy import LazyModule
from ostinato.lower.control import Control
from ostinato.plan.buffer import Buffer
from ostinato.plan.hazards import overlap
from ostinato.records import dataclass, field
from ostinato.variables import evaluate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ostinato.ir.types import TensorType
    from ostinato.lower.loopir import text, traffic
    from ostinato.lower.loopir.kernel import Kernel
    from ostinato.lower.program import Call, LoweredBuffer
    from ostinato.variables import Dim, Symbol
else:
    text = LazyModule("ostinato.lower.loopir.text")
    traffic = LazyModule("ostinato.lower.loopir.traffic")

__all__ = [
    "Argument",
    "Copy",
    "KernelCall",
    "KernelCode",
    "KernelPart",
    "PreparedKernel",
    "PreparedOp",
    "View",
    "check_ops",
]


#: Roles of buffers that are written only by the compiler, or by a device between two runs.
_CHOSEN_ROLES = frozenset({"constant", "masked tail", "resident"})


class KernelCode(Protocol):
    """A kernel as a device compiled it."""

    @property
    def source(self) -> str:
        """The input of the device's compiler, as text."""

    @property
    def assembly(self) -> str | None:
        """Its output as text, if there is a text form."""


class Argument(NamedTuple):
    """An argument of a kernel: the tensor that the kernel was compiled to work on."""

    name: str
    type: TensorType

    def __str__(self) -> str:
        return f"({self.name!r}) is {self.type}, {self.type.max_bytes} bytes"

    def problem_with(self, buffer: object) -> str:
        """The reason for which the kernel cannot work on ``buffer``; empty if it can."""
        dtype = self.type.dtype
        if not isinstance(buffer, Buffer):
            return f"got a {type(buffer).__name__}"
        if buffer.dtype != dtype or buffer.nbytes < self.type.max_bytes:
            return f"{buffer!r} does not hold that"
        if buffer.offset % dtype.itemsize:
            return f"{buffer!r} does not start at a whole element"
        return ""


@dataclass(frozen=True, eq=False)
class PreparedKernel:
    """A compiled kernel.

    Attributes:
        name: names of its ops (``"matmul+gelu"``).
        kernel: its loop IR.
        code: the device's code.
        arguments: name and type of each argument.
        fixed: by position, the buffers of arguments whose contents the compiler has chosen.
    """

    name: str
    kernel: Kernel = field(repr=False)  # long; see `loops`
    code: KernelCode = field(repr=False)
    arguments: tuple[Argument, ...]
    fixed: Mapping[int, Buffer] = field(repr=False)

    @staticmethod
    def of(call: Call, code: KernelCode, buffers: Mapping[LoweredBuffer, Buffer]) -> PreparedKernel:
        """The kernel of a call, compiled to ``code``.

        Args:
            call: the kernel and its arguments.
            code: the device's code.
            buffers: the buffers of arguments that have an address.
        """
        arguments = tuple([Argument(buffer.name, buffer.type) for buffer in call.buffers])
        fixed = {
            position: buffers[lowered]
            for position, lowered in enumerate(call.buffers)
            if lowered in buffers and lowered.role.value in _CHOSEN_ROLES
        }
        return PreparedKernel(call.title, call.kernel, code, arguments, fixed)

    @property
    def source(self) -> str:
        """The text that the device's compiler was given: on the CPU, LLVM IR."""
        return self.code.source

    @property
    def assembly(self) -> str | None:
        """The output of the device's compiler as text, if there is a text form."""
        return self.code.assembly

    @property
    def loops(self) -> str:
        """Its loop IR as text: the same for every device."""
        return text.kernel_text(self.kernel)


@dataclass(frozen=True, eq=False)
class KernelPart:
    """A kernel that has become a part of another one.

    Attributes:
        name: names of its ops.
        kernel: its loop IR.
        types: what each of its arguments holds.
        node_names: labels of the graph's nodes that it computes.
        flops: floating point operations.
    """

    name: str
    kernel: Kernel = field(repr=False)
    types: tuple[TensorType, ...] = field(repr=False)
    node_names: tuple[str, ...]
    flops: Dim

    @staticmethod
    def of(call: Call) -> KernelPart:
        """The part that a call has become."""
        types = tuple(buffer.type for buffer in call.buffers)
        return KernelPart(call.title, call.kernel, types, call.nodes, call.flops)

    def work(self, sizes: Mapping[str, int]) -> tuple[int, int]:
        """Floating point operations and bytes at these values of the Variables."""
        nbytes = traffic.traffic(self.kernel, self.types)
        return evaluate(self.flops, sizes), evaluate(nbytes, sizes)


@dataclass(frozen=True, eq=False, kw_only=True)
class PreparedOp:
    """One operation of a device.

    Attributes:
        id: its number in the plan.
        dependencies: ids of the ops that must be finished before it starts. An op is made with
            those only that do not follow from its bytes; a plan adds those that do.
    """

    id: int
    dependencies: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """A readable name."""
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
        kernel: the kernel.
        buffers: one per argument of the kernel; each may be larger than the kernel needs.
        node_names: labels of the graph's nodes that it computes.
        flops: floating point operations.
        parts: of a kernel that several were joined to, these.

    Raises:
        PlanError: the kernel has another number of arguments; or a buffer is none, has another
            dtype than the argument, is too small, or does not start at a whole element.
    """

    kernel: PreparedKernel
    buffers: tuple[Buffer, ...]
    node_names: tuple[str, ...] = ()
    flops: Dim = 0
    parts: tuple[KernelPart, ...] = ()

    def __post_init__(self) -> None:
        wanted = len(self.kernel.arguments)
        if len(self.buffers) != wanted:
            raise PlanError(f"{self} takes {wanted} buffers, got {len(self.buffers)}")
        for number, (argument, buffer) in enumerate(
            zip(self.kernel.arguments, self.buffers, strict=True)
        ):
            if problem := argument.problem_with(buffer):
                raise PlanError(f"{self}: argument {number} {argument}, {problem}")

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
        PlanError: the sizes differ, the buffers overlap, or one is no buffer.
    """

    source: Buffer
    target: Buffer

    def __post_init__(self) -> None:
        _check_buffers(self, source=self.source, target=self.target)
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
    """A buffer on bytes of another one: no work, but dependent on the writers of the source.

    Raises:
        PlanError: the target is not within the source, or one is no buffer.
    """

    source: Buffer
    target: Buffer

    def __post_init__(self) -> None:
        _check_buffers(self, source=self.source, target=self.target)
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


def check_ops(ops: Sequence[PreparedOp], variables: Sequence[Symbol]) -> None:
    """Check ops before a device encodes them.

    Args:
        ops: the ops, in order.
        variables: those that a run gives values, in order.

    Raises:
        PlanError: an op writes a buffer that ops may not write; or a kernel takes other Variables,
            or a Variable may have values that its code was not compiled for; or it is directed
            (see :attr:`Kernel.directing`) by a buffer of unknown contents.
    """
    lists: list[tuple[Buffer, object]] = []
    for op in ops:
        for buffer in op.writes:
            try:
                buffer.check_target()
            except InputError as error:
                raise PlanError(f"{op}: {error}") from None
        if isinstance(op, KernelCall):
            if isinstance(op.kernel.kernel, Control):
                raise PlanError(
                    f"{op} decides which ops of its own plan run: only that plan can run it"
                )
            _check_variables(op, variables)
            _check_directing(op, lists)
        if lists:
            lists = [known for known in lists if not any(overlap(known[0], w) for w in op.writes)]
        if isinstance(op, KernelCall) and (found := op.kernel.kernel.listing):
            lists.append((op.buffers[found[0]], found[1]))


def _check_directing(op: KernelCall, lists: Sequence[tuple[Buffer, object]]) -> None:
    """Check that a kernel is directed by the buffer of its compilation or a list just written."""
    for position, layout in op.kernel.kernel.directing.items():
        buffer = op.buffers[position]
        fixed = op.kernel.fixed.get(position)
        if fixed is not None and _start(buffer) == _start(fixed):
            continue
        if layout is None or not any(
            _start(buffer) == _start(known) and layout == other for known, other in lists
        ):
            raise PlanError(
                f"{op}: argument {position} ({op.kernel.arguments[position].name!r}) directs the "
                "kernel: it takes the very buffer that the kernel was compiled with, or a list of "
                f"rows that an op before it writes; got {buffer!r}"
            )


def _start(buffer: Buffer) -> tuple[int, int]:
    return buffer.storage_id, buffer.offset


def _check_variables(op: KernelCall, given: Sequence[Symbol]) -> None:
    taken = op.kernel.kernel.variables
    fits = len(taken) == len(given) and all(
        kernel.name == run.name and kernel.min <= run.min and run.max <= kernel.max
        for kernel, run in zip(taken, given, strict=False)
    )
    if taken and not fits:
        raise PlanError(f"{op} takes the Variables {_listed(taken)}; a run gives {_listed(given)}")


def _listed(variables: Sequence[Symbol]) -> str:
    return ", ".join(f"{v.name} in {v.min}..{v.max}" for v in variables) or "none"


def _check_buffers(op: PreparedOp, **given: object) -> None:
    for name, buffer in given.items():
        if not isinstance(buffer, Buffer):
            raise PlanError(f"{op}: the {name} is a Buffer, got a {type(buffer).__name__}")
