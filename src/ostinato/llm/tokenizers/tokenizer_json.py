"""Tokenizers of Hugging Face folders: ``tokenizer.json`` and ``tokenizer_config.json``.

Older folders have ``tokenizer.model``, a vocabulary of SentencePiece, instead of the first.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.errors import ModelFormatError
from ostinato.llm.packages import required
from ostinato.llm.tokenizers.gguf import tokenizer_from_gguf
from ostinato.llm.tokenizers.gguf_vocabulary import TokenType
from ostinato.llm.tokenizers.sentencepiece_file import sentencepiece_metadata
from ostinato.llm.tokenizers.tokenizer import Tokenizer, library_errors

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

__all__ = [
    "MAX_FILE_BYTES",
    "read_json_object",
    "sentencepiece_vocabulary",
    "special_pieces",
    "tokenizer_from_file",
    "tokenizer_from_folder",
    "tokenizer_from_json",
]

#: The largest tokenizer file that is read: ten times those of vocabularies of 256,000.
MAX_FILE_BYTES = 256 << 20

#: Ids may have gaps, but tables of all ids must not be much larger than the vocabulary.
_MOST_IDS_PER_TOKEN, _FREE_IDS = 4, 1 << 16

_SENTENCEPIECE = "tokenizer.model"

_GGUF = "tokenizer.ggml."

#: Names of special tokens in ``tokenizer_config.json``.
_NAMED = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


def tokenizer_from_folder(folder: str | os.PathLike[str]) -> Tokenizer:
    """The tokenizer of a Hugging Face folder.

    Args:
        folder: with ``tokenizer.json`` or else ``tokenizer.model``, and ``tokenizer_config.json``
            if there is one.

    Raises:
        ModelFormatError: neither file is there, or one is damaged.
        OSError: a file can not be read.
    """
    folder = Path(folder)
    file = folder / "tokenizer.json"
    if not file.is_file() and (folder / _SENTENCEPIECE).is_file():
        return tokenizer_from_gguf(sentencepiece_vocabulary(folder))
    if not file.is_file():
        known = ("vocab.json", "merges.txt", "vocab.txt", "tekken.json", "spiece.model")
        others = [name for name in known if (folder / name).is_file()]
        raise ModelFormatError(
            f"{folder} has no tokenizer.json and no {_SENTENCEPIECE}"
            + (f", only {', '.join(others)}, which are not read" if others else "")
            + ". AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER) of transformers "
            "writes one"
        )
    config_file = folder / "tokenizer_config.json"
    config = read_json_object(config_file) if config_file.is_file() else {}
    return tokenizer_from_json(_read(file), config, name=str(file))


def sentencepiece_vocabulary(folder: Path) -> dict[str, Any]:
    """The vocabulary of ``tokenizer.model`` and of added tokens, as GGUF metadata.

    Raises:
        ModelFormatError: a file is damaged, or the vocabulary is of a kind that is not known.
        OSError: a file can not be read.
    """
    found = sentencepiece_metadata(_read(folder / _SENTENCEPIECE), str(folder / _SENTENCEPIECE))
    config_file = folder / "tokenizer_config.json"
    config = read_json_object(config_file) if config_file.is_file() else {}
    bpe = found[f"{_GGUF}model"] == "llama"
    for name, default in (("add_bos_token", bpe), ("add_eos_token", not bpe)):
        given = config.get(name)
        found[_GGUF + name] = given if isinstance(given, bool) else default
    tokens, types = found[f"{_GGUF}tokens"], found[f"{_GGUF}token_type"].tolist()
    listed = config.get("added_tokens_decoder", {})
    if not isinstance(listed, dict):
        raise ModelFormatError(f"{config_file} has no object as added_tokens_decoder")
    for number, entry in sorted(listed.items(), key=lambda item: str(item[0]).zfill(10)):
        text = _content(entry, f"added_tokens_decoder[{number!r:.20}]")
        special = entry.get("special", True) if isinstance(entry, dict) else True
        place = int(number) if number.isdecimal() else -1
        if not text or not 0 <= place <= len(tokens):
            raise ModelFormatError(
                f"{config_file} adds the token {text!r:.80} as {number!r:.20}, expected an id up "
                f"to {len(tokens):,}"
            )
        if place == len(tokens):
            tokens.append(text)
            types.append(0)
        tokens[place] = text
        if types[place] != TokenType.UNKNOWN:
            types[place] = TokenType.CONTROL if special else TokenType.USER_DEFINED
    scores = found[f"{_GGUF}scores"]
    found[f"{_GGUF}scores"] = np.pad(scores, (0, len(tokens) - len(scores)))
    found[f"{_GGUF}token_type"] = np.array(types, np.int32)
    named = special_pieces(config)
    for name in ("bos", "eos"):
        piece = named[name]
        if piece is not None and piece in tokens:
            found[f"{_GGUF}{name}_token_id"] = tokens.index(piece)
    return found


def tokenizer_from_file(file: Path) -> Tokenizer:
    """The tokenizer of a single file, of the form of ``tokenizer.json``.

    Raises:
        ModelFormatError: it is damaged.
        OSError: it can not be read.
    """
    return tokenizer_from_json(_read(file), {}, name=str(file))


def tokenizer_from_json(
    data: bytes, config: Mapping[str, Any], *, name: str = "tokenizer.json"
) -> Tokenizer:
    """A tokenizer from the contents of its files.

    Args:
        data: of ``tokenizer.json``.
        config: of ``tokenizer_config.json``: its special tokens. What goes around a prompt, the
            post-processor of ``tokenizer.json`` says; flags such as ``add_bos_token`` count only
            for files of older kinds, as in transformers.
        name: of the file, for messages.

    Raises:
        ModelFormatError: damaged, or of an unknown kind.
    """
    backend_class = required("tokenizers", f"the tokenizer {name}").Tokenizer
    with library_errors(name):
        backend = backend_class.from_buffer(data)
        sizes = backend.get_vocab().values()
        most = max(sizes, default=-1)
    if most >= _MOST_IDS_PER_TOKEN * len(sizes) + _FREE_IDS:
        raise ModelFormatError(f"{name} has {len(sizes):,} tokens, but ids up to {most:,}")
    named = special_pieces(config)
    _add_tokens(backend, config.get("added_tokens_decoder", {}), named, name)
    ids = {kind: backend.token_to_id(text) for kind, text in named.items() if text is not None}
    with library_errors(name):
        return Tokenizer(backend, bos=ids.get("bos"), eos=ids.get("eos"))


def _read(file: Path) -> bytes:
    size = file.stat().st_size
    if size > MAX_FILE_BYTES:
        raise ModelFormatError(f"{file} has {size:,} bytes, more than {MAX_FILE_BYTES:,}")
    return file.read_bytes()


def read_json_object(file: Path) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        ModelFormatError: it is none.
        OSError: the file can not be read.
    """
    try:
        found = json.loads(_read(file))
    except (ValueError, RecursionError) as error:
        raise ModelFormatError(f"{file} is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise ModelFormatError(f"{file} is a JSON {type(found).__name__}, not an object")
    return found


def special_pieces(config: Mapping[str, Any]) -> dict[str, str | None]:
    """The pieces of special tokens that ``tokenizer_config.json`` names: of ``bos``, ``eos`` …

    Raises:
        ModelFormatError: a name stands for no text.
    """
    return {kind: _content(config.get(f"{kind}_token"), f"{kind}_token") for kind in _NAMED}


def _content(token: object, name: str) -> str | None:
    """The text of a token that is named as a string or as an object."""
    match token:
        case None | str():
            return token
        case {"content": str(text)}:
            return text
        case _:
            raise ModelFormatError(f"tokenizer_config.json has no token as {name}: {token!r:.80}")


def _add_tokens(backend: Any, listed: object, named: Mapping[str, str | None], name: str) -> None:
    """Make special tokens of those that only the configuration lists."""
    from tokenizers import AddedToken

    if not isinstance(listed, dict):
        raise ModelFormatError("tokenizer_config.json has no object as added_tokens_decoder")
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    for number, entry in sorted(listed.items(), key=lambda item: str(item[0]).zfill(10)):
        text = _content(entry, f"added_tokens_decoder[{number!r:.20}]")
        if text is None or text in known or not text:
            continue
        flags = {
            flag: bool(entry[flag])
            for flag in ("lstrip", "rstrip", "single_word", "normalized", "special")
            if flag in entry
        }
        with library_errors(name):
            backend.add_tokens([AddedToken(text, **flags)])
            given = backend.token_to_id(text)
        if str(given) != str(number):
            raise ModelFormatError(
                f"{name} would give the token {text!r:.80} the id {given}, but "
                f"tokenizer_config.json says {number!r:.20}"
            )
        known.add(text)
    missing = [text for text in named.values() if text and text not in known]
    with library_errors(name):
        backend.add_special_tokens(
            [text for text in dict.fromkeys(missing) if backend.token_to_id(text) is not None]
        )
