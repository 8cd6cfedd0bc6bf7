"""Folders as Hugging Face has them: ``config.json``, safetensors, and files of the tokenizer."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, Final

from ostinato.errors import ModelFormatError
from ostinato.frontends.gguf.sources import MappedFile
from ostinato.ir.files import FileRange
from ostinato.ir.stored import StoredTensor
from ostinato.llm.checkpoints.checkpoint import Checkpoint
from ostinato.llm.checkpoints.mxfp4 import joined_blocks
from ostinato.llm.families.registry import family_of
from ostinato.llm.fields import Fields
from ostinato.llm.weights import FileTensor, located
from ostinato.moe.safetensors import SafetensorsFile

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ostinato.llm.config import ModelConfig
    from ostinato.llm.families.family import Family
    from ostinato.llm.weights import Weight
    from ostinato.moe.safetensors import TensorRange

__all__ = ["IGNORED", "open_folder"]

#: Bytes of the largest index or file of a tokenizer's that is read, and of the largest settings.
_LARGEST: Final = 16 << 20
_SETTINGS: Final = 1 << 20

_INDEX, _SINGLE = "model.safetensors.index.json", "model.safetensors"

#: Files of a tokenizer.
_TOKENIZER_FILES: Final = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "chat_template.json",
)

#: Prefixes of tensors that read images, which a language model does without.
_VISION: Final = tuple(
    f"{outer}{part}."
    for outer in ("", "model.")
    for part in ("vision_tower", "multi_modal_projector")
)

#: Fields of ``config.json`` that change no result of a run.
IGNORED: Final = frozenset(
    {
        "_attn_implementation",
        "_attn_implementation_autoset",
        "_commit_hash",
        "_name_or_path",
        "_num_labels",
        "add_cross_attention",
        "architectures",
        "attention_dropout",
        "attn_pdrop",
        "attn_implementation",
        "auto_map",
        "bad_words_ids",
        "begin_suppress_tokens",
        "bos_token_id",
        "cache_implementation",
        "classifier_dropout",
        "cross_attention_hidden_size",
        "decoder_start_token_id",
        "do_sample",
        "dtype",
        "embd_pdrop",
        "eos_token_id",
        "finetuning_task",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "gradient_checkpointing",
        "hidden_dropout",
        "id2label",
        "initializer_range",
        "is_decoder",
        "is_encoder_decoder",
        "is_llama_config",
        "label2id",
        "max_length",
        "model_type",
        "num_labels",
        "n_ctx",
        "output_attentions",
        "output_hidden_states",
        "output_scores",
        "pad_token_id",
        "predict_special_tokens",
        "prefix",
        "pretraining_tp",
        "problem_type",
        "resid_pdrop",
        "return_dict",
        "return_dict_in_generate",
        "sep_token_id",
        "summary_activation",
        "summary_first_dropout",
        "summary_proj_to_labels",
        "summary_type",
        "summary_use_proj",
        "task_specific_params",
        "tokenizer_class",
        "torch_dtype",
        "torchscript",
        "transformers_version",
        "transformers.js_config",
        "unsloth_fixed",
        "unsloth_version",
        "use_bfloat16",
        "use_cache",
    }
)

#: Sampling parameters by their name in ``generation_config.json``.
_SAMPLING: Final = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


def open_folder(path: Path) -> Checkpoint:
    """Open a folder.

    Raises:
        ModelFormatError: a file is missing or damaged, the model is of no family that is known, or
            its tensors are not those that its configuration describes.
        OSError: a file can not be read.
    """
    where = f"{path.name}/config.json"
    settings = _json(path / "config.json", _SETTINGS)
    architecture = _architecture(settings, where)
    family = family_of(architecture, where)
    fields = _language_fields(settings, where)
    config = family.config(fields, architecture)
    fields.finish(IGNORED)
    weights = _weights(path, family, config)
    generation = path / "generation_config.json"
    proposed = _json(generation, _SETTINGS) if generation.exists() else {}
    files = {name: path / name for name in _TOKENIZER_FILES if (path / name).is_file()}
    ends = [*_tokens(proposed.get("eos_token_id")), *_tokens(settings.get("eos_token_id"))]
    begin = [*_tokens(settings.get("bos_token_id")), *_tokens(proposed.get("bos_token_id"))]
    return Checkpoint(
        name=path.name,
        path=path,
        config=config,
        family=family,
        weights=weights,
        tokenizer_files=files,
        template=_template(path),
        defaults=_defaults(proposed, generation.name),
        end_tokens=tuple(dict.fromkeys(t for t in ends if t < config.vocabulary)),
        begin_token=begin[0] if begin else None,
    )


def _architecture(settings: Mapping[str, Any], where: str) -> str:
    """The name of the class, or else the type of the model."""
    listed = settings.get("architectures")
    if isinstance(listed, list) and listed and isinstance(listed[0], str):
        return listed[0]
    named = settings.get("model_type")
    if isinstance(named, str):
        return named
    raise ModelFormatError(f"{where!r} names no architecture")


def _language_fields(settings: Mapping[str, Any], where: str) -> Fields:
    """The fields of the language model, which is a part of a model of images and text."""
    fields = Fields(settings, where)
    return (fields.part("text_config") if "vision_config" in fields else None) or fields


def _json(path: Path, most: int = _LARGEST) -> dict[str, Any]:
    """An object of a file.

    Args:
        path: of the file.
        most: bytes of it.

    Raises:
        ModelFormatError: it is missing, too large, or no object of JSON.
    """
    name = f"{path.parent.name}/{path.name}"
    try:
        with path.open("rb") as file:
            text = file.read(most + 1)
    except (FileNotFoundError, IsADirectoryError):
        raise ModelFormatError(f"there is no file {name!r}") from None
    if len(text) > most:
        raise ModelFormatError(f"{name!r} is larger than {most:,} bytes")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelFormatError(f"{name!r} is no JSON ({error})") from None
    if not isinstance(found, dict):
        raise ModelFormatError(f"{name!r} is no object")
    return found


# -- tensors ---------------------------------------------------------------------------------------


def _weights(path: Path, family: Family, config: ModelConfig) -> dict[str, Weight]:
    tensors = joined_blocks(_renamed(_tensors(path), family), path.name)
    spare = ("lm_head.weight", "embed_out.weight") if config.tied else ()

    def unused(name: str) -> bool:
        return name.endswith(family.unused) or name in spare or name.startswith(_VISION)

    shapes = family.shapes(config)
    return located(tensors, family.names(config), shapes, path.name, unused)


def _renamed(tensors: Mapping[str, FileTensor], family: Family) -> dict[str, FileTensor]:
    """The tensors under the prefix that the family's names have."""
    if family.prefix + family.embedding in tensors:
        return dict(tensors)
    ends = sorted((n for n in tensors if f".{n}".endswith(f".{family.embedding}")), key=len)
    if not ends:
        return dict(tensors)
    prefix = ends[0].removesuffix(family.embedding)
    outer = prefix.partition(".")[0] + "."

    def renamed(name: str) -> str:
        if name.startswith(prefix) and (prefix or not name.startswith("lm_head.")):
            return family.prefix + name.removeprefix(prefix)
        return name.removeprefix(outer) if name.startswith(f"{outer}lm_head.") else name

    return {renamed(name): tensor for name, tensor in tensors.items()}


