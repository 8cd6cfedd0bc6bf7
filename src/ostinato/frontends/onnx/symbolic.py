"""Import of a model whose sizes are not known.

First with all open sizes as Variables. Where nodes need numbers, the Variables that they depend on
become numbers, and no others; where they need the contents of small inputs, those become known. The
graph is then built again for what a run brings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ostinato.errors import GraphError, ModelFormatError, OstinatoError, UnsupportedOpError
from ostinato.frontends.onnx.specialization import unbuilt_graph
from ostinato.ir.types import TensorType
from ostinato.records import dataclass, replace
from ostinato.variables import Variable, bounds, joint_narrowings, narrowings, substitute, symbols

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ostinato.frontends.onnx.obstacles import Obstacle
    from ostinato.frontends.onnx.reading import ModelReader
    from ostinato.ops.builder import Graph
    from ostinato.variables import Dim, Symbol

__all__ = ["Imported", "import_model", "sizes_that_fit"]

#: Sizes that models of all kinds are tried at: images, text, sound, and what is small.
_TRIED = (64, 16, 1, 256, 512, 1024, 4096)

#: The most Variables that are tried one by one for whether they have to be numbers.
_MOST_TRIED = 6

#: The most elements of an input whose contents a graph may be built for.
_MOST_KNOWN = 64

#: The greatest size of an output of a graph that is not built yet.
_LARGEST = 2**31 - 1

#: Graphs are built at most until so many nodes have been converted, and at least so often.
_MOST_CONVERTED, _LEAST_BUILDS = 60_000, 4

#: The most conditions that are assumed one after the other.
_MOST_ASSUMED = 12

_Reasons = dict[str, str]
_Shapes = dict[str, tuple["Dim", ...]]


@dataclass(frozen=True)
class Imported:
    """The graph of a model, or where sizes have to be numbers, one that is built later.

    Attributes:
        graph: the graph.
        built: the same with its nodes, at some sizes; ``None`` where there was no telling which.
        reasons: by Variable that has to be a number, the node that needs it, and why.
        contents: the same by input whose contents have to be known.
    """

    graph: Graph
    built: Graph | None
    reasons: _Reasons
    contents: _Reasons


def import_model(reader: ModelReader) -> Imported:
    """Import a model for all sizes, or for as many as possible.

    Raises:
        OstinatoError: see :func:`ostinato.load_onnx`.
    """
    try:
        graph = reader.graph({})
        return Imported(graph, graph, {}, {})
    except (GraphError, UnsupportedOpError, ModelFormatError) as error:
        obstacles = reader.obstacles_of(error)
        builds = max(_MOST_CONVERTED // max(len(reader.model.proto.graph.node), 1), _LEAST_BUILDS)
        if (assuming := _assuming(reader, obstacles, builds)) is not None:
            return Imported(assuming, assuming, {}, {})
        search = _Search(reader, builds)
        needs = search.needs(error, obstacles)
        return Imported(search.unbuilt(needs), needs.graph, needs.numbers, needs.contents)


def sizes_that_fit(reader: ModelReader) -> dict[str, int]:
    """Values of Variables at which a model makes sense; small ones where none are found."""
    search = _Search(reader, 0)
    for values in search.sizes_to_try():
        try:
            reader.graph(search.shapes(values))
        except OstinatoError:
            continue
        return values
    return {name: max(1, symbol.min) for name, symbol in search.variables.items()}


# -- assumptions ---------------------------------------------------------------------------------


def _assuming(reader: ModelReader, obstacles: Sequence[Obstacle], builds: int) -> Graph | None:
    """The graph for most sizes, where what is in the way is a condition on open sizes.

    Sizes for which the conditions do not hold are left to other builds: the graph's inputs do not
    have them.

    Args:
        reader: of the model.
        obstacles: what is in the way.
        builds: how many graphs may be built.
    """
    shapes = {name: type_.shape for name, type_ in reader.inputs.items()}
    taken = {*reader.open}
    for _ in range(_MOST_ASSUMED):
        for changed in _assumptions(obstacles, shapes, taken):
            builds -= 1
            if builds < 0:
                return None
            try:
                graph = reader.graph(changed)
            except OstinatoError as error:
                found = reader.obstacles_of(error)
                if _same_obstacle(obstacles, found):
                    continue
                shapes, obstacles = changed, found
                break
            reader.assume(changed)
            return graph
        else:
            return None
    return None


def _assumptions(
    obstacles: Sequence[Obstacle], shapes: _Shapes, taken: set[str]
) -> Iterator[_Shapes]:
    """Shapes of inputs with which the first obstacle may be out of the way."""
    if not obstacles or not obstacles[0].requirements:
        return
    requirement = obstacles[0].requirements[0]
    mentioned = sorted(symbols(requirement.size), key=lambda symbol: symbol.name)
    ours = [symbol for symbol in mentioned if symbol.name in taken]  # the others are the user's
    for together in joint_narrowings(requirement, ours):
        taken.update(s.name for dim in together.values() for s in symbols(dim))
        yield _with_dims(shapes, together)
    for symbol in ours:
        for dim in narrowings(requirement, symbol):
            taken.update(s.name for s in symbols(dim))
            yield _with_dims(shapes, {symbol: dim})


def _with_dims(shapes: _Shapes, dims: Mapping[Symbol, Dim]) -> _Shapes:
    """Shapes with dims for some Variables."""
    return {name: tuple(substitute(size, dims) for size in shape) for name, shape in shapes.items()}


def _same_obstacle(before: Sequence[Obstacle], after: Sequence[Obstacle]) -> bool:
    """Whether the first obstacle is the same node still, for sizes of the same Variables."""
    if not after or before[0].label != after[0].label:
        return not after
    return _origins(before[0]) == _origins(after[0])


def _origins(obstacle: Obstacle) -> set[str]:
    used = {s.name for r in obstacle.requirements[:1] for s in symbols(r.size)}
    return {name.partition("_by_")[0] for name in used}


# -- what has to be known ------------------------------------------------------------------------


@dataclass(frozen=True)
class _Needs:
    """The sizes and contents that have to be known before a graph can be built.

    Attributes:
        numbers: by Variable, the reason.
        contents: by input, the reason.
        graph: one that was built with them; ``None`` where their values could not be guessed.
    """

    numbers: _Reasons
    contents: _Reasons
    graph: Graph | None = None


class _Search:
    """The search for the fewest sizes and contents that have to be known.

    Args:
        reader: of the model.
        builds: how many graphs may be built.

    Attributes:
        variables: of the shapes of its inputs, by name.
    """

    def __init__(self, reader: ModelReader, builds: int) -> None:
        self._reader = reader
        self._builds = builds
        self._types = reader.inputs
        self.variables: dict[str, Symbol] = {
            s.name: s for type_ in self._types.values() for d in type_.shape for s in symbols(d)
        }
        self._small = {
            name for name, type_ in self._types.items() if type_.ndim <= 1 and _is_small(type_)
        }

    def needs(self, error: OstinatoError, obstacles: Sequence[Obstacle]) -> _Needs:
        """Find what has to be known, given the error of building with nothing known.

        Raises:
            OstinatoError: the model makes no sense, whatever is known.
        """
        refused: OstinatoError | None = None
        needs = _Needs({}, {})
        for values in self.sizes_to_try():
            if self._builds < 0:
                break
            needs, failure = self._sufficient(obstacles, values)
            if failure is None:
                return self._fewest(needs, values)
            if isinstance(failure, UnsupportedOpError):
                refused = failure
        hopeless = any(obstacle.hopeless for obstacle in obstacles)
        rare = not refused and _met_by_some(obstacles, self.variables)
        if (needs.contents or rare) and not hopeless and self._reader.outputs is not None:
            return self._all(needs)  # sizes or contents that make sense could not be guessed
        raise refused or error

    def sizes_to_try(self) -> Iterator[dict[str, int]]:
        """Values of Variables: a batch of one or like the rest, all other axes of the same size."""
        shapes = [type_.shape for type_ in self._types.values()]
        leading = {s.name for shape in shapes if len(shape) > 1 for s in symbols(shape[0])}
        seen: list[dict[str, int]] = []
        for batch, size in [*((1, size) for size in _TRIED), *((size, size) for size in _TRIED)]:
            values = {
                name: min(max(batch if name in leading else size, s.min), s.max)
                for name, s in self.variables.items()
            }
            if values not in seen:
                seen.append(values)
                yield values

    def _sufficient(
        self, obstacles: Sequence[Obstacle], values: Mapping[str, int]
    ) -> tuple[_Needs, OstinatoError | None]:
        """Add to what has to be known whatever is in the way, until the graph can be built.

        Returns:
            What has to be known; and if the graph makes no sense at these sizes, the error.
        """
        needs, failure = _Needs({}, {}), None
        while True:
            more = self._with(needs, obstacles)
            if more == needs and failure is not None:
                more = self._all(needs)
                if more == needs:
                    return needs, failure
            needs = more
            try:
                return replace(needs, graph=self._build(needs, values)), None
            except OstinatoError as error:
                failure, obstacles = error, self._reader.obstacles_of(error)

    def _with(self, needs: _Needs, obstacles: Sequence[Obstacle]) -> _Needs:
        numbers, contents = dict(needs.numbers), dict(needs.contents)
        for obstacle in obstacles:
            for name in sorted(obstacle.variables & self.variables.keys()):
                numbers.setdefault(name, obstacle.reason)
            for name in sorted(obstacle.inputs & self._small):
                contents.setdefault(name, obstacle.reason)
        return _Needs(numbers, contents)

    def _all(self, needs: _Needs) -> _Needs:
        reason = "shapes that depend on it could not be followed"
        return _Needs({**dict.fromkeys(self.variables, reason), **needs.numbers}, needs.contents)

    def _fewest(self, needs: _Needs, values: Mapping[str, int]) -> _Needs:
        """``needs`` without the Variables that can stay."""
        if not 1 < len(needs.numbers) <= _MOST_TRIED:
            return needs
        for name in tuple(needs.numbers):
            fewer = {other: reason for other, reason in needs.numbers.items() if other != name}
            try:
                if self._builds >= 0 and (fewer or needs.contents):
                    graph = self._build(replace(needs, numbers=fewer), values)
                    needs = replace(needs, numbers=fewer, graph=graph)
            except OstinatoError:
                continue
        return needs

    def shapes(self, values: Mapping[str, int]) -> _Shapes:
        """The shapes of inputs with numbers for some Variables."""
        given = {self.variables[name]: value for name, value in values.items()}
        return {
            name: tuple(substitute(dim, given) for dim in type_.shape)
            for name, type_ in self._types.items()
        }

    def _build(self, needs: _Needs, values: Mapping[str, int]) -> Graph:
        self._builds -= 1
        shapes = self.shapes({name: values[name] for name in needs.numbers})
        every = {symbol: values[name] for name, symbol in self.variables.items()}
        contents = {
            name: np.ones(
                [int(substitute(dim, every)) for dim in self._types[name].shape],  # type: ignore[arg-type]
                self._types[name].dtype.numpy,
            )
            for name in needs.contents
        }
        return self._reader.graph(shapes, contents)

    def unbuilt(self, needs: _Needs) -> Graph:
        """A graph with the model's inputs and outputs that is built later."""
        if needs.graph is None:
            name, params, types = self._reader.name, {}, self._reader.outputs or {}
        else:
            name, params = needs.graph.name, dict(needs.graph.param_values.sources)
            types = {name: value.type for name, value in needs.graph.outputs.items()}
        reasons = [*needs.numbers.values(), *needs.contents.values()]
        return unbuilt_graph(name, self._types, self._open_types(types), params, reasons)

    def _open_types(self, types: Mapping[str, TensorType]) -> dict[str, TensorType]:
        """The types of outputs, each size a Variable of its own."""
        opened, taken = {}, {*self.variables}
        for position, (name, type_) in enumerate(types.items()):
            prefix = name if name.isidentifier() else f"output{position}"
            shape: list[Dim] = []
            for axis in range(type_.ndim):
                unique = f"{prefix}_dim{axis}"
                while unique in taken:
                    unique += "_"
                taken.add(unique)
                shape.append(Variable(unique, 0, _LARGEST))
            opened[name] = TensorType(type_.dtype, tuple(shape))
        return opened


def _met_by_some(obstacles: Sequence[Obstacle], variables: Mapping[str, Symbol]) -> bool:
    """Whether all that is in the way are conditions on these Variables: some sizes may meet them,
    if only those that an exporter has seen.
    """
    return bool(obstacles) and all(
        any(symbol.name in variables for r in obstacle.requirements for symbol in symbols(r.size))
        for obstacle in obstacles
    )


def _is_small(type_: TensorType) -> bool:
    return all(isinstance(dim, int) or dim.bounds()[1] > 0 for dim in type_.shape) and (
        bounds(type_.size)[0] <= _MOST_KNOWN
    )
