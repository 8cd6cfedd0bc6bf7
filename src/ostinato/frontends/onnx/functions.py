"""Functions: ops that are written in terms of other ops, by the model or by the standard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.frontends.onnx.messages import FunctionProto, NodeProto, TypeProto
from ostinato.frontends.onnx.source import opset_versions
from ostinato.frontends.onnx.tensors import element_number

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from onnx import AttributeProto, ModelProto
    from onnx.defs import OpSchema

    from ostinato.ir.types import TensorType

__all__ = ["FunctionLibrary"]


class FunctionLibrary:
    """The bodies of ops that have no converter.

    Args:
        model: its own functions come first, then the bodies that the ONNX standard gives.
    """

    def __init__(self, model: ModelProto) -> None:
        self._local = {
            (function.domain, function.name, function.overload): function
            for function in model.functions
        }

    def find(
        self,
        node: NodeProto,
        domain: str,
        opset: int,
        types: Sequence[TensorType | None] | None = None,
    ) -> FunctionProto | None:
        """The function that ``node`` calls, or ``None``.

        Args:
            node: the call; attributes in place of references.
            domain, opset: of its op.
            types: of its operands, on which some of the standard's bodies depend. Without them such
                a function is an empty one.
        """
        local = self._local.get((node.domain, node.op_type, node.overload))
        return local if local is not None else _standard(node, domain, opset, types)

    @staticmethod
    def defaults(function: FunctionProto, domain: str, opset: int) -> dict[str, AttributeProto]:
        """The attributes that a call may leave out."""
        found = {attribute.name: attribute for attribute in function.attribute_proto}
        if function.domain == domain and function.name:
            schema = _schema(function.name, domain, opset)
            for name, attribute in schema.attributes.items() if schema else ():
                if attribute.default_value.type:
                    found.setdefault(name, attribute.default_value)
        return found

    @staticmethod
    def opsets(function: FunctionProto) -> dict[str, int]:
        """The version of each operator domain in the function's body."""
        return opset_versions(function.opset_import)

    @staticmethod
    def body(function: FunctionProto, given: Container[str]) -> list[NodeProto]:
        """The function's nodes; formal inputs that the call leaves out are left out there too."""
        absent = {name for name in function.input if name not in given}
        if not absent:
            return list(function.node)
        return [_without(node, absent) for node in function.node]


def _without(node: NodeProto, absent: set[str]) -> NodeProto:
    if not absent.intersection(node.input):
        return node
    copy: Any = NodeProto()
    copy.CopyFrom(node)
    copy.input[:] = ["" if name in absent else name for name in node.input]
    return copy


def _standard(
    node: NodeProto, domain: str, opset: int, types: Sequence[TensorType | None] | None
) -> FunctionProto | None:
    schema = _schema(node.op_type, domain, opset)
    if schema is None or not (schema.has_function or schema.has_context_dependent_function):
        return None
    if schema.has_function:
        return schema.function_body
    if types is None:
        return FunctionProto()
    written = schema.get_context_dependent_function(
        node.SerializeToString(), [_type_proto(type_).SerializeToString() for type_ in types]
    )
    return FunctionProto.FromString(written)


def _type_proto(type_: TensorType | None) -> TypeProto:
    """The type of an operand in ONNX's form; an empty one for an operand that is left out."""
    proto = TypeProto()
    if type_ is not None:
        tensor = proto.tensor_type
        tensor.elem_type = element_number(type_.dtype)
        tensor.shape.SetInParent()
        for dim in type_.shape:
            added = tensor.shape.dim.add()
            if isinstance(dim, int):
                added.dim_value = dim
    return proto


def _schema(op_type: str, domain: str, opset: int) -> OpSchema | None:
    """The schema of an op in the ONNX standard, if it has one."""
    from onnx import defs  # few models have an op without a converter

    try:
        return defs.get_schema(op_type, opset, domain)
    except defs.SchemaError:
        return None
