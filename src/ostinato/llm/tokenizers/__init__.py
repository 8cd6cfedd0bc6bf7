"""Tokenizers of ``tokenizer.json`` files and of GGUF vocabularies.

- ``tokenizer``: text to ids, ids to bytes and text.
- ``token_bytes``: the bytes of each token, by the steps of a decoder.
- ``tokenizer_json``: tokenizers of Hugging Face folders.
- ``sentencepiece_file``: vocabularies of ``tokenizer.model`` files.
- ``gguf``: vocabularies of GGUF files, checked.
- ``gguf_models``: the models of those vocabularies: BPE, SentencePiece, unigram, WordPiece.
- ``pre_tokenizers``: regular expressions by the names in GGUF files.

The ``tokenizers`` library does the work. It is imported with the first tokenizer.
"""

from __future__ import annotations

from ostinato.llm.tokenizers.gguf import tokenizer_from_gguf
from ostinato.llm.tokenizers.tokenizer import Tokenizer
from ostinato.llm.tokenizers.tokenizer_json import tokenizer_from_folder, tokenizer_from_json

__all__ = ["Tokenizer", "tokenizer_from_folder", "tokenizer_from_gguf", "tokenizer_from_json"]
