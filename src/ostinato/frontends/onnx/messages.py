"""The classes of ONNX's messages, without the rest of the ``onnx`` package.

``import onnx`` brings checkers, parsers and helpers along, and takes several times as long as the
one module that has the classes. That module is run here by itself. Protobuf keeps one class for
each kind of message, however often the module that describes it is run: a model that was read here
is an ``onnx.ModelProto`` of an ``onnx`` imported later.
"""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

    from onnx import AttributeProto, FunctionProto, ModelProto, NodeProto, TypeProto

__all__ = ["AttributeProto", "FunctionProto", "ModelProto", "NodeProto", "TypeProto"]

_NAMES = ("AttributeProto", "FunctionProto", "ModelProto", "NodeProto", "TypeProto")


def _classes() -> tuple[type, ...]:
    """The classes of :data:`_NAMES`, in the quickest way that works."""
    if "onnx" not in sys.modules:
        try:
            return _members(_module_of_classes())
        except Exception:  # an unknown layout of the package, so it imports itself
            pass
    import onnx

    return _members(onnx)


def _members(module: ModuleType) -> tuple[type, ...]:
    return tuple(getattr(module, name) for name in _NAMES)


def _module_of_classes() -> ModuleType:
    """A module of our own that is made from the one of the package."""
    from google.protobuf.internal import api_implementation

    if api_implementation.Type() not in ("upb", "python"):
        raise ImportError("this protobuf may make the classes anew each time they are described")
    package = find_spec("onnx")
    places = None if package is None else package.submodule_search_locations
    spec = PathFinder.find_spec("onnx.onnx_ml_pb2", places) if places else None
    if spec is None or spec.loader is None:
        raise ImportError("no module with the classes")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if not TYPE_CHECKING:
    AttributeProto, FunctionProto, ModelProto, NodeProto, TypeProto = _classes()
