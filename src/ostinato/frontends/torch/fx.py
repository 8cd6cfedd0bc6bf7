"""Reading of PyTorch's FX graphs into programs. This module imports PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.export.graph_signature import InputKind, OutputKind

from ostinato.errors import UnsupportedOpError
from ostinato.frontends.torch.leaf_names import argument_names, result_names
from ostinato.frontends.torch.program import (
    BUFFER,
    BUFFER_MUTATION,
    CONSTANT,
    INPUT_MUTATION,
    PARAMETER,
    USER_INPUT,
    USER_OUTPUT,
    Argument,
    InputSpec,
    Named,
    OutputSpec,
    Program,
    ProgramNode,
    Ref,
    ScalarMeta,
    TensorMeta,
    source_line,
)
from ostinato.frontends.torch.pytrees import leaf_paths
from ostinato.records import replace

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from torch.export import ExportedProgram
    from torch.fx import GraphModule, Node

    from ostinato.ir.stored import ParamSource

__all__ = ["first_names", "leaf_trees", "meta_of", "read_exported", "read_nodes"]

#: A greater upper bound of a size is none.
_LARGEST = 2**31

_INPUT_KINDS = {
    InputKind.USER_INPUT: USER_INPUT,
    InputKind.PARAMETER: PARAMETER,
    InputKind.BUFFER: BUFFER,
    InputKind.CONSTANT_TENSOR: CONSTANT,
}

_OUTPUT_KINDS = {
    OutputKind.USER_OUTPUT: USER_OUTPUT,
    OutputKind.BUFFER_MUTATION: BUFFER_MUTATION,
    OutputKind.USER_INPUT_MUTATION: INPUT_MUTATION,
}


def read_exported(
    exported: ExportedProgram,
    name: str,
    weights: Mapping[str, ParamSource],
    tensors: Mapping[str, torch.Tensor],
) -> Program:
    """The program of an exported one, with its inputs and outputs named by their path.

    Args:
        exported: the exported program.
        name: for messages.
        weights: the elements of its parameters, buffers and constants, by qualified name.
        tensors: the same as PyTorch has them; one that has several names is one weight.

    Raises:
        UnsupportedOpError: an input is an object of the user's own classes.
    """
    module = exported.graph_module
    placeholders = {node.name: node for node in module.graph.nodes if node.op == "placeholder"}
    firsts = first_names(tensors)
    arguments, results = _leaf_names(exported)
    inputs = []
    for given in exported.graph_signature.input_specs:
        kind = _INPUT_KINDS.get(given.kind)
        if kind is None:
            raise UnsupportedOpError(f"{name}: inputs of kind {given.kind.name} are not supported")
        argument: Any = given.arg
        target = given.target or argument.name
        if kind == USER_INPUT:
            target = next(arguments, target)
        node = placeholders[argument.name]
        meta = meta_of(node.meta.get("val"))
        value = getattr(argument, "value", None)
        target = firsts.get(target, target) if kind != USER_INPUT else target
        inputs.append(InputSpec(argument.name, kind, meta, target, value))
    users = {spec.target for spec in inputs if spec.kind == USER_INPUT}
    inputs = [_apart(spec, users) for spec in inputs]
    weights = {weight_name(target, users): source for target, source in weights.items()}
    by_name = {spec.name: spec.target for spec in inputs}
    targets = {given.target: by_name[given.arg.name] for given in _weights(exported)}
    outputs = []
    for position, output in enumerate(exported.graph_signature.output_specs):
        kind = _OUTPUT_KINDS.get(output.kind)
        if kind is None:
            raise UnsupportedOpError(
                f"{name}: outputs of kind {output.kind.name} are not supported"
            )
        found: Any = output.arg
        result = Ref(found.name) if found.name else getattr(found, "value", None)
        if kind == USER_OUTPUT:
            target = next(results, f"output_{position}")
        else:
            target = targets.get(output.target) or by_name.get(output.target, output.target)
        outputs.append(OutputSpec(result, kind, target))
    symbols = {
        str(symbol): (_lower(bounds.lower), _upper(bounds.upper))
        for symbol, bounds in exported.range_constraints.items()
    }
    guards = tuple(getattr(exported, "_guards_code", ()) or ())
    nodes = read_nodes(module)
    return Program(name, tuple(inputs), nodes, tuple(outputs), symbols, weights, guards=guards)


def weight_name(name: str, users: Collection[str]) -> str:
    """The name of a weight in the graph: another one where an argument has it."""
    return f"self.{name}" if name in users else name


def _apart(spec: InputSpec, users: Collection[str]) -> InputSpec:
    if spec.kind == USER_INPUT:
        return spec
    return replace(spec, target=weight_name(spec.target, users))


def _weights(exported: ExportedProgram) -> Iterator[Any]:
    specs = exported.graph_signature.input_specs
    return (spec for spec in specs if _INPUT_KINDS.get(spec.kind) != USER_INPUT)


def first_names(tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """By name of a tensor, the first name that the same elements have."""
    first: dict[Any, str] = {}
    names = {}
    for name, tensor in tensors.items():
        key: Any = name
        if tensor.layout == torch.strided and tensor.numel():
            place = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
            key = (str(tensor.device), *place)
        names[name] = first.setdefault(key, name)
    return names


def leaf_trees(exported: ExportedProgram) -> tuple[Any, Any, Sequence[str]] | None:
    """The trees of the arguments and of the results, and the names of the arguments."""
    for entry in exported.module_call_graph:
        if entry.fqn == "" and entry.signature is not None:
            known = entry.signature
            return known.in_spec, known.out_spec, known.forward_arg_names or ()
    return None


def _leaf_names(exported: ExportedProgram) -> tuple[Iterator[str], Iterator[str]]:
    """The names of the user's inputs, and of the results, in order."""
    trees = leaf_trees(exported)
    if trees is None:
        return iter(()), iter(())
    arguments, results, names = trees
    return iter(argument_names(leaf_paths(arguments), names)), iter(
        result_names(leaf_paths(results))
    )


