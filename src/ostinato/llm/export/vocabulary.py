"""Tokenizers of folders as the metadata of GGUF files.

What is written is read again, and has to give the same ids for texts of many scripts: a vocabulary
that files have no words for is refused.
"""

from __future__ import annotations

import base64
import itertools
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ostinato.errors import ModelFormatError
from ostinato.llm.tokenizers.gguf import tokenizer_from_gguf
from ostinato.llm.tokenizers.gguf_vocabulary import TokenType
from ostinato.llm.tokenizers.pre_tokenizers import PRE_TOKENIZERS, PreTokenizer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ostinato.llm.tokenizers import Tokenizer

__all__ = ["padded", "vocabulary_metadata"]

_PREFIX: Final = "tokenizer.ggml."

_SPACE: Final = "\u2581"

#: Special tokens by the names that folders have for them, and those of files.
_NAMED: Final = {
    "unk": "unknown",
    "pad": "padding",
    "cls": "cls",
    "mask": "mask",
}

#: Names of tokens that end an answer, in the order in which files take them.
_ENDS: Final = ("eos", "eot", "eom")

#: Texts that tell tokenizers apart. All are in Unicode's form NFC.
_TEXTS: Final = (
    "Hello, World! It's what you'RE doing, isn't it? I'll say they'd've.",
    "  two  spaces,   three\tand\ttabs \n\n new lines \r\n\r\n  end  ",
    "1 12 123 1234 12345 1,234,567.89 3.14e-10 x2y3 007",
    "def f(x_1: int) -> str:\n    return {'a': [1, 2]}[x]  # !? <= >= != ==\n\n\n",
    "CamelCaseWords HTTPServer iPhone naïve Straße ŁÓDŹ",
    "Привет, как дела? Γειά σου Κόσμε. שלום עולם مرحبا بالعالم",
    "你好，世界。今日は良い天気ですね。안녕하세요 세계",
    "नमस्ते दुनिया สวัสดีชาวโลก Việt Nam",
    "😀👍🏽 👨‍👩‍👧 café ½ ² Ⅷ ٣٤٥ ½",
    "a.b@c.org http://x.y/z?q=1&r=2#s $5 €7 %9 ^~`|\\",
    "...---...///***  'quoted' \"double\" («guillemets») „low“",
    "x",
    " x",
    "x ",
)


def vocabulary_metadata(
    tokenizer: Tokenizer,
    stored: Mapping[str, Any],
    *,
    size: int,
    named: Mapping[str, str | None],
    ends: Iterable[int],
    begin: int | None,
    pairs: bool,
) -> dict[str, Any]:
    """The metadata of a tokenizer.

    Args:
        tokenizer: of the folder.
        stored: its ``tokenizer.json``.
        size: tokens of the model's embedding: ids without a piece become unused tokens.
        named: the pieces of special tokens, by the names of ``tokenizer_config.json``: ``unk``.
        ends: ids that end an answer, the first one first.
        begin: the id that begins a text, if the tokenizer does not name it.
        pairs: whether the model reads pairs of texts, as rerankers do.

    Raises:
        ModelFormatError: files have no vocabulary of this kind, or read again it gives other ids.
    """
    if tokenizer.vocabulary_size > size:
        raise ModelFormatError(
            f"the tokenizer has {tokenizer.vocabulary_size:,} tokens, the model {size:,}"
        )
    common = _special(tokenizer, named, ends, begin)
    if pairs:
        common |= _separator(tokenizer)
    for kind, found in _candidates(tokenizer, stored, size):
        metadata = {f"{_PREFIX}model": kind} | {_PREFIX + k: v for k, v in (found | common).items()}
        if (text := _difference(tokenizer, metadata, pairs)) is None:
            return metadata
    raise ModelFormatError(
        f"GGUF files have no tokenizer that gives the ids of this one, for example for {text!r}; "
        "load the folder itself, with weights='int8' or 'int4'"
    )


def padded(metadata: Mapping[str, Any], size: int) -> dict[str, Any]:
    """A vocabulary with unused tokens up to the size of the model's embedding.

    Raises:
        ModelFormatError: it has more tokens than the model.
    """
    found = dict(metadata)
    tokens = found[f"{_PREFIX}tokens"]
    left = size - len(tokens)
    if left < 0:
        raise ModelFormatError(f"the tokenizer has {len(tokens):,} tokens, the model {size:,}")
    found[f"{_PREFIX}tokens"] = [*tokens, *(f"[PAD{n}]" for n in range(len(tokens), size))]
    for name, value in (("scores", 0), ("token_type", TokenType.UNUSED)):
        numbers = found[_PREFIX + name]
        found[_PREFIX + name] = np.pad(numbers, (0, left), constant_values=value)
    return found


