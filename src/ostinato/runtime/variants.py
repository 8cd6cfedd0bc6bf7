"""The graphs of one model at different sizes, and the choice among them for a run."""

from __future__ import annotations

from collections import OrderedDict
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ostinato.backends.common.mutex import Mutex
from ostinato.dtypes import DType
from ostinato.errors import (
    GraphError,
    InputError,
    ModelFormatError,
    OstinatoError,
    UnsupportedOpError,
    VariableError,
)
from ostinato.ir.binding import solve_dims
from ostinato.records import dataclass, replace
from ostinato.runtime.arrays import shape_text
from ostinato.runtime.signature import NO_VALUES, Live, Signature, interface_of
from ostinato.variables import Variable, bounds, substitute, symbols

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ostinato.ir.graph import BaseGraph
    from ostinato.ir.record import Interface
    from ostinato.ir.specialization import Specialization
    from ostinato.runtime.arrays import Array
    from ostinato.variables import Dim, Symbol

__all__ = ["SpecializedSignature", "Variant", "VariantKey", "VariantValues", "Variants"]

#: Interfaces of variants that are kept; graphs of forgotten ones are built again when needed.
_KEPT = 64

#: Errors of a graph that makes no sense at some sizes, and perhaps at others.
_REFUSED = (VariableError, GraphError, UnsupportedOpError, ModelFormatError)

Shape = tuple["Dim", ...]


@dataclass(frozen=True)
class VariantKey:
    """The identity of a variant.

    Attributes:
        shapes: of the inputs, in order.
        contents: of the inputs that have to be known, in order: dtype, shape and bytes.
    """

    shapes: tuple[Shape, ...]
    contents: tuple[tuple[str, tuple[int, ...], bytes], ...] = ()

    @cached_property
    def _hash(self) -> int:
        return hash((self.shapes, self.contents))

    def __hash__(self) -> int:
        return self._hash


class VariantValues(NamedTuple):
    """The Variables of a run, and the variant that they belong to."""

    key: VariantKey
    values: tuple[int, ...]


class Variant:
    """A graph at certain sizes.

    Attributes:
        key: the sizes.
        signature: of its graph.
        positions: of its inputs among those of the model.
    """

    def __init__(self, key: VariantKey, graph: BaseGraph, inputs: Sequence[str]) -> None:
        self.key = key
        self.signature = Signature(interface_of(graph))
        self.positions = tuple(inputs.index(name) for name in self.signature.inputs)
        self._graph: BaseGraph | None = graph

    def take_graph(self) -> BaseGraph | None:
        """The graph, once: it holds weights, which are in no need to stay in memory."""
        graph, self._graph = self._graph, None
        return graph


