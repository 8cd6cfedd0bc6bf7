"""The models of GGUF vocabularies, built with the ``tokenizers`` library."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.errors import ModelFormatError
from ostinato.llm.tokenizers.gguf_vocabulary import TokenType
from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ostinato.llm.tokenizers.gguf_vocabulary import Vocabulary
    from ostinato.llm.tokenizers.pre_tokenizers import PreTokenizer

__all__ = [
    "Around",
    "add_tokens",
    "byte_level_bpe",
    "frame",
    "sentencepiece_bpe",
    "unigram",
    "wordpiece",
]

#: The character that stands for a space in vocabularies of SentencePiece.
_SPACE = "\u2581"

#: Characters of a word, at most; longer words are the unknown token. BERT's own number.
_LONGEST_WORD = 100


@dataclass(frozen=True)
class Around:
    """The tokens around a raw prompt.

    Attributes:
        bos, add_bos: the token that begins a text, and whether it does.
        eos, add_eos: the token that ends a text, and whether it does.
        separator: a further token between two texts.
    """

    bos: int | None
    add_bos: bool
    eos: int | None
    add_eos: bool
    separator: int | None


def byte_level_bpe(vocabulary: Vocabulary, merges: object, pre: PreTokenizer) -> Any:
    """Byte-pair encoding of bytes, as in GPT-2, after a pre-tokenizer.

    Raises:
        ModelFormatError: ``merges`` is no list of pairs of pieces.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    pairs = _pairs(merges)
    try:
        model = models.BPE(
            dict(vocabulary.ids), pairs, ignore_merges=pre.ignore_merges, fuse_unk=False
        )
    except Exception:
        _check_merges(merges, vocabulary)
        raise
    backend = Tokenizer(model)
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in pre.patterns]
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*splits, to_bytes])
    backend.decoder = decoders.ByteLevel()
    return backend


def _pairs(merges: object) -> list[tuple[str, str]]:
    """The parts of each merge, before they are compared with the vocabulary."""
    if not isinstance(merges, list) or not {str}.issuperset(map(type, merges)):
        raise ModelFormatError("tokenizer.ggml.merges is a list of strings")
    # A vocabulary has some hundred thousand of them.
    split = [merge.split(" ", 1) for merge in merges]
    if not {2}.issuperset(map(len, split)):
        number = [len(parts) for parts in split].index(1)
        raise ModelFormatError(f"merge {number:,} is no pair of tokens: {merges[number]!a:.80}")
    return list(map(tuple, split))


def _check_merges(merges: Any, vocabulary: Vocabulary) -> None:
    """Name the merge that is not of the vocabulary's tokens."""
    ids = vocabulary.ids
    for number, merge in enumerate(merges):
        left, _, right = merge.partition(" ")
        if left not in ids or right not in ids or left + right not in ids:
            raise ModelFormatError(f"merge {number:,} is no pair of tokens: {merge!a:.80}")


def sentencepiece_bpe(vocabulary: Vocabulary, unknown: int | None, prefix: bool) -> Any:
    """Byte-pair encoding of SentencePiece: the merge with the best score first, bytes as fallback.

    Args:
        vocabulary: with scores.
        unknown: id of the token for what has no other.
        prefix: whether a space is put before the text, and after each special token.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers

    backend = Tokenizer(
        models.BPE(
            dict(vocabulary.ids),
            _scored_merges(vocabulary),
            unk_token=None if unknown is None else vocabulary.pieces[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    before = [normalizers.Prepend(_SPACE)] if prefix else []
    backend.normalizer = normalizers.Sequence([*before, normalizers.Replace(" ", _SPACE)])
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, *([decoders.Strip(" ", 1, 0)] if prefix else [])])
    return backend


def _scored_merges(vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """All pairs of tokens whose concatenation is one, those with the best score first."""
    ids, types = vocabulary.ids, vocabulary.types.tolist()
    no_parts = (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.BYTE)
    usable = {piece for piece, number in ids.items() if types[number] not in no_parts}

    def splits(piece: str) -> Iterator[tuple[str, str]]:
        for cut in range(1, len(piece)):
            if piece[:cut] in usable and piece[cut:] in usable:
                yield piece[:cut], piece[cut:]

    scores = vocabulary.scores.tolist()
    ranked = [
        (-scores[ids[piece]], ids[left], ids[right], left, right)
        for piece in usable
        for left, right in splits(piece)
    ]
    ranked.sort()
    return [(left, right) for *_, left, right in ranked]


def unigram(
    vocabulary: Vocabulary, unknown: int, charsmap: bytes, *, prefix: bool, merge_spaces: bool
) -> Any:
    """SentencePiece's unigram model: the sequence of tokens with the best sum of scores.

    Args:
        vocabulary: with scores.
        unknown: id of the token for what has no other.
        charsmap: SentencePiece's compiled replacements of characters; empty: none.
        prefix: whether a space is put before the text.
        merge_spaces: whether spaces around the text are dropped, and others merged into one.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    scored = list(zip(vocabulary.pieces, vocabulary.scores.tolist(), strict=True))
    backend = Tokenizer(models.Unigram(scored, unknown, byte_fallback=False))
    steps: list[Any] = [normalizers.Precompiled(charsmap)] if charsmap else []
    if merge_spaces:
        around = normalizers.Replace(Regex(r"\A +| +\z"), "")
        steps += [normalizers.Replace(Regex(" {2,}"), " "), around]
    before = prefix or merge_spaces
    backend.normalizer = normalizers.Sequence(
        [*steps, *([normalizers.Prepend(_SPACE)] if before else [])]
    )
    backend.pre_tokenizer = pre_tokenizers.Metaspace(_SPACE, "never", split=True)
    backend.decoder = decoders.Metaspace(_SPACE, "always" if before else "never")
    return backend