def read_nodes(module: GraphModule) -> tuple[ProgramNode, ...]:
    """The nodes of a graph that are ops."""
    return tuple(
        _read_node(node, module) for node in module.graph.nodes if node.op == "call_function"
    )


def _read_node(node: Node, module: GraphModule) -> ProgramNode:
    value = node.meta.get("val")
    metas = value if isinstance(value, tuple | list) else (value,)
    return ProgramNode(
        node.name,
        _target(node.target),
        tuple(_argument(arg, module) for arg in node.args),
        {name: _argument(arg, module) for name, arg in node.kwargs.items()},
        (node.name,),
        tuple(meta_of(item) for item in metas),
        where=source_line(node.meta.get("stack_trace") or ""),
    )


def meta_of(value: Any) -> TensorMeta | ScalarMeta | None:
    """The type of a value that PyTorch has traced."""
    match value:
        case torch.Tensor():
            strided = value.layout == torch.strided
            return TensorMeta(
                _word(value.dtype),
                tuple(_size(size) for size in value.shape),
                tuple(_size(stride) for stride in value.stride()) if strided else None,
                str(value.device),
                _size(value.storage_offset()) if strided else None,
            )
        case torch.SymInt():
            return ScalarMeta("int", _size(value))
        case torch.SymFloat():
            return ScalarMeta("float", str(value.node.expr))
        case torch.SymBool():
            return ScalarMeta("bool", str(value.node.expr))
        case bool() | int() | float():
            return ScalarMeta(type(value).__name__, value)
    return None


def _size(size: int | torch.SymInt) -> int | str:
    if isinstance(size, torch.SymInt):
        expression = size.node.expr
        return int(expression) if expression.is_number else str(expression)
    return int(size)


def _lower(bound: Any) -> int:
    """A least value; without one, the least integer."""
    return -_LARGEST if str(bound).endswith("oo") else int(bound)


def _upper(bound: Any) -> int | None:
    return None if str(bound).endswith("oo") or int(bound) > _LARGEST else int(bound)


def _target(target: Any) -> str:
    """The name of an op: its namespace, name and overload."""
    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    if isinstance(target, torch._ops.HigherOrderOperator):
        return f"higher_order.{target.name()}"
    return f"{target.__module__}.{target.__name__}"


def _argument(argument: Any, module: GraphModule) -> Argument:
    match argument:
        case torch.fx.Node(op="get_attr"):
            return _attribute(argument, module)
        case torch.fx.Node():
            return Ref(argument.name)
        case list() | tuple():
            return tuple(_argument(item, module) for item in argument)
        case torch.dtype():
            return Named("dtype", _word(argument))
        case torch.layout():
            return Named("layout", _word(argument))
        case torch.memory_format():
            return Named("memory_format", _word(argument))
        case torch.device():
            return Named("device", str(argument))
        case bool() | int() | float() | complex() | str() | None:
            return argument
        case slice():
            return (argument.start, argument.stop, argument.step)
    return str(argument)


def _attribute(node: Node, module: GraphModule) -> Argument:
    """A tensor of the module, or a submodule that an op of higher order takes, as a program."""
    parent, _, name = str(node.target).rpartition(".")
    inner = getattr(module.get_submodule(parent), name)
    if isinstance(inner, torch.Tensor):
        return Ref(node.name)
    assert isinstance(inner, torch.fx.GraphModule)
    inputs, outputs = [], []
    for item in inner.graph.nodes:
        if item.op == "placeholder":
            inputs.append(
                InputSpec(item.name, USER_INPUT, meta_of(item.meta.get("val")), item.name)
            )
        if item.op == "output":
            results = item.args[0] if isinstance(item.args[0], tuple | list) else (item.args[0],)
            outputs = [
                OutputSpec(_argument(result, inner), USER_OUTPUT, f"output_{position}")
                for position, result in enumerate(results)
            ]
    return Program(str(node.target), tuple(inputs), read_nodes(inner), tuple(outputs))


def _word(named: Any) -> str:
    return str(named).removeprefix("torch.")