def _tensors(path: Path) -> dict[str, FileTensor]:
    """The tensors of all files of a folder, by name."""
    if (path / _SINGLE).exists() or not (path / _INDEX).exists():
        if not (path / _SINGLE).exists():
            raise ModelFormatError(f"{path.name!r} has neither {_SINGLE} nor {_INDEX}")
        return _shard(path / _SINGLE, None)
    index = _json(path / _INDEX).get("weight_map")
    if not isinstance(index, dict):
        raise ModelFormatError(f"{path.name}/{_INDEX} has no object 'weight_map'")
    shards: dict[str, set[str]] = {}
    for name, shard in index.items():
        plain = isinstance(shard, str) and shard and "/" not in shard and "\\" not in shard
        if not plain or shard in (".", ".."):
            raise ModelFormatError(
                f"{path.name}/{_INDEX}: {name!r:.80} is in no file of the folder: {shard!r:.60}"
            )
        shards.setdefault(shard, set()).add(name)
    found: dict[str, FileTensor] = {}
    for shard, names in shards.items():
        if not (path / shard).is_file():
            raise ModelFormatError(f"{path.name!r} lacks the file {shard!r:.120}")
        found |= _shard(path / shard, names)
    return found


def _shard(path: Path, names: set[str] | None) -> dict[str, FileTensor]:
    """The tensors of a file: those of the names, which it must have, or all."""
    file = SafetensorsFile(path)
    wanted = file.tensors.keys() if names is None else names
    if missing := [name for name in wanted if name not in file.tensors]:
        raise ModelFormatError(f"{path.name!r} lacks the tensor {missing[0]!r:.120}")
    if not wanted:
        return {}
    mapped = MappedFile(file.file)
    return {
        name: FileTensor(
            name=name,
            source=_SafeTensor(name, file.tensors[name], mapped),
            shape=file.tensors[name].shape,
        )
        for name in wanted
    }