class Variants:
    """The variants of one graph.

    Args:
        graph: the graph.
        way: builds it for other shapes.
        always: whether all sizes are to be numbers.

    Attributes:
        way: as given.
        inputs: the model's inputs, by name.
        base: the key of the graph as it is; ``None`` where sizes have to be numbers.
    """

    def __init__(
        self, graph: BaseGraph, way: Specialization[BaseGraph], *, always: bool = False
    ) -> None:
        self.way = way
        self.inputs = interface_of(graph).inputs
        self._shapes = tuple(type_.shape for type_ in self.inputs.values())
        self._symbols: dict[str, Symbol] = {
            s.name: s for shape in self._shapes for dim in shape for s in symbols(dim)
        }
        self.base = None if way.needed or always else VariantKey(self._shapes)
        self._always = 'specialize="always"' if always else ""
        self._guard = Mutex()
        self._kept: OrderedDict[VariantKey, Variant | OstinatoError] = OrderedDict()

    def refuse_base(self, reason: str) -> None:
        """Have all sizes be numbers from now on: the graph as it is cannot be compiled."""
        self.base, self._always = None, reason

    # -- choice --------------------------------------------------------------------------------

    def live(
        self,
        shapes: Sequence[tuple[int, ...]],
        arrays: Sequence[Array] | None = None,
        block: Mapping[str, int] = NO_VALUES,
        variables: Mapping[str, int] = NO_VALUES,
    ) -> Live:
        """The variant for inputs of these shapes, with the Variables of a run of it.

        Args:
            shapes: of the model's inputs, in order.
            arrays: the inputs, where the contents of some have to be known.
            block, variables: see :meth:`Signature.live`.

        Raises:
            OstinatoError: the model makes no sense at these sizes.
        """
        refused: OstinatoError | None = None
        contents = self._contents(arrays)
        for candidate in self._candidates(shapes, {**block, **variables}):
            key = VariantKey(candidate, contents)
            try:
                variant = self.variant(key)
            except _REFUSED as error:
                if not isinstance(refused, VariableError):
                    refused = error
                continue
            try:
                own = [shapes[position] for position in variant.positions]
                live = variant.signature.live(own, block, variables)
            except VariableError as error:
                refused = refused or error
                continue
            if key == self.base:
                return live
            return replace(live, variables=VariantValues(key, live.variables))
        assert refused is not None
        if isinstance(refused, VariableError):
            raise refused
        sizes = self.describe(VariantKey(tuple(shapes), contents))
        rules = [f"{word} {rule}" for word, rule in self.way.conditions.items()]
        usual = f"; it can where these hold: {', '.join(rules)}" if rules else ""
        raise VariableError(f"the graph cannot be built for {sizes}: {refused}{usual}") from refused

    def _contents(
        self, arrays: Sequence[Array] | None
    ) -> tuple[tuple[str, tuple[int, ...], bytes], ...]:
        """The contents of the inputs that have to be known."""
        if not self.way.inputs or arrays is None:
            return ()
        by_name = zip(self.inputs, arrays, strict=True)
        return tuple(
            (array.dtype.name, array.shape, array.tobytes())
            for name, array in by_name
            if name in self.way.inputs
        )

    def _candidates(
        self, shapes: Sequence[tuple[int, ...]], given: Mapping[str, int]
    ) -> Iterator[tuple[Shape, ...]]:
        """Shapes of inputs that variants may be built for, the most general ones first.

        Raises:
            VariableError: a size is beyond bounds that the user has set.
        """
        numbers = tuple(shapes)
        values = self._values(shapes, given)
        if values is None:  # what the model calls the same size is not
            yield numbers
            return
        self._check_bounds(values)
        seen = set()
        for widen in () if self._always else (True, False):
            chosen = {
                symbol: self._assigned(symbol, values[name], widen=widen)
                for name, symbol in self._symbols.items()
                if name in values
            }
            changed = {s: dim for s, dim in chosen.items() if dim is not None}
            general = tuple(tuple(substitute(d, changed) for d in shape) for shape in self._shapes)
            if general not in seen:
                seen.add(general)
                yield general
        if numbers not in seen:
            yield numbers

    def _pairs(self, shapes: Sequence[tuple[int, ...]]) -> dict[str, tuple[Shape, tuple[int, ...]]]:
        named = zip(self.inputs, self._shapes, shapes, strict=True)
        return {name: (declared, actual) for name, declared, actual in named}

    def _values(
        self, shapes: Sequence[tuple[int, ...]], given: Mapping[str, int]
    ) -> dict[str, int] | None:
        """The Variables' values; ``None`` where the shapes contradict each other."""
        try:
            return solve_dims(self._pairs(shapes), given)
        except (VariableError, InputError):  # ranks and fixed sizes have been examined
            return None

    def _check_bounds(self, values: Mapping[str, int]) -> None:
        for name, value in values.items():
            symbol = self._symbols.get(name)
            if symbol is None or name in self.way.open:
                continue
            if not symbol.min <= value <= symbol.max:
                word = self.way.words.get(name, repr(name))
                raise VariableError(
                    f"Variable {word} is bounded by {symbol.min}..{symbol.max}, got {value}"
                )

    def _assigned(self, symbol: Symbol, value: int, *, widen: bool) -> Dim | None:
        """The dim for a Variable where a run brings ``value``; ``None``: itself."""
        if symbol.name in self.way.reasons:
            return value
        if symbol.min <= value <= symbol.max:
            return None
        if value < symbol.min or not widen:
            return value
        return Variable(symbol.name, symbol.min, (1 << value.bit_length()) - 1)

    # -- graphs --------------------------------------------------------------------------------

    def variant(self, key: VariantKey) -> Variant:
        """The variant of a key.

        Raises:
            OstinatoError: the model makes no sense at these sizes.
        """
        with self._guard:
            found = self._kept.get(key)
            if found is None:
                try:
                    found = Variant(key, self.build(key), list(self.inputs))
                except _REFUSED as error:
                    found = error
                self._kept[key] = found
                if len(self._kept) > _KEPT:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(key)
        if isinstance(found, Variant):
            return found
        raise found.with_traceback(None)

    def exact(self, chosen: VariantValues) -> VariantKey:
        """The key of the variant for the sizes of one run alone."""
        key, values = chosen
        names = self.variant(key).signature.variables
        known = {v: n for v, n in zip(names.values(), values, strict=True) if v.bound is None}
        shapes = tuple(tuple(substitute(dim, known) for dim in shape) for shape in key.shapes)
        return VariantKey(shapes, key.contents)

    def keep_base(self, graph: BaseGraph) -> Variant:
        """The variant of the graph as it is."""
        assert self.base is not None
        with self._guard:
            found = self._kept[self.base] = Variant(self.base, graph, list(self.inputs))
            return found

    def build(self, key: VariantKey) -> BaseGraph:
        """The graph of a key, built again."""
        shapes = dict(zip(self.inputs, key.shapes, strict=True))
        named = (name for name in self.inputs if name in self.way.inputs)
        contents = {
            name: np.frombuffer(data, DType.parse(dtype).numpy).reshape(shape)
            for name, (dtype, shape, data) in zip(named, key.contents, strict=False)
        }
        return self.way.build(shapes, contents)

    # -- words ---------------------------------------------------------------------------------

    def describe(self, key: VariantKey) -> str:
        """The sizes of a variant, in the words of the model."""
        chosen: dict[str, str] = {}
        for name, declared, shape in zip(self.inputs, self._shapes, key.shapes, strict=True):
            for dim, taken in zip(declared, shape, strict=True):
                if isinstance(dim, int):
                    continue
                word = self.word(dim)
                text = _assignment(word, dim, taken)
                if chosen.setdefault(word, text) != text:  # the same name, another size
                    chosen[name] = f"{name} {shape_text(shape)}"
        named = (name for name in self.inputs if name in self.way.inputs)
        contents = (
            f"{name} = {np.frombuffer(data, DType.parse(dtype).numpy).tolist()}"
            for name, (dtype, _, data) in zip(named, key.contents, strict=False)
        )
        return ", ".join([*filter(None, chosen.values()), *contents])

    def word(self, dim: Dim) -> str:
        """The model's name for a dim of an input."""
        return self.way.words.get(str(dim), str(dim))

    @property
    def specialized(self) -> Mapping[str, str]:
        """By size that is a number in every variant, in the words of the model, the reason."""
        reasons = dict.fromkeys(self._symbols, self._always) if self._always else {}
        reasons.update(self.way.reasons)
        return {
            self.word(dim): reasons[symbol.name]
            for dim in self._dims()
            for symbol in symbols(dim)
            if symbol.name in reasons
        }

    @property
    def symbolic(self) -> tuple[str, ...]:
        """The sizes that are not, in the words of the model."""
        specialized = self.specialized
        return tuple(word for dim in self._dims() if (word := self.word(dim)) not in specialized)

    def _dims(self) -> Iterator[Dim]:
        """The open dims of inputs, each once."""
        seen = dict.fromkeys(dim for shape in self._shapes for dim in shape)
        return (dim for dim in seen if not isinstance(dim, int))


