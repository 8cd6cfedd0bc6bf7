"""Tokenizers: text to token ids, ids to bytes and text."""

from __future__ import annotations

import json
from contextlib import contextmanager
from threading import Lock
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ostinato.errors import InputError, ModelFormatError
from ostinato.llm.tokenizers.token_bytes import TokenBytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["Tokenizer", "library_errors"]

#: The least integer that is no token id: vocabularies count in 32 bits.
_TOO_LARGE = 1 << 32

#: A character that no vocabulary merges with others.
_SEPARATOR = "\x02"


class Tokenizer:
    """A vocabulary with the rules that turn text into its ids.

    Special tokens, such as ``<|im_end|>``, are parsed only where the caller says so: within text of
    a user, their names are text. Methods may be called from several threads.

    Args:
        backend: a ``tokenizers.Tokenizer``, whose post-processor adds the tokens that the model
            expects around a raw prompt.
        bos, eos: ids of the tokens that begin and end a text; ``None``: there is none.
        end_tokens: ids that end generation, in addition to ``eos``.

    Attributes:
        end_tokens: ids that end generation.
        special_tokens: ids of special tokens.
        added_tokens: of ids that stand for their text as a whole: it, and whether they are special.

    Raises:
        ModelFormatError: its decoder is of an unknown kind.
    """

    def __init__(
        self,
        backend: Any,
        *,
        bos: int | None = None,
        eos: int | None = None,
        end_tokens: Iterable[int] = (),
    ) -> None:
        with library_errors("the tokenizer"):
            backend.no_truncation()
            backend.no_padding()
            added = backend.get_added_tokens_decoder()
            decoder = backend.decoder
            steps = None if decoder is None else json.loads(decoder.__getstate__())
            backend.encode_special_tokens = True
            names = [token.content for token in added.values() if token.special]
            _cut_special_names(backend, names)
        self.bos, self.eos = bos, eos
        self.end_tokens = frozenset(end_tokens) | ({eos} if eos is not None else set())
        self.special_tokens = frozenset(number for number, token in added.items() if token.special)
        self.added_tokens = MappingProxyType(
            {number: (token.content, bool(token.special)) for number, token in added.items()}
        )
        self._backend = backend
        self._added = frozenset(added)
        self._rule = TokenBytes(steps)
        self._bytes: dict[int, bytes] = {}
        self._size: int | None = None
        self._lock = Lock()  # for the mode of the library's object

    def __repr__(self) -> str:
        return f"<Tokenizer of {self.vocabulary_size:,} tokens>"

    @property
    def vocabulary_size(self) -> int:
        """The greatest id, plus one."""
        if self._size is None:
            with library_errors("the tokenizer"):
                self._size = max(self._backend.get_vocab().values(), default=-1) + 1
        return self._size

    @property
    def leading_spaces(self) -> int:
        """Spaces at the beginning of a decoded text that are no part of it, at most."""
        return self._rule.leading_spaces

    # -- text to ids -----------------------------------------------------------------------------

    def encode(self, text: str, *, special: bool = False, add_bos: bool = False) -> list[int]:
        """The ids of a text.

        Args:
            text: any.
            special: whether names of special tokens in the text stand for these tokens.
            add_bos: whether to put the tokens around it that the model's files ask for around a raw
                prompt: BOS, or ``[CLS]`` and ``[SEP]``; none if they ask for none. A rendered
                template has them already.

        Raises:
            InputError: no text, or it has surrogates.
        """
        _check_text(text)
        return self._encode(text, None, special, add_bos).ids  # type: ignore[no-any-return]

    def encode_pair(self, first: str, second: str) -> tuple[list[int], list[int]]:
        """The ids of two texts with the separators between and around them, and their segments.

        Returns:
            ids, and for each the number of its segment, 0 or 1.

        Raises:
            InputError: no text, or it has surrogates.
        """
        _check_text(first)
        _check_text(second)
        encoding = self._encode(first, second, False, True)
        return encoding.ids, encoding.type_ids

    def encode_continuation(self, text: str) -> list[int]:
        """The ids of a text that follows other text: without the space that begins a text.

        Raises:
            InputError: no text, or it has surrogates.
        """
        if not self._rule.leading_spaces:
            return self.encode(text)
        before = self.encode(_SEPARATOR)
        found = self.encode(_SEPARATOR + text)
        return found[len(before) :] if found[: len(before)] == before else self.encode(text)

    def _encode(self, text: str, pair: str | None, special: bool, around: bool) -> Any:
        backend = self._backend
        with library_errors("the tokenizer, for this text,"), self._lock:
            backend.encode_special_tokens = not special
            return backend.encode(text, pair, add_special_tokens=around)

    def segments(self, text: str) -> list[tuple[int, int]]:
        """The parts of a text that no token goes across: where each begins and ends.

        Raises:
            InputError: no text, or it has surrogates.
        """
        _check_text(text)
        rule = self._backend.pre_tokenizer
        if rule is None:
            return [(0, len(text))]
        with library_errors("the tokenizer, for this text,"):
            return [span for _, span in rule.pre_tokenize_str(text)]

    def id_of(self, piece: str) -> int | None:
        """The id of a piece of the vocabulary, such as ``<|im_end|>``; ``None``: there is none."""
        _check_text(piece)
        found: int | None = self._backend.token_to_id(piece)
        return found

    # -- ids to text -----------------------------------------------------------------------------

    def piece(self, token: int) -> str | None:
        """The piece of an id as the vocabulary spells it; ``None``: there is none.

        Raises:
            InputError: negative, or beyond 32 bits.
        """
        if not 0 <= token < _TOO_LARGE:
            raise InputError(f"a token id is a number from 0 to {_TOO_LARGE - 1:,}, got {token}")
        found: str | None = self._backend.id_to_token(token)
        return found

    def token_bytes(self, token: int) -> bytes:
        """The bytes that a token adds to a text; none for ids without a piece.

        Raises:
            InputError: negative, or beyond 32 bits.
        """
        found = self._bytes.get(token)
        if found is None:
            piece = self.piece(token)
            if piece is None:
                return b""
            found = self._bytes[token] = self._rule.of(piece, token in self._added)
        return found

    def decode_bytes(self, tokens: Iterable[int], *, special: bool = False) -> bytes:
        """The bytes of a text.

        Args:
            tokens: its ids.
            special: whether special tokens are part of the text, by their names.

        Raises:
            InputError: an id is negative, or beyond 32 bits.
        """
        hidden = () if special else self.special_tokens
        data = b"".join(self.token_bytes(token) for token in tokens if token not in hidden)
        spaces = self._rule.leading_spaces
        while spaces and data.startswith(b" "):
            data, spaces = data[1:], spaces - 1
        return data

    def decode(self, tokens: Iterable[int], *, special: bool = False) -> str:
        """The text of ids: :meth:`decode_bytes` as UTF-8, with U+FFFD for what is none.

        Raises:
            InputError: an id is negative, or beyond 32 bits.
        """
        return self.decode_bytes(tokens, special=special).decode("utf-8", "replace")


