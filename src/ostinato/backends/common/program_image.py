"""The compiled program: all that a run of a graph needs, without how it came about.

An image is made of numbers, strings and bytes. So it can be kept beside the kernels that it names,
and the next process starts from it without importing, let alone running, passes and lowering.
"""

from __future__ import annotations

import sys
from enum import IntEnum
from typing import Any, Generic, NamedTuple, Self, TypeAlias, TypeVar

import numpy as np

from ostinato.dtypes import DType

__all__ = [
    "External",
    "ObjectCode",
    "ParamLocation",
    "ProgramImage",
    "ProgramPreparation",
    "RoutingLocation",
    "Slot",
    "StateLocation",
]

S = TypeVar("S", bound=tuple[Any, ...])

#: Elements of a tensor.
Elements: TypeAlias = "bytes | memoryview"


class Slot(IntEnum):
    """The fixed slots of a program's memory; those of inputs and outputs come after them."""

    ARENA = 0  #: what lives within a run, and results without an array of the caller's
    CONSTANTS = 1  #: shared by clones for good
    WEIGHTS = 2  #: params and what is prepared from them; shared by clones until one writes
    STATES = 3  #: what lives from run to run
    MASKED_TAIL = 4  #: how many rows kernels may leave out
    RESIDENT = 5  #: resident experts, and their slots


class ProgramPreparation(NamedTuple, Generic[S]):
    """Steps that run, all of them or none, when one of these params was written."""

    params: tuple[str, ...]
    steps: tuple[S, ...]


class ParamLocation(NamedTuple):
    """A param: how large it is, and where it lies; ``None``: it is not kept in its own form."""

    nbytes: int
    location: tuple[int, int] | None


class StateLocation(NamedTuple):
    """A state: its type, where it lies, and its elements before the first run.

    Where all elements are the same, ``initial`` has one.
    """

    dtype: str
    shape: tuple[int, ...]
    location: tuple[int, int]
    initial: Elements

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return DType.parse(self.dtype).numpy.itemsize

    def empty(self) -> np.ndarray[Any, Any]:
        """A new array of its type."""
        return np.empty(self.shape, DType.parse(self.dtype).numpy)

    def initial_array(self) -> np.ndarray[Any, Any]:
        """Its elements before the first run, in C order."""
        initial = np.frombuffer(self.initial, np.uint8).view(DType.parse(self.dtype).numpy)
        whole = initial[0] if initial.size == 1 else initial.reshape(self.shape)
        return np.ascontiguousarray(np.broadcast_to(whole, self.shape))


class External(NamedTuple):
    """An input or an output.

    Attributes:
        nbytes: how large it may be.
        written: whether runs write it.
        size: the symbol of what gives its live size; empty: it is constant.
        inout: whether runs read it, too, and leave some of it as it was.
    """

    nbytes: int
    written: bool
    size: str
    inout: bool = False

    @property
    def read(self) -> bool:
        """Whether what it holds counts when a run begins."""
        return self.inout or not self.written


class RoutingLocation(NamedTuple):
    """The place where a run leaves its routing: the list of rows by expert, or their experts' ids.

    Attributes:
        node: the label of the layer.
        per_token: the shape of the expert ids, without its first axis.
        experts: how many there are.
        first_row: where in the memory the list of rows starts.
        offset, nbytes: of the memory, in the arena; the last two numbers of a list are the extent.
        rows: how many ids there are, where that depends on Variables, as text.
        padded: the numbers of rows of the inputs that the ids come from.
    """

    node: str
    per_token: tuple[int, ...]
    experts: int
    first_row: int
    offset: int
    nbytes: int
    rows: str = ""
    padded: tuple[int, ...] = ()


class ObjectCode(NamedTuple):
    """The key of an object in the cache, and the symbols wanted from it."""

    key: str
    symbols: tuple[str, ...]


