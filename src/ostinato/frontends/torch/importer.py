"""Conversion of a program's nodes to a graph."""

from __future__ import annotations

import inspect
from functools import cache
from typing import TYPE_CHECKING, Any

from ostinato.errors import GraphError, ModelFormatError, OstinatoError, UnsupportedOpError
from ostinato.frontends.torch.aliasing import INLINED, Tensor, View, aliases, functional_target
from ostinato.frontends.torch.call import Call, Complex, NotSupported, Unavailable, Writes
from ostinato.frontends.torch.converters import find_converter
from ostinato.frontends.torch.element_types import COMPLEX, ELEMENT_TYPES
from ostinato.frontends.torch.layout import is_contiguous
from ostinato.frontends.torch.program import (
    BUFFER_MUTATION,
    INOUT,
    INPUT_MUTATION,
    USER_INPUT,
    Named,
    Program,
    Ref,
    ScalarMeta,
    TensorMeta,
)
from ostinato.frontends.torch.symbols import SymbolTable
from ostinato.ir.facts import Fact
from ostinato.ir.graph import Value
from ostinato.ir.stored import elements
from ostinato.variables import Expr

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from ostinato.frontends.torch.call import Converter
    from ostinato.frontends.torch.program import Argument, InputSpec, ProgramNode
    from ostinato.ops.builder import Graph, NestedGraph
    from ostinato.variables import Dim

__all__ = ["MISSING", "Importer", "UnsupportedNodesError"]


class UnsupportedNodesError(UnsupportedOpError):
    """Nodes that have no equivalent.

    Attributes:
        targets: the ops of these nodes.
    """

    targets: frozenset[str] = frozenset()


#: Ops that address the memory behind their operand.
_STORAGE_OPS = frozenset({"aten.as_strided", "aten.as_strided_copy", "aten.as_strided_scatter"})


class _Missing:
    """The result of a node that could not be converted; nodes that read it are skipped."""


#: The only one.
MISSING = _Missing()