def _special(
    tokenizer: Tokenizer, named: Mapping[str, str | None], ends: Iterable[int], begin: int | None
) -> dict[str, Any]:
    """The special tokens, and whether they go around a raw prompt."""
    plain, around = tokenizer.encode("x"), tokenizer.encode("x", add_bos=True)
    before, after = _around(plain, around)
    bos = before[0] if before else begin if tokenizer.bos is None else tokenizer.bos
    found: dict[str, Any] = {"add_bos_token": bool(before), "add_eos_token": bool(after)}
    if bos is not None:
        found["bos_token_id"] = bos
    first = [after[0]] if after else [] if tokenizer.eos is None else [tokenizer.eos]
    every = dict.fromkeys([*first, *ends])
    found |= {f"{name}_token_id": token for name, token in zip(_ENDS, every, strict=False)}
    for name, key in _NAMED.items():
        piece = named.get(name)
        token = None if piece is None else tokenizer.id_of(piece)
        if token is not None:
            found[f"{key}_token_id"] = token
    return found


def _around(plain: Sequence[int], around: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
    """The ids before and after a text.

    Raises:
        ModelFormatError: there are several.
    """
    for before in range(len(around) - len(plain) + 1):
        after = before + len(plain)
        if list(around[before:after]) == list(plain):
            if before < 2 and len(around) - after < 2:
                return around[:before], around[after:]
            break
    raise ModelFormatError(
        "the tokenizer puts several tokens before or after a text, GGUF files have one of each: "
        f"{list(around)} for the text {list(plain)}"
    )


def _separator(tokenizer: Tokenizer) -> dict[str, Any]:
    """The token between the two texts of a pair, beside those that end each."""
    plain, around = tokenizer.encode("x"), tokenizer.encode("x", add_bos=True)
    _, after = _around(plain, around)
    pair, _ = tokenizer.encode_pair("x", "x")
    between = pair[len(around) : len(pair) - len(plain) - len(after)]
    return {"seperator_token_id": between[0]} if len(between) == 1 else {}


def _difference(tokenizer: Tokenizer, metadata: Mapping[str, Any], pairs: bool) -> str | None:
    """A text that gives other ids by the metadata than by the tokenizer."""
    again = tokenizer_from_gguf(metadata)
    names = [tokenizer.piece(token) or "" for token in sorted(tokenizer.special_tokens)[:64]]
    for text in (*_TEXTS, "a".join(names)):
        for options in ({}, {"add_bos": True}, {"special": True}):
            if tokenizer.encode(text, **options) != again.encode(text, **options):
                return text
        if pairs and tokenizer.encode_pair(text, "x")[0] != again.encode_pair(text, "x")[0]:
            return text
    return None


# -- kinds of vocabularies -------------------------------------------------------------------------


def _candidates(
    tokenizer: Tokenizer, stored: Mapping[str, Any], size: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The vocabulary as a kind of file has it, for each of the settings that may be meant.

    Raises:
        ModelFormatError: there is no such kind.
    """
    model = stored["model"]
    steps = list(_steps(stored))
    match model.get("type"):
        case "BPE" if any(step.get("type") == "ByteLevel" for step in steps):
            tokens = _tokens(tokenizer, model["vocab"], size)
            merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
            ignores = bool(model.get("ignore_merges", False))
            for name in _pre_tokenizers(tokenizer, ignores):
                yield "gpt2", {**tokens, "merges": merges, "pre": name}
        case "BPE" if model.get("byte_fallback"):
            yield from _sentencepiece(tokenizer, model, size)
        case "Unigram":
            yield from _unigram(tokenizer, model, steps, size)
        case "WordPiece":
            yield "bert", _wordpiece(tokenizer, model, steps, size)
        case kind:
            raise ModelFormatError(
                f"GGUF files have no vocabulary of the kind {kind!r:.80}; they have byte-level "
                "BPE, BPE with bytes as fallback, unigram and WordPiece"
            )


def _steps(stored: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The normalizers and pre-tokenizers of a file, one after the other."""
    todo = [stored.get("normalizer"), stored.get("pre_tokenizer")]
    while todo:
        step = todo.pop(0)
        if isinstance(step, dict):
            yield step
            todo[:0] = [*step.get("normalizers", ()), *step.get("pretokenizers", ())]


def _tokens(
    tokenizer: Tokenizer,
    pieces: Mapping[str, int],
    size: int,
    scores: Mapping[int, float] | None = None,
) -> dict[str, Any]:
    """Pieces and types of all ids, and scores where there are any."""
    listed = [f"[PAD{number}]" for number in range(size)]
    types = np.full(size, TokenType.UNUSED, np.int32)
    for piece, number in pieces.items():
        listed[number] = piece
        types[number] = TokenType.NORMAL
    for number, (piece, special) in tokenizer.added_tokens.items():
        listed[number] = piece
        types[number] = TokenType.CONTROL if special else TokenType.USER_DEFINED
    found: dict[str, Any] = {"tokens": listed, "token_type": types}
    if scores is not None:
        every = np.zeros(size, np.float32)
        every[list(scores)] = list(scores.values())
        found["scores"] = every
    return found


def _pre_tokenizers(tokenizer: Tokenizer, ignores: bool) -> Iterator[str]:
    """Names of pre-tokenizers that split texts as the tokenizer does, one of each kind.

    Raises:
        ModelFormatError: there is none.
    """
    from tokenizers import Regex, pre_tokenizers

    def segments(kind: PreTokenizer, text: str) -> list[tuple[int, int]]:
        parts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in kind.patterns]
        return [span for _, span in pre_tokenizers.Sequence(parts).pre_tokenize_str(text)]

    wanted = {text: tokenizer.segments(text) for text in _TEXTS}
    kinds: dict[PreTokenizer, str] = {}
    for name, kind in PRE_TOKENIZERS.items():
        kinds.setdefault(kind, name)
    found = [
        name
        for kind, name in kinds.items()
        if kind.ignore_merges == ignores
        and all(segments(kind, text) == spans for text, spans in wanted.items())
    ]
    if not found:
        raise ModelFormatError(
            "GGUF files have no name for the pre-tokenizer of this vocabulary; load the folder "
            "itself, with weights='int8' or 'int4'"
        )
    yield from found


def _sentencepiece(
    tokenizer: Tokenizer, model: Mapping[str, Any], size: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    """A BPE of SentencePiece; the scores of pieces follow from the order of their merges."""
    pieces = dict(model["vocab"])
    ranks: dict[str, int] = {}
    for rank, merge in enumerate(model["merges"]):
        left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
        ranks.setdefault(left + right, rank)
    last = len(model["merges"])
    scores = {number: -float(ranks.get(piece, last)) for piece, number in pieces.items()}
    found = _tokens(tokenizer, pieces, size, scores)
    found["pre"] = "default"
    _mark(found, pieces, model.get("unk_token"))
    for prefix in (True, False):
        yield "llama", {**found, "add_space_prefix": prefix}


def _mark(found: Mapping[str, Any], pieces: Mapping[str, int], unknown: str | None) -> None:
    """Mark the unknown token, and tokens of bytes."""
    types = found["token_type"]
    for byte in range(256):
        number = pieces.get(f"<0x{byte:02X}>")
        if number is not None:
            types[number] = TokenType.BYTE
    if unknown is not None and unknown in pieces:
        types[pieces[unknown]] = TokenType.UNKNOWN


def _unigram(
    tokenizer: Tokenizer, model: Mapping[str, Any], steps: Sequence[Mapping[str, Any]], size: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    pieces = {piece: number for number, (piece, _) in enumerate(model["vocab"])}
    scores = {number: float(score) for number, (_, score) in enumerate(model["vocab"])}
    found = _tokens(tokenizer, pieces, size, scores)
    found["pre"] = "default"
    unknown = model.get("unk_id")
    if unknown is None:
        raise ModelFormatError("a unigram vocabulary of a GGUF file needs an unknown token")
    _mark(found, pieces, model["vocab"][unknown][0])
    found["unknown_token_id"] = unknown
    maps = [step["precompiled_charsmap"] for step in steps if step.get("type") == "Precompiled"]
    if maps and maps[0]:
        octets = base64.b64decode(maps[0])
        found["precompiled_charsmap"] = np.frombuffer(octets, np.uint8)
    for prefix, merged in itertools.product((True, False), repeat=2):
        settings = {"add_space_prefix": prefix, "remove_extra_whitespaces": merged}
        yield "t5", {**found, **settings}


def _wordpiece(
    tokenizer: Tokenizer, model: Mapping[str, Any], steps: Sequence[Mapping[str, Any]], size: int
) -> dict[str, Any]:
    """A WordPiece vocabulary, in which files mark the tokens that begin a word."""
    mark = model.get("continuing_subword_prefix", "##")
    added = {piece for piece, _ in tokenizer.added_tokens.values()}

    def marked(piece: str) -> str:
        if piece in added:
            return piece
        return piece.removeprefix(mark) if piece.startswith(mark) else _SPACE + piece

    pieces = {marked(piece): number for piece, number in model["vocab"].items()}
    found = _tokens(tokenizer, pieces, size)
    found["pre"] = "default"
    if (whole := tokenizer.encode("x", add_bos=True))[1:]:
        found |= {"cls_token_id": whole[0], "seperator_token_id": whole[-1]}
    lower = next((step for step in steps if step.get("type") == "BertNormalizer"), {})
    lowercase = bool(lower.get("lowercase", True))
    stripped = lower.get("strip_accents")
    found["normalizer.lowercase"] = lowercase
    found["normalizer.strip_accents"] = lowercase if stripped is None else bool(stripped)
    return found
