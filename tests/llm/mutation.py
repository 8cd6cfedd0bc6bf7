"""Mutated tokenizers and templates: ``python -m tests.llm.mutation json 0 500``, as a process.

Prints a line for each defect: a crash ends the process, which its caller sees.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from random import Random
from typing import Any

import numpy as np

from ostinato.errors import InputError, ModelFormatError
from ostinato.llm.templates import ChatTemplate
from ostinato.llm.tokenizers import Tokenizer, tokenizer_from_gguf, tokenizer_from_json
from tests.llm.conversations import CONVERSATIONS, FOLDER, TOKENS
from tests.llm.fuzzed_text import fuzzed_texts
from tests.llm.test_tokenizers import (
    bpe_json,
    byte_level_metadata,
    sentencepiece_metadata,
    unigram_metadata,
    wordpiece_metadata,
)

#: Limits of one file, above what the process takes anyway.
MOST_KILOBYTES, MOST_SECONDS = 64 << 10, 5.0

WILD: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 1, 255, 2**31, 2**32 - 1, 2**63, 1e308, float("nan")),
    *("", "x", "\x00", "▁", "\ud800", "x" * 5000, "(a+)+$", "[", "\\p{L}+|", " ", "<s>"),
    *([], [[]], ["a", "a"], {}, {"type": "Sequence"}, [0] * 300, {"String": ""}),
)

TEXTS = fuzzed_texts(3, 1, ["<s>", "<|im_end|>"])


def changed(value: Any, source: Random, wild: tuple[Any, ...] = WILD) -> Any:
    """A copy with a part removed, repeated or replaced by another, at any depth."""
    if isinstance(value, dict) and value and source.random() < 0.9:
        found = dict(value)
        key = source.choice(list(found))
        if source.random() < 0.1:
            del found[key]
        else:
            found[key] = changed(found[key], source, wild)
        return found
    if isinstance(value, list) and value and source.random() < 0.8:
        items = list(value)
        at = source.randrange(len(items))
        match source.randrange(6):
            case 0:
                del items[at]
            case 1:
                items.insert(at, source.choice(items))
            case _:
                items[at] = changed(items[at], source, wild)
        return items
    if isinstance(value, np.ndarray) and value.size and source.random() < 0.7:
        array = value.copy()
        array[source.randrange(array.size)] = source.choice((0, 1, 2, 3, 4, 5, 6, 100))
        return array[: source.choice([None, -1, 0])] if source.random() < 0.2 else array
    alike = [other for other in wild if type(other) is type(value)]
    return deepcopy(source.choice(alike if alike and source.random() < 0.7 else wild))


def mangled(text: str, source: Random) -> str:
    """A text with characters removed, repeated, exchanged or put in."""
    for _ in range(source.randint(1, 4)):
        at, size = source.randrange(len(text) + 1), source.randint(1, 40)
        other = source.randrange(len(text) + 1)
        match source.randrange(4):
            case 0:
                text = text[:at] + text[at + size :]
            case 1:
                text = text[:at] + text[other : other + size] + text[at:]
            case 2:
                text = text[:at] + source.choice("{}%[]()'\"\\-+*~|<>0aé😀\x00") + text[at + 1 :]
            case _:
                text = text[:at] + source.choice(SNIPPETS) + text[at:]
    return text


SNIPPETS = (
    *("{{", "}}", "{%", "%}", "{% for x in messages %}", "{% endfor %}", "{% endif %}", "{#"),
    *("range(10**9)", " * 10**9", " ** 99", "|join", "|list", "|tojson", "|indent(10**6)"),
    *("messages", "loop", "namespace(", "['x']", ".content", "raise_exception(", "99999999999"),
    *("{% if true %}", "{% macro f() %}", "{% endmacro %}", "{{ f() }}", "[::-1]", "~"),
)


def use(tokenizer: Tokenizer) -> None:
    """Use all of a tokenizer."""
    for text in TEXTS:
        for special in (False, True):
            ids = tokenizer.encode(text, special=special, add_bos=special)
            tokenizer.decode(ids, special=special)
        tokenizer.encode_pair(text, "x")
        tokenizer.encode_continuation(text)
    for token in (*range(20), tokenizer.vocabulary_size, 1 << 31):
        tokenizer.piece(token)
        tokenizer.token_bytes(token)


def json_case(source: Random) -> Callable[[], None]:
    whole, config = bpe_json(), {"eos_token": "<|end|>", "add_bos_token": True, "bos_token": "h"}
    kinds: list[dict[str, Any]] = [
        {},
        {"model": {"type": "WordPiece", "vocab": {"a": 0, "##b": 1, "[UNK]": 2}}},
        {"model": {"type": "Unigram", "unk_id": 0, "vocab": [["<s>", 0.0], ["a", -1.5]]}},
        {"model": {"type": "WordLevel", "vocab": {"a": 0, "x": 1}, "unk_token": "x"}},
        {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}]}},
        {
            "pre_tokenizer": {
                "type": "Split",
                "pattern": {"Regex": "\\s+"},
                "behavior": "Isolated",
                "invert": False,
            }
        },
        {"decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"}},
        {"padding": {"strategy": {"Fixed": 4}, "direction": "Right", "pad_id": 0}},
    ]
    whole |= source.choice(kinds)
    for _ in range(source.randint(1, 2)):
        whole = changed(whole, source)
    if source.random() < 0.3:
        config = changed(config, source)
    try:
        data = json.dumps(whole).encode("utf-8", "surrogatepass")
    except ValueError:
        data = b"{}"
    if source.random() < 0.3:
        data = mangled(data.decode("latin-1"), source).encode("utf-8")
    return lambda: use(tokenizer_from_json(data, config if isinstance(config, dict) else {}))


def gguf_case(source: Random) -> Callable[[], None]:
    makers = (byte_level_metadata, sentencepiece_metadata, unigram_metadata, wordpiece_metadata)
    metadata: Any = source.choice(makers)()
    if source.random() < 0.2:
        data = np.frombuffer(source.randbytes(source.randint(0, 400)), np.uint8)
        metadata["tokenizer.ggml.precompiled_charsmap"] = data
    for _ in range(source.randint(1, 3)):
        metadata = changed(metadata, source)
    return lambda: use(tokenizer_from_gguf(metadata if isinstance(metadata, dict) else {}))


TEMPLATES = [path.read_text("utf-8") for path in sorted(FOLDER.glob("*.jinja"))]


def template_case(source: Random) -> Callable[[], None]:
    text = mangled(source.choice(TEMPLATES), source)
    messages, options = source.choice(list(CONVERSATIONS.values()))
    tools = options.get("tools", ())
    if source.random() < 0.1:
        messages = changed(messages, source)

    def run() -> None:
        ChatTemplate(text, tokens=TOKENS).render(messages, tools=tools)

    return run


CASES = {"json": json_case, "gguf": gguf_case, "template": template_case}


def main(kind: str, first: int, last: int) -> None:
    """Judge the cases of some seeds."""
    CASES[kind](Random(-1))
    use(tokenizer_from_gguf(byte_level_metadata()))
    counts: Counter[str] = Counter()
    # Panics of the library have reports of their own, which are not wanted.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for seed in range(first, last):
        run = CASES[kind](Random(seed))
        start = time.thread_time()
        try:
            run()
            counts["read"] += 1
        except (ModelFormatError, InputError):
            counts["refused"] += 1
        except BaseException as error:
            print(f"{kind} {seed}: {type(error).__name__}: {error}"[:300])
        seconds = time.thread_time() - start
        if seconds > MOST_SECONDS:
            print(f"{kind} {seed}: {seconds:.1f} s")
        now = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        if now - peak > MOST_KILOBYTES:
            print(f"{kind} {seed}: {(now - peak) >> 10} MB")
        peak = now
    print(f"read {counts['read']}, refused {counts['refused']}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
