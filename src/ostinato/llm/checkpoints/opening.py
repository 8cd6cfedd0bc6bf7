"""Opening of checkpoints of either kind."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, get_args

from ostinato.errors import InputError
from ostinato.llm.checkpoints.gguf import open_gguf
from ostinato.llm.checkpoints.huggingface import open_folder
from ostinato.llm.weights import WeightFormat, converted
from ostinato.records import replace

if TYPE_CHECKING:
    import os

    from ostinato.llm.checkpoints.checkpoint import Checkpoint

__all__ = ["open_checkpoint"]


def open_checkpoint(path: str | os.PathLike[str], *, weights: WeightFormat = "keep") -> Checkpoint:
    """Open a folder as Hugging Face has them, or a GGUF file.

    Args:
        path: of the folder or the file.
        weights: the width of matrices: as in the files; or, where they are wider, bfloat16, or
            blocks of 32 integers of 8 or 4 bits with a scale.

    Raises:
        InputError: ``weights`` is none of these, or there is no such folder or file.
        ModelFormatError: the files are damaged, or of a model that is not known.
        OSError: they can not be read.
    """
    if weights not in get_args(WeightFormat):
        choices = ", ".join(get_args(WeightFormat))
        raise InputError(f"weights is one of {choices}, got {weights!r:.80}")
    place = Path(path)
    if not str(path) or not place.exists():
        raise InputError(f"there is no folder or file {str(path)!r:.300}")
    if place.is_dir() and not (place / "config.json").exists():
        _suggest_files(place)
    found = open_folder(place) if place.is_dir() else open_gguf(place)
    narrow = converted(found.weights, weights, exact=found.family.exact)
    return replace(found, weights=narrow)


def _suggest_files(folder: Path) -> None:
    """Refuse a folder that has GGUF files instead of ``config.json``.

    Raises:
        InputError: naming them.
    """
    files = sorted(file.name for file in folder.glob("*.gguf"))
    if files:
        shown = ", ".join(map(repr, files[:8]))
        raise InputError(
            f"the folder {str(folder)!r:.300} has no config.json; load one of its GGUF files by "
            f"its path: {shown}"
        )
