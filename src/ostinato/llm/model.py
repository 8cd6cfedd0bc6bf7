"""A loaded language model: answers, chats, scores, and the engine behind them."""

from __future__ import annotations

from functools import partial
from threading import Lock
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.errors import InputError, SessionStateError, UnsupportedOpError
from ostinato.llm.embedding import Embedder
from ostinato.llm.engine.engine import Engine
from ostinato.llm.engine.kv_cache import KVCache
from ostinato.llm.engine.requests import PreparedRequest, Request
from ostinato.llm.engine.settings import EngineSettings
from ostinato.llm.grammar import GrammarCompiler
from ostinato.llm.prefix_files import model_identity, read_prefix, write_prefix
from ostinato.llm.sampling import Sampling, sampling_with
from ostinato.llm.speculation import ModelProposer, NGramProposer, NGrams
from ostinato.llm.text import AnswerText, detect_format, starts_inside_reasoning
from ostinato.records import field_names, replace

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType
    from typing import Literal, Unpack

    from ostinato.llm.checkpoints.checkpoint import Checkpoint
    from ostinato.llm.config import ModelConfig
    from ostinato.llm.engine.scheduler import Proposer
    from ostinato.llm.engine.settings import EngineLimits
    from ostinato.llm.generation import Generation, Stream
    from ostinato.llm.memory import Limits
    from ostinato.llm.static_embeddings import StaticEmbedder
    from ostinato.llm.step import StepGraph
    from ostinato.llm.templates import ChatTemplate, Message, Tool
    from ostinato.llm.tokenizers import Tokenizer
    from ostinato.moe.residency import ResidencyCounters
    from ostinato.plan.execution_plan import ExecutionPlan

__all__ = ["LLM"]

_NOTHING: Mapping[str, Any] = MappingProxyType({})


