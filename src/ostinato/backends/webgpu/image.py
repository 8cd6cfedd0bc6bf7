"""The compiled program of the WebGPU device: launches of kernels, and steps of the host.

The last field of each step is its kind, by which it is recognised in a cache.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

from ostinato.backends.common.program_image import ProgramImage

__all__ = [
    "SHADER",
    "AnyStep",
    "ControlStep",
    "CopyStep",
    "ExpertStep",
    "HostStep",
    "Image",
    "LaunchStep",
    "SizeStep",
]

#: The only symbol of an object that is a shader; all others are machine code of the processor.
SHADER = "main"

#: The slot and the offset of an argument; see :meth:`LoweredGraph.place`.
Place: TypeAlias = tuple[int, int]


class LaunchStep(NamedTuple):
    """A launch of a kernel.

    Attributes:
        code: the cache's key of the shader.
        arguments: the place of each.
        units: by argument, the bytes that its offset is counted in.
        buffers: by binding, the slot, and the number of the slot's buffer.
        first: by argument, the number of the buffer of its slot that its offset counts from.
        writable: by binding, whether it is written.
        groups: the number of workgroups, as text.
        iterations: the most iterations of a thread's loops, as text; empty: any number will do.
    """

    code: str
    arguments: tuple[Place, ...]
    units: tuple[int, ...]
    buffers: tuple[tuple[int, int], ...]
    first: tuple[int, ...]
    writable: tuple[bool, ...]
    groups: str
    iterations: str
    tag: str = "launch"


class HostStep(NamedTuple):
    """A kernel of the CPU, on copies of its arguments.

    Attributes:
        arguments: the place of each.
        sizes: by argument, its bytes, as text.
        writes: by argument, whether it is written.
        launch: the fields of the CPU's step but its arguments.
    """

    arguments: tuple[Place, ...]
    sizes: tuple[str, ...]
    writes: tuple[bool, ...]
    launch: tuple[Any, ...]
    tag: str = "host"


class SizeStep(NamedTuple):
    """A step that gives a data-dependent size its value, or checks what follows from sizes.

    Attributes:
        arguments: of one that binds: where the value is, and where a copy of it goes.
        variable: the number of the Variable; -1: the step checks.
        limit: the greatest value, as text; of a check, the number that is to be at least 0.
        problem: the words for a number out of bounds.
    """

    arguments: tuple[Place, ...]
    variable: int
    limit: str
    problem: str
    tag: str = "size"


class ControlStep(NamedTuple):
    """A step that decides which step comes next.

    Attributes:
        arguments: the condition and the trip count, as far as there are such.
        kind: a :class:`~ostinato.lower.control.ControlKind`.
        target: the step that it may jump to.
        conditional, counted: whether there is a condition, and a trip count.
        trips: of a loop, the most iterations, as text; empty: no number is known.
        counter: of a loop, the number of the Variable that counts iterations.
    """

    arguments: tuple[Place, ...]
    kind: int
    target: int
    conditional: bool
    counted: bool
    trips: str
    counter: int
    tag: str = "control"


class CopyStep(NamedTuple):
    """A copy of bytes.

    Attributes:
        arguments: the target and the source.
        nbytes: how many.
    """

    arguments: tuple[Place, Place]
    nbytes: int
    tag: str = "copy"


class ExpertStep(NamedTuple):
    """A step that brings the experts that a run of a layer misses.

    Attributes:
        arguments: the ids of the experts, and the places that they are found at.
        layer: the number of the layer, among those with experts in a file.
        rows: how many ids there are, as text.
    """

    arguments: tuple[Place, Place]
    layer: int
    rows: str
    tag: str = "experts"


#: A step of a run.
AnyStep: TypeAlias = LaunchStep | HostStep | SizeStep | ControlStep | CopyStep | ExpertStep

_KINDS: dict[str, Any] = {
    kind._field_defaults["tag"]: kind
    for kind in (LaunchStep, HostStep, SizeStep, ControlStep, CopyStep, ExpertStep)
}


class Image(ProgramImage[AnyStep]):
    """A graph compiled for a WebGPU device."""

    __slots__ = ()

    @classmethod
    def step_of(cls, entry: tuple[Any, ...]) -> AnyStep:
        step: AnyStep = _KINDS[entry[-1]](*entry)
        return step
