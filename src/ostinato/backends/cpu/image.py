"""A compiled program: the parts of a compiled graph that a run needs.

It is made of numbers, strings and bytes, and can therefore be stored beside the kernels that it
refers to. A process that loads it neither imports nor runs passes and lowering.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from ostinato.backends.cpu import _core

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.codegen.llvm.toolchain import LinkedCode

__all__ = [
    "External",
    "Image",
    "ObjectCode",
    "ParamPlace",
    "Preparation",
    "RoutingPlace",
    "StatePlace",
    "Step",
]

#: Elements of a tensor.
Elements: TypeAlias = "bytes | memoryview"


class Step(NamedTuple):
    """A kernel and its arguments.

    Attributes:
        code: the symbol of a compiled kernel, or the name of a built-in one.
        ready: whether it is a built-in kernel of the core.
        arguments: ``(slot, offset)`` of each; of a non-retained param, ``(-1 - n, 0)``, where
            ``n`` is its position among the params.
        extent, grain, scratch_bytes, parallel: see :class:`~ostinato.lower.program.Kernel`;
            the extent is 0 if it is symbolic.
        symbolic: whether a function of the code returns the extent.
    """

    code: str
    ready: bool
    arguments: tuple[tuple[int, int], ...]
    extent: int
    symbolic: bool
    grain: int
    scratch_bytes: int
    parallel: bool

    def native(self, code: LinkedCode | None, given: Mapping[int, int]) -> _core.Step:
        """The core's form of it.

        Args:
            code: of the compiled kernels.
            given: the slots of non-retained params, by position.
        """
        arguments = [(s, o) if s >= 0 else (given[-1 - s], o) for s, o in self.arguments]
        extent_address = 0
        if self.ready:
            address: int = getattr(_core, self.code)
        else:
            assert code is not None
            address = code.address(self.code)
            if self.symbolic:
                extent_address = code.address(f"{self.code}_extent")
        launch = (self.extent, extent_address, self.grain, self.scratch_bytes, self.parallel)
        return (address, arguments, *launch)


class Preparation(NamedTuple):
    """Steps that run, all of them or none, after a write of one of these params."""

    params: tuple[str, ...]
    steps: tuple[Step, ...]


class ParamPlace(NamedTuple):
    """A param: its size, and its slot and offset; ``None``: it is not retained."""

    nbytes: int
    place: tuple[int, int] | None


class StatePlace(NamedTuple):
    """A state: its type, its slot and offset, and its elements before the first run.

    If all elements are the same, ``initial`` has one.
    """

    dtype: str
    shape: tuple[int, ...]
    place: tuple[int, int]
    initial: Elements


class External(NamedTuple):
    """An input or output: its greatest size, and the symbol of the function of its live size."""

    nbytes: int
    written: bool
    size: str


class RoutingPlace(NamedTuple):
    """The place of the list of rows by expert after a run; see :mod:`ostinato.lower.grouping`.

    Attributes:
        node: the label of the layer.
        per_token: the shape of the expert ids, without its first axis.
        experts: number of experts.
        first_row: position of the list of rows in the memory.
        offset, nbytes: of the memory, in the arena; its last two numbers are the extent.
    """

    node: str
    per_token: tuple[int, ...]
    experts: int
    first_row: int
    offset: int
    nbytes: int


class ObjectCode(NamedTuple):
    """The key of an object in the cache, and the symbols wanted from it."""

    key: str
    symbols: tuple[str, ...]


class Image(NamedTuple):
    """A compiled graph.

    Attributes:
        objects: the kernels' code.
        steps: of a run, in order.
        preparations: steps that prepack params, after these are written.
        sizes: bytes by :class:`~ostinato.backends.cpu.memory.Slot`.
        results: by output, the offset of its room in the arena.
        intermediate_bytes: bytes of the arena for intermediate values.
        constants: offsets in their slot, and bytes.
        params, states: by name.
        externals: inputs, then outputs.
        variables: name and bounds of the Variables, in the order of the kernels' ``vars``.
        routings: of the layers that choose experts, in order.
    """

    objects: tuple[ObjectCode, ...]
    steps: tuple[Step, ...]
    preparations: tuple[Preparation, ...]
    sizes: tuple[int, ...]
    results: tuple[int, ...]
    intermediate_bytes: int
    constants: tuple[tuple[int, Elements], ...]
    params: dict[str, ParamPlace]
    states: dict[str, StatePlace]
    externals: tuple[External, ...]
    variables: tuple[tuple[str, int, int], ...]
    routings: tuple[RoutingPlace, ...]

    @classmethod
    def from_entry(cls, entry: tuple[object, ...]) -> Image:
        """The image of a stored entry, in which all named tuples are plain ones."""
        image = cls(*entry)  # type: ignore[arg-type]
        return image._replace(
            objects=tuple(ObjectCode(*code) for code in image.objects),
            steps=tuple(Step(*step) for step in image.steps),
            preparations=tuple(
                Preparation(params, tuple(Step(*step) for step in steps))
                for params, steps in image.preparations
            ),
            params={name: ParamPlace(*place) for name, place in image.params.items()},
            states={name: StatePlace(*place) for name, place in image.states.items()},
            externals=tuple(External(*external) for external in image.externals),
            routings=tuple(RoutingPlace(*place) for place in image.routings),
        )

    def entry(self) -> object:
        """The tuples that :meth:`from_entry` takes."""
        return _plain(self)

    def runs_like(self, other: Image) -> bool:
        """Whether both are the same program, up to the contents of constants and labels of layers.

        Labels are not compared, since the text of a graph omits some.
        """
        return self._unlabelled() == other._unlabelled()

    def _unlabelled(self) -> Image:
        routings = tuple(place._replace(node="") for place in self.routings)
        return self._replace(constants=(), routings=routings)


def _plain(part: object) -> object:
    """``part`` in plain tuples and bytes, which every process can read."""
    if isinstance(part, tuple):
        return tuple([_plain(item) for item in part])
    if isinstance(part, dict):
        return {key: _plain(item) for key, item in part.items()}
    return bytes(part) if isinstance(part, memoryview) else part
