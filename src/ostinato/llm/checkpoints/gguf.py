"""GGUF files of language models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ostinato.errors import ModelFormatError
from ostinato.frontends.gguf import GGUFFile
from ostinato.llm.checkpoints.checkpoint import Checkpoint
from ostinato.llm.families.registry import gguf_family_of
from ostinato.llm.fields import Fields
from ostinato.llm.weights import FileTensor, located

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ostinato.frontends.gguf import GGUFTensor

__all__ = ["open_gguf"]

#: Keys of an architecture that change no result of a run.
_IGNORED: Final = frozenset({"vocab_size", "attention.causal", "rope.scaling.finetuned"})

#: Sampling parameters by their key.
_SAMPLING: Final = (
    ("temp", "temperature"),
    ("top_k", "top_k"),
    ("top_p", "top_p"),
    ("min_p", "min_p"),
    ("penalty_repeat", "repetition_penalty"),
)

_END_TOKENS: Final = ("eos", "eot", "eom")


def open_gguf(path: Path) -> Checkpoint:
    """Open a GGUF file.

    Raises:
        ModelFormatError: it is damaged, the model is of no family that is known, or its tensors are
            not those that its metadata describes.
        OSError: it can not be read.
    """
    file = GGUFFile(path)
    general = Fields(file.metadata, file.name, "general.")
    architecture = general.word("architecture")
    family = gguf_family_of(architecture, file.name)
    if family.gguf_config is None or family.gguf_names is None:
        raise ModelFormatError(f"{file.name!r}: {family.name} is not read from GGUF files")
    fields = Fields(file.metadata, file.name, f"{architecture}.")
    config = family.gguf_config(fields, architecture, file.tensors)
    fields.finish(_IGNORED)
    tensors = {name: _tensor(tensor) for name, tensor in file.tensors.items()}
    shapes = family.shapes(config)
    unused = family.gguf_unused

    def left(name: str) -> bool:
        return name.endswith(unused)

    weights = located(tensors, family.gguf_names(config), shapes, file.name, left)
    vocabulary = {k: v for k, v in file.metadata.items() if k.startswith("tokenizer.")}
    template = vocabulary.get("tokenizer.chat_template")
    tokens = Fields(file.metadata, file.name, "tokenizer.ggml.")
    ends = [tokens.size(f"{name}_token_id", None, least=0) for name in _END_TOKENS]
    return Checkpoint(
        name=file.name,
        path=path,
        config=config,
        family=family,
        weights=weights,
        vocabulary=vocabulary,
        template=template if isinstance(template, str) else None,
        defaults=_defaults(file.metadata, file.name),
        end_tokens=tuple(dict.fromkeys(t for t in ends if t is not None and t < config.vocabulary)),
        begin_token=tokens.size("bos_token_id", None, least=0),
    )


def _tensor(tensor: GGUFTensor) -> FileTensor:
    return FileTensor(
        name=tensor.name,
        source=tensor,
        shape=tensor.sizes,
        format=tensor.format,
        widened=None if tensor.format is None else tensor.widened,
    )


def _defaults(metadata: Mapping[str, Any], name: str) -> dict[str, float | int]:
    fields = Fields(metadata, name, "general.sampling.")
    found: dict[str, float | int] = {}
    for key, parameter in _SAMPLING:
        value = fields.size(key, None, least=0) if key == "top_k" else fields.number(key, None)
        if value is not None:
            found[parameter] = value
    return found