def wordpiece(
    vocabulary: Vocabulary, unknown: int | None, *, lowercase: bool, strip_accents: bool
) -> Any:
    """WordPiece, as in BERT: the longest tokens from the start of each word.

    Files mark tokens that begin a word; BERT marks those that continue one.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    types = vocabulary.types.tolist()
    ids: dict[str, int] = {}
    for number, piece in enumerate(vocabulary.pieces):
        word = piece
        if types[number] == TokenType.NORMAL:
            marked = len(piece) > 1 and piece.startswith(_SPACE)
            word = piece.removeprefix(_SPACE) if marked else f"##{piece}"
        if ids.setdefault(word, number) != number:
            raise ModelFormatError(f"tokens {ids[word]:,} and {number:,} are both {word!r:.80}")
    unk = "[UNK]" if unknown is None else vocabulary.pieces[unknown]
    if unk not in ids:
        raise ModelFormatError(f"a WordPiece vocabulary needs its unknown token, {unk!r:.80}")
    backend = Tokenizer(
        models.WordPiece(ids, unk_token=unk, max_input_chars_per_word=_LONGEST_WORD)
    )
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=True,
        strip_accents=strip_accents,
        lowercase=lowercase,
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece("##", cleanup=False)
    return backend


def add_tokens(backend: Any, vocabulary: Vocabulary, stripped: Mapping[int, str]) -> None:
    """Let control tokens and the user's tokens stand for their text as a whole.

    Args:
        backend: the tokenizer.
        vocabulary: its tokens.
        stripped: ids that take the spaces on one side, ``lstrip`` or ``rstrip``.
    """
    from tokenizers import AddedToken

    tokens = []
    for number in vocabulary.added():
        piece = vocabulary.pieces[number]
        if backend.token_to_id(piece) != number:
            continue  # a vocabulary spells it otherwise, as WordPiece does
        sides = {stripped[number]: True} if number in stripped else {}
        special = vocabulary.types[number] != TokenType.USER_DEFINED
        tokens.append(AddedToken(piece, normalized=False, special=special, **sides))
    backend.add_tokens(tokens)


def frame(backend: Any, vocabulary: Vocabulary, around: Around) -> None:
    """Let the tokens around a prompt be added where they are asked for."""
    from tokenizers.processors import TemplateProcessing

    bos = around.bos if around.add_bos else None
    eos = around.eos if around.add_eos else None
    before = [] if bos is None else [vocabulary.pieces[bos]]
    after = [] if eos is None else [vocabulary.pieces[eos]]
    between = [] if around.separator is None else [vocabulary.pieces[around.separator]]
    first = [*(f"{piece}:0" for piece in before), "$A:0", *(f"{piece}:0" for piece in after)]
    second = [*(f"{piece}:1" for piece in between), "$B:1", *(f"{piece}:1" for piece in after)]
    used = dict.fromkeys([*before, *after, *between])
    backend.post_processor = TemplateProcessing(
        single=first,
        pair=[*first, *second],
        special_tokens=[(piece, vocabulary.ids[piece]) for piece in used],
    )