def _assignment(word: str, declared: Dim, taken: Dim) -> str:
    """The size that a variant takes for a Variable; empty where that is the Variable itself."""
    if isinstance(taken, int):
        return f"{word} = {taken}"
    low, high = bounds(taken)
    return "" if (low, high) == bounds(declared) else f"{word} in {low}..{high}"


class SpecializedSignature(Signature):
    """The signature of a graph that is built for the sizes of a run.

    Args:
        interface: of the graph as it is loaded.
        variants: of the graph.
    """

    def __init__(self, interface: Interface, variants: Variants) -> None:
        super().__init__(interface)
        self.variants = variants
        self.words = variants.way.words
        self.read = tuple(name for name in self.inputs if name in variants.way.inputs)
        positions = tuple(i for i, name in enumerate(self.inputs) if name in self.read)
        self._read = positions or None

    def _sizes(
        self,
        shapes: Sequence[tuple[int, ...]],
        arrays: Sequence[Array] | None,
        block: Mapping[str, int],
        variables: Mapping[str, int],
    ) -> Live:
        return self.variants.live(shapes, arrays, block, variables)

    def _recognise_new(
        self, shapes: Sequence[tuple[int, ...]], variables: Mapping[str, int]
    ) -> Live | None:
        return None  # they may need a variant that is not built

    def _contents(self, arrays: Sequence[Array] | None) -> tuple[Any, ...]:
        if not self._read or arrays is None:
            return ()
        return tuple(arrays[i].tobytes() for i in self._read)

    def check_resident(self, name: str, array: object, *, cast: bool = False) -> Array:
        return self._resident(name, array, cast=cast)[1].copy()
