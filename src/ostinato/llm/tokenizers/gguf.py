"""Vocabularies of GGUF files, checked, as tokenizers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ostinato.errors import ModelFormatError
from ostinato.llm.packages import required
from ostinato.llm.tokenizers import gguf_models
from ostinato.llm.tokenizers.gguf_models import Around
from ostinato.llm.tokenizers.gguf_vocabulary import TokenType, Vocabulary
from ostinato.llm.tokenizers.pre_tokenizers import pre_tokenizer
from ostinato.llm.tokenizers.tokenizer import Tokenizer, library_errors

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["tokenizer_from_gguf"]

_PREFIX: Final = "tokenizer.ggml."

#: Pieces that end an answer, whether or not the file names them as its EOS token.
_END_PIECES: Final = frozenset(
    (
        *("<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|calls|>"),
        *("<|flush|>", "<end_of_turn>", "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>"),
        *("[EOT]", "[EOS]", "<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>"),
        *("<|tool_response>", "<\uff5cend\u2581of\u2581sentence\uff5c>"),
    )
)

#: Pieces that end a message within an answer, where there are others for the answer itself.
_END_OF_MESSAGE: Final = (
    ("<|end|>", frozenset({"<|return|>", "<|call|>"})),
    ("<|end|>", frozenset({"<|calls|>", "<|flush|>"})),
    ("</s>", frozenset({"<|tool_response>"})),
)


def tokenizer_from_gguf(metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer in the metadata of a GGUF file.

    Args:
        metadata: values by key, as :class:`ostinato.frontends.gguf.GGUFFile` has them.

    Raises:
        ModelFormatError: no vocabulary, a damaged one, or one of an unknown kind or pre-tokenizer.
    """
    kind = _value(metadata, "model", str, None)
    if kind is None:
        raise ModelFormatError("the file has no tokenizer.ggml.model, so it has no vocabulary")
    build = {"gpt2": _bpe, "llama": _sentencepiece, "t5": _unigram, "bert": _wordpiece}.get(kind)
    if build is None:
        raise ModelFormatError(
            f"tokenizer.ggml.model is {kind!r:.80}, which is not known here; known are gpt2, "
            "llama, t5 and bert"
        )
    required("tokenizers", "the vocabulary of the file")
    vocabulary = Vocabulary(
        metadata.get(f"{_PREFIX}tokens"),
        metadata.get(f"{_PREFIX}scores"),
        metadata.get(f"{_PREFIX}token_type"),
    )
    ends = _end_tokens(metadata, vocabulary)
    for token in ends:
        vocabulary.types[token] = TokenType.CONTROL
    with library_errors("the vocabulary of the file"):
        backend, around = build(metadata, vocabulary)
        gguf_models.add_tokens(backend, vocabulary, _stripped(metadata, vocabulary))
        gguf_models.frame(backend, vocabulary, around)
    eos = _token(metadata, vocabulary, "eos", around.eos)
    return Tokenizer(backend, bos=around.bos, eos=eos, end_tokens=ends)


# -- kinds of vocabularies -------------------------------------------------------------------------


def _bpe(metadata: Mapping[str, Any], vocabulary: Vocabulary) -> tuple[Any, Around]:
    name = _value(metadata, "pre", str, None)
    if name is None:
        raise ModelFormatError(
            "the file has no tokenizer.ggml.pre, so its pre-tokenizer is not known; files that "
            "are converted anew have it"
        )
    pre = pre_tokenizer(name)
    backend = gguf_models.byte_level_bpe(vocabulary, metadata.get(f"{_PREFIX}merges"), pre)
    return backend, _around(metadata, vocabulary, add_bos=pre.add_bos)


def _sentencepiece(metadata: Mapping[str, Any], vocabulary: Vocabulary) -> tuple[Any, Around]:
    around = _around(metadata, vocabulary, add_bos=True, bos=1, eos=2)
    prefix = _value(metadata, "add_space_prefix", bool, True)
    unknown = _token(metadata, vocabulary, "unknown", 0)
    return gguf_models.sentencepiece_bpe(vocabulary, unknown, prefix), around


def _unigram(metadata: Mapping[str, Any], vocabulary: Vocabulary) -> tuple[Any, Around]:
    around = _around(metadata, vocabulary, add_bos=False, add_eos=True, eos=1)
    if _value(metadata, "treat_whitespace_as_suffix", bool, False):
        raise ModelFormatError("a vocabulary with spaces at the end of words is not read")
    unknown = _token(metadata, vocabulary, "unknown", 2)
    if unknown is None:
        raise ModelFormatError("a unigram vocabulary needs an unknown token")
    backend = gguf_models.unigram(
        vocabulary,
        unknown,
        _charsmap(metadata.get(f"{_PREFIX}precompiled_charsmap")),
        prefix=_value(metadata, "add_space_prefix", bool, False),
        merge_spaces=_value(metadata, "remove_extra_whitespaces", bool, False),
    )
    return backend, around