class Importer:
    """Builds ``g`` from a program, collecting every node that cannot be expressed.

    Args:
        program: the program.
        g: an empty graph.
        dims: what the program's symbols stand for.
        states: the weights, by ``target``, that become states of the graph.
        inouts: the inputs, by ``target``, that become states in memory that each run is given.
        lifted: the weights, by ``target``, that become inputs.

    Attributes:
        unsupported: a line for each node without an equivalent.
        leaves: by name of an input, its :class:`~.aliasing.Tensor`, dim or number.
        results: by output, the same.
    """

    def __init__(
        self,
        program: Program,
        g: Graph,
        dims: Mapping[str, Dim],
        states: Collection[str] = (),
        inouts: Collection[str] = (),
        lifted: Collection[str] = (),
    ) -> None:
        self._states, self._inouts, self._lifted = states, inouts, lifted
        self._program = program
        self._g = g
        self._symbols = SymbolTable(program.symbols)
        for symbol, dim in dims.items():
            self._symbols.define(symbol, dim)
        self._failure: OstinatoError | None = None
        self._weights: dict[str, Tensor] = {}
        self._refused: set[str] = set()
        self.unsupported: list[str] = []
        self.leaves: dict[str, Any] = {}
        self.results: list[Any] = []

    def run(self) -> list[Any]:
        """Convert the whole program.

        Returns:
            For each output of the program a value, :class:`~.call.Complex`, dim, number or
            ``None``.

        Raises:
            UnsupportedOpError: lists every node without an equivalent.
            GraphError: a node's operands do not fit each other.
            ModelFormatError: the program breaks its own rules.
        """
        self.leaves = {spec.name: self._leaf(spec) for spec in self._program.inputs}
        self.results = self._body(self._program, self._g, dict(self.leaves))
        if self.unsupported:
            count = len(self.unsupported)
            nodes = "1 node" if count == 1 else f"{count} nodes"
            lines = "".join(f"\n  - {line}" for line in self.unsupported)
            error = UnsupportedNodesError(f"{self._program.name}: {nodes} not supported:{lines}")
            error.targets = frozenset(self._refused)
            raise error
        if self._failure is not None:
            raise self._failure
        return [_read(result) for result in self.results]

    @property
    def facts(self) -> list[Fact]:
        """The conditions on sizes that the program asserts."""
        return [Fact(size, 0, problem) for size, problem in self._symbols.requirements]

    @property
    def written(self) -> dict[str, Any]:
        """By ``target`` of an input that the program writes to, its new elements."""
        found = {}
        for spec in self._program.inputs:
            leaf = self.leaves[spec.name]
            if isinstance(leaf, Tensor) and leaf.written:
                found[spec.target] = leaf.read()
        targets = {spec.target for spec in self._program.inputs}
        for output, result in zip(self._program.outputs, self.results, strict=True):
            if output.kind in (BUFFER_MUTATION, INPUT_MUTATION) and output.target in targets:
                found[output.target] = _read(result)
        return found

    # -- leaves -----------------------------------------------------------------------------

    def _leaf(self, spec: InputSpec) -> Any:
        """The tensor, dim or number of an input; inputs of one weight are one tensor."""
        meta = spec.meta
        if spec.value is not None or meta is None:
            return spec.value
        if isinstance(meta, ScalarMeta):
            if meta.kind == "int" and isinstance(meta.value, str):
                return self._symbols.dim(meta.value)
            return meta.value
        if spec.kind != USER_INPUT and spec.target in self._weights:
            return self._weights[spec.target]
        shape = tuple(self._symbols.dim(size) for size in meta.shape)
        if meta.dtype in COMPLEX:
            dtype = COMPLEX[meta.dtype].name
            tensor = Tensor(Complex(self._value(spec, (*shape, 2), dtype)), meta=meta)
        elif meta.dtype in ELEMENT_TYPES:
            tensor = Tensor(self._value(spec, shape, meta.dtype), meta=meta)
        else:
            raise UnsupportedOpError(f"input {spec.target!r}: torch.{meta.dtype} has no equivalent")
        if spec.kind != USER_INPUT:
            self._weights[spec.target] = tensor
        return tensor

    def _value(self, spec: InputSpec, shape: tuple[Dim, ...], dtype: str) -> Value:
        if spec.target in self._inouts:
            return self._g.inout(spec.target, shape, dtype)
        if spec.kind == USER_INPUT or spec.target in self._lifted:
            return self._g.input(spec.target, shape, dtype)
        if spec.kind == INOUT:
            return self._g.inout(spec.target, shape, dtype)
        value = self._program.weights.get(spec.target)
        if spec.target in self._states:
            start = 0 if value is None else elements(value)
            return self._g.state(spec.target, shape, dtype, start)
        return self._g.param(spec.target, shape, dtype, value=value)

    # -- nodes ------------------------------------------------------------------------------

    def _body(self, program: Program, g: Graph, names: dict[str, Any]) -> list[Any]:
        """Convert the nodes of ``program`` and give its outputs: tensors, dims and numbers."""
        for node in program.nodes:
            result = self._node(node, g, names)
            if node.unpacked:
                parts = result if isinstance(result, tuple) else (result,)
                if result is MISSING:
                    parts = (MISSING,) * len(node.results)
                if len(parts) < len(node.results):
                    raise ModelFormatError(f"node {node.name!r} has {len(parts)} results")
                names.update(zip(node.results, parts, strict=False))
            else:
                names[node.results[0]] = result
        return [self._resolve(spec.argument, names) for spec in program.outputs]

    def _node(self, node: ProgramNode, g: Graph, names: Mapping[str, Any]) -> Any:
        """The result of one node. Errors are collected, so that the rest is checked too."""
        where = f" at {node.where}" if node.where else ""
        try:
            args = tuple(self._resolve(arg, names) for arg in node.args)
            kwargs = {name: self._resolve(arg, names) for name, arg in node.kwargs.items()}
            if _holds_missing(args) or _holds_missing(tuple(kwargs.values())):
                return MISSING
            _expect_available((*args, *kwargs.values()), node.target)
            if node.target == "_operator.getitem" and isinstance(args[0], tuple):
                return args[0][args[1]]
            if node.target in INLINED:
                return self._inlined(node, g, args, names)
            with g.labelled(node.name):
                return self._op(node, g, args, kwargs)
        except (NotSupported, UnsupportedOpError) as reason:
            self._refused.add(node.target)
            self.unsupported.append(f"{node.name!r} ({node.target}){where}: {reason}")
            return MISSING
        except GraphError as error:
            problem = str(error).removesuffix(f" (node {node.name!r})")
            self._fail(GraphError(f"{node.target} {node.name!r}{where}: {problem}"), error)
            return MISSING

    def _op(
        self, node: ProgramNode, g: Graph, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """The result of an op: new tensors, views of its operand, or the operand, written to."""
        in_place = functional_target(node.target)
        of_complex = _holds_complex(node, (*args, *kwargs.values()))
        converter = find_converter(in_place or node.target, of_complex=of_complex)
        if converter is None:
            of_numbers = " of complex numbers" if of_complex else ""
            raise NotSupported(f"no converter for this op{of_numbers}")
        out = kwargs.pop("out", None)
        call = Call(g, node, self._symbols, self._nested)
        try:
            bound = _signature(converter).bind(call, *args, **kwargs)
        except TypeError as error:
            raise NotSupported(f"its arguments have no equivalent: {error}") from None
        arguments = dict([*bound.arguments.items()][1:])
        if (in_place or node.target).rpartition(".")[0] in _STORAGE_OPS:
            args = (_storage(args[0], arguments), *args[1:])
        operand = args[0] if args and isinstance(args[0], Tensor) else None
        plain = {name: _read(argument) for name, argument in kwargs.items()}

        def compute(first: Any) -> Any:
            return converter(call, *first, *map(_read, args[len(first) :]), **plain)

        result = compute(tuple(map(_read, args)))
        if isinstance(result, Writes):
            for name, value in result.written.items():
                if isinstance(target := arguments.get(name), Tensor):
                    target.write(g, _fitted(g, value, target.read()))
            result = result.result
        self._learn(node, result)
        if operand is not None and aliases(node, operand.meta, arguments, self._symbols.dim):
            self._check(node, result)
            given = {name: _read(argument) for name, argument in arguments.items()}
            return _views(node, operand, result, lambda base: compute((base,)), given)
        target = operand if in_place is not None else out
        if isinstance(target, Tensor):
            result = _fitted(g, result, target.read())
            self._check(node, result)
            target.write(g, result)
            return target
        self._check(node, result)
        return _tensors(node, result)

    def _inlined(
        self, node: ProgramNode, g: Graph, args: tuple[Any, ...], names: Mapping[str, Any]
    ) -> Any:
        """The results of a nested program whose nodes count as nodes of the outer one."""
        position = INLINED[node.target]
        if node.target == "higher_order.wrap_with_autocast" and args[2] is not False:
            raise NotSupported("autocast chooses the dtypes of its ops")
        program = args[position]
        if not isinstance(program, Program):
            raise NotSupported("its program is not known")
        given = args[position + 1 :]
        if node.target == "higher_order.hints_wrapper":
            given = args[position + 1]
        return tuple(self._body(program, g, self._arguments(program, given)))

    def _learn(self, node: ProgramNode, result: Any) -> None:
        """Define the sizes that a node computes."""
        results = result if isinstance(result, tuple) else (result,)
        for meta, found in zip(node.metas, results, strict=False):
            if isinstance(meta, TensorMeta) and isinstance(found, Value | Complex):
                self._symbols.learn(meta.shape, found.shape)
            elif isinstance(meta, ScalarMeta) and isinstance(found, Expr | int):
                self._symbols.learn([meta.value], [found])

    def _check(self, node: ProgramNode, result: Any) -> None:
        """Check that the types of a node's results are those that PyTorch gave them.

        Raises:
            GraphError: one is not.
        """
        results = result if isinstance(result, tuple) else (result,)
        for index, (meta, found) in enumerate(zip(node.metas, results, strict=False)):
            if not isinstance(meta, TensorMeta) or isinstance(found, Unavailable | None):
                continue
            complex_ = isinstance(found, Complex)
            value = found.pairs if isinstance(found, Complex) else found
            if not isinstance(value, Value):
                raise GraphError(f"its result {index} is a {type(found).__name__}, no tensor")
            table = COMPLEX if complex_ else ELEMENT_TYPES
            shape = tuple(self._symbols.dim(size) for size in meta.shape)
            if table.get(meta.dtype) != value.dtype or not _agree(shape, found.shape):
                listed = ", ".join(map(str, shape))
                raise GraphError(
                    f"PyTorch gives its result {index} the type {meta.dtype}[{listed}], "
                    f"its conversion {value.type}"
                )

    def _resolve(self, argument: Argument, names: Mapping[str, Any]) -> Any:
        """The tensor, number or tuple behind an argument."""
        if isinstance(argument, Ref):
            if argument.name not in names:
                raise ModelFormatError(f"the name {argument.name!r} is used and not defined")
            return names[argument.name]
        if isinstance(argument, tuple) and not isinstance(argument, Named):
            return tuple(self._resolve(item, names) for item in argument)
        return argument

    def _nested(self, program: Program, g: NestedGraph, arguments: Sequence[Any]) -> list[Any]:
        given = [Tensor(a) if isinstance(a, Value | Complex) else a for a in arguments]
        results = self._body(program, g, self._arguments(program, given))
        return [_read(result) for result in results]

    def _arguments(self, program: Program, given: Sequence[Any]) -> dict[str, Any]:
        if len(given) != len(program.inputs):
            raise ModelFormatError(
                f"{program.name!r} takes {len(program.inputs)} inputs, got {len(given)}"
            )
        pairs = zip(program.inputs, given, strict=True)
        return {spec.name: argument for spec, argument in pairs}

    def _fail(self, error: OstinatoError, cause: Exception) -> None:
        if self._failure is None:
            error.__cause__ = cause
            self._failure = error


@cache
def _signature(converter: Converter) -> inspect.Signature:
    return inspect.signature(converter)


def _read(operand: Any) -> Any:
    """An operand with the elements of tensors, as converters take it."""
    if isinstance(operand, Tensor):
        return operand.read()
    if isinstance(operand, tuple) and not isinstance(operand, Named):
        return tuple(map(_read, operand))
    return operand


def _tensors(node: ProgramNode, result: Any) -> Any:
    """New tensors for the results of an op."""
    if isinstance(result, tuple):
        return tuple(_tensor(node, index, item) for index, item in enumerate(result))
    return _tensor(node, 0, result)


def _tensor(node: ProgramNode, index: int, item: Any) -> Any:
    if isinstance(item, tuple):
        return _tensors(node, item)
    return Tensor(item, meta=_meta(node, index)) if isinstance(item, Value | Complex) else item


def _views(
    node: ProgramNode,
    base: Tensor,
    result: Any,
    compute: Callable[[Any], Any],
    arguments: Mapping[str, Any],
) -> Any:
    """Views of ``base`` for the results of an op."""
    if not isinstance(result, tuple):
        return Tensor(result, base, View(node, compute, arguments), _meta(node, 0))
    return tuple(
        Tensor(item, base, View(node, compute, arguments, index), _meta(node, index))
        for index, item in enumerate(result)
    )


def _meta(node: ProgramNode, index: int) -> TensorMeta | None:
    found = node.metas[index] if index < len(node.metas) else None
    return found if isinstance(found, TensorMeta) else None


def _fitted(g: Graph, result: Any, target: Any) -> Any:
    """The elements that an op writes, in the type of the tensor that it writes to."""
    if isinstance(target, Complex) or not isinstance(result, Value):
        if isinstance(result, Complex) and isinstance(target, Complex):
            return Complex(g.broadcast_to(result.pairs, target.pairs.shape))
        raise NotSupported("it writes real numbers to a complex tensor, or the reverse")
    fitted = result if result.dtype == target.dtype else g.cast(result, target.dtype)
    return fitted if fitted.shape == target.shape else g.broadcast_to(fitted, target.shape)


def _expect_available(arguments: Sequence[Any], target: str) -> None:
    for item in arguments:
        if isinstance(item, Unavailable):
            raise NotSupported(f"{item.what} is not computed")
        if isinstance(item, tuple) and target != "_operator.getitem":
            _expect_available(item, target)


def _storage(operand: Any, arguments: Mapping[str, Any]) -> Any:
    """The tensor that has the memory of ``operand``, if it is in C order.

    Raises:
        NotSupported: it is not, or the place of the operand in it is not known.
    """
    if not isinstance(operand, Tensor):
        return operand
    whole, meta = operand.root, operand.root.meta
    placed = whole is operand or arguments.get("storage_offset") is not None
    if meta is None or meta.strides is None or not placed:
        raise NotSupported("the layout of its operand in memory is not known")
    sizes = [size for size in (*meta.shape, *meta.strides) if isinstance(size, int)]
    rank = len(meta.shape)
    if len(sizes) < 2 * rank or not is_contiguous(sizes[:rank], sizes[rank:]):
        raise NotSupported("its operand is not contiguous in memory")
    return whole


def _holds_missing(arguments: tuple[Any, ...]) -> bool:
    return any(
        item is MISSING or (isinstance(item, tuple) and _holds_missing(item)) for item in arguments
    )


def _holds_complex(node: ProgramNode, arguments: Sequence[Any]) -> bool:
    """Whether an operand or a result is complex."""
    metas = node.metas
    return any(isinstance(meta, TensorMeta) and meta.dtype in COMPLEX for meta in metas) or any(
        _is_complex(argument) for argument in arguments
    )


def _is_complex(argument: Any) -> bool:
    if isinstance(argument, tuple) and not isinstance(argument, Named):
        return any(map(_is_complex, argument))
    return isinstance(argument, Tensor) and isinstance(argument.read(), Complex)


def _agree(wanted: Sequence[Dim], found: Sequence[Dim]) -> bool:
    """Whether two shapes may be the same: sizes that are no numbers are not compared."""
    if len(wanted) != len(found):
        return False
    pairs = zip(wanted, found, strict=True)
    return all(a == b for a, b in pairs if isinstance(a, int) and isinstance(b, int))
