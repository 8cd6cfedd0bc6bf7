"""Functions: ops that are written in terms of other ops, by the model or by the standard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.frontends.onnx.messages import NodeProto
from ostinato.frontends.onnx.source import opset_versions

if TYPE_CHECKING:
    from collections.abc import Container

    from onnx import AttributeProto, FunctionProto, ModelProto
    from onnx.defs import OpSchema

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

    def find(self, node: NodeProto, domain: str, opset: int) -> FunctionProto | None:
        """The function that ``node`` calls, or ``None``."""
        local = self._local.get((node.domain, node.op_type, node.overload))
        return local if local is not None else _standard(node.op_type, domain, opset)

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


def _standard(op_type: str, domain: str, opset: int) -> FunctionProto | None:
    schema = _schema(op_type, domain, opset)
    return schema.function_body if schema is not None and schema.has_function else None


def _schema(op_type: str, domain: str, opset: int) -> OpSchema | None:
    """The schema of an op in the ONNX standard, if it has one."""
    from onnx import defs  # few models have an op without a converter

    try:
        return defs.get_schema(op_type, opset, domain)
    except defs.SchemaError:
        return None
