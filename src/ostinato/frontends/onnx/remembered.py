"""Cached models: cache entries with the graphs of files that were loaded before.

A model's file is mostly weights, and the graph depends on the rest. So the key of a cache entry is
the rest, with the caller's arguments; the weights are found again by their positions. Where the
importer has looked into large weights, or into other files, there is no entry.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.cache.fingerprint import entry_key
from ostinato.cache.objects import process_cache
from ostinato.dtypes import DType
from ostinato.frontends.onnx.file_tensors import FileTensor, PartedFile, without_large_tensors
from ostinato.frontends.onnx.specialization import ModelSpecialization, unbuilt_graph
from ostinato.frontends.onnx.tensors import array_from_bytes
from ostinato.ir.deferred_graph import Deferred, deferred_graph
from ostinato.ir.facts import Fact
from ostinato.ir.record import GraphRecord, Interface
from ostinato.ir.stored import elements
from ostinato.ir.types import MAX_TENSOR_BYTES, TensorType
from ostinato.ops.builder import Graph
from ostinato.plan.buffer import bytes_of
from ostinato.runtime.signature import interface_of
from ostinato.variables import DataVariable, Expr, Variable, symbols

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ostinato.frontends.onnx.reading import ModelReader
    from ostinato.ir.graph import BaseGraph
    from ostinato.ir.stored import Array, ParamSource
    from ostinato.variables import Dim, Symbol

__all__ = ["RememberedModel", "remembered_model"]

#: Entries of models with more bytes of constants and small weights are not kept.
_MOST_BYTES = 16 << 20


class RememberedModel:
    """A model's file, and the cache entry of its graph.

    Args:
        file: the model.
        asked: what else the graph depends on.
        open_reader: gives a reader of the model.
    """

    def __init__(
        self, file: PartedFile, asked: str, open_reader: Callable[[PartedFile], ModelReader]
    ) -> None:
        self.file = file
        self._asked = asked
        self._open_reader = open_reader
        self._reads = file.file.reads
        sizes = [(position, range_.nbytes) for position, range_ in file.ranges.items()]
        self._key = entry_key("ONNX model", file=file.rest, arguments=f"{sizes} {asked}")

    def at(
        self, shapes: Mapping[str, tuple[Dim, ...]], contents: Mapping[str, Array]
    ) -> RememberedModel:
        """The entry of the graph for inputs of these shapes, some with these contents."""
        known = {name: (a.dtype.name, a.tobytes().hex()) for name, a in contents.items()}
        asked = f"{self._asked} at {_text(shapes)} with {_text(known)}"
        return RememberedModel(self.file, asked, self._open_reader)

    def reader(self) -> ModelReader:
        """A reader of the model."""
        return self._open_reader(self.file)

    def graph(self) -> Graph | None:
        """The cached graph, built at its first use; ``None`` without an entry."""
        entry = process_cache().read_entry(self._key)
        if entry is None:
            return None
        text, constants, params, interface, way = entry
        sources = {name: self._source(*param) for name, param in params.items()}
        arrays = {digest: _array(*array) for digest, array in constants.items()}
        typed = _interface(sources, *interface)
        specialization = None if way is None else self._specialization(*way)
        if specialization is not None and specialization.needed:
            reasons = [*specialization.reasons.values(), *specialization.inputs.values()]
            graph = unbuilt_graph(typed.name, typed.inputs, typed.outputs, sources, reasons)
            graph.specialization = specialization
            return graph
        record = GraphRecord(text, arrays)
        parts = Deferred(record, typed, sources, _built, specialization)
        return deferred_graph(Graph, parts)

    def _specialization(
        self,
        reasons: Mapping[str, str],
        inputs: Mapping[str, str],
        open: Sequence[str],
        words: Mapping[str, str],
        conditions: Mapping[str, str],
    ) -> ModelSpecialization:
        return ModelSpecialization(
            self.reader, self, reasons, inputs, frozenset(open), words, conditions
        )

    def keep(self, graph: Graph) -> None:
        """Write the entry, if the graph depends on nothing but its key."""
        record, interface, way = GraphRecord.of(graph), interface_of(graph), graph.specialization
        sources = graph.param_values.sources
        arrays = [*record.constants.values(), *sources.values()]
        held = sum(a.nbytes for a in arrays if isinstance(a, np.ndarray))
        looked_into = self.file.file.reads != self._reads
        if looked_into or held > _MOST_BYTES or sources.keys() != graph.params.keys():
            return
        nodes = () if way is not None and way.needed else graph.values()
        if any(value.type.max_bytes > MAX_TENSOR_BYTES for value in nodes):
            return  # a compile has to report it
        positions = {range_.offset: position for position, range_ in self.file.ranges.items()}
        entry = (
            record.text,
            {digest: _array_entry(array) for digest, array in record.constants.items()},
            {
                name: (source.name, positions[source.range.offset], *_type_entry(source))
                if isinstance(source, FileTensor)
                else _array_entry(elements(source))
                for name, source in sources.items()
            },
            (
                interface.name,
                *(
                    {name: _interface_entry(type_) for name, type_ in types.items()}
                    for types in (interface.inputs, interface.states, interface.outputs)
                ),
                [_variable_entry(symbol) for symbol in interface.variables.values()],
                dict(interface.expert_inputs),
                [_fact_note(fact) for fact in interface.facts],
            ),
            None
            if way is None
            else (
                dict(way.reasons),
                dict(way.inputs),
                sorted(way.open),
                dict(way.words),
                dict(way.conditions),
            ),
        )
        process_cache().write_entry(self._key, entry)

    def _source(self, *entry: Any) -> ParamSource:
        """The elements of a param, or where they are in the file."""
        if isinstance(entry[0], bytes):
            return _array(*entry)
        name, position, dtype, shape = entry
        return FileTensor(name, DType.parse(dtype), shape, self.file.ranges[position])


def remembered_model(
    source: Any,
    dims: Mapping[str, Any] | None,
    constants: Mapping[str, Any] | None,
    name: str | None,
    base_dir: Any,
    open_reader: Callable[[PartedFile], ModelReader],
) -> RememberedModel | None:
    """The model at a path; ``None`` if its graph depends on more than the file.

    Args:
        source, dims, constants, name, base_dir: see :func:`ostinato.load_onnx`.
        open_reader: gives a reader of the model whose file is open.
    """
    if not isinstance(source, str | os.PathLike) or constants or base_dir is not None:
        return None
    path = Path(os.fsdecode(source))
    try:
        file = without_large_tensors(path)
        asked = f"{name or path.stem} {_text(dims)}"
        return None if file is None else RememberedModel(file, asked, open_reader)
    except (OSError, ValueError, TypeError):  # the importer says what is wrong with it
        return None


def _text(dims: object) -> str:
    """Sizes as text: equal only if they are.

    Raises:
        TypeError: they are of a type that is not known here.
    """
    if isinstance(dims, Mapping):
        return f"{{{', '.join(f'{_text(k)}: {_text(v)}' for k, v in dims.items())}}}"
    if isinstance(dims, tuple | list):
        return f"({', '.join(map(_text, dims))})"
    if isinstance(dims, Expr):
        return f"{dims} with {[(s.name, s.min, s.max) for s in symbols(dims)]}"
    if dims is None or type(dims) in (int, str):
        return repr(dims)
    raise TypeError(f"no size: {dims!r:.80}")


def _array_entry(array: Array) -> tuple[bytes, str, tuple[int, ...]]:
    data = bytes(bytes_of(np.ascontiguousarray(array)))
    return data, *_type_entry(array)


def _array(data: bytes, dtype: str, shape: tuple[int, ...]) -> Array:
    return array_from_bytes("a cache entry", data, DType.parse(dtype), shape)


def _type_entry(tensor: ParamSource) -> tuple[str, tuple[int, ...]]:
    return DType.parse(tensor.dtype).name, tuple(tensor.shape)


def _interface_entry(type_: TensorType) -> object:
    """A type whose sizes are known, or as text."""
    known = all(isinstance(dim, int) for dim in type_.shape)
    return (type_.dtype.name, type_.shape) if known else str(type_)


def _type_of_entry(entry: Any, variables: Mapping[str, Expr]) -> TensorType:
    if isinstance(entry, tuple):
        return TensorType(DType.parse(entry[0]), entry[1])
    from ostinato.ir.syntax import Cursor

    return Cursor(entry, variables).tensor_type()


def _interface(
    sources: Mapping[str, ParamSource],
    name: str,
    inputs: Mapping[str, Any],
    states: Mapping[str, Any],
    outputs: Mapping[str, Any],
    variables: Sequence[tuple[Any, ...]],
    expert_inputs: Mapping[str, int],
    facts: Sequence[tuple[str, int, str, str, str]],
) -> Interface:
    named: dict[str, Variable] = {}
    for variable, *limits in variables:
        named[variable] = _variable(named, variable, *limits)
    params = {n: TensorType(DType.parse(s.dtype), tuple(s.shape)) for n, s in sources.items()}
    typed = [
        {name: _type_of_entry(type_, named) for name, type_ in types.items()}
        for types in (inputs, states, outputs)
    ]
    symbols_ = {name: variable.symbol for name, variable in named.items()}
    conditions = tuple(_noted_fact(named, *fact) for fact in facts)
    return Interface(
        name, typed[0], params, typed[1], typed[2], symbols_, expert_inputs, conditions
    )


def _variable_entry(symbol: Symbol) -> tuple[Any, ...]:
    """Name and bounds of a Variable; of a data-dependent one, name and bound."""
    if symbol.bound is None:
        return symbol.name, symbol.min, symbol.max
    return symbol.name, str(symbol.bound)


def _variable(known: Mapping[str, Variable], name: str, *limits: Any) -> Variable:
    if len(limits) == 2:
        return Variable(name, *limits)
    from ostinato.ir.syntax import Cursor

    (bound,) = limits
    return DataVariable(name, Cursor(bound, known).dim())


def _fact_note(fact: Fact) -> tuple[str, int, str, str, str]:
    return str(fact.size), fact.least, fact.problem, str(fact.elements), fact.node


def _noted_fact(
    variables: Mapping[str, Expr], size: str, least: int, problem: str, elements: str, node: str
) -> Fact:
    from ostinato.ir.syntax import Cursor

    dims = [Cursor(text, variables).attribute() for text in (size, elements)]
    return Fact(dims[0], least, problem, dims[1], node)


def _built(record: GraphRecord) -> BaseGraph:
    from ostinato.ops.parser import parse_graph

    return parse_graph(record.text, record.constants)
