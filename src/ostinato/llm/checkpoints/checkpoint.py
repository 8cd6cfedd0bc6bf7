"""An opened model: its configuration, its weights, and what is needed to talk to it."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ostinato.records import dataclass, field

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ostinato.llm.config import ModelConfig
    from ostinato.llm.families.family import Family
    from ostinato.llm.weights import Weight

__all__ = ["Checkpoint"]


@dataclass(frozen=True, eq=False, kw_only=True)
class Checkpoint:
    """A model in its files, which stay open. Nothing but headers has been read.

    Attributes:
        name: of the folder or file.
        path: of the folder or file.
        config: of the model.
        family: builds its graph.
        weights: by logical name.
        tokenizer_files: of a folder, by name: ``tokenizer.json``, ``tokenizer_config.json`` and
            others that are there.
        vocabulary: of a GGUF file, the metadata of its tokenizer, by whole key.
        template: the text of the chat template, if there is one.
        defaults: sampling parameters that the model's makers propose, by the names of ``Sampling``.
        end_tokens: tokens that end an answer.
        begin_token: the token before a text, if the files name one.
    """

    name: str
    path: Path
    config: ModelConfig
    family: Family
    weights: Mapping[str, Weight]
    tokenizer_files: Mapping[str, Path] = field(default_factory=lambda: MappingProxyType({}))
    vocabulary: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    template: str | None = None
    defaults: Mapping[str, float | int] = field(default_factory=lambda: MappingProxyType({}))
    end_tokens: tuple[int, ...] = ()
    begin_token: int | None = None
