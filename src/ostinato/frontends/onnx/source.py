"""Reading of the caller's ``source`` as a parsed model with a checked envelope."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError

from ostinato.errors import ModelFormatError
from ostinato.frontends.onnx.external import ExternalData
from ostinato.frontends.onnx.file_tensors import without_large_tensors
from ostinato.frontends.onnx.messages import ModelProto
from ostinato.records import dataclass, field

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from onnx import OperatorSetIdProto

    from ostinato.frontends.onnx.file_tensors import PartedFile
    from ostinato.frontends.onnx.known import Tensor
    from ostinato.ir.files import FileRange

__all__ = ["NEWEST_OPSET", "OLDEST_OPSET", "ModelSource", "open_model", "opset_versions"]

#: The versions of the default operator set whose semantics the converters know.
OLDEST_OPSET, NEWEST_OPSET = 1, 29
#: The newest version of the file format.
NEWEST_IR = 14


@dataclass(frozen=True)
class ModelSource:
    """A parsed model and where its external data lies.

    Attributes:
        proto: the model.
        name: what to call it in messages.
        external: the files beside it.
        opsets: the version of each operator domain that it uses.
        in_file: where in the model's file initializers have their data, by name, where they are
            not in ``proto``.
        tensors: by name, the initializers of the model's graph that were read so far.
    """

    proto: ModelProto
    name: str
    external: ExternalData
    opsets: dict[str, int]
    in_file: Mapping[str, FileRange]
    tensors: dict[str, Tensor] = field(default_factory=dict)


def open_model(source: Any, base_dir: Any = None, parted: PartedFile | None = None) -> ModelSource:
    """Parse ``source``: a path, bytes, or an ``onnx.ModelProto``.

    Args:
        source: the model.
        base_dir: where its external data lies, when it is no path.
        parted: the file at the path, where it is open already.

    Raises:
        ModelFormatError: it cannot be read, is no ONNX model, or is newer than this version.
    """
    external = ExternalData() if base_dir is None else ExternalData(Path(base_dir))
    in_file: dict[str, FileRange] = {}
    if isinstance(source, ModelProto):
        proto, name = source, source.graph.name or "model"
    elif isinstance(source, str | os.PathLike):
        path = Path(os.fsdecode(source))
        (proto, in_file), name = _parse_file(path, parted), path.stem
        if base_dir is None:
            external = ExternalData.beside(path)
    else:
        proto = _parse(_as_bytes(source), "the model")
        name = proto.graph.name or "model"
    return ModelSource(proto, name, external, _check_envelope(proto), in_file)


def opset_versions(imports: Iterable[OperatorSetIdProto]) -> dict[str, int]:
    """Version by domain; the default domain has two spellings, kept as the empty one.

    Raises:
        ModelFormatError: a domain has two versions.
    """
    found: dict[str, int] = {}
    for entry in imports:
        domain = "" if entry.domain == "ai.onnx" else entry.domain
        if found.setdefault(domain, entry.version) != entry.version:
            raise ModelFormatError(
                f"the domain {entry.domain or 'ai.onnx'!r} has the operator sets {found[domain]} "
                f"and {entry.version}, expected one"
            )
    return found


def _parse_file(path: Path, parted: PartedFile | None) -> tuple[ModelProto, dict[str, FileRange]]:
    try:
        parted = parted or without_large_tensors(path)
        data, ranges = (parted.rest, parted.ranges) if parted else (path.read_bytes(), {})
    except (OSError, ValueError) as error:
        raise ModelFormatError(f"cannot read the model {str(path)!r}: {error}") from None
    proto = _parse(data, path.name)
    initializers = proto.graph.initializer
    return proto, {initializers[position].name: range_ for position, range_ in ranges.items()}


def _as_bytes(source: Any) -> bytes:
    try:
        return bytes(memoryview(source))
    except TypeError:
        raise ModelFormatError(
            f"a model is a path, bytes or an onnx.ModelProto, got {type(source).__name__}"
        ) from None


def _parse(data: bytes, name: str) -> ModelProto:
    if not data:
        raise ModelFormatError(f"{name} is empty")
    try:
        return ModelProto.FromString(data)
    except DecodeError as error:
        raise ModelFormatError(
            f"{name} is no ONNX model, or is truncated or damaged: {error}"
        ) from None


def _check_envelope(proto: ModelProto) -> dict[str, int]:
    if not proto.HasField("graph") or not proto.opset_import or proto.ir_version <= 0:
        raise ModelFormatError(
            "no ONNX model: the graph, the operator sets or the format version are missing"
        )
    if proto.ir_version > NEWEST_IR:
        raise ModelFormatError(
            f"the model has ONNX format version {proto.ir_version}, newer than the "
            f"{NEWEST_IR} that this version of Ostinato reads"
        )
    opsets = opset_versions(proto.opset_import)
    version = opsets.get("", NEWEST_OPSET)
    if version > NEWEST_OPSET:
        raise ModelFormatError(
            f"the model uses operator set {version}, newer than the {NEWEST_OPSET} that this "
            "version of Ostinato reads"
        )
    if version < OLDEST_OPSET:
        raise ModelFormatError(
            f"the model uses operator set {version}; the oldest is {OLDEST_OPSET}"
        )
    return opsets
