"""Whole texts at a time: the rows after a model's last layer, and the classes of its head.

Rows of several texts stand one below the other, without padding. On the CPU, a text's rows have the
same bits alone, beside others, and on any number of threads. Devices that are much faster with
known sizes run few of them, with rows and texts behind the others that nothing reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ostinato.dtypes import INT32
from ostinato.errors import ContextError, InputError
from ostinato.llm.compiling import model_options
from ostinato.llm.device_weights import for_device
from ostinato.llm.families.builder import Builder, TextRows
from ostinato.llm.step_padding import rounded_up
from ostinato.ops.builder import Graph
from ostinato.records import replace
from ostinato.runtime.session import Session
from ostinato.variables import Variable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ostinato.backends.options import CompileOptions
    from ostinato.llm.checkpoints.checkpoint import Checkpoint
    from ostinato.plan.execution_plan import ExecutionPlan
    from ostinato.runtime.compiled_graph import CompiledGraph

__all__ = ["Encoder"]

Array = np.ndarray[Any, Any]

#: Rows and texts of a run, where texts are short.
_ROWS, _TEXTS = 1024, 32

#: Places of the grid of a run, so that its memory is bounded.
_PLACES: Final = 1 << 14

#: Lengths of grids are multiples of it, so that keys are summed in one order in all of them.
_PANEL: Final = 16

#: The longest text, unless a caller asks for more.
_CONTEXT: Final = 8192


class Encoder:
    """A model that reads whole texts: an encoder, or a decoder without recurrent states.

    Args:
        checkpoint: the model.
        session: that compiles it; by default, one for the CPU.
        context: the most tokens of a text; by default the model's, at most 8192.
        options: of the compiler, instead of the session's.

    Raises:
        InputError: the context is beyond the model, or its layers need states.

    Attributes:
        config: of the model.
        context: the most tokens of a text.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        session: Session | None = None,
        context: int | None = None,
        options: CompileOptions | None = None,
    ) -> None:
        self.config = checkpoint.config
        self.context = min(self.config.context, _CONTEXT) if context is None else context
        if not 1 <= self.context <= self.config.context:
            most = self.config.context
            raise InputError(f"context is a number from 1 to {most}, got {context!r:.80}")
        self._session = session or Session("cpu")
        free = self._session.context.free_memory
        self._checkpoint = for_device(checkpoint, self._session.capabilities, free)
        self._options = model_options(self._session, options)
        self._known_sizes = self._session.capabilities.known_sizes
        self._most_rows = max(_ROWS, self.context)
        self._most_texts = max(1, min(_TEXTS, _PLACES // self.context))
        chosen = self._options
        if self._known_sizes:
            # Weights of several matmuls side by side would be a copy of them for some sizes.
            chosen = replace(chosen, specialize="always", joint_weights=False)
        self._compiled = self._session.compile(self._graph(), options=chosen)
        if self._known_sizes:
            self._compiled.warm({"rows": _PANEL, "texts": 1, "length": _PANEL})
        self._head: CompiledGraph | None = None

    @property
    def plan(self) -> ExecutionPlan:
        """The kernels of a run, in order, and their memory."""
        return self._compiled.plan

    @property
    def _most_length(self) -> int:
        return -(-self.context // _PANEL) * _PANEL

    def _graph(self) -> Graph:
        checkpoint, config = self._checkpoint, self.config
        rows = Variable("rows", 1, self._most_rows)
        texts = Variable("texts", 1, self._most_texts)
        length = Variable("length", 1, self._most_length)
        g = Graph("encoder")
        tokens, position, place, segment = (
            g.input(name, (rows,), INT32) for name in ("tokens", "position", "place", "segment")
        )
        of_texts = TextRows(
            count=rows,
            position=position,
            context=self.context,
            texts=texts,
            length=length,
            grid=g.input("grid", (texts, length), INT32),
            size=g.input("size", (texts,), INT32),
            place=place,
        )
        builder = Builder(g, config, checkpoint.weights, of_texts, {"segment": segment})
        hidden = checkpoint.family.hidden(builder, tokens)
        if config.causal and config.final_norm:
            hidden = builder.norm(hidden, "norm")
        g.set_outputs({"rows": hidden})
        return g

    def rows(
        self, texts: Sequence[Sequence[int]], segments: Sequence[Sequence[int]] | None = None
    ) -> list[Array]:
        """The rows after the last layer and norm of each text: float32 ``[tokens, width]``.

        Args:
            texts: token ids.
            segments: the segment of each token, of models that have them; by default 0.

        Raises:
            ContextError: a text is longer than the context.
            InputError: a text is empty, or an id is no token.
        """
        ids = [self._ids(text, number) for number, text in enumerate(texts)]
        kinds = [np.zeros(len(text), np.int32) for text in ids]
        for number, given in enumerate(segments or ()):
            kinds[number] = self._segments(given, len(ids[number]))
        found: list[Array] = [np.empty(0)] * len(ids)
        for batch in self._batches([len(text) for text in ids]):
            results = self._run([ids[n] for n in batch], [kinds[n] for n in batch])
            for number, result in zip(batch, results, strict=True):
                found[number] = result
        return found

    def classes(self, pooled: Array) -> Array:
        """The classes that the model's head gives: float32 ``[texts, labels]``.

        Args:
            pooled: float32 ``[texts, width]``.

        Raises:
            InputError: the model has no such head.
        """
        if not self.config.labels:
            raise InputError(f"{self._checkpoint.name!r} has no head that scores texts")
        if self._head is None:
            texts = Variable("texts", 1, _ROWS)
            g = Graph("head")
            builder = Builder(g, self.config, self._checkpoint.weights, None)
            x = g.input("pooled", (texts, self.config.width))
            g.set_outputs({"classes": self._checkpoint.family.logits(builder, x)})
            self._head = self._session.compile(g, options=self._options)
        parts = [pooled[at : at + _ROWS] for at in range(0, len(pooled), _ROWS)]
        results = [self._head.run({"pooled": part})[0] for part in parts]
        return np.concatenate(results) if results else np.zeros((0, self.config.labels), np.float32)

    # -- runs --------------------------------------------------------------------------------------

    def _ids(self, text: Sequence[int], number: int) -> Array:
        ids = np.asarray(text)
        if ids.ndim != 1 or not ids.size or ids.dtype.kind not in "iu":
            raise InputError(f"text {number} is token ids, at least one, got {text!r:.80}")
        if len(ids) > self.context:
            raise ContextError(
                f"text {number} has {len(ids)} tokens, the context {self.context}: shorten it"
            )
        if ids.min() < 0 or ids.max() >= self.config.vocabulary:
            wrong = ids[(ids < 0) | (ids >= self.config.vocabulary)][0]
            raise InputError(
                f"text {number} has the token {wrong}, the vocabulary {self.config.vocabulary}"
            )
        return ids.astype(np.int32)

    def _segments(self, given: Sequence[int], count: int) -> Array:
        kinds = np.asarray(given, np.int32)
        if kinds.shape != (count,):
            raise InputError(f"expected the segments of {count} tokens, got {kinds.shape}")
        return np.minimum(kinds, max(self.config.segments - 1, 0))

    def _batches(self, lengths: Sequence[int]) -> Iterator[list[int]]:
        """Texts of similar lengths, as many as a run takes."""
        batch: list[int] = []
        total = 0
        for number in np.argsort(lengths, kind="stable").tolist():
            length = lengths[number]
            full = len(batch) == self._most_texts or total + length > self._most_rows
            if batch and full:
                yield batch
                batch, total = [], 0
            batch.append(number)
            total += length
        if batch:
            yield batch

    def _run(self, texts: Sequence[Array], kinds: Sequence[Array]) -> list[Array]:
        sizes = np.array([len(text) for text in texts], np.int32)
        ends = np.cumsum(sizes)
        longest = -(-int(sizes.max()) // _PANEL) * _PANEL
        rows, count, length = self._sizes(int(ends[-1]), len(texts), longest)
        position = np.concatenate([np.arange(size, dtype=np.int32) for size in sizes])
        within = np.minimum(np.arange(length), sizes[:, np.newaxis] - 1)
        number = np.repeat(np.arange(len(texts)), sizes)
        inputs = {
            "tokens": _extended(np.concatenate(texts), rows),
            "position": _extended(position, rows),
            "segment": _extended(np.concatenate(kinds), rows),
            "place": _extended(number * length + position, rows),
            "grid": _extended((ends - sizes)[:, np.newaxis] + within, count),
            "size": _extended(sizes, count, 1),
        }
        (found,) = self._compiled.run(inputs)
        return np.split(found[: ends[-1]], ends[:-1])

    def _sizes(self, rows: int, texts: int, length: int) -> tuple[int, int, int]:
        """The sizes of a run with room for so many rows and texts, and texts of such a length."""
        if not self._known_sizes:
            return rows, texts, length
        return (
            rounded_up(max(rows, _PANEL), self._most_rows),
            rounded_up(texts, self._most_texts),
            rounded_up(length, self._most_length),
        )


def _extended(array: Array, count: int, value: int = 0) -> Array:
    """An int32 array with rows of a value behind its own."""
    found = np.full((count, *array.shape[1:]), value, np.int32)
    found[: len(array)] = array
    return found
