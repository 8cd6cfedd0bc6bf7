"""Pre-tokenizers of byte-level BPE, by the names that GGUF files have for them.

``tokenizer.ggml.pre`` names regular expressions. Each splits all segments of the text in turn: its
matches, and the text between them, become segments of their own. The names are those of
https://github.com/ggml-org/llama.cpp; the expressions are those of the models' own tokenizers.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from ostinato.errors import ModelFormatError
from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["PRE_TOKENIZERS", "PreTokenizer", "pre_tokenizer"]


@dataclass(frozen=True)
class PreTokenizer:
    """The pre-tokenizer of a BPE vocabulary, and defaults that go with its name.

    Attributes:
        patterns: regular expressions, in the order in which they split.
        ignore_merges: whether a segment that is a token is not split into smaller ones and merged.
        add_bos: whether raw prompts begin with the BOS token, unless the file says otherwise.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False


def pre_tokenizer(name: str) -> PreTokenizer:
    """The pre-tokenizer of a name.

    Raises:
        ModelFormatError: the name is unknown. Another pre-tokenizer would give other tokens than
            the model was trained on.
    """
    found = PRE_TOKENIZERS.get(name)
    if found is None:
        raise ModelFormatError(
            f"tokenizer.ggml.pre names the pre-tokenizer {name!r:.80}, which is not known here; "
            f"known are {', '.join(sorted(PRE_TOKENIZERS))}"
        )
    return found


# -- parts of expressions --------------------------------------------------------------------------

_CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_ASCII_SIGN = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"


def _words(digits: str, *, word: str = _WORD, symbols: str = r" ?[^\s\p{L}\p{N}]+[\r\n]*") -> str:
    """Contractions, words with the sign before them, digits, symbols and spaces."""
    return f"{_CONTRACTION}|{word}|{digits}|{symbols}|{_SPACES}"


def _cased_words(
    digits: str, *, suffix: str, upper: str = f"[{_UPPER}]", lower: str = f"[{_LOWER}]"
) -> str:
    """Words that begin anew at a capital after small letters."""
    lead = r"[^\r\n\p{L}\p{N}]?"
    words = f"{lead}{upper}*{lower}+{suffix}|{lead}{upper}+{lower}*{suffix}"
    return rf"{words}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"


def _character_class(ranges: str) -> str:
    """A class of characters from code points and ranges of them, in hexadecimal."""

    def parts() -> Iterator[str]:
        for part in ranges.split():
            first, _, last = part.partition("-")
            yield rf"\x{{{first}}}-\x{{{last}}}" if last else rf"\x{{{first}}}"

    return f"[{''.join(parts())}]"


#: Letters of scripts that have capitals, as DeepSeek's first tokenizer lists them.
_CASED_LETTERS = _character_class(
    """
    41-5A 61-7A B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376 377 37B-37D 37F 386
    388-38A 38C 38E-3A1 3A3-3F5 3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA
    1CBD-1CBF 1D00-1D2B 1D6B-1D77 1D79-1D9A 1E00-1F15 1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57 1F59
    1F5B 1F5D 1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4 1FC6-1FCC 1FD0-1FD3 1FD6-1FDB 1FE0-1FEC
    1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113 2115 2119-211D 2124 2126 2128 212A-212D 212F-2134 2139
    213C-213F 2145-2149 214E 2183 2184 2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2 2CF3 A640-A66D A680-A69B
    A722-A76F A771-A787 A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17 FF21-FF3A FF41-FF5A 10400-1044F
    104B0-104D3 104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF 1E900-1E943
    """
)
_SIGNS = _character_class("21-2F 3A-7E FF01-FF0F FF1A-FF5E 2018-201F 3000-3002")
_ASIAN = _character_class("4E00-9FA5 800-4E00 AC00-D7FF")
_HAN_AND_KANA = _character_class("4E00-9FA5 3040-309F 30A0-30FF")

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    _HAN_AND_KANA + "+",
    rf"{_ASCII_SIGN}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}",
)
_BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_NOT_HAN = r"&&[^\p{Han}]"

# -- by name ---------------------------------------------------------------------------------------

