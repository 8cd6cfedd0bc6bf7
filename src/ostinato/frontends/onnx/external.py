"""Tensors that a model keeps in files beside it, read without ever leaving its folder."""

from __future__ import annotations

from pathlib import Path, PureWindowsPath
from typing import TYPE_CHECKING

from ostinato.errors import ModelFormatError
from ostinato.ir.files import FileRange, OpenFile

if TYPE_CHECKING:
    from onnx import TensorProto

__all__ = ["ExternalData"]


class ExternalData:
    """The files that hold a model's external tensors.

    A model names its data files itself, and a model may come from anywhere; so a location that is
    absolute, climbs out of the folder, or is a link to elsewhere is refused. The one exception is
    a model that is itself a link (as in download caches): its data may then lie beside its target.

    Large tensors stay in their files until they are used, so the files together may be larger than
    the memory. They are read, not mapped: a mapped file that is truncated later would kill the
    process.

    Args:
        roots: the folders that data may be read from, the first being where locations start;
            none when the model did not come from a file.

    Attributes:
        used: whether anything was asked for.
    """

    def __init__(self, *roots: Path) -> None:
        self.used = False
        self._roots = tuple(root.resolve() for root in roots)
        self._files: dict[Path, OpenFile] = {}

    @staticmethod
    def beside(model: Path) -> ExternalData:
        """The data of the model file at ``model``."""
        return ExternalData(model.parent, model.resolve().parent)

    def range(self, tensor: TensorProto, nbytes: int) -> FileRange:
        """The place of one tensor's bytes; nothing is read yet.

        Args:
            tensor: names its file, and perhaps an offset and a length.
            nbytes: as many as its shape takes.

        Raises:
            ModelFormatError: there is no folder to read from, the location, the offset or the
                length does not lie within it, or the length is another.
        """
        self.used = True
        what = f"tensor {tensor.name!r}"
        entries = {entry.key: entry.value for entry in tensor.external_data}
        path = self._locate(what, entries.get("location", ""))
        try:
            file = self._files.get(path) or self._files.setdefault(path, OpenFile(path))
        except OSError as error:
            raise ModelFormatError(f"{what}: cannot read its data file: {error}") from None
        offset = _count(what, "offset", entries.get("offset", "0"))
        rest = max(file.size - offset, 0)
        length = _count(what, "length", entries.get("length", str(rest)))
        if offset + length > file.size:
            raise ModelFormatError(
                f"{what}: bytes {offset}..{offset + length} lie outside {file.name!r}, "
                f"which has {file.size}; the file is truncated or belongs to another model"
            )
        if length != nbytes:
            raise ModelFormatError(
                f"{what} should hold {nbytes} bytes and holds {length} of {file.name!r}"
            )
        return FileRange(file, offset, nbytes)

    def _locate(self, what: str, location: str) -> Path:
        if not self._roots:
            raise ModelFormatError(
                f"{what} lies in the external file {location!r}, and the model was not loaded "
                "from a path; pass base_dir=, the folder that holds the file"
            )
        relative = PureWindowsPath(location)  # understands both kinds of separators and drives
        if (
            not location
            or "\0" in location
            or relative.drive
            or relative.root
            or ".." in relative.parts
        ):
            raise ModelFormatError(
                f"{what}: external data must lie in the model's folder, got location {location!r}"
            )
        try:
            path = (self._roots[0] / location).resolve()
            exists = path.is_file()
        except (OSError, RuntimeError, ValueError) as error:
            raise ModelFormatError(
                f"{what}: bad location {location!r:.200}: {error!s:.200}"
            ) from None
        if not any(path.is_relative_to(root) for root in self._roots):
            raise ModelFormatError(f"{what}: {location!r} is a link out of the model's folder")
        if not exists:
            raise ModelFormatError(f"{what}: the data file {location!r} does not exist")
        return path


def _count(what: str, key: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise ModelFormatError(f"{what}: {key} is no byte count: {text!r}")
    return int(text)