def _wordpiece(metadata: Mapping[str, Any], vocabulary: Vocabulary) -> tuple[Any, Around]:
    start = _token(metadata, vocabulary, "cls", 101)
    around = _around(
        metadata, vocabulary, add_bos=True, bos=start, add_eos=True, eos=102, separator=102
    )
    lower = _value(metadata, "normalizer.lowercase", bool, True)
    backend = gguf_models.wordpiece(
        vocabulary,
        _token(metadata, vocabulary, "unknown", 100),
        lowercase=lower,
        strip_accents=_value(metadata, "normalizer.strip_accents", bool, lower),
    )
    end = around.separator
    return backend, Around(around.bos, around.add_bos, end, True, None)


def _around(
    metadata: Mapping[str, Any],
    vocabulary: Vocabulary,
    *,
    add_bos: bool,
    add_eos: bool = False,
    bos: int | None = None,
    eos: int | None = None,
    separator: int | None = None,
) -> Around:
    """The tokens around a prompt: those of the file, else these."""
    return Around(
        _token(metadata, vocabulary, "bos", bos),
        _value(metadata, "add_bos_token", bool, add_bos),
        _token(metadata, vocabulary, "eos", eos),
        _value(metadata, "add_eos_token", bool, add_eos),
        _token(metadata, vocabulary, "seperator", separator),  # the format spells it so
    )


# -- values of metadata ----------------------------------------------------------------------------


def _value(metadata: Mapping[str, Any], name: str, kind: type, default: Any) -> Any:
    found = metadata.get(_PREFIX + name, default)
    if found is default or isinstance(found, kind):
        return found
    raise ModelFormatError(f"tokenizer.ggml.{name} is a {kind.__name__}, got {found!r:.80}")


def _token(
    metadata: Mapping[str, Any], vocabulary: Vocabulary, name: str, default: int | None
) -> int | None:
    """The id under a name; ``default`` if the file has none and the vocabulary is that large."""
    found = metadata.get(f"{_PREFIX}{name}_token_id")
    if found is None:
        return default if default is not None and default < len(vocabulary.pieces) else None
    if isinstance(found, bool) or not isinstance(found, int):
        raise ModelFormatError(f"tokenizer.ggml.{name}_token_id is an integer, got {found!r:.80}")
    if found in {0xFFFFFFFF, -1}:  # so the format says that there is none
        return None
    if not 0 <= found < len(vocabulary.pieces):
        raise ModelFormatError(
            f"tokenizer.ggml.{name}_token_id is {found:,}, beyond the "
            f"{len(vocabulary.pieces):,} tokens"
        )
    return found


def _end_tokens(metadata: Mapping[str, Any], vocabulary: Vocabulary) -> frozenset[int]:
    ids = vocabulary.ids
    pieces = {piece for piece in _END_PIECES if piece in ids}
    for piece, others in _END_OF_MESSAGE:
        if others <= pieces:
            pieces.discard(piece)
    named = {_token(metadata, vocabulary, name, None) for name in ("eos", "eot", "eom")}
    return frozenset({ids[piece] for piece in pieces} | {n for n in named if n is not None})


def _stripped(metadata: Mapping[str, Any], vocabulary: Vocabulary) -> Mapping[int, str]:
    """Special tokens that take the spaces on one side, ``lstrip`` or ``rstrip``.

    Files do not say so; it follows from the names of models.
    """
    model = str(metadata.get("general.name", "")).lower()
    pre = str(metadata.get(f"{_PREFIX}pre", ""))
    ids = vocabulary.ids
    if "phi-3" in model or "phi3" in model:
        kept = {ids.get(piece) for piece in ("<unk>", "<s>", "<|endoftext|>")}
        return dict.fromkeys([t for t in vocabulary.added() if t not in kept], "rstrip")
    if pre in {"jina-v2-de", "jina-v2-es", "jina-v2-code"}:
        return {ids["<mask>"]: "lstrip"} if "<mask>" in ids else {}
    if "modern-bert" in model or pre == "modern-bert":
        return {ids["[MASK]"]: "lstrip"} if "[MASK]" in ids else {}
    return {}


def _charsmap(found: object) -> bytes:
    match found:
        case None:
            return b""
        case np.ndarray() if found.dtype.itemsize == 1 and found.ndim == 1:
            return found.tobytes()
        case _:
            raise ModelFormatError("tokenizer.ggml.precompiled_charsmap is an array of bytes")
