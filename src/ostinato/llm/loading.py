"""Loading of language models: from a folder, a GGUF file, or the hub."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ostinato.errors import InputError
from ostinato.llm.checkpoints import open_checkpoint
from ostinato.llm.device_weights import computed_bytes, for_device
from ostinato.llm.memory import (
    DEFAULT_CONTEXT,
    Limits,
    byte_count,
    checked_kv_dtype,
    size_pools,
)
from ostinato.llm.model import LLM
from ostinato.llm.sampling import Sampling, sampling_with
from ostinato.llm.speculation import DRAFTS, NGrams
from ostinato.llm.static_embeddings import (
    StaticFiles,
    open_static,
    static_checkpoint,
    static_files,
)
from ostinato.llm.step import StepGraph
from ostinato.llm.step_sizes import StepLimits
from ostinato.llm.tokenizers import Tokenizer, tokenizer_from_folder, tokenizer_from_gguf
from ostinato.llm.tokenizers.tokenizer_json import tokenizer_from_file
from ostinato.records import replace
from ostinato.runtime.session import Session

if TYPE_CHECKING:
    from collections.abc import Callable

    from ostinato.backends.device import Device
    from ostinato.backends.options import CompileOptions
    from ostinato.llm.checkpoints.checkpoint import Checkpoint
    from ostinato.llm.embedding import Embedder
    from ostinato.llm.templates import ChatTemplate

__all__ = ["load", "open_tokenizer"]

#: Most rows of a step; engines may use fewer.
_STEP_ROWS = 512

#: Least picks of a step: rows of prompts whose log-probabilities are wanted take some at a time.
_PICKS = 16

#: Adjusted logits of a step besides those of a whole context.
_ADJUSTMENTS = 4096


def load(
    model: str | os.PathLike[str],
    *,
    device: Device | str = "cpu",
    threads: int | None = None,
    weights: Literal["keep", "bfloat16", "int8", "int4"] = "keep",
    context: int | None = None,
    sequences: int = 8,
    kv_dtype: Literal["bfloat16", "float16", "float32", "int8"] = "bfloat16",
    kv_memory: int | str | None = None,
    draft: LLM | NGrams | None = None,
    expert_budget: int | str | None = None,
    offline: bool = False,
    options: CompileOptions | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> LLM:
    """Load a language model and compile its step.

    Args:
        model: a folder with ``config.json``, a ``.gguf`` file, or a name on the hub:
            ``owner/name``, then ``:file`` or ``:quantisation``, then ``@revision``. Folders of
            static embeddings, which only embed, need no ``config.json``.
        device: its device.
        threads: on the CPU, how many threads run it; by default one for each processor.
        weights: ``"keep"`` computes weights in the formats of their files; the others make them
            narrower.
        context: most tokens of a prompt and its answer; by default the model's, 8192 at most.
        sequences: most answers that are generated at a time.
        kv_dtype: dtype of keys and values.
        kv_memory: bytes of keys and values, or a text such as ``"2GiB"``; by default those of
            ``sequences`` whole contexts, a quarter of the free memory at most.
        draft: speculation: :class:`NGrams`, or a smaller model with the same vocabulary.
        expert_budget: memory of the experts of all layers, in bytes or as ``"2GiB"``; the others
            stay in the model's files.
        offline: never ask the hub; take what was downloaded before.
        options: of the compiler.
        progress: called with the name of an activity, and how much of it is done, of how much.

    Raises:
        InputError: there is no such model, or an argument is out of range.
        ModelFormatError: its files are damaged, or of a model that is not known.
        UnsupportedOpError: the device lacks something that it needs.
    """
    _check_count("sequences", sequences)
    checked_kv_dtype(kv_dtype)
    if draft is not None and not isinstance(draft, LLM | NGrams):
        raise InputError(f"draft is an LLM or NGrams, got {type(draft).__name__}")
    budget = None if expert_budget is None else byte_count("expert_budget", expert_budget)
    path = _path_of(model, offline, progress)
    if (files := static_files(Path(path))) is not None:
        return _load_static(files, kv_dtype)
    checkpoint = open_checkpoint(path, weights=weights)
    context = _checked_context(context, checkpoint)
    tokenizer = _tokenizer_of(checkpoint)
    session = Session(device, threads=threads)
    compiling = None if progress is None else partial(progress, "compiling")
    step = None
    free = session.context.free_memory
    computed = for_device(checkpoint, session.capabilities, free)
    weight_bytes = sum(map(computed_bytes, computed.weights.values()))
    known = Limits(context, sequences, 0, 0, weight_bytes)
    if checkpoint.config.causal:
        pools = size_pools(
            checkpoint,
            kv_dtype,
            sequences=sequences,
            context=context,
            rows=_STEP_ROWS,
            kv_memory=kv_memory,
            free=free,
        )
        known = replace(
            known,
            kv_blocks=pools.blocks,
            kv_bytes=pools.nbytes,
            window_blocks=pools.window_blocks,
        )
        step = StepGraph(
            checkpoint,
            _step_limits(known, draft),
            session=session,
            kv_dtype=kv_dtype,
            options=options,
            progress=compiling,
            expert_budget=budget,
        )
    return LLM(
        checkpoint,
        tokenizer,
        _template_of(checkpoint, tokenizer),
        sampling_with(Sampling(), None, checkpoint.defaults),
        known,
        step,
        partial(_embedder, checkpoint, tokenizer, session, context, options),
        kv_dtype=kv_dtype,
        draft=draft,
    )


def _load_static(files: StaticFiles, kv_dtype: str) -> LLM:
    """Static embeddings, which nothing is compiled for."""
    embedder = open_static(files)
    checkpoint = static_checkpoint(files, embedder)
    known = Limits(checkpoint.config.context, 0, 0, 0, files.table.stat().st_size)
    return LLM(
        checkpoint,
        embedder.tokenizer,
        None,
        Sampling(),
        known,
        None,
        lambda: embedder,
        kv_dtype=kv_dtype,
    )


def open_tokenizer(
    model: str | os.PathLike[str],
    *,
    offline: bool = False,
    progress: Callable[[str, int, int], None] | None = None,
) -> tuple[Tokenizer, ChatTemplate | None]:
    """The tokenizer and the chat template of a model, without its weights.

    Raises:
        InputError: there is no such model.
        ModelFormatError: its files are damaged, or of a model that is not known.
    """
    path = _path_of(model, offline, progress)
    if (files := static_files(Path(path))) is not None:
        return tokenizer_from_file(files.tokenizer), None
    checkpoint = open_checkpoint(path)
    tokenizer = _tokenizer_of(checkpoint)
    return tokenizer, _template_of(checkpoint, tokenizer)


def _path_of(
    model: str | os.PathLike[str],
    offline: bool,
    progress: Callable[[str, int, int], None] | None,
) -> str | os.PathLike[str]:
    """The folder or file of a model, downloaded where its name is one of the hub."""
    if not isinstance(model, str | os.PathLike) or not isinstance(os.fspath(model), str):
        raise InputError(
            "a model is the path of a folder or a GGUF file, or a name of the hub such as "
            f"'owner/name', got {type(model).__name__}"
        )
    if isinstance(model, str) and not Path(model).exists():
        from ostinato.llm.hub import download, is_hub_name

        if is_hub_name(model):
            return download(model, offline=offline, progress=progress)
    return model


def _step_limits(limits: Limits, draft: LLM | NGrams | None) -> StepLimits:
    """The largest sizes of a step."""
    drafts = draft.draft if isinstance(draft, NGrams) else DRAFTS if draft is not None else 0
    return StepLimits(
        rows=_STEP_ROWS,
        sequences=limits.sequences,
        picks=max(limits.sequences * (1 + drafts), _PICKS),
        blocks=limits.kv_blocks,
        window_blocks=limits.window_blocks,
        context=limits.context,
        adjustments=limits.context + _ADJUSTMENTS,
    )


def _embedder(
    checkpoint: Checkpoint,
    tokenizer: Tokenizer,
    session: Session,
    context: int,
    options: CompileOptions | None,
) -> Embedder:
    from ostinato.llm.embedding import Embedder

    return Embedder(checkpoint, tokenizer, session=session, context=context, options=options)


def _check_count(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{name} is a positive number, got {value!r:.80}")


def _checked_context(context: int | None, checkpoint: Checkpoint) -> int:
    """The context to compile for."""
    most = checkpoint.config.context
    if context is None:
        return min(most, DEFAULT_CONTEXT) if most else DEFAULT_CONTEXT
    _check_count("context", context)
    if most and context > most:
        raise InputError(f"the model has a context of {most} tokens, got context={context}")
    return context


def _tokenizer_of(checkpoint: Checkpoint) -> Tokenizer:
    if checkpoint.vocabulary:
        return tokenizer_from_gguf(checkpoint.vocabulary)
    return tokenizer_from_folder(checkpoint.path)


def _template_of(checkpoint: Checkpoint, tokenizer: Tokenizer) -> ChatTemplate | None:
    from ostinato.llm.templates import template_from_folder, template_from_gguf

    if checkpoint.vocabulary:
        return template_from_gguf(checkpoint.vocabulary, tokenizer)
    return template_from_folder(checkpoint.path)
