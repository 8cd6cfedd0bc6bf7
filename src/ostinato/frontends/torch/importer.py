"""Conversion of a program's nodes to a graph."""

from __future__ import annotations

import inspect
from functools import cache
from typing import TYPE_CHECKING, Any

from ostinato.errors import GraphError, ModelFormatError, OstinatoError, UnsupportedOpError
from ostinato.frontends.torch.call import Call, Complex, NotSupported
from ostinato.frontends.torch.converters import find_converter
from ostinato.frontends.torch.element_types import COMPLEX, ELEMENT_TYPES
from ostinato.frontends.torch.program import (
    USER_INPUT,
    Named,
    Program,
    Ref,
    ScalarMeta,
    TensorMeta,
)
from ostinato.frontends.torch.symbols import SymbolTable
from ostinato.ir.graph import Value
from ostinato.variables import Expr

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ostinato.frontends.torch.call import Converter
    from ostinato.frontends.torch.program import Argument, InputSpec, ProgramNode
    from ostinato.ops.builder import Graph, NestedGraph
    from ostinato.variables import Dim

__all__ = ["Importer"]


class _Missing:
    """The result of a node that could not be converted; nodes that read it are skipped."""


_MISSING = _Missing()


class Importer:
    """Builds ``g`` from a program, collecting every node that cannot be expressed.

    Args:
        program: the program.
        g: an empty graph.
        dims: what the program's symbols stand for.

    Attributes:
        unsupported: a line for each node without an equivalent.
    """

    def __init__(self, program: Program, g: Graph, dims: Mapping[str, Dim]) -> None:
        self._program = program
        self._g = g
        self._symbols = SymbolTable(program.symbols)
        for symbol, dim in dims.items():
            self._symbols.define(symbol, dim)
        self._failure: OstinatoError | None = None
        self.unsupported: list[str] = []

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
        names = {spec.name: self._leaf(spec) for spec in self._program.inputs}
        results = self._body(self._program, self._g, names)
        if self.unsupported:
            count = len(self.unsupported)
            nodes = "1 node" if count == 1 else f"{count} nodes"
            lines = "".join(f"\n  - {line}" for line in self.unsupported)
            raise UnsupportedOpError(f"{self._program.name}: {nodes} not supported:{lines}")
        if self._failure is not None:
            raise self._failure
        return results

    # -- leaves -----------------------------------------------------------------------------

    def _leaf(self, spec: InputSpec) -> Any:
        """The value of an input."""
        meta = spec.meta
        if spec.value is not None or meta is None:
            return spec.value
        if isinstance(meta, ScalarMeta):
            if meta.kind == "int" and isinstance(meta.value, str):
                return self._symbols.dim(meta.value)
            return meta.value
        shape = tuple(self._symbols.dim(size) for size in meta.shape)
        if meta.dtype in COMPLEX:
            return Complex(self._tensor(spec, (*shape, 2), COMPLEX[meta.dtype].name))
        if meta.dtype not in ELEMENT_TYPES:
            raise UnsupportedOpError(f"input {spec.target!r}: torch.{meta.dtype} has no equivalent")
        return self._tensor(spec, shape, meta.dtype)

    def _tensor(self, spec: InputSpec, shape: tuple[Dim, ...], dtype: str) -> Value:
        if spec.kind == USER_INPUT:
            return self._g.input(spec.target, shape, dtype)
        value = self._program.weights.get(spec.target)
        return self._g.param(spec.target, shape, dtype, value=value)

    # -- nodes ------------------------------------------------------------------------------

    def _body(self, program: Program, g: Graph, names: dict[str, Any]) -> list[Any]:
        """Convert the nodes of ``program`` and give its outputs."""
        for node in program.nodes:
            result = self._node(node, g, names)
            if node.unpacked:
                parts = result if isinstance(result, tuple) else (result,)
                if result is _MISSING:
                    parts = (_MISSING,) * len(node.results)
                if len(parts) < len(node.results):
                    raise ModelFormatError(f"node {node.name!r} has {len(parts)} results")
                names.update(zip(node.results, parts, strict=False))
            else:
                names[node.results[0]] = result
        return [self._resolve(spec.argument, names) for spec in program.outputs]

    def _node(self, node: ProgramNode, g: Graph, names: Mapping[str, Any]) -> Any:
        """The result of one node. Errors are collected, so that the rest is checked too."""
        try:
            converter = find_converter(node.target)
            if converter is None:
                raise NotSupported("no converter for this op")
            args = tuple(self._resolve(arg, names) for arg in node.args)
            kwargs = {name: self._resolve(arg, names) for name, arg in node.kwargs.items()}
            if _holds_missing(args) or _holds_missing(tuple(kwargs.values())):
                return _MISSING
            call = Call(g, node, self._symbols, self._nested)
            try:
                _signature(converter).bind(call, *args, **kwargs)
            except TypeError as error:
                raise NotSupported(f"its arguments have no equivalent: {error}") from None
            with g.labelled(node.name):
                result = converter(call, *args, **kwargs)
            self._learn(node, result)
            self._check(node, result)
        except (NotSupported, UnsupportedOpError) as reason:
            where = f" at {node.where}" if node.where else ""
            self.unsupported.append(f"{node.name!r} ({node.target}){where}: {reason}")
            return _MISSING
        except GraphError as error:
            problem = str(error).removesuffix(f" (node {node.name!r})")
            self._fail(GraphError(f"{node.target} {node.name!r}: {problem}"), error)
            return _MISSING
        return result

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
            if not isinstance(meta, TensorMeta) or found is None:
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
        """The value, number or tuple behind an argument."""
        if isinstance(argument, Ref):
            if argument.name not in names:
                raise ModelFormatError(f"the name {argument.name!r} is used and not defined")
            return names[argument.name]
        if isinstance(argument, tuple) and not isinstance(argument, Named):
            return tuple(self._resolve(item, names) for item in argument)
        return argument

    def _nested(self, program: Program, g: NestedGraph, arguments: Sequence[Any]) -> list[Any]:
        if len(arguments) != len(program.inputs):
            raise ModelFormatError(
                f"{program.name!r} takes {len(program.inputs)} inputs, got {len(arguments)}"
            )
        given = zip(program.inputs, arguments, strict=True)
        return self._body(program, g, {spec.name: argument for spec, argument in given})

    def _fail(self, error: OstinatoError, cause: Exception) -> None:
        if self._failure is None:
            error.__cause__ = cause
            self._failure = error


@cache
def _signature(converter: Converter) -> inspect.Signature:
    return inspect.signature(converter)


def _holds_missing(arguments: tuple[Any, ...]) -> bool:
    return any(
        item is _MISSING or (isinstance(item, tuple) and _holds_missing(item)) for item in arguments
    )


def _agree(wanted: Sequence[Dim], found: Sequence[Dim]) -> bool:
    """Whether two shapes may be the same: sizes that are no numbers are not compared."""
    if len(wanted) != len(found):
        return False
    pairs = zip(wanted, found, strict=True)
    return all(a == b for a, b in pairs if isinstance(a, int) and isinstance(b, int))
