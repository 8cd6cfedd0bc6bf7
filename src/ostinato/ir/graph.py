"""Nodes, values, and the graph that holds them.

A graph only grows: nodes are appended after the nodes they read, so the node list is always in
topological order. Passes build new graphs (see :mod:`ostinato.passes`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.dtypes import BOOL, FLOAT32, INT64, DType
from ostinato.errors import GraphError
from ostinato.ir.deferred import Deferrable
from ostinato.ir.leaves import CONSTANT, INPUT, PARAM, STATE, Leaf, as_numpy, check_shape
from ostinato.ir.operators import Operators
from ostinato.ir.source_lines import locate, user_source
from ostinato.ir.stored import ParamValues, StoredTensor
from ostinato.ir.types import TensorType
from ostinato.records import dataclass, field
from ostinato.variables import Expr, Symbol, data_symbols, symbols

if TYPE_CHECKING:
    from ostinato.ir.op import Attr, Op
    from ostinato.ir.specialization import Specialization
    from ostinato.variables import Dim

__all__ = ["BaseGraph", "Node", "Value"]


@dataclass(eq=False)
class Node:
    """One application of an op.

    Attributes:
        op: the op, whose class holds the rules.
        inputs: the values read.
        attrs: the op's static arguments.
        label: the name that error messages and reports use.
        source: ``file:line`` of the user's call, or ``""``.
        outputs: the values produced.
    """

    op: Op
    inputs: tuple[Value, ...]
    attrs: dict[str, Attr]
    label: str
    source: str = ""
    outputs: tuple[Value, ...] = ()

    def __str__(self) -> str:
        operands = ", ".join(str(v.type) for v in self.inputs)
        return f"{self.op.name} {self.label!r} ({operands})"


class Value(Operators):
    """A tensor of the graph: one result of one node. It supports Python's operators."""

    __slots__ = ("graph", "id", "index", "node", "type")

    def __init__(self, graph: BaseGraph, node: Node, index: int, id: int, type: TensorType) -> None:
        self.graph = graph
        self.node = node
        self.index = index
        self.id = id
        self.type = type

    @property
    def shape(self) -> tuple[Dim, ...]:
        return self.type.shape

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def ndim(self) -> int:
        return len(self.type.shape)

    @property
    def name(self) -> str:
        """The leaf's name, else the node's label."""
        return str(self.node.attrs.get("name") or self.node.label)

    def __repr__(self) -> str:
        return f"<Value %{self.id} {self.node.op.name} : {self.type}>"

    def __bool__(self) -> bool:
        raise GraphError(
            f"%{self.id} ({self.type}) has no value while the graph is built; "
            "use where(condition, x, y) instead of a Python condition"
        )

    def __iter__(self) -> Iterator[Value]:
        raise GraphError(f"%{self.id} ({self.type}) cannot be iterated; use split or take")

    def _op(self, name: str, *operands: Any) -> Value:
        return getattr(self.graph, name)(*operands)  # type: ignore[no-any-return]