_GPT2_WORDS = PreTokenizer((_GPT2,))
_DIGITS_THEN_GPT2 = PreTokenizer((r"\p{N}", _GPT2))
_LLAMA3 = _words(r"\p{N}{1,3}")
_QWEN2 = PreTokenizer((_words(r"\p{N}"),))
_GPT4O = PreTokenizer((_cased_words(r"\p{N}{1,3}", suffix=f"{_CONTRACTION}?"),))

_FAMILIES: Final[tuple[tuple[str, PreTokenizer], ...]] = (
    (
        "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
        PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True),
    ),
    ("dbrx smaug-bpe glm4 chatglm-bpe", PreTokenizer((_LLAMA3,))),
    (
        "gpt-2 phi-2 jina-es jina-de jina-v1-en jina-v2-es jina-v2-de jina-v2-code roberta-bpe "
        "gigachat a.x-4.0 mellum modern-bert mpt olmo jais exaone4 trillion granite-docling",
        _GPT2_WORDS,
    ),
    (
        "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2",
        _DIGITS_THEN_GPT2,
    ),
    ("qwen2 deepseek-r1-qwen kormo f2llmv2 stablelm2 hunyuan solar-open megrez grok-2", _QWEN2),
    (
        "qwen35",
        PreTokenizer(
            (
                _words(
                    r"\p{N}",
                    word=r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+",
                    symbols=r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*",
                ),
            )
        ),
    ),
    ("deepseek-v3 hunyuan-dense joyai-llm hy_v4", PreTokenizer(_DEEPSEEK3)),
    (
        "deepseek-llm",
        PreTokenizer(
            (
                r"[\r\n]",
                rf"\s?{_CASED_LETTERS}+",
                rf"\s?{_SIGNS}+",
                r"\s+$",
                _ASIAN + "+",
                r"\p{N}+",
            )
        ),
    ),
    (
        "deepseek-coder",
        PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _ASIAN + "+", r"\p{N}")),
    ),
    ("gpt-4o llama4 kanana2 talkie minimax-m2", _GPT4O),
    (
        "tekken",
        PreTokenizer((_cased_words(r"\p{N}", suffix=""),), ignore_merges=True, add_bos=True),
    ),
    (
        "tiny_aya cohere2moe",
        PreTokenizer((r"\d{1,3}(?=(?:\d{3})*\b)", *_GPT4O.patterns)),
    ),
    (
        "kimi-k2",
        PreTokenizer(
            (
                r"\p{Han}+|"
                + _cased_words(
                    r"\p{N}{1,3}",
                    suffix=f"{_CONTRACTION}?",
                    upper=f"[{_UPPER}{_NOT_HAN}]",
                    lower=f"[{_LOWER}{_NOT_HAN}]",
                ).replace(r"[\r\n/]*", r"[\r\n]*"),
            )
        ),
    ),
    ("falcon", PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]"))),
    ("default", PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"))),
    ("bloom poro-chat gpt3-finnish", PreTokenizer((_BLOOM,))),
    ("viking", PreTokenizer((_BLOOM, r"\p{N}"))),
    ("superbpe", PreTokenizer((r"\p{N}+", r"(?=(\d{3})+(?!\d))"))),
    (
        "bailingmoe bailingmoe2 llada-moe",
        PreTokenizer(
            (
                r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
                r"|\s*[\r\n]|\s+(?!\S)|\s+",
            )
        ),
    ),
    ("seed-coder", PreTokenizer((_words(r"\p{N}", symbols=r" ?[^\s\p{L}\p{N}\r\n]+"),))),
    ("minicpm5", PreTokenizer((r"\p{N}{1,3}", _words(r"\p{N}+")), ignore_merges=True)),
    ("laguna", PreTokenizer((r"[^\n]+|[\n]+", *_QWEN2.patterns))),
    (
        "exaone-moe",
        PreTokenizer(
            (
                rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+"
                r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
            )
        ),
    ),
    ("ufakzeka", PreTokenizer((_words(r"\p{N}").removeprefix(f"{_CONTRACTION}|"),))),
)

#: Pre-tokenizers by name.
PRE_TOKENIZERS: Final[Mapping[str, PreTokenizer]] = MappingProxyType(
    {name: found for names, found in _FAMILIES for name in names.split()}
)