class LLM:
    """A language model, made by :func:`ostinato.llm.load`.

    Methods may be called from any thread; their requests share the steps of one engine. A prompt is
    text, in which names of special tokens are plain text, or token ids.

    Attributes:
        config: family and sizes.
        tokenizer: text to tokens and back.
        template: the chat template; ``None`` for models without one.
        defaults: the sampling parameters of requests without their own.
        limits: context, sequences and memory.

    Args:
        checkpoint: the opened files.
        tokenizer, template, defaults, limits: the attributes.
        step: the compiled step; ``None`` for models that read whole texts alone.
        embedder: makes what :meth:`embed` and :meth:`rerank` use, at the first call.
        kv_dtype: dtype of keys and values.
        draft: speculation.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        defaults: Sampling,
        limits: Limits,
        step: StepGraph | None,
        embedder: Callable[[], Embedder | StaticEmbedder],
        *,
        kv_dtype: str,
        draft: LLM | NGrams | None = None,
    ) -> None:
        self.config: ModelConfig = checkpoint.config
        self.tokenizer = tokenizer
        self.template = template
        self.defaults = defaults
        self.limits = limits
        self._checkpoint = checkpoint
        self._step = step
        self._kv_dtype = kv_dtype
        self._recurrent = step is not None and step.pools.slot_bytes > 0
        self._cache = None
        if step is not None:
            apart = limits.window_blocks > 0
            window = None
            if apart or not self.config.mixes_windows:
                window = self.config.longest_window
            self._cache = KVCache(step, recurrent=self._recurrent, window=window)
        self._new_embedder = embedder
        self._embedder: Embedder | StaticEmbedder | None = None
        self._embedding = Lock()
        self._grammars = GrammarCompiler(tokenizer, checkpoint.config.vocabulary)
        self._end_tokens = frozenset(checkpoint.end_tokens) | tokenizer.end_tokens
        self._draft = draft
        self._check_draft(draft)
        self._engine: Engine | None = None
        self._lock = Lock()
        self._closed = False

    def __repr__(self) -> str:
        return f"<LLM {self._checkpoint.name!r}, {self.config.family}>"

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def plan(self) -> ExecutionPlan:
        """The kernels of a step and their memory; of an encoder, those of its run.

        On devices that compile for the sizes of runs, it is the plan of the last ones.

        Raises:
            InputError: it is a table of vectors, without kernels.
        """
        if self._step is None:
            with self._embedding:
                vectors = self._vectors()
            if isinstance(vectors, Embedder):
                return vectors.encoder.plan
        return self._steps()[0].plan

    @property
    def expert_counters(self) -> ResidencyCounters | None:
        """Calls and transfers of experts so far; ``None`` where all of them are in memory.

        Raises:
            InputError: the model generates no text.
        """
        return self._steps()[0].expert_counters

    # -- answers ---------------------------------------------------------------------------------

    def generate(
        self,
        prompt: str | Sequence[int],
        sampling: Sampling | None = None,
        /,
        **overrides: Any,
    ) -> Generation:
        """Continue a prompt.

        Args:
            prompt: text or token ids.
            sampling: parameters; by default :attr:`defaults`.
            overrides: fields of ``sampling`` to change.

        Raises:
            InputError: a parameter is unknown or out of range.
            ContextError: prompt and answer exceed the context.
            Overloaded: too many requests wait.
        """
        request = Request(prompt, sampling_with(self.defaults, sampling, overrides))
        return self.engine().submit(request).result()

    def stream(
        self,
        prompt: str | Sequence[int],
        sampling: Sampling | None = None,
        /,
        **overrides: Any,
    ) -> Stream:
        """Continue a prompt, and deliver the answer in parts; see :meth:`generate`."""
        request = Request(prompt, sampling_with(self.defaults, sampling, overrides))
        return self.engine().open_stream(request)

    def chat(
        self,
        messages: Sequence[Message],
        sampling: Sampling | None = None,
        /,
        *,
        tools: Sequence[Tool] = (),
        template_arguments: Mapping[str, Any] = _NOTHING,
        **overrides: Any,
    ) -> Generation:
        """Answer a conversation.

        Args:
            messages: each with a ``role`` and ``content``, as the model's template takes them.
            sampling: parameters; by default :attr:`defaults`.
            tools: descriptions of tools that the answer may call, as JSON schemas.
            template_arguments: further variables of the template.
            overrides: fields of ``sampling`` to change.

        Raises:
            InputError: the model has no template, or messages or parameters are wrong.
            ContextError: prompt and answer exceed the context.
            Overloaded: too many requests wait.
        """
        sampling = sampling_with(self.defaults, sampling, overrides)
        request = self.chat_request(messages, sampling, tools, template_arguments)
        return self.engine().submit(request).result()

    def stream_chat(
        self,
        messages: Sequence[Message],
        sampling: Sampling | None = None,
        /,
        *,
        tools: Sequence[Tool] = (),
        template_arguments: Mapping[str, Any] = _NOTHING,
        **overrides: Any,
    ) -> Stream:
        """Answer a conversation, and deliver the answer in parts; see :meth:`chat`."""
        sampling = sampling_with(self.defaults, sampling, overrides)
        request = self.chat_request(messages, sampling, tools, template_arguments)
        return self.engine().open_stream(request)

    def generate_many(
        self,
        prompts: Sequence[str | Sequence[int]],
        sampling: Sampling | Sequence[Sampling] | None = None,
    ) -> list[Generation]:
        """Continue many prompts together.

        Args:
            prompts: each as in :meth:`generate`.
            sampling: parameters of all, or of each.

        Raises:
            InputError: the numbers of prompts and parameters differ, or one is wrong; then no
                answer is generated.
        """
        if isinstance(prompts, str):
            raise InputError("prompts is a sequence of prompts, got a single text")
        each: Sequence[Sampling | None] = (
            [sampling] * len(prompts)
            if sampling is None or isinstance(sampling, Sampling)
            else list(sampling)
        )
        if len(each) != len(prompts):
            raise InputError(f"{len(prompts)} prompts came with {len(each)} sampling parameters")
        requests = [
            Request(prompt, sampling_with(self.defaults, one, {}))
            for prompt, one in zip(prompts, each, strict=True)
        ]
        engine = self.engine()
        for request in requests:
            engine.check(request)
        tickets = [engine.submit(request, wait=True) for request in requests]
        return [ticket.result() for ticket in tickets]

    def score(
        self, prompt: str | Sequence[int], continuation: str | Sequence[int] = ""
    ) -> np.ndarray[Any, np.dtype[np.float64]]:
        """The log-probability of each token of a continuation, or else of a prompt.

        Args:
            prompt: text or token ids.
            continuation: the same; without it, the prompt's tokens but the first are scored.

        Returns:
            float64 ``[tokens]``.

        Raises:
            InputError: there is nothing to score.
            ContextError: the tokens exceed the context.
        """
        first = self._tokens(prompt, raw=True)
        more = self._tokens(continuation, raw=False)
        tokens = np.concatenate([first, more])
        start = len(first) if len(more) else 1
        if not len(first) or start >= len(tokens):
            raise InputError("a score needs a token, and another one before it")
        sampling = Sampling(max_tokens=0, prompt_logprobs=0)
        request = Request(tokens.tolist(), sampling, score_from=start)
        found = self.engine().submit(request).result().prompt_logprobs
        assert found is not None
        return np.array([entry.logprob for entry in found])

    # -- vectors ---------------------------------------------------------------------------------

    def embed(
        self,
        texts: Sequence[str],
        *,
        kind: Literal["query", "passage"] | None = None,
        dimensions: int | None = None,
        normalize: bool = True,
    ) -> np.ndarray[Any, np.dtype[np.float32]]:
        """A vector for each text; on the CPU it has the same bits whatever the other texts are.

        Args:
            texts: any number. What is beyond the context is cut off.
            kind: the side of a search, of models with prompts for queries and passages.
            dimensions: the first dimensions to keep, of models that are trained for that.
            normalize: divide each vector by its Euclidean norm.

        Returns:
            float32 ``[texts, dimensions]``.

        Raises:
            InputError: an argument is wrong, or the model has recurrent states.
        """
        with self._embedding:
            return self._vectors().embed(
                texts, kind=kind, dimensions=dimensions, normalize=normalize
            )

    def rerank(self, query: str, documents: Sequence[str]) -> np.ndarray[Any, np.dtype[np.float32]]:
        """A score of each document for a query, the higher the better: float32 ``[documents]``.

        Raises:
            InputError: the model has no head that scores, or an argument is wrong.
        """
        with self._embedding:
            return self._vectors().rerank(query, documents)

    def _vectors(self) -> Embedder | StaticEmbedder:
        if self._closed:
            raise SessionStateError("the model is closed")
        if self._embedder is None:
            self._embedder = self._new_embedder()
        return self._embedder

    # -- requests and the engine -----------------------------------------------------------------

    def chat_request(
        self,
        messages: Sequence[Message],
        sampling: Sampling | None = None,
        tools: Sequence[Tool] = (),
        template_arguments: Mapping[str, Any] = _NOTHING,
    ) -> Request:
        """The request of a conversation, for :meth:`Engine.submit`; see :meth:`chat`."""
        if self.template is None:
            raise InputError(
                f"the model {self._checkpoint.name!r} has no chat template; use generate"
            )
        template, tokenizer = self.template, self.tokenizer
        tokens = template.encode(tokenizer, messages, tools=tools, arguments=template_arguments)
        sampling = sampling or self.defaults
        form = detect_format("\n".join(template.sources.values()))
        inside = starts_inside_reasoning(tokenizer.decode(tokens[-8:], special=True), form)

        def answer() -> AnswerText:
            parser = form.answer_parser(inside=inside)
            return AnswerText(tokenizer, sampling.stop, parser=parser, markers=form.markers)

        return Request(tokens, sampling, answer=answer)

    def engine(self, **limits: Unpack[EngineLimits]) -> Engine:
        """The engine that runs all requests of this model.

        Args:
            limits: see :class:`ostinato.llm.EngineSettings`. They hold from the call on.

        Raises:
            InputError: a limit is out of range.
            SessionStateError: the model is closed, or requests are under way and other limits are
                asked for.
        """
        unknown = limits.keys() - set(field_names(EngineSettings))
        if unknown:
            raise InputError(f"unknown limit of an engine: {', '.join(sorted(unknown))}")
        with self._lock:
            if self._closed:
                raise SessionStateError("the model is closed")
            current = self._engine
            if current is not None and not current.closed:
                wanted = replace(current.settings, **limits) if limits else current.settings
                if wanted == current.settings:
                    return current
                if not current.idle:
                    raise SessionStateError("requests are under way; change limits without them")
                current.close()
            settings = EngineSettings(**limits)
            step, cache = self._steps()
            self._engine = Engine(
                step,
                cache,
                self._prepare,
                settings,
                proposer=self._proposer(),
                ahead=step if step.runs_ahead else None,
            )
            return self._engine

    def close(self) -> None:
        """End all requests and give back all memory."""
        with self._lock:
            self._closed = True
            if self._engine is not None:
                self._engine.close()
            if self._step is not None:
                self._step.close()
            self._embedder = None

    def _steps(self) -> tuple[StepGraph, KVCache]:
        if self._step is None or self._cache is None:
            raise InputError(
                f"the model {self._checkpoint.name!r} reads whole texts and generates none; use "
                "embed or rerank"
            )
        return self._step, self._cache

    def _prepare(self, request: Request) -> PreparedRequest:
        sampling = request.sampling
        tokens = self._tokens(request.prompt, raw=True)
        ends = frozenset(sampling.stop_tokens)
        # Behind the end of a grammar there is nothing but the end.
        if not sampling.ignore_eos or sampling.grammar is not None:
            ends |= self._end_tokens
        answer = request.answer or partial(AnswerText, self.tokenizer, sampling.stop)
        mask = None
        if sampling.grammar is not None:
            mask = self._grammars.compile(sampling.grammar).matcher
        return PreparedRequest(tokens, ends, answer, mask)

    def _tokens(
        self, prompt: str | Sequence[int], *, raw: bool
    ) -> np.ndarray[Any, np.dtype[np.int32]]:
        """Token ids of a prompt; of text with ``raw``, those that begin it included."""
        if isinstance(prompt, str):
            prompt = self.tokenizer.encode(prompt, add_bos=raw) if prompt else []
        try:
            found = np.asarray(prompt)
            if found.size and (found.ndim != 1 or found.dtype.kind not in "iu"):
                raise ValueError
            if found.size and not 0 <= int(found.min()) <= int(found.max()) < 2**31:
                raise InputError(f"a token id is 0 to {self.config.vocabulary - 1}")
            return found.astype(np.int32).reshape(-1)
        except (ValueError, TypeError, OverflowError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"a prompt is text or token ids, got {prompt!r:.80}") from None

    # -- speculation -----------------------------------------------------------------------------

    def _check_draft(self, draft: LLM | NGrams | None) -> None:
        if draft is None:
            return
        if self._recurrent:
            raise UnsupportedOpError(
                f"{self.config.architecture}: speculation would have to take back recurrent "
                "states; load the model without draft"
            )
        if isinstance(draft, LLM):
            own, other = self.tokenizer, draft.tokenizer
            if self.config.vocabulary != draft.config.vocabulary or any(
                own.piece(token) != other.piece(token) for token in range(self.config.vocabulary)
            ):
                raise InputError("the draft model has another vocabulary")

    def _proposer(self) -> Proposer | None:
        draft = self._draft
        if isinstance(draft, LLM):
            step, cache = draft._steps()
            return ModelProposer(step.clone(), self.limits.sequences, cache.kinds[-1].window)
        return NGramProposer(draft) if draft is not None else None

    # -- prefixes in files -----------------------------------------------------------------------

    def save_prefix(self, prompt: str | Sequence[int], path: str | os.PathLike[str]) -> int:
        """Write the keys and values of a prompt's whole blocks of 64 tokens to a file.

        Returns:
            The number of tokens in the file.

        Raises:
            UnsupportedOpError: the model has recurrent states.
            InputError: the prompt has fewer than 64 tokens.
            ContextError: the prompt exceeds the context.
        """
        self._check_prefixes()
        tokens = self._tokens(prompt, raw=True)
        engine, (_, cache) = self.engine(), self._steps()
        engine.submit(Request(tokens.tolist(), Sampling(max_tokens=0))).result()
        count, saved = engine.call(lambda: cache.read_prefix(tokens, ""))
        if not count:
            raise InputError(f"a prefix has 64 tokens at least, got {len(tokens)}")
        return write_prefix(path, self._identity(), tokens[:count], saved)

    def load_prefix(self, path: str | os.PathLike[str]) -> int:
        """Read a file of :meth:`save_prefix` into the prefix cache.

        Returns:
            The number of tokens that were cached: fewer than the file has, where memory is short.

        Raises:
            UnsupportedOpError: the model has recurrent states.
            ModelFormatError: the file is damaged, or of another model or other options.
        """
        self._check_prefixes()
        step, cache = self._steps()
        tokens, saved = read_prefix(path, self._identity(), step.pools.block_bytes)
        count: int = self.engine().call(lambda: cache.write_prefix(tokens, "", saved))
        return count

    def _identity(self) -> str:
        return model_identity(self._checkpoint, self._kv_dtype)

    def _check_prefixes(self) -> None:
        if self._recurrent:
            raise UnsupportedOpError(
                f"{self.config.architecture}: a prefix would need recurrent states in the file"
            )
