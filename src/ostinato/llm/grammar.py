"""Grammars of answers: JSON schemas, regular expressions, Lark grammars, choices.

A grammar says which tokens may come next, as a row of bits. The ``llguidance`` library follows it;
it is imported with the first grammar that is compiled.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from ostinato.errors import InputError
from ostinato.llm.packages import required
from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from ostinato.llm.tokenizers import Tokenizer

__all__ = ["CompiledGrammar", "Grammar", "GrammarCompiler", "GrammarMatcher"]

#: Characters of a grammar, and strings of a choice.
_LONGEST_SOURCE: Final = 1 << 20
_MOST_CHOICES: Final = 1 << 14

#: Compiled grammars that a compiler keeps.
_KEPT: Final = 64

#: First byte of special tokens for the library: no text has it, so no grammar allows them.
_SPECIAL: Final = b"\xff"


@dataclass(frozen=True)
class Grammar:
    """A constraint of an answer's text, to be made by one of the class methods.

    Attributes:
        kind: of the grammar.
        source: its text.
    """

    kind: Literal["json_schema", "regex", "lark", "choice"]
    source: str

    @classmethod
    def json_schema(cls, schema: Mapping[str, Any] | str | bool) -> Grammar:
        """Answers that are JSON and fit a schema.

        Args:
            schema: as an object, or as JSON text.

        Raises:
            InputError: it is no JSON schema.
        """
        if isinstance(schema, str):
            try:
                schema = json.loads(schema)
            except (ValueError, RecursionError) as error:
                raise InputError(f"a JSON schema is JSON: {error}") from None
        if not isinstance(schema, dict | bool):
            raise InputError(f"a JSON schema is an object, got a {type(schema).__name__}")
        try:
            text = json.dumps(schema, ensure_ascii=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise InputError(f"a JSON schema has JSON values: {error}") from None
        return cls("json_schema", _checked(text, "JSON schema"))

    @classmethod
    def regex(cls, expression: str) -> Grammar:
        """Answers that match a regular expression as a whole; it has no look-arounds.

        Raises:
            InputError: no text.
        """
        return cls("regex", _checked(expression, "regular expression"))

    @classmethod
    def lark(cls, grammar: str) -> Grammar:
        """Answers of a context-free grammar in the notation of Lark, from its rule ``start``.

        Raises:
            InputError: no text.
        """
        return cls("lark", _checked(grammar, "Lark grammar"))

    @classmethod
    def choice(cls, choices: Sequence[str]) -> Grammar:
        """Answers that are one of several strings.

        Raises:
            InputError: no list of strings, an empty one, or too many.
        """
        if isinstance(choices, str) or not all(isinstance(choice, str) for choice in choices):
            raise InputError("choices are a list of strings")
        if not 0 < len(choices) <= _MOST_CHOICES:
            raise InputError(f"there are {len(choices):,} choices; from 1 to {_MOST_CHOICES:,} may")
        text = json.dumps(list(dict.fromkeys(choices)), ensure_ascii=False)
        return cls("choice", _checked(text, "choice"))


def _checked(text: object, what: str) -> str:
    if not isinstance(text, str):
        raise InputError(f"a {what} is a text, got a {type(text).__name__}")
    if len(text) > _LONGEST_SOURCE:
        raise InputError(f"a {what} has at most {_LONGEST_SOURCE:,} characters, got {len(text):,}")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError(f"a {what} has no surrogates") from None
    return text


class GrammarCompiler:
    """Compiles grammars for the tokens of a model, and keeps those of late.

    Args:
        tokenizer: of the model.
        vocabulary_size: tokens that the model has probabilities for; ``None``: the tokenizer's.
    """

    def __init__(self, tokenizer: Tokenizer, vocabulary_size: int | None = None) -> None:
        self._tokenizer = tokenizer
        self._size = vocabulary_size or tokenizer.vocabulary_size
        self._library: Any = None
        self._kept: OrderedDict[Grammar, CompiledGrammar] = OrderedDict()
        self._lock = Lock()

    def compile(self, grammar: Grammar, *, seconds: float = 2.0) -> CompiledGrammar:
        """Compile a grammar, on a thread of its own.

        Args:
            grammar: any.
            seconds: that it may take. The library bounds its own work, so that the thread ends soon
                in any case.

        Raises:
            InputError: it is malformed, allows no text, or takes too long; or the tokenizer has no
                token that ends an answer.
        """
        with self._lock:
            found = self._kept.get(grammar)
            if found is not None:
                self._kept.move_to_end(grammar)
                return found
            if self._library is None:
                self._library = _library_tokenizer(self._tokenizer, self._size)
        made: list[Any] = []
        thread = Thread(
            target=lambda: made.append(_matcher(self._library, grammar)),
            name="grammar",
            daemon=True,
        )
        thread.start()
        thread.join(seconds)
        if not made:
            raise InputError(
                f"the {_NAMES[grammar.kind]} takes more than {seconds:g} s to compile: "
                f"{grammar.source!r:.80}"
            )
        matcher = made[0]
        if isinstance(matcher, str):
            raise InputError(f"the {_NAMES[grammar.kind]} {grammar.source!r:.80} fails: {matcher}")
        compiled = CompiledGrammar(matcher, self._tokenizer.end_tokens, self._size)
        with self._lock:
            self._kept[grammar] = compiled
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return compiled


_NAMES: Final = {
    "json_schema": "JSON schema",
    "regex": "regular expression",
    "lark": "Lark grammar",
    "choice": "choice",
}


class CompiledGrammar:
    """A grammar for the tokens of a model, made by :meth:`GrammarCompiler.compile`."""

    def __init__(self, matcher: Any, end_tokens: frozenset[int], size: int) -> None:
        self._matcher = matcher
        self._end_tokens = end_tokens
        self._size = size

    def matcher(self) -> GrammarMatcher:
        """The state at the beginning of an answer."""
        return GrammarMatcher(self._matcher.deep_copy(), self._end_tokens, self._size)


class GrammarMatcher:
    """The state of a grammar within one answer, made by :meth:`CompiledGrammar.matcher`."""

    def __init__(self, matcher: Any, end_tokens: frozenset[int], size: int) -> None:
        self._matcher = matcher
        self._words = -(-size // 32)
        self._end_tokens = end_tokens
        self._ended = 0  # tokens that end the answer, and were accepted
        self._ends = np.zeros(self._words, np.uint32)
        for token in end_tokens:
            self._ends[token // 32] |= np.uint32(1 << token % 32)

    def fill(self, bits: NDArray[np.uint32]) -> None:
        """Write the tokens that may come next into a row of bits, the lowest bit first.

        Tokens that end an answer may come when the answer is complete. They alone may come where
        the grammar allows nothing else, and where it has become too complex to go on.

        Args:
            bits: one for each token of the model, contiguous.

        Raises:
            InputError: of another dtype or length.
        """
        if bits.dtype != np.uint32 or bits.shape != (self._words,):
            raise InputError(
                f"the row of bits is uint32 [{self._words}], got {bits.dtype} {list(bits.shape)}"
            )
        if not bits.flags.c_contiguous or not bits.flags.writeable:
            raise InputError("the row of bits is contiguous and may be written")
        done = self._ended or self._matcher.is_error()
        if not done:
            self._matcher.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)
        if done or self._matcher.is_error() or not bits.any():
            bits[:] = self._ends

    def accept(self, token: int) -> bool:
        """Advance by a token.

        Returns:
            whether the grammar allows it; otherwise the state is as before.
        """
        if token in self._end_tokens:
            if not self._ended and not self.complete:
                return False
            self._ended += 1
            return True
        return not self._ended and self._matcher.try_consume_tokens([token]) == 1

    def rollback(self, count: int) -> None:
        """Take back the last tokens that were accepted.

        Raises:
            InputError: there are not as many.
        """
        ends = min(count, self._ended)
        if count > ends and not self._matcher.rollback(count - ends):
            raise InputError(f"{count} tokens can not be taken back: {self._matcher.get_error()}")
        self._ended -= ends

    def forced(self) -> list[int]:
        """The tokens that must come next, as far as there is but one way on."""
        tokens: list[int] = self._matcher.compute_ff_tokens()
        return tokens

    @property
    def complete(self) -> bool:
        """Whether the answer may end here."""
        complete: bool = self._matcher.is_accepting()
        return complete

    @property
    def error(self) -> str:
        """The reason for which the grammar can not go on; empty: there is none."""
        found: str = self._matcher.get_error()
        return found


# -- the library -----------------------------------------------------------------------------------


class _Vocabulary:
    """The tokens of a model as the library asks for them.

    Args:
        tokenizer: of the model.
        size: tokens of the model.
    """

    def __init__(self, tokenizer: Tokenizer, size: int) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = min(tokenizer.end_tokens)
        self.bos_token_id = tokenizer.bos
        self.tokens = list(_token_bytes(tokenizer, size))
        self.special_token_ids = sorted(token for token in tokenizer.special_tokens if token < size)

    def __call__(self, text: str | bytes) -> list[int]:
        text = text if isinstance(text, str) else text.decode("utf-8", "replace")
        return self._tokenizer.encode_continuation(text)


def _token_bytes(tokenizer: Tokenizer, size: int) -> Iterator[bytes]:
    for token in range(size):
        if token in tokenizer.special_tokens or token in tokenizer.end_tokens:
            yield _SPECIAL + (tokenizer.piece(token) or "").encode()
        else:
            yield tokenizer.token_bytes(token)


def _library_tokenizer(tokenizer: Tokenizer, size: int) -> Any:
    library = required("llguidance", "a grammar")
    ends = sorted(token for token in tokenizer.end_tokens if token < size)
    if not ends:
        raise InputError("the tokenizer has no token that ends an answer, so no grammar could end")
    wrapped = library.TokenizerWrapper(_Vocabulary(tokenizer, size))
    return library.LLTokenizer(wrapped, n_vocab=size, eos_token=ends)


def _matcher(tokenizer: Any, grammar: Grammar) -> Any:
    """The library's matcher at the beginning of an answer, or what is wrong with the grammar."""
    from llguidance import LLMatcher, LLParserLimits

    try:
        matcher = LLMatcher(
            tokenizer,
            _library_grammar(grammar),
            log_level=0,
            limits=LLParserLimits(verbose_errors=False),
        )
        return str(matcher.get_error())[:400] if matcher.is_error() else matcher
    except BaseException as error:  # a panic of Rust is no Exception
        return str(error)[:400]


def _library_grammar(grammar: Grammar) -> str:
    from llguidance import LLMatcher

    match grammar.kind:
        case "json_schema":
            text = LLMatcher.grammar_from_json_schema(grammar.source)
        case "regex":
            text = LLMatcher.grammar_from_regex(grammar.source)
        case "lark":
            text = LLMatcher.grammar_from_lark(grammar.source)
        case "choice":
            choices = (json.dumps(choice) for choice in json.loads(grammar.source))
            text = LLMatcher.grammar_from_lark(f"start: {' | '.join(choices)}")
    return str(text)