def _cut_special_names(backend: Any, names: list[str]) -> None:
    """Let a unigram model make no special token of its name.

    The names are pieces of the model too. Where they are parsed, they are gone before the text is
    cut into words; where they are not, a cut after their first character keeps them apart.
    """
    from tokenizers import Regex, models, pre_tokenizers

    long_names = [name for name in names if len(name) > 1]
    if not isinstance(backend.model, models.Unigram) or not long_names:
        return
    inside = "|".join(f"(?<={_literal(name[0])})(?={_literal(name[1:])})" for name in long_names)
    cut = pre_tokenizers.Split(Regex(inside), "isolated")
    words = backend.pre_tokenizer
    backend.pre_tokenizer = cut if words is None else pre_tokenizers.Sequence([words, cut])


def _literal(text: str) -> str:
    """A regular expression that matches this text alone."""
    return "".join(f"\\x{{{ord(character):x}}}" for character in text)


def _check_text(text: object) -> None:
    if not isinstance(text, str):
        raise InputError(f"a text is a str, got {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"a text has the surrogate {text[error.start]!a} at character {error.start}: "
            "it is no Unicode text"
        ) from None


@contextmanager
def library_errors(what: str) -> Iterator[None]:
    """Errors of the ``tokenizers`` library, its panics included, as :class:`ModelFormatError`.

    Args:
        what: the thing that failed.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError, ModelFormatError):
        raise
    except BaseException as error:  # a panic of Rust is no Exception
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise ModelFormatError(f"{what} failed: {str(error)[:300]}") from None
