"""A small model in NumPy with the interface of a step, for tests of the engine.

Its next token depends on the whole history, which it reads through the tables: a wrong table,
position, copy or reuse changes the tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from ostinato.llm.engine.engine import Engine
from ostinato.llm.engine.interfaces import BLOCK_TOKENS
from ostinato.llm.engine.kv_cache import KVCache
from ostinato.llm.engine.requests import PreparedRequest, Request
from ostinato.llm.engine.settings import EngineSettings

VOCABULARY = 50
WORDS = -(-VOCABULARY // 32)
END = 49


@dataclass(frozen=True)
class Limits:
    rows: int = 512
    sequences: int = 4
    picks: int = 40
    blocks: int = 24
    context: int = 512
    adjustments: int = 4096
    window_blocks: int = 0


@dataclass(frozen=True)
class Part:
    text: str = ""
    reasoning: str = ""
    tool_calls: tuple = ()


class Letters:
    """Text of an answer: a letter for each token."""

    stopped: str | None = None

    def __init__(self, stops: tuple[str, ...] = ()) -> None:
        self.stops = stops
        self.held = ""

    def push(self, token: int, *, stops: bool) -> Part:
        self.held += chr(ord("A") + token)
        if stops:
            for stop in self.stops:
                if stop in self.held:
                    self.held, self.stopped = self.held.split(stop)[0], stop
                    return self.finish()
        keep = max((len(stop) for stop in self.stops), default=1) - 1
        ready = self.held[: max(len(self.held) - keep, 0)]
        self.held = self.held[len(ready) :]
        return Part(ready)

    def finish(self) -> Part:
        text, self.held = self.held, ""
        return Part(text)


class EvenTokens:
    """A grammar: token ids alternate between even and odd ones, the first one being even."""

    def __init__(self) -> None:
        self.taken: list[int] = []

    def fill(self, bits: np.ndarray) -> None:
        bits[:] = 0x55555555 if len(self.taken) % 2 == 0 else 0xAAAAAAAA

    def accept(self, token: int) -> bool:
        assert token % 2 == len(self.taken) % 2
        self.taken.append(token)
        return True

    def rollback(self, count: int) -> None:
        del self.taken[len(self.taken) - count :]


def sample(logits, uniform, temperature, top_k, top_p, min_p) -> int:
    """The token that the op ``sample`` chooses of one row, by its definition in float64."""
    if temperature == 0:
        return int(np.argmax(logits))
    values = logits.astype(np.float64) / float(temperature)
    kept = np.isfinite(values)
    if 0 < top_k < len(values):
        kept &= values >= np.sort(values)[-top_k]
    chances = np.where(kept, np.exp(values - values[kept].max()), 0)
    chances /= chances.sum()
    if top_p < 1:
        order = np.argsort(-chances, kind="stable")
        inside = np.cumsum(chances[order]) - chances[order] < top_p
        kept = np.zeros_like(kept)
        kept[order[inside]] = True
        chances = np.where(kept, chances, 0)
    chances[chances < min_p * chances.max()] = 0
    total = np.cumsum(chances)
    return int(np.searchsorted(total, float(uniform) * total[-1], side="right"))


class ToyPools:
    """Memory of the step: blocks of both kinds, and a state of each slot."""

    def __init__(self, limits: Limits, settle: Callable[[], None] = lambda: None) -> None:
        self.settle = settle
        self.blocks = {
            "block": np.full((limits.blocks, BLOCK_TOKENS), -7, np.int64),
            "window": np.full((limits.window_blocks, BLOCK_TOKENS), -7, np.int64),
        }
        self.states = np.zeros(limits.sequences, np.int64)

    def copy_block(self, source: int, target: int, kind: str = "block") -> None:
        self.settle()
        self.blocks[kind][target] = self.blocks[kind][source]

    def read_block(self, block: int, kind: str = "block") -> bytes:
        self.settle()
        return self.blocks[kind][block].tobytes()

    def write_block(self, block: int, data: bytes, kind: str = "block") -> None:
        self.settle()
        self.blocks[kind][block] = np.frombuffer(data, np.int64)

    def save_slot(self, sequence: int) -> int:
        return int(self.states[sequence])

    def load_slot(self, sequence: int, saved: int) -> None:
        self.states[sequence] = saved


class ToyStep:
    """The step. With ``recurrent`` its history is a state of each slot instead of the pool.

    With ``window``, its history are so many last tokens; with ``window_blocks`` too, whole
    histories count besides, from blocks of another table.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        recurrent: bool = False,
        window: int | None = None,
    ) -> None:
        self.limits = limits = limits or Limits()
        self.window = window
        self.recurrent = recurrent
        table = -(-limits.context // BLOCK_TOKENS)
        rows, picks, more = limits.rows, limits.picks, limits.adjustments

        def ints(*shape: int) -> np.ndarray:
            return np.full(shape, -9, np.int32)

        def floats(*shape: int) -> np.ndarray:
            return np.full(shape, np.nan, np.float32)

        self.inputs = SimpleNamespace(
            tokens=ints(rows),
            position=ints(rows),
            sequence=ints(rows),
            table=ints(limits.sequences, table),
            window_table=ints(limits.sequences, table) if limits.window_blocks else None,
            pick=ints(picks),
            uniform=floats(picks),
            temperature=floats(picks),
            top_k=ints(picks),
            top_p=floats(picks),
            min_p=floats(picks),
            allowed=np.zeros((picks, WORDS), np.uint32),
            adjust_pick=ints(more),
            adjust_token=ints(more),
            adjust_bias=floats(more),
            adjust_repetition=floats(more),
            adjust_penalty=floats(more),
        )
        self.outputs = SimpleNamespace(
            token=np.zeros(picks, np.int32), logits=np.zeros((picks, VOCABULARY), np.float32)
        )
        self.pools = ToyPools(limits)
        self.runs: list[tuple[int, int, int]] = []
        self.failing = False

    def run(self, rows: int, picks: int, adjustments: int) -> None:
        assert min(rows, picks, adjustments) >= 1
        if self.failing:
            self.failing = False
            raise RuntimeError("injected")
        self.runs.append((rows, picks, adjustments))
        x = self.inputs
        histories = [self._read(row) for row in range(rows)]
        for pick in range(picks):
            logits = self._logits(histories[x.pick[pick]])
            self.outputs.logits[pick] = logits
            for k in range(adjustments):
                if x.adjust_pick[k] == pick:
                    at, factor = x.adjust_token[k], x.adjust_repetition[k]
                    value = logits[at] + x.adjust_bias[k]
                    value = value / factor if value > 0 else value * factor
                    logits[at] = value - x.adjust_penalty[k]
            bits = np.unpackbits(x.allowed[pick].view(np.uint8), bitorder="little")[:VOCABULARY]
            logits[bits == 0] = -np.inf
            self.outputs.token[pick] = sample(
                logits,
                x.uniform[pick],
                x.temperature[pick],
                x.top_k[pick],
                x.top_p[pick],
                x.min_p[pick],
            )
        for array in (x.tokens, x.position, x.sequence):
            array[:rows] = -9

    def _read(self, row: int) -> int:
        """Write a row, and hash the history that its sequence's table leads to."""
        x = self.inputs
        token, position, slot = int(x.tokens[row]), int(x.position[row]), int(x.sequence[row])
        if self.recurrent:
            before = 0 if position == 0 else int(self.pools.states[slot])
            self.pools.states[slot] = (before * 31 + token + 1) % 1_000_003
            return int(self.pools.states[slot])
        apart = x.window_table is not None
        result = self._hash("block", x.table[slot], token, position, None if apart else self.window)
        if apart:
            near = self._hash("window", x.window_table[slot], token, position, self.window)
            result = (result * 31 + near) % 1_000_003
        return result

    def _hash(
        self, kind: str, table: np.ndarray, token: int, position: int, window: int | None
    ) -> int:
        pool = self.pools.blocks[kind]
        pool[table[position // 64], position % 64] = token * 1000 + position
        first = 0 if window is None else max(position - window + 1, 0)
        history = pool[table[: position // 64 + 1]].reshape(-1)[first : position + 1]
        assert (history % 1000 == np.arange(first, position + 1)).all(), "a position is another's"
        result = 0
        for value in history // 1000:
            result = (result * 31 + int(value) + 1) % 1_000_003
        return result

    @staticmethod
    def _logits(history: int) -> np.ndarray:
        return np.random.default_rng(history).normal(0, 2, VOCABULARY).astype(np.float32)

    def close(self) -> None:
        pass


class LateStep(ToyStep):
    """The same on a device that computes while the host goes on: as late as it may.

    A step that was started has the inputs of that moment, and computes when it is waited for.
    """

    def __init__(self, limits: Limits | None = None, **how: Any) -> None:
        super().__init__(limits, **how)
        self.pools.settle = self.finish
        self.started: tuple[dict[str, np.ndarray], tuple[int, int, int]] | None = None
        self.starts = 0

    def run(self, rows: int, picks: int, adjustments: int) -> None:
        assert self.started is None
        super().run(rows, picks, adjustments)

    def start(self, rows: int, picks: int, adjustments: int) -> None:
        assert self.started is None
        given = {n: a.copy() for n, a in vars(self.inputs).items() if a is not None}
        self.started = given, (rows, picks, adjustments)
        self.starts += 1
        self.outputs.token[:] = -5
        self.outputs.logits[:] = np.nan
        for array in (self.inputs.tokens, self.inputs.position, self.inputs.sequence):
            array[:rows] = -9

    def finish(self) -> None:
        if self.started is None:
            return
        (given, sizes), self.started = self.started, None
        before = {name: getattr(self.inputs, name).copy() for name in given}
        for name, array in given.items():
            getattr(self.inputs, name)[:] = array
        try:
            super().run(*sizes)
        finally:
            for name, array in before.items():
                getattr(self.inputs, name)[:] = array


def prepare(request: Request) -> PreparedRequest:
    """A request whose prompt is token ids; the grammar of any is :class:`EvenTokens`."""
    sampling = request.sampling
    ends = {*sampling.stop_tokens, *(() if sampling.ignore_eos else (END,))}
    return PreparedRequest(
        np.asarray(request.prompt, np.int32),
        frozenset(ends),
        lambda: Letters(sampling.stop),
        EvenTokens if sampling.grammar is not None else None,
    )


def engine(step: ToyStep | None = None, proposer=None, **settings) -> Engine:
    """An engine on a toy model."""
    step = step or ToyStep()
    cache = KVCache(step, recurrent=step.recurrent, window=step.window)
    ahead = step if isinstance(step, LateStep) else None
    return Engine(step, cache, prepare, EngineSettings(**settings), proposer=proposer, ahead=ahead)
