"""Static embeddings: a vector for each token, and no model; the vector of a text is their mean.

Folders are those of model2vec, with ``config.json``, and those of WordLlama: a table and a
tokenizer side by side, or in the folders ``weights`` and ``tokenizers``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from ostinato.errors import ModelFormatError, UnsupportedOpError
from ostinato.frontends.gguf.sources import MappedFile
from ostinato.llm.checkpoints.checkpoint import Checkpoint
from ostinato.llm.config import ModelConfig, Norm, Pooling
from ostinato.llm.embedding import EmbeddingSettings, Kind, TextArguments, finished, shortened
from ostinato.llm.families.family import Family
from ostinato.llm.fields import Fields
from ostinato.llm.tokenizers.tokenizer_json import read_json_object, tokenizer_from_file
from ostinato.moe.safetensors import SafetensorsFile

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from ostinato.ir.graph import Value
    from ostinato.llm.families.builder import Builder
    from ostinato.llm.tokenizers import Tokenizer

__all__ = ["StaticEmbedder", "StaticFiles", "open_static", "static_checkpoint", "static_files"]

Array = np.ndarray[Any, Any]

#: The table, by the names that files have for it.
_TABLES: Final = ("embeddings", "embedding.weight")

#: Of model2vec: a factor of each token's vector, and the row of the table that each token has.
_FACTORS, _ROWS = "weights", "mapping"

_ARCHITECTURE: Final = "StaticModel"
_NAMES: Final = frozenset({_ARCHITECTURE, "model2vec"})


class StaticEmbedder(TextArguments):
    """Vectors of texts as means of the vectors of their tokens.

    Args:
        table: vectors ``[rows, width]``.
        tokenizer: of the vocabulary.
        settings: prompts, and the most tokens of a text.
        rows: the row of the table of each token; by default, the one of its id.
        factors: of the vector of each token.
        dropped: tokens that are left out.

    Attributes:
        vocabulary: number of tokens that have a vector.
    """

    def __init__(
        self,
        table: Array,
        tokenizer: Tokenizer,
        settings: EmbeddingSettings | None = None,
        *,
        rows: Array | None = None,
        factors: Array | None = None,
        dropped: Collection[int] = (),
    ) -> None:
        default = EmbeddingSettings(pooling=Pooling())
        super().__init__(tokenizer, settings or default, table.shape[1])
        self.vocabulary = len(table) if rows is None else len(rows)
        self._table, self._rows, self._factors = table, rows, factors
        self._dropped = frozenset(dropped)

    def embed(
        self,
        texts: Sequence[str],
        *,
        kind: Kind | None = None,
        dimensions: int | None = None,
        normalize: bool = True,
    ) -> Array:
        """See :meth:`Embedder.embed`; the vector of a text without tokens is zero."""
        self.check(dimensions)
        vectors = [self._mean(self.tokenizer.encode(t)) for t in self.prompted(texts, kind)]
        return finished(vectors, self.width, dimensions, normalize)

    def rerank(self, query: str, documents: Sequence[str]) -> Array:
        """Nothing: a table has no head.

        Raises:
            UnsupportedOpError: always.
        """
        raise UnsupportedOpError("static embeddings have no head that scores texts; use embed")

    def _mean(self, ids: list[int]) -> Array:
        known = [i for i in ids if i < self.vocabulary and i not in self._dropped]
        ids = shortened(known, self.settings.most)
        if not ids:
            return np.zeros(self.width)
        vectors = self._table[ids if self._rows is None else self._rows[ids]]
        if self._factors is not None:
            vectors = vectors * self._factors[ids, np.newaxis].astype(np.float64)
        return np.asarray(vectors.mean(axis=0, dtype=np.float64))


class StaticFiles(NamedTuple):
    """The files of static embeddings.

    Attributes:
        folder: that was given.
        table: a safetensors file.
        tokenizer: as ``tokenizer.json``.
        config: of model2vec; empty of others.
    """

    folder: Path
    table: Path
    tokenizer: Path
    config: Mapping[str, Any]


def static_files(path: Path) -> StaticFiles | None:
    """The files of static embeddings in a folder; ``None``: it has none.

    Raises:
        ModelFormatError: a file is damaged.
    """
    if not path.is_dir():
        return None
    config: Mapping[str, Any] = {}
    if (path / "config.json").is_file():
        config = read_json_object(path / "config.json")
        listed = config.get("architectures")
        named = {config.get("model_type"), *(listed if isinstance(listed, list) else ())}
        if not any(isinstance(name, str) and name in _NAMES for name in named):
            return None
    tables = [*path.glob("*.safetensors"), *path.glob("weights/*.safetensors")]
    tokenizers = [path / "tokenizer.json"] * (path / "tokenizer.json").is_file()
    tokenizers += [*path.glob("*_tokenizer_config.json")]
    tokenizers += [*path.glob("tokenizers/*_tokenizer_config.json")]
    if not tables or not tokenizers:
        return None
    if len(tables) > 1 and not config:
        listed_names = ", ".join(sorted(table.name for table in tables)[:8])
        raise ModelFormatError(f"{path.name!r} has several tables, expected one: {listed_names}")
    table = path / "model.safetensors" if path / "model.safetensors" in tables else tables[0]
    if not config and not any(name in SafetensorsFile(table).tensors for name in _TABLES):
        return None
    return StaticFiles(path, table, tokenizers[0], config)


def open_static(files: StaticFiles) -> StaticEmbedder:
    """Static embeddings of a folder.

    Raises:
        ModelFormatError: a file is damaged, or has no table of vectors.
        OSError: it can not be read.
    """
    tokenizer = tokenizer_from_file(files.tokenizer)
    file = SafetensorsFile(files.table)
    mapped = MappedFile(file.file)

    def found(name: str) -> Array | None:
        place = file.tensors.get(name)
        if place is None or len(place.shape) not in (1, 2) or 0 in place.shape:
            return None
        flat = mapped.array(place.dtype, int(np.prod(place.shape)), place.offset, name)
        return flat.reshape(place.shape)

    tables = [array for array in map(found, _TABLES) if array is not None and array.ndim == 2]
    if not tables or not _is_float(tables[0]):
        listed = " or ".join(map(repr, _TABLES))
        raise ModelFormatError(f"{files.table.name!r} has no matrix of floats {listed}")
    table, rows, factors = tables[0], found(_ROWS), found(_FACTORS)
    count = len(table) if rows is None else len(rows)
    _check_tables(files.table.name, table, rows, factors)
    fields = Fields(files.config, f"{files.folder.name}/config.json")
    settings = EmbeddingSettings(
        pooling=Pooling(normalize=fields.flag("normalize", True)),
        most=fields.size("seq_length", None),
    )
    dropped = _unknown(files.tokenizer, tokenizer) if files.config else ()
    if tokenizer.vocabulary_size < count // 2:
        raise ModelFormatError(
            f"{files.tokenizer.name!r} has {tokenizer.vocabulary_size:,} tokens, "
            f"{files.table.name!r} vectors of {count:,}"
        )
    return StaticEmbedder(table, tokenizer, settings, rows=rows, factors=factors, dropped=dropped)


def _is_float(array: Array) -> bool:
    return bool(array.dtype.kind == "f" or array.dtype.name == "bfloat16")


def _check_tables(name: str, table: Array, rows: Array | None, factors: Array | None) -> None:
    if rows is not None:
        if rows.ndim != 1 or rows.dtype.kind not in "iu":
            raise ModelFormatError(f"{name!r}: {_ROWS!r} is a list of rows, got {rows.shape}")
        if rows.min() < 0 or rows.max() >= len(table):
            raise ModelFormatError(f"{name!r}: {_ROWS!r} has rows beyond the {len(table):,}")
    count = len(table) if rows is None else len(rows)
    if factors is not None and (factors.shape != (count,) or not _is_float(factors)):
        raise ModelFormatError(
            f"{name!r}: {_FACTORS!r} is a list of {count:,} floats, got {factors.shape}"
        )


def _unknown(file: Path, tokenizer: Tokenizer) -> Collection[int]:
    """The token for what has no other, which model2vec leaves out."""
    model = read_json_object(file).get("model")
    piece = model.get("unk_token") if isinstance(model, dict) else None
    token = tokenizer.id_of(piece) if isinstance(piece, str) else None
    return () if token is None else (token,)


def static_checkpoint(files: StaticFiles, embedder: StaticEmbedder) -> Checkpoint:
    """The record of static embeddings, whose vectors an embedder has."""
    width = embedder.width
    config = ModelConfig(
        family="static",
        architecture=_ARCHITECTURE,
        vocabulary=embedder.vocabulary,
        width=width,
        layers=(),
        heads=1,
        kv_heads=1,
        head_dim=width,
        value_dim=width,
        hidden=width,
        context=embedder.settings.most or 0,
        norm=Norm(kind="layer", eps=1e-5),
        causal=False,
        pooling=embedder.settings.pooling,
    )
    return Checkpoint(
        name=files.folder.name, path=files.folder, config=config, family=_STATIC, weights={}
    )


def _no_graph(builder: Builder, value: Value) -> Value:
    raise UnsupportedOpError("static embeddings have no layers")


def _no_config(fields: Fields, architecture: str) -> ModelConfig:
    raise ModelFormatError(f"{architecture!r} has static embeddings, which are a table")


_STATIC: Final = Family(
    name="static",
    architectures=tuple(sorted(_NAMES)),
    config=_no_config,
    names=lambda config: {},
    shapes=lambda config: {},
    hidden=_no_graph,
    logits=_no_graph,
)