class ProgramImage(NamedTuple, Generic[S]):
    """A compiled graph, whose steps are of a device's own kind.

    Attributes:
        objects: the kernels' code.
        steps: of a run, in order.
        preparations: what runs when params are written.
        sizes: bytes by :class:`Slot`.
        results: by output, where in the arena there is room for it.
        intermediate_bytes: how much of the arena lives within a run.
        constants: where in their slot, and what.
        params, states: by name.
        externals: inputs, states in memory that each run is given, then outputs.
        variables: name and bounds of the Variables, in the order of the kernels' ``vars``.
        routings: of the layers that choose experts, in order.
        live_sizes: by data-dependent Variable, where in the arena a run leaves its value.
        extents: what a run uses of an arena that devices may take in parts: offsets and sizes, as
            text where they depend on Variables. Empty: all of it.
    """

    objects: tuple[ObjectCode, ...]
    steps: tuple[S, ...]
    preparations: tuple[ProgramPreparation[S], ...]
    sizes: tuple[int, ...]
    results: tuple[int, ...]
    intermediate_bytes: int
    constants: tuple[tuple[int, Elements], ...]
    params: dict[str, ParamLocation]
    states: dict[str, StateLocation]
    externals: tuple[External, ...]
    variables: tuple[tuple[str, int, int], ...]
    routings: tuple[RoutingLocation, ...]
    live_sizes: dict[str, int]
    extents: tuple[tuple[int, int | str], ...] = ()

    @classmethod
    def step_of(cls, entry: tuple[Any, ...]) -> S:
        """A step from the plain tuple that it was written as."""
        raise NotImplementedError

    @classmethod
    def from_entry(cls, entry: tuple[object, ...]) -> Self:
        """An image from its cache entry: tuples without names."""
        image = cls(*entry)  # type: ignore[arg-type]
        return image._replace(
            objects=tuple(ObjectCode(*code) for code in image.objects),
            steps=tuple(map(cls.step_of, image.steps)),
            preparations=tuple(
                ProgramPreparation(params, tuple(map(cls.step_of, steps)))
                for params, steps in image.preparations
            ),
            params={name: ParamLocation(*entry) for name, entry in image.params.items()},
            states={name: StateLocation(*entry) for name, entry in image.states.items()},
            externals=tuple(External(*external) for external in image.externals),
            routings=tuple(RoutingLocation(*entry) for entry in image.routings),
        )

    def read_sizes(self, arena: memoryview) -> dict[str, int]:
        """The values that the last run gave data-dependent Variables, by name."""
        numbers = ((name, arena[at : at + 8]) for name, at in self.live_sizes.items())
        return {name: int.from_bytes(n, sys.byteorder, signed=True) for name, n in numbers}

    def entry(self) -> object:
        """The cache entry that :meth:`from_entry` takes."""
        return _plain(self)

    def weight_form(self) -> object:
        """The form of the weights, and how they are brought into it: equal if both are the same.

        Constants that steps read count by their contents.
        """
        constants = {offset: bytes(data) for offset, data in self.constants}
        steps: list[object] = []
        for part in self.preparations:
            for step in part.steps:
                plain: Any = step
                read = [
                    constants.get(offset, offset) if slot == Slot.CONSTANTS else (slot, offset)
                    for slot, offset in plain.arguments
                ]
                steps.append((part.params, plain._replace(arguments=()), read))
        return self.sizes[Slot.WEIGHTS], self.params, steps

    def same_program(self, other: ProgramImage[S]) -> bool:
        """Whether a run of the other does the same, but for what constants hold.

        Labels of layers do not matter: the text of a graph leaves some out.
        """
        return self._unlabelled() == other._unlabelled()

    def _unlabelled(self) -> Self:
        routings = tuple(place._replace(node="") for place in self.routings)
        return self._replace(constants=(), routings=routings)


def _plain(part: object) -> object:
    """The same in tuples and bytes, which every process can read."""
    if isinstance(part, tuple):
        return tuple([_plain(item) for item in part])
    if isinstance(part, dict):
        return {key: _plain(item) for key, item in part.items()}
    return bytes(part) if isinstance(part, memoryview) else part