class _SafeTensor(StoredTensor):
    """A tensor of a safetensors file, in the file's own memory."""

    def __init__(self, name: str, place: TensorRange, mapped: MappedFile) -> None:
        self._name, self._offset, self._mapped = name, place.offset, mapped
        self.shape, self.dtype = place.shape, place.dtype

    def read(self) -> Any:
        count = math.prod(self.shape)
        found = self._mapped.array(self.dtype, count, self._offset, self._name)
        return found.reshape(self.shape)

    @property
    def in_file(self) -> FileRange:
        nbytes = math.prod(self.shape) * self.dtype.itemsize
        return FileRange(self._mapped.file, self._offset, nbytes)

    @property
    def content_key(self) -> str | None:
        digest = self._mapped.file.digest
        return digest and f"{digest} {self._offset} {self.dtype} {self.shape}"

    def release(self) -> None:
        self._mapped.release(self._offset, math.prod(self.shape) * self.dtype.itemsize)


# -- what belongs to a chat ------------------------------------------------------------------------


def _tokens(value: object) -> list[int]:
    """The tokens that a field names: one, several or none."""
    listed = value if isinstance(value, list) else [value]
    return [t for t in listed if isinstance(t, int) and not isinstance(t, bool) and t >= 0]


def _defaults(proposed: Mapping[str, Any], where: str) -> dict[str, float | int]:
    fields = Fields(proposed, where)
    found: dict[str, float | int] = {}
    for name in _SAMPLING:
        value = fields.size(name, None, least=0) if name == "top_k" else fields.number(name, None)
        if value is not None:
            found[name] = value
    if fields.flag("do_sample", None) is False:
        found["temperature"] = 0.0
    return found


def _template(path: Path) -> str | None:
    """The chat template: a file of its own, or a field of the tokenizer's."""
    own = path / "chat_template.jinja"
    if own.is_file():
        if own.stat().st_size > _LARGEST:
            raise ModelFormatError(f"{own.name!r} is larger than {_LARGEST:,} bytes")
        return own.read_text("utf-8", errors="replace")
    for name in ("chat_template.json", "tokenizer_config.json"):
        if not (path / name).is_file():
            continue
        value = _json(path / name).get("chat_template")
        if isinstance(value, str):
            return value
        if isinstance(value, list):  # several, by name
            texts: dict[str, str] = {
                item["name"]: item["template"]
                for item in value
                if isinstance(item, dict)
                and isinstance(item.get("name"), str)
                and isinstance(item.get("template"), str)
            }
            if texts:
                return texts.get("default") or next(iter(texts.values()))
    return None
