"""The result of lowering: kernels, the buffers they use, and the order in which they run."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, TypeVar

from ostinato.ir.leaves import is_inout
from ostinato.lower.loopir.views import linear_index
from ostinato.records import dataclass, field, field_names

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from ostinato.ir.graph import Value
    from ostinato.ir.types import TensorType
    from ostinato.lower.loopir.kernel import Kernel
    from ostinato.variables import Dim, Symbol

__all__ = ["Call", "Layout", "LoweredBuffer", "Program", "Role"]

P = TypeVar("P", bound="Program")


class Role(enum.Enum):
    """The owner of a buffer's memory, and its lifetime."""

    INPUT = "input"  #: given at each run
    OUTPUT = "output"  #: handed to the user after each run
    PARAM = "param"  #: written by the user, lives as long as the compiled graph
    STATE = "state"  #: lives from run to run
    CONSTANT = "constant"  #: known while compiling
    PREPARED = "prepared"  #: computed from params and constants alone, once per write of a param
    TEMP = "temp"  #: lives within one run; shares the arena
    RESIDENT = "resident"  #: resident experts, and their slots; written between runs
    MASKED_TAIL = "masked tail"  #: number of last rows to leave out; zero, or set between runs


@dataclass(frozen=True, eq=False)
class Layout:
    """The order of a value's elements in memory, when that is not C order in memory of their own.

    Attributes:
        order: the value's axes, outermost in memory first.
        shape: by axis of the value, the size of the whole that it is, or is part of.
        starts: by axis of the value, where in the whole it begins.
        base: elements of memory before the whole.
    """

    order: tuple[int, ...]
    shape: tuple[Dim, ...]
    starts: tuple[Dim, ...]
    base: Dim = 0

    def offset(self, indices: Sequence[Dim]) -> Dim:
        """The element of the whole that holds the value's element at ``indices``."""
        at = [self.starts[axis] + indices[axis] for axis in self.order]
        return self.base + linear_index([self.shape[axis] for axis in self.order], at)


@dataclass(eq=False)
class LoweredBuffer:
    """Memory for one tensor, sized for the largest value of every Variable.

    Attributes:
        type: dtype and shape.
        role: see :class:`Role`.
        name: the leaf's or output's name, else the label of the node that fills it.
        value: the graph value that it holds, if it holds one whole and in C order.
        data: a constant's elements.
        layout: where the elements stand; ``None``: in C order, from the start.
        home: the buffer whose memory this one is part of; kernels are given that.
    """

    type: TensorType
    role: Role
    name: str
    value: Value | None = None
    data: np.ndarray[Any, Any] | None = None
    layout: Layout | None = None
    home: LoweredBuffer | None = None

    def offset(self, shape: Sequence[Dim], indices: Sequence[Dim]) -> Dim:
        """The offset of the element at ``indices`` of what it holds, which is of ``shape``."""
        if self.layout is None:
            return linear_index(shape, indices)
        return self.layout.offset(indices)

    @property
    def nbytes(self) -> int:
        return self.type.max_bytes

    @property
    def is_inout(self) -> bool:
        """Whether it is a state in memory that each run is given."""
        return self.value is not None and is_inout(self.value.node)

    def __repr__(self) -> str:
        return f"<{self.role.value} {self.name} {self.type}>"


@dataclass(eq=False)
class Call:
    """One kernel applied to buffers.

    Attributes:
        kernel: the computation.
        buffers: one per kernel argument; ``kernel.args`` says which are read and written.
        nodes: labels of the graph nodes that it computes.
        title: what it does, in a word or two (``"matmul+gelu"``).
        flops: floating point operations, as a dim.
        parts: of a kernel that several were joined to, their calls, in the order of its parts.
    """

    kernel: Kernel
    buffers: tuple[LoweredBuffer, ...]
    nodes: tuple[str, ...]
    title: str
    flops: Dim = 0
    parts: tuple[Call, ...] = ()

    def reads(self) -> list[LoweredBuffer]:
        pairs = zip(self.kernel.args, self.buffers, strict=True)
        return [buffer for arg, buffer in pairs if arg.reads]

    def writes(self) -> list[LoweredBuffer]:
        pairs = zip(self.kernel.args, self.buffers, strict=True)
        return [buffer for arg, buffer in pairs if arg.writes]


@dataclass(eq=False)
class Program:
    """A lowered graph.

    Attributes:
        calls: run in this order, at each run.
        prepare: run in this order whenever a param was written.
        inputs, params, states, outputs: buffers by name, in the graph's order.
        next_states: by state name, the buffer that holds the state's next value; the state's own
            buffer where it is updated in place.
        variables: the graph's Variables, in the order of the kernels' ``vars``.
        kept: buffers of a run that every run writes, and that keep their contents until the next.
        live_sizes: those of them that hold data-dependent sizes, by Variable.
    """

    calls: list[Call] = field(default_factory=list)
    prepare: list[Call] = field(default_factory=list)
    inputs: dict[str, LoweredBuffer] = field(default_factory=dict)
    params: dict[str, LoweredBuffer] = field(default_factory=dict)
    states: dict[str, LoweredBuffer] = field(default_factory=dict)
    outputs: dict[str, LoweredBuffer] = field(default_factory=dict)
    next_states: dict[str, LoweredBuffer] = field(default_factory=dict)
    variables: tuple[Symbol, ...] = ()
    kept: frozenset[LoweredBuffer] = frozenset()
    live_sizes: dict[str, LoweredBuffer] = field(default_factory=dict)

    @property
    def inouts(self) -> dict[str, LoweredBuffer]:
        """The states that are in memory which each run is given."""
        return {name: buffer for name, buffer in self.states.items() if buffer.is_inout}

    @property
    def externals(self) -> list[LoweredBuffer]:
        """The buffers of arrays that each run is given, in order."""
        return [*self.inputs.values(), *self.inouts.values(), *self.outputs.values()]

    def extended(self, kind: type[P], **fields: Any) -> P:
        """A copy as a kind of program that has more fields.

        Args:
            kind: its class.
            fields: by name, those that this one lacks, and those that differ.
        """
        own = {name: getattr(self, name) for name in field_names(self)}
        return kind(**(own | fields))
