"""Chat templates in the files of a model: a Hugging Face folder, or the metadata of a GGUF file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ostinato.errors import ModelFormatError
from ostinato.llm.templates.chat_template import ChatTemplate
from ostinato.llm.tokenizers.tokenizer_json import read_json_object

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from ostinato.llm.tokenizers import Tokenizer

__all__ = ["template_from_folder", "template_from_gguf"]

_KEY: Final = "tokenizer.chat_template"

#: Names that templates have for special tokens, and the key of a GGUF file for each.
_TOKENS: Final = (
    ("bos_token", "bos"),
    ("eos_token", "eos"),
    ("unk_token", "unknown"),
    ("sep_token", "seperator"),  # the format spells it so
    ("pad_token", "padding"),
    ("cls_token", "cls"),
    ("mask_token", "mask"),
)

#: Characters of a template file that are read; a longer one is refused.
_LARGEST_FILE: Final = 4 << 20


def template_from_folder(folder: str | os.PathLike[str]) -> ChatTemplate | None:
    """The chat template of a Hugging Face folder; ``None``: it has none.

    Args:
        folder: with ``chat_template.jinja``, ``chat_template.json``, or a template in
            ``tokenizer_config.json``, the first of them that there is.

    Raises:
        ModelFormatError: a template is damaged.
        OSError: a file can not be read.
    """
    folder = Path(folder)
    config_file = folder / "tokenizer_config.json"
    config = read_json_object(config_file) if config_file.is_file() else {}
    sources = _files(folder)
    if not sources and (folder / "chat_template.json").is_file():
        found = read_json_object(folder / "chat_template.json").get("chat_template")
        sources = _sources(found, "chat_template.json")
    sources = sources or _sources(config.get("chat_template"), "tokenizer_config.json")
    tokens: dict[str, str] = {}
    for name, _ in _TOKENS:
        match config.get(name):
            case str(text) | {"content": str(text)}:
                tokens[name] = text
    return ChatTemplate(sources, tokens=tokens) if sources else None


def _files(folder: Path) -> dict[str, str]:
    """The templates that are files of their own."""
    files = {"default": folder / "chat_template.jinja"}
    others = folder / "additional_chat_templates"
    if others.is_dir():
        files |= {path.stem: path for path in sorted(others.glob("*.jinja"))}
    found = {}
    for name, path in files.items():
        if path.is_file():
            if path.stat().st_size > _LARGEST_FILE:
                raise ModelFormatError(f"{path} has more than {_LARGEST_FILE:,} bytes")
            try:
                found[name] = path.read_bytes().decode()
            except UnicodeDecodeError as error:
                raise ModelFormatError(f"{path} is no UTF-8: {error}") from None
    return found


def _sources(found: object, name: str) -> dict[str, str]:
    match found:
        case None:
            return {}
        case str():
            return {"default": found}
        case [*entries]:
            sources = {}
            for entry in entries:
                match entry:
                    case {"name": str(key), "template": str(source)}:
                        sources[key] = source
                    case _:
                        raise ModelFormatError(f"{name} has no named template: {entry!r:.80}")
            return sources
        case _:
            raise ModelFormatError(f"{name} has a {type(found).__name__} as chat_template")


def template_from_gguf(metadata: Mapping[str, Any], tokenizer: Tokenizer) -> ChatTemplate | None:
    """The chat template in the metadata of a GGUF file; ``None``: it has none.

    Args:
        metadata: of the file, by key.
        tokenizer: of the file.

    Raises:
        ModelFormatError: a template is damaged.
    """
    prefix = f"{_KEY}."
    sources = {
        "default" if key == _KEY else key.removeprefix(prefix): text
        for key, text in metadata.items()
        if key == _KEY or key.startswith(prefix)
    }
    tokens: dict[str, str] = {}
    for name, kind in _TOKENS:
        number = metadata.get(f"tokenizer.ggml.{kind}_token_id")
        if isinstance(number, int) and 0 <= number < tokenizer.vocabulary_size:
            tokens[name] = tokenizer.piece(number) or ""
    return ChatTemplate(sources, tokens=tokens) if sources else None
