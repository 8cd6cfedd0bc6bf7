"""A Hugging Face folder as the metadata and the tensors of a GGUF file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ostinato.errors import InputError, ModelFormatError
from ostinato.llm.checkpoints.huggingface import open_folder
from ostinato.llm.config import Pooling
from ostinato.llm.embedding import embedding_settings
from ostinato.llm.export.metadata import model_metadata, rope_tensors, unexpressed
from ostinato.llm.export.tensors import ArrayTensor, ModelTensor, file_tensors
from ostinato.llm.export.vocabulary import padded, vocabulary_metadata
from ostinato.llm.families.registry import gguf_family_of
from ostinato.llm.fields import Fields
from ostinato.llm.templates import template_from_folder
from ostinato.llm.tokenizers import tokenizer_from_folder
from ostinato.llm.tokenizers.tokenizer_json import (
    read_json_object,
    sentencepiece_vocabulary,
    special_pieces,
)
from ostinato.llm.weights import last_rows
from ostinato.records import dataclass, replace

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ostinato.llm.checkpoints.checkpoint import Checkpoint

__all__ = ["Exported", "export_folder"]

#: Keys of sampling parameters, by their name.
_SAMPLING: Final = {
    "temperature": "temp",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}

#: The row that heads take, but those of ModernBERT.
_FIRST: Final = Pooling(kind="first")

_TEMPLATE: Final = "tokenizer.chat_template"


@dataclass(frozen=True)
class Exported:
    """A model that is to be written as a GGUF file.

    Attributes:
        metadata: values by whole key.
        tensors: by name, in their order.
    """

    metadata: Mapping[str, Any]
    tensors: Mapping[str, ModelTensor | ArrayTensor]


def export_folder(path: Path) -> Exported:
    """A folder as a GGUF file has it.

    Raises:
        InputError: GGUF files have no name for the model's family, or no way to express a part of
            its configuration.
        ModelFormatError: the folder is damaged, or its tokenizer is none that GGUF files have.
        OSError: a file can not be read.
    """
    checkpoint = _as_in_files(open_folder(path))
    written = checkpoint.family.gguf_written or next(iter(checkpoint.family.gguf), "")
    if not written:
        raise InputError(
            f"GGUF files have no name for the family {checkpoint.family.name!r} of "
            f"{checkpoint.name!r}; load the folder with weights='int8' or 'int4' instead"
        )
    family = gguf_family_of(written, checkpoint.name)
    assert family.gguf_config is not None
    assert family.gguf_names is not None
    tensors: dict[str, ModelTensor | ArrayTensor] = {
        name: ArrayTensor(name, array) for name, array in rope_tensors(checkpoint.config).items()
    }
    tensors |= file_tensors(checkpoint.weights, family.gguf_names(checkpoint.config))
    metadata = {
        f"{written}.{key}": value
        for key, value in model_metadata(checkpoint.config, written).items()
    }
    fields = Fields(metadata, checkpoint.name, f"{written}.")
    left = unexpressed(checkpoint.config, family.gguf_config(fields, written, tensors))
    if left:
        raise InputError(
            f"GGUF files of the architecture {written!r} have no way to express {', '.join(left)} "
            f"of {checkpoint.name!r}; load the folder with weights='int8' or 'int4' instead"
        )
    general: dict[str, Any] = {
        "general.architecture": written,
        "general.name": checkpoint.name,
    }
    general |= {
        f"general.sampling.{_SAMPLING[name]}": value
        for name, value in checkpoint.defaults.items()
        if name in _SAMPLING
    }
    return Exported({**general, **metadata, **_text(path, checkpoint)}, tensors)


def _as_in_files(checkpoint: Checkpoint) -> Checkpoint:
    """The model with the pooling of its folder, and no rows of positions before the first."""
    config, weights = checkpoint.config, dict(checkpoint.weights)
    if not config.causal:
        pooling = embedding_settings(checkpoint.path, config.pooling).pooling
        if config.labels:  # the head says which rows it takes
            pooling = config.pooling if config.pre_norm and config.pooling else _FIRST
        config = replace(config, pooling=pooling)
    if config.positions > config.context:
        table = weights["positions.weight"]
        weights["positions.weight"] = last_rows(table, config.context)
        config = replace(config, positions=config.context)
    return replace(checkpoint, config=config, weights=weights)


def _text(path: Path, checkpoint: Checkpoint) -> dict[str, Any]:
    """The metadata of the tokenizer and of the chat templates."""
    if not (path / "tokenizer.json").is_file() and (path / "tokenizer.model").is_file():
        found = padded(sentencepiece_vocabulary(path), checkpoint.config.vocabulary)
        return found | _templates(path)
    tokenizer = tokenizer_from_folder(path)
    stored = read_json_object(path / "tokenizer.json")
    if not isinstance(stored.get("model"), dict):
        raise ModelFormatError(f"{path.name}/tokenizer.json has no object 'model'")
    settings = path / "tokenizer_config.json"
    found = vocabulary_metadata(
        tokenizer,
        stored,
        size=checkpoint.config.vocabulary,
        named=special_pieces(read_json_object(settings) if settings.is_file() else {}),
        ends=checkpoint.end_tokens,
        begin=checkpoint.begin_token,
        pairs=not checkpoint.config.causal,
    )
    if checkpoint.config.segments:
        found["tokenizer.ggml.token_type_count"] = checkpoint.config.segments
    return found | _templates(path)


def _templates(path: Path) -> dict[str, str]:
    template = template_from_folder(path)
    sources = {} if template is None else template.sources
    return {
        _TEMPLATE if name == "default" else f"{_TEMPLATE}.{name}": source
        for name, source in sources.items()
    }