@dataclass(eq=False)
class BaseGraph(Deferrable):
    """The node list, its leaves and its outputs; the op methods come from the vocabulary.

    Attributes:
        name: the graph's name in reports.
        nodes: all nodes, each after the nodes it reads.
        inputs, params, states: leaves by name.
        outputs: results by name, in order.
        assignments: by state name, the value that the state holds after the run.
        param_values: by param name, what it holds until it is written.
        stand_ins: in a rewritten graph, by the id of a value of the first graph, what stands for it
            here, as far as anything does.
        specialization: a way to build the graph again for other sizes, if there is one.
    """

    # A deferred graph would find a default that is an attribute of the class.
    name: str = field(default_factory=lambda: "graph")
    nodes: list[Node] = field(default_factory=list)
    inputs: dict[str, Value] = field(default_factory=dict)
    params: dict[str, Value] = field(default_factory=dict)
    states: dict[str, Value] = field(default_factory=dict)
    outputs: dict[str, Value] = field(default_factory=dict)
    assignments: dict[str, Value] = field(default_factory=dict)
    param_values: ParamValues = field(default_factory=ParamValues)
    stand_ins: dict[int, Value] | None = None
    specialization: Specialization[BaseGraph] | None = field(default_factory=lambda: None)
    _variables: dict[str, Symbol] = field(default_factory=dict)
    _size_nodes: dict[str, Node] = field(default_factory=dict)
    _next_id: int = field(default_factory=int)
    _label: str = ""

    # -- leaves -----------------------------------------------------------------------------

    def input(self, name: str, shape: Sequence[Dim], dtype: Any = FLOAT32) -> Value:
        """A tensor given at each run.

        Raises:
            GraphError: the name is taken, or the shape or dtype makes no sense.
        """
        return self._leaf(self.inputs, INPUT, name, shape, dtype)

    def param(
        self, name: str, shape: Sequence[Dim], dtype: Any = FLOAT32, *, value: Any = None
    ) -> Value:
        """A weight: written once, used by many runs. ``value`` is what it holds until written.

        Args:
            name, shape, dtype: of the param.
            value: an array, or a :class:`~ostinato.ir.stored.StoredTensor`.

        Raises:
            GraphError: the name is taken, the shape or dtype makes no sense, or ``value`` differs.
        """
        shape = check_shape(f"param {name!r}", shape)
        if any(not isinstance(d, int) for d in shape):
            raise GraphError(f"param {name!r}: the shape of a param is fixed, got {shape}")
        if value is not None:
            value = value if isinstance(value, StoredTensor) else as_numpy(value)
            type_ = TensorType(DType.parse(dtype), shape)
            if value.shape != shape or DType.parse(value.dtype) != type_.dtype:
                raise GraphError(
                    f"param {name!r} is {type_}, its value is {value.dtype}{value.shape}"
                )
        result = self._leaf(self.params, PARAM, name, shape, dtype)
        if value is not None:
            self.param_values.put(name, value)
        return result

    def state(self, name: str, shape: Sequence[Dim], dtype: Any = FLOAT32, init: Any = 0) -> Value:
        """A tensor that lives from run to run; see :meth:`assign`.

        Raises:
            GraphError: the name is taken, the shape is symbolic, or ``init`` does not broadcast.
        """
        shape = check_shape(f"state {name!r}", shape)
        if any(not isinstance(d, int) for d in shape):
            raise GraphError(f"state {name!r}: the shape of a state is fixed, got {shape}")
        parsed = DType.parse(dtype)
        try:
            start = np.broadcast_to(np.asarray(init).astype(parsed.numpy), shape)  # type: ignore[arg-type]
        except ValueError as error:
            raise GraphError(f"state {name!r}: init does not fit {shape}: {error}") from None
        return self._leaf(self.states, STATE, name, shape, parsed, init=start)

    def inout(self, name: str, shape: Sequence[Dim], dtype: Any = FLOAT32) -> Value:
        """A state in the memory of an array that each run is given, as an input.

        The array holds the value that is assigned after the run (:meth:`assign`); an update of a
        slice or of rows is made in the array itself.

        Raises:
            GraphError: the name is taken, or the shape or dtype makes no sense.
        """
        return self._leaf(self.states, STATE, name, shape, dtype, init=None)

    def constant(self, array: Any, dtype: Any = None) -> Value:
        """A tensor known while compiling. Python scalars become float32, int64 or bool."""
        if dtype is None and isinstance(array, bool | int | float):
            dtype = _SCALAR_DTYPES[type(array)]
        value = as_numpy(array, None if dtype is None else DType.parse(dtype))
        type_ = TensorType(DType.parse(value.dtype), value.shape)
        if value.flags.writeable:
            value = value.copy()
            value.flags.writeable = False
        return self._append(CONSTANT, (), {"array": value}, (type_,))[0]

    def assign(self, state: Value, value: Value) -> None:
        """Make ``state`` hold ``value`` after the run.

        Raises:
            GraphError: the first is no state of this graph, is assigned already, or types differ.
        """
        self._own("assign", (state, value))
        name = state.name
        if self.states.get(name) is not state:
            raise GraphError(f"assign: {state!r} is not a state of graph {self.name!r}")
        if name in self.assignments:
            raise GraphError(f"assign: state {name!r} has a value assigned already")
        if state.type != value.type:
            raise GraphError(f"assign: state {name!r} is {state.type}, the value is {value.type}")
        self.specialization = None
        self.assignments[name] = value

    def set_outputs(self, outputs: Sequence[Value] | Mapping[str, Value]) -> None:
        """Choose the graph's results: values in order, or by name.

        Values given without names take a leaf's name, else ``output_<position>``.

        Raises:
            GraphError: something listed is no value of this graph, or there is no list.
        """
        if isinstance(outputs, Value):
            outputs = [outputs]
        if not isinstance(outputs, Iterable):
            raise GraphError(
                "outputs are given as a list of values or as a mapping of names to values, "
                f"got {type(outputs).__name__}"
            )
        if not isinstance(outputs, Mapping):
            outputs = {f"output_{i}": value for i, value in enumerate(outputs)}
        self._own("set_outputs", tuple(outputs.values()))
        self.specialization = None  # it would build the graph as it was
        self.outputs = {str(name): value for name, value in outputs.items()}

    # -- nodes ------------------------------------------------------------------------------

    def apply(self, op: Op, operands: Sequence[Value], attrs: dict[str, Attr]) -> tuple[Value, ...]:
        """Append one node.

        Raises:
            GraphError: the operands do not fit; names the op, the operands and the source line.
        """
        self._own(op.name, operands)
        try:
            types = op.result_types([v.type for v in operands], attrs)
        except GraphError as error:
            shown = [str(v.type) for v in operands]
            raise locate(error, op.name, shown, self._label) from None
        return self._append(op, tuple(operands), attrs, types)

    def adopt(
        self,
        node: Node,
        operands: Sequence[Value],
        attrs: dict[str, Attr] | None = None,
        types: Sequence[TensorType] | None = None,
    ) -> tuple[Value, ...]:
        """Append a copy of another graph's node.

        The types, the label and the source line are taken over as they are: a pass copies what it
        leaves alone without inferring it again. Leaves keep their names and values.

        Args:
            node: of the other graph.
            operands: its operands' counterparts here.
            attrs, types: instead of its own attributes, and of the types of its results.

        Raises:
            GraphError: a leaf's name is taken.
        """
        original = node.outputs[0].graph
        attrs = node.attrs if attrs is None else attrs
        types = [value.type for value in node.outputs] if types is None else types
        if original._variables:
            self._note_all_variables(tuple(types), attrs)
        copy = Node(node.op, tuple(operands), attrs, node.label, node.source)
        self._define(copy, types)
        if isinstance(node.op, Leaf) and node.op is not CONSTANT:
            self._adopt_leaf(copy, original)
        return copy.outputs

    @contextmanager
    def labelled(self, label: str) -> Iterator[None]:
        """Label nodes appended inside with a front end's name for the node that it converts."""
        outer, self._label = self._label, label
        try:
            yield
        finally:
            self._label = outer

    @property
    def variables(self) -> dict[str, Symbol]:
        """Every Variable that a shape or an attribute of this graph mentions, by name."""
        return dict(self._variables)

    def nested(self) -> Iterator[BaseGraph]:
        """The graphs that nodes hold as attributes, in order; not those within them."""
        for node in self.nodes:
            for attr in node.attrs.values():
                if isinstance(attr, BaseGraph):
                    yield attr

    @property
    def has_data_sizes(self) -> bool:
        """Whether a node binds a size that depends on data."""
        return bool(self._size_nodes)

    def size_nodes(self, node: Node) -> list[Node]:
        """The nodes that bind the data-dependent sizes which ``node`` mentions.

        They run before it, as its operands do.
        """
        if not self._size_nodes:
            return []
        names = {symbol.name for dim in _mentioned(node) for symbol in data_symbols(dim)}
        found = (self._size_nodes[name] for name in sorted(names))
        return [binding for binding in found if binding is not node]

    def needed_by(self, node: Node) -> list[Node]:
        """The nodes that run before ``node``: of its operands, and of the sizes it mentions."""
        return [*(value.node for value in node.inputs), *self.size_nodes(node)]

    def values(self) -> Iterator[Value]:
        """Every value, in order of definition."""
        for node in self.nodes:
            yield from node.outputs

    def results(self) -> list[Value]:
        """The values that a run must produce: the outputs, then the values assigned to states."""
        return [*self.outputs.values(), *self.assignments.values()]

    # -- machinery --------------------------------------------------------------------------

    def _leaf(
        self,
        table: dict[str, Value],
        op: Op,
        name: str,
        shape: Sequence[Dim],
        dtype: Any,
        **attrs: Attr,
    ) -> Value:
        self._check_name(op, name)
        type_ = TensorType(DType.parse(dtype), check_shape(f"{op.name} {name!r}", shape))
        (value,) = self._append(op, (), {"name": name, **attrs}, (type_,))
        table[name] = value
        return value

    def _check_name(self, op: Op, name: Any) -> None:
        if not isinstance(name, str) or not name:
            raise GraphError(f"{op.name}: a name is a non-empty string, got {name!r}")
        for kind, leaves in (
            ("input", self.inputs),
            ("param", self.params),
            ("state", self.states),
        ):
            if name in leaves:
                raise GraphError(f"{op.name} {name!r}: the graph has {_article(kind)} of that name")

    def _append(
        self,
        op: Op,
        operands: tuple[Value, ...],
        attrs: dict[str, Attr],
        types: tuple[TensorType, ...],
    ) -> tuple[Value, ...]:
        self._note_all_variables(types, attrs)
        self._check_sizes(op, types, attrs)
        label = self._label or f"{op.name}_{len(self.nodes)}"
        node = Node(op, operands, attrs, label, user_source())
        self._define(node, types)
        return node.outputs

    def _define(self, node: Node, types: Sequence[TensorType]) -> None:
        """Append ``node`` with results of these types."""
        self.specialization = None  # it would build the graph as it was
        first = self._next_id
        node.outputs = tuple([Value(self, node, i, first + i, t) for i, t in enumerate(types)])
        self._next_id += len(types)
        self.nodes.append(node)
        if node.op.binds_size:
            (symbol,) = symbols(node.attrs["size"])
            self._size_nodes[symbol.name] = node

    def _adopt_leaf(self, leaf: Node, original: BaseGraph) -> None:
        tables: dict[Op, dict[str, Value]] = {
            INPUT: self.inputs,
            PARAM: self.params,
            STATE: self.states,
        }
        name = leaf.attrs["name"]
        self._check_name(leaf.op, name)
        tables[leaf.op][name] = leaf.outputs[0]
        if leaf.op is PARAM and name in original.param_values:
            self.param_values.put(name, original.param_values.sources[name])

    def _note_all_variables(self, types: tuple[TensorType, ...], attrs: dict[str, Attr]) -> None:
        for type_ in types:
            self._note_variables(type_.shape)
        for attr in attrs.values():
            if isinstance(attr, BaseGraph):
                self._note_symbols(attr.variables.values())
            else:
                self._note_variables(attr if isinstance(attr, tuple) else (attr,))

    def _note_variables(self, dims: Sequence[Any]) -> None:
        for dim in dims:
            if isinstance(dim, Expr):
                # In one order in all processes: stored programs take their values in it.
                self._note_symbols(sorted(symbols(dim), key=lambda symbol: symbol.name))

    def _note_symbols(self, mentioned: Iterable[Symbol]) -> None:
        for symbol in mentioned:
            if symbol.bound is not None:
                self._note_variables((symbol.bound,))
            known = self._variables.setdefault(symbol.name, symbol)
            if known != symbol:
                raise GraphError(
                    f"Variable {symbol.name!r} has bounds {symbol.min}..{symbol.max} here "
                    f"and {known.min}..{known.max} elsewhere in graph {self.name!r}"
                )

    def _check_sizes(self, op: Op, types: tuple[TensorType, ...], attrs: dict[str, Attr]) -> None:
        """Check that data-dependent sizes are bound once, and before they are used."""
        for dim in _dims_of(types, attrs):
            for symbol in data_symbols(dim):
                if op.binds_size and dim is attrs["size"]:
                    if symbol.name in self._size_nodes:
                        raise GraphError(f"{op.name}: {symbol.name!r} has a value already")
                elif isinstance(op, Leaf):
                    raise GraphError(f"{op.name}: its shape depends on data ({symbol.name!r})")
                elif symbol.name not in self._size_nodes:
                    raise GraphError(f"{op.name}: no node before gives {symbol.name!r} its value")

    def _own(self, what: str, operands: Sequence[Any]) -> None:
        for value in operands:
            if not isinstance(value, Value):
                raise GraphError(f"{what}: expected a Value of the graph, got {value!r}")
            if value.graph is not self:
                raise GraphError(
                    f"{what}: {value!r} belongs to graph {value.graph.name!r}, not {self.name!r}"
                )


def _dims_of(types: Sequence[TensorType], attrs: Mapping[str, Attr]) -> Iterator[Expr]:
    """The symbolic sizes in types and attributes."""
    for type_ in types:
        yield from (dim for dim in type_.shape if isinstance(dim, Expr))
    for attr in attrs.values():
        items = attr if isinstance(attr, tuple) else (attr,)
        yield from (item for item in items if isinstance(item, Expr))


def _mentioned(node: Node) -> Iterator[Expr]:
    return _dims_of([value.type for value in node.outputs], node.attrs)


_SCALAR_DTYPES: dict[type, DType] = {bool: BOOL, int: INT64, float: FLOAT32}


def _article(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"
