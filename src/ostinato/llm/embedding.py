"""Vectors of texts, and scores of documents for a query.

A folder says how rows become a vector: ``modules.json`` and ``1_Pooling/config.json`` as Sentence
Transformers write them, with prompts for queries and passages.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import numpy as np

from ostinato.errors import InputError, ModelFormatError
from ostinato.llm.config import Pooling
from ostinato.llm.encoder import Encoder
from ostinato.llm.fields import Fields
from ostinato.records import dataclass, field

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from ostinato.backends.options import CompileOptions
    from ostinato.llm.checkpoints.checkpoint import Checkpoint
    from ostinato.llm.tokenizers import Tokenizer
    from ostinato.runtime.session import Session

__all__ = [
    "Embedder",
    "EmbeddingSettings",
    "Kind",
    "TextArguments",
    "embedding_settings",
    "finished",
    "pooled",
    "shortened",
]

Array = np.ndarray[Any, Any]

#: The sides of a search.
Kind: TypeAlias = Literal["query", "passage"]

#: Bytes of the largest file of JSON that is read.
_LARGEST: Final = 1 << 24

#: Modes of a pooling module that are computed, by the flag that chooses them.
_POOLINGS: Final = {
    "pooling_mode_cls_token": "first",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
}

#: The names that files have for the sides of a search.
_KINDS: Final = {
    "query": ("query", "search_query"),
    "passage": ("passage", "document", "search_document", "corpus"),
}


@dataclass(frozen=True, kw_only=True)
class EmbeddingSettings:
    """The way from the rows of a text to its vector.

    Attributes:
        pooling: of the rows.
        prompts: texts that go before queries and passages.
        most: tokens of a text, beyond which its end is cut off; ``None``: the model's context.
    """

    pooling: Pooling
    prompts: Mapping[str, str] = field(default_factory=dict)
    most: int | None = None


def embedding_settings(folder: Path, default: Pooling | None) -> EmbeddingSettings:
    """The settings that a folder has.

    Args:
        folder: of the model.
        default: the pooling of a folder that names none; ``None``: the mean.

    Raises:
        ModelFormatError: a file is damaged, or asks for what is not computed.
    """
    pooling = default or Pooling()
    listed = _json(folder / "modules.json", list)
    normalized = pooling.normalize
    if listed is not None:
        kinds = [_module(item, folder) for item in listed]
        normalized = any(kind == "Normalize" for kind, _ in kinds)
        for kind, path in kinds:
            if kind == "Pooling":
                pooling = _pooling(folder, path)
            elif kind not in ("Transformer", "Normalize"):
                raise ModelFormatError(f"{folder.name}/modules.json asks for {kind!r:.80}")
    pooling = Pooling(kind=pooling.kind, normalize=normalized)
    limits = Fields(_json(folder / "sentence_bert_config.json", dict) or {}, folder.name)
    most = limits.size("max_seq_length", None)
    return EmbeddingSettings(pooling=pooling, prompts=_prompts(folder), most=most)


def _module(item: object, folder: Path) -> tuple[str, str]:
    if not isinstance(item, dict):
        raise ModelFormatError(f"{folder.name}/modules.json lists {item!r:.80}")
    fields = Fields(item, f"{folder.name}/modules.json")
    path = fields.word("path", "")
    if any(part in ("..", "") for part in path.split("/")) and path:
        raise fields.error("path", "the name of a folder", path)
    return fields.word("type").rpartition(".")[2], path


def _pooling(folder: Path, path: str) -> Pooling:
    where = f"{folder.name}/{path}/config.json"
    fields = Fields(_json(folder / path / "config.json", dict) or {}, where)
    chosen = [kind for flag, kind in _POOLINGS.items() if fields.flag(flag, False)]
    fields.skip("word_embedding_dimension", "include_prompt", "embedding_dimension")
    word = fields.word("pooling_mode", None)
    if word is not None:
        words = {"cls": "first", "mean": "mean", "lasttoken": "last"}
        chosen.append(fields.one_of("pooling_mode", words))
    fields.finish()
    if len(chosen) != 1:
        raise ModelFormatError(f"{where!r} asks for {len(chosen)} poolings, expected one")
    return Pooling(kind=chosen[0])  # type: ignore[arg-type]


def _prompts(folder: Path) -> dict[str, str]:
    where = f"{folder.name}/config_sentence_transformers.json"
    stored = _json(folder / "config_sentence_transformers.json", dict) or {}
    given = stored.get("prompts") or {}
    if not isinstance(given, dict) or not all(isinstance(text, str) for text in given.values()):
        raise ModelFormatError(f"{where!r} has prompts that are no texts")
    found = {}
    for kind, names in _KINDS.items():
        texts = [given[name] for name in names if name in given]
        if texts:
            found[kind] = texts[0]
    return found


def _json(path: Path, kind: type) -> Any:
    """The value of a file; ``None`` if there is none."""
    if not path.is_file():
        return None
    name = f"{path.parent.name}/{path.name}"
    if path.stat().st_size > _LARGEST:
        raise ModelFormatError(f"{name!r} is larger than {_LARGEST:,} bytes")
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ModelFormatError(f"{name!r} is no JSON ({error})") from None
    if not isinstance(found, kind):
        raise ModelFormatError(f"{name!r} is no {kind.__name__}")
    return found


# -- vectors ---------------------------------------------------------------------------------------


def pooled(rows: Array, kind: str) -> Array:
    """One vector of the rows of a text, float64."""
    if kind == "mean":
        return np.asarray(rows.mean(axis=0, dtype=np.float64))
    return np.asarray(rows[0 if kind == "first" else -1], np.float64)


def finished(
    vectors: Sequence[Array], width: int, dimensions: int | None, normalize: bool
) -> Array:
    """Vectors cut to their first dimensions, of length 1 if asked for: float32 ``[n, d]``."""
    kept = width if dimensions is None else dimensions
    whole = np.array([vector[:kept] for vector in vectors], np.float64).reshape(len(vectors), kept)
    if normalize:
        norms = np.sqrt(np.sum(whole * whole, axis=1, keepdims=True))
        whole = whole / np.where(norms == 0, 1, norms)
    return whole.astype(np.float32)


class TextArguments:
    """The checks of arguments, whatever makes vectors of texts."""

    def __init__(self, tokenizer: Tokenizer, settings: EmbeddingSettings, width: int) -> None:
        self.tokenizer, self.settings = tokenizer, settings
        self.width = width

    def prompted(self, texts: Sequence[str], kind: Kind | None) -> list[str]:
        """Texts with the prompt of a side of a search before each.

        Raises:
            InputError: the kind is no side of a search, or there is one string instead of several.
        """
        if kind is not None and kind not in _KINDS:
            raise InputError(f"kind is query, passage or None, got {kind!r:.80}")
        if isinstance(texts, str):
            raise InputError("expected several texts, got one string: put it into a list")
        prompt = "" if kind is None else self.settings.prompts.get(kind, "")
        return [prompt + text if prompt else text for text in texts]

    def check(self, dimensions: int | None) -> None:
        """Refuse a number of dimensions that vectors do not have.

        Raises:
            InputError: naming it.
        """
        whole = isinstance(dimensions, int) and not isinstance(dimensions, bool)
        if dimensions is not None and not (whole and 1 <= dimensions <= self.width):
            raise InputError(f"dimensions is from 1 to {self.width}, got {dimensions!r:.80}")


def shortened(ids: list[int], most: int | None) -> list[int]:
    """Tokens without those before the last one that are too many."""
    return ids if most is None or len(ids) <= most else [*ids[: most - 1], ids[-1]]


class Embedder(TextArguments):
    """Vectors of texts by a model that reads whole texts, and scores by its head.

    Args:
        checkpoint: the model.
        tokenizer: of the model.
        settings: the way to vectors; by default, those of the model's folder.
        session: that compiles it; by default, one for the CPU.
        context: the most tokens of a text; by default the model's, at most 8192.
        options: of the compiler, instead of the session's.

    Raises:
        InputError: the context is beyond the model, or its layers need states.
        ModelFormatError: the folder's settings are damaged.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        tokenizer: Tokenizer,
        settings: EmbeddingSettings | None = None,
        *,
        session: Session | None = None,
        context: int | None = None,
        options: CompileOptions | None = None,
    ) -> None:
        if settings is None:
            default = checkpoint.config.pooling
            if default is None and checkpoint.config.causal:
                default = Pooling(kind="last")
            settings = EmbeddingSettings(pooling=default or Pooling())
            if checkpoint.path.is_dir():
                settings = embedding_settings(checkpoint.path, default)
        super().__init__(tokenizer, settings, checkpoint.config.width)
        self.encoder = Encoder(checkpoint, session=session, context=context, options=options)

    @property
    def most(self) -> int:
        """Tokens of the longest text that is read whole."""
        given = self.settings.most
        return self.encoder.context if given is None else min(given, self.encoder.context)

    def embed(
        self,
        texts: Sequence[str],
        *,
        kind: Kind | None = None,
        dimensions: int | None = None,
        normalize: bool = True,
    ) -> Array:
        """A vector for each text: float32 ``[n, d]``.

        On the CPU, a vector does not depend on the other texts, to the bit. What is beyond the
        context is cut off.

        Args:
            texts: any number.
            kind: the side of a search, whose prompt goes before each text.
            dimensions: keep the first ones alone, of models that are trained for that.
            normalize: divide each vector by its Euclidean norm.

        Raises:
            InputError: an argument is wrong.
        """
        self.check(dimensions)
        every = self.prompted(texts, kind)
        ids = [shortened(self.tokenizer.encode(t, add_bos=True), self.most) for t in every]
        if [] in ids:
            raise InputError(f"text {ids.index([])} has no tokens: this model needs one")
        rows = self.encoder.rows(ids)
        vectors = [pooled(part, self.settings.pooling.kind) for part in rows]
        return finished(vectors, self.width, dimensions, normalize)

    def rerank(self, query: str, documents: Sequence[str]) -> Array:
        """A score for each document, the higher the better: float32 ``[n]``.

        Of a model with several classes, the score is the logit of the last one.

        Raises:
            InputError: the model has no head that scores, or an argument is wrong.
        """
        config = self.encoder.config
        if not config.labels:
            raise InputError(f"{config.architecture} has no head that scores texts")
        pairs = [self.tokenizer.encode_pair(query, t) for t in self.prompted(documents, None)]
        most = self.encoder.context
        ids = [shortened(tokens, most) for tokens, _ in pairs]
        rows = self.encoder.rows(ids, [shortened(kinds, most) for _, kinds in pairs])
        kind = "first" if config.pooling is None or not config.pre_norm else config.pooling.kind
        wide = [pooled(part, kind) for part in rows]
        found = self.encoder.classes(finished(wide, self.width, None, normalize=False))
        return np.ascontiguousarray(found[:, -1])
