"""A family of models: its configurations, the names of its weights, and its graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ostinato.ir.graph import Value
    from ostinato.llm.config import Layer, ModelConfig
    from ostinato.llm.families.builder import Block, Builder
    from ostinato.llm.fields import Fields
    from ostinato.llm.weights import Stored

__all__ = ["Family", "Part"]


@dataclass(frozen=True, kw_only=True)
class Part:
    """A mixer or a feed-forward: a part of a layer that is chosen by its configuration.

    Attributes:
        weights: gives the shapes of its weights, by the rest of their names after the layer's
            number: ``q.weight``.
        build: adds its nodes, from normalised rows ``[N, width]`` to what is added to the rows.
    """

    weights: Callable[[ModelConfig, Layer], Mapping[str, tuple[int, ...]]]
    build: Callable[[Block, Value], Value]


@dataclass(frozen=True, kw_only=True)
class Family:
    """A family of models.

    Attributes:
        name: of the family.
        architectures: names in ``config.json``: of classes, or ``model_type``.
        config: reads a ``config.json``: its fields, and the architecture.
        names: the positions of all weights in a Hugging Face folder, by logical name.
        embedding: the name of the embedding there, after the prefix of the model.
        prefix: the prefix in ``names``; files may have another one.
        gguf: names in ``general.architecture``.
        gguf_written: the one that a file of this family gets; by default the first of ``gguf``.
        gguf_config: reads the metadata of a GGUF file: the fields of the architecture, and the
            shape of each tensor by name.
        gguf_names: as ``names``, for GGUF files.
        exact: endings of the names of matrices that are never made narrower.
        unused: suffixes of tensors that may be in a file and change no result.
        gguf_unused: as ``unused``, for GGUF files.
        shapes: the shapes of all weights.
        hidden: adds the layers: from tokens, int32 ``[N]``, to rows ``[N, width]``.
        logits: adds the head: from rows ``[R, width]`` of ``hidden`` to float32
            ``[R, vocabulary]``.
    """

    name: str
    architectures: tuple[str, ...]
    config: Callable[[Fields, str], ModelConfig]
    names: Callable[[ModelConfig], Mapping[str, Stored]]
    shapes: Callable[[ModelConfig], Mapping[str, tuple[int, ...]]]
    hidden: Callable[[Builder, Value], Value]
    logits: Callable[[Builder, Value], Value]
    embedding: str = "embed_tokens.weight"
    prefix: str = "model."
    gguf: tuple[str, ...] = ()
    gguf_written: str = ""
    gguf_config: Callable[[Fields, str, Mapping[str, Any]], ModelConfig] | None = None
    gguf_names: Callable[[ModelConfig], Mapping[str, Stored]] | None = None
    exact: tuple[str, ...] = ("positions.weight", "router.weight")
    unused: tuple[str, ...] = ()
    gguf_unused: tuple[str, ...] = ()
