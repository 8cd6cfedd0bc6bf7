"""Ops on strings, which are carried out while loading: no graph holds strings.

String inputs are given with ``constants=``; ONNX's backend interface does so by itself at each run.
"""

from __future__ import annotations

import itertools
import unicodedata
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.dtypes import FLOAT32, INT64
from ostinato.frontends.onnx.known import Strings, as_known, boxed
from ostinato.frontends.onnx.regular_expressions import Pattern, PatternError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ostinato.frontends.onnx.call import Call, Converter, Result
    from ostinato.ir.graph import Value

    Array = np.ndarray[Any, Any]

__all__ = ["CONVERTERS"]


def convert_string_concat(call: Call) -> Result:
    a, b = np.broadcast_arrays(call.strings(0), call.strings(1))
    joined = (x + y for x, y in zip(a.reshape(-1), b.reshape(-1), strict=True))
    return Strings(boxed(joined, a.shape))


def convert_string_split(call: Call) -> Result:
    """Convert ``StringSplit``: the parts, filled up with empty strings, and their numbers."""
    texts = call.strings(0)
    separator, most = call.text("delimiter", "") or None, call.integer("maxsplit", -1)
    parts = [text.split(separator, most) for text in texts.reshape(-1)]
    width = max(map(len, parts), default=0)
    filled = (part for row in parts for part in (*row, *[""] * (width - len(row))))
    counts = np.array([len(row) for row in parts], np.int64).reshape(texts.shape)
    return Strings(boxed(filled, (*texts.shape, width))), as_known(counts)


def convert_regex_full_match(call: Call) -> Result:
    texts = call.strings(0)
    try:
        pattern = Pattern(call.text("pattern", ""))
        found = [pattern.matches(text) for text in texts.reshape(-1)]
    except PatternError as error:
        call.malformed(f"its pattern cannot be matched: {error}")
    return as_known(np.array(found, np.bool_).reshape(texts.shape))


def convert_string_normalizer(call: Call) -> Result:
    """Convert ``StringNormalizer``: no accents, no stop words, one case, no empty strings."""
    action = call.text("case_change_action", "NONE")
    change = _CASES.get(action)
    if change is None:
        call.malformed(f"case_change_action should be LOWER, UPPER or NONE, got {action!r}")
    exact = call.flag("is_case_sensitive", 0)
    stops = set(call.text_list("stopwords", ()))
    stops = stops if exact else {change(word) for word in stops}

    def normalized(text: str) -> str:
        plain = _without_accents(text)
        first = _without_words(plain, stops) if exact else plain
        changed = change(first)
        return changed if exact else _without_words(changed, stops)

    texts = call.strings(0)
    if texts.ndim not in (1, 2) or (texts.ndim == 2 and texts.shape[0] != 1):
        call.malformed(f"expected strings [C] or [1,C], got shape {list(texts.shape)}")
    left = [text for text in map(normalized, texts.reshape(-1)) if text] or [""]
    return Strings(boxed(left, (*texts.shape[:-1], len(left))))


_CASES: dict[str, Callable[[str], str]] = {
    "LOWER": str.lower,
    "NONE": lambda text: text,
    "UPPER": str.upper,
}


def _without_accents(text: str) -> str:
    if text.isascii():
        return text
    return "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))


def _without_words(text: str, stops: set[str]) -> str:
    return " ".join(word for word in text.split(" ") if word not in stops) if stops else text


def convert_tfidf_vectorizer(call: Call) -> Result:
    """Convert ``TfIdfVectorizer``: every n-gram of the pool is compared at every position."""
    g, mode = call.g, call.text("mode", "")
    if mode not in ("TF", "IDF", "TFIDF"):
        call.malformed(f"mode should be TF, IDF or TFIDF, got {mode!r}")
    tokens, pool = _tokens(call)
    rows = tokens if tokens.ndim == 2 else g.expand_dims(tokens, 0)
    if rows.ndim != 2:
        call.malformed(f"expected tokens [C] or [N,C], got {tokens.type}")
    starts = call.integer_list("ngram_counts", ())
    indexes = call.integer_list("ngram_indexes", ())
    shortest, longest = call.required("min_gram_length"), call.required("max_gram_length")
    bounds = [*starts, len(pool)]
    counts: list[Value] = []
    for length, (start, end) in enumerate(itertools.pairwise(bounds), 1):
        grams = np.asarray(pool[start:end], np.int64)
        if start > end or grams.size % length:
            call.malformed(f"its pool of {length}-grams has {grams.size} tokens")
        counted = shortest <= length <= longest and grams.size
        skips = range(call.required("max_skip_count") + 1) if counted and length > 1 else range(1)
        if grams.size:
            grams = grams.reshape(-1, length)
            counts.append(_counts(call, rows, grams, skips if counted else range(0)))
    total = g.concat(counts, axis=1) if len(counts) != 1 else counts[0]
    if total.shape[1] != len(indexes) or min(indexes, default=0) < 0:
        call.malformed(f"{len(indexes)} ngram_indexes for {total.shape[1]} n-grams")
    # Column c of the result is that of the n-gram whose index is c, or zero.
    place = np.zeros((len(indexes), max(indexes) + 1), np.float32)
    place[np.arange(len(indexes)), list(indexes)] = 1
    result = g.matmul(total, g.constant(place))
    weights = call.real_list("weights", None)
    if mode == "IDF":
        result = g.minimum(result, 1.0)
    if mode != "TF" and weights is not None:
        result = g.multiply(result, g.constant(np.asarray(weights, np.float32)))
    return result if tokens.ndim == 2 else g.reshape(result, result.shape[1:])


def _tokens(call: Call) -> tuple[Value, Sequence[int]]:
    """The tokens as integers, and the pool in the same numbers."""
    words = call.text_list("pool_strings", None)
    if words is None:
        return call.g.cast(call.value(0), INT64), call.integer_list("pool_int64s", ())
    numbers = {word: number for number, word in enumerate(dict.fromkeys(words))}
    texts = call.strings(0)
    known = [numbers.get(text, -1) for text in texts.reshape(-1)]
    tokens = call.g.constant(np.array(known, np.int64).reshape(texts.shape))
    return tokens, [numbers[word] for word in words]


def _counts(call: Call, rows: Value, grams: Array, skips: range) -> Value:
    """Occurrences of each n-gram in each row, its tokens ``skip + 1`` apart: ``[N, grams]``."""
    g, length = call.g, grams.shape[1]
    total = g.zeros((rows.shape[0], len(grams)), FLOAT32)
    size = rows.shape[1]
    if not isinstance(size, int):
        call.unsupported(f"its number of tokens depends on a Variable ({size}); fix it with dims=")
    for skip in skips:
        positions = size - (length - 1) * (skip + 1)
        if positions < 1:
            continue
        found: Value | None = None
        for j in range(length):
            start = j * (skip + 1)
            column = g.expand_dims(g.slice(rows, [start], [start + positions], axes=[1]), 2)
            same = g.equal(column, g.constant(grams[:, j]))
            found = same if found is None else g.logical_and(found, same)
        assert found is not None
        total = g.add(total, g.sum(g.cast(found, FLOAT32), axis=1))
    return total


CONVERTERS: Mapping[str, Converter] = {
    "RegexFullMatch": convert_regex_full_match,
    "StringConcat": convert_string_concat,
    "StringNormalizer": convert_string_normalizer,
    "StringSplit": convert_string_split,
    "TfIdfVectorizer": convert_tfidf_vectorizer,
}
