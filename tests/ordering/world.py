"""Two contexts and their graphs, driven by the calls that :class:`~.model.Model` predicts."""

from __future__ import annotations

import copy
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

import ostinato as ost
from tests.devices.registered import open_session

from .graphs import Array, buffer_of, entry, filled, ledger_graph, rows_graph
from .model import BUFFERS, CONTEXTS, NUMBERS, ROWS, Feed, Step, home, rows_of

#: The operand of heavy sessions, which multiply it for some milliseconds.
SQUARE = np.zeros((256, 256), np.float32)


class World:
    """A ledger on the first context, rows on the second one, and buffers on both."""

    def __init__(self, device: str = "cpu") -> None:
        self.opened = [open_session(device, threads=1) for _ in range(CONTEXTS)]
        self.contexts = [session.context for session in self.opened]
        self.executors = [ost.GraphExecutor(context) for context in self.contexts]
        builders = (ledger_graph, rows_graph)
        self.graphs = [s.compile(g()) for s, g in zip(self.opened, builders, strict=True)]
        self.buffers = [self.executors[home(i)].buffer(filled(NUMBERS[i])) for i in range(BUFFERS)]
        self.squares = [executor.buffer(SQUARE) for executor in self.executors]
        self.bounds: list[tuple[Any, list[Array], int]] = []
        self.sessions: list[ost.ComputeGraph] = []
        self.pending: list[ost.Pending] = []
        self.blocks: dict[tuple[int, int], list[AbstractContextManager[None]]] = {}

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """The outcome of a call: what it returns, or the name of the error that it raises."""
        try:
            return getattr(self, name)(*args, **kwargs)
        except ost.OstinatoError as error:
            return type(error).__name__

    # -- runs --------------------------------------------------------------------------------------

    def run(self, graph: int, feed: Feed) -> list[Array]:
        return self.graphs[graph].run(self._inputs(graph, feed))

    def run_feed_handle(self, graph: int, feed: Feed, output: int) -> Array:
        name = self._handle(graph)
        return self.graphs[graph].run_feed_handle(self._inputs(graph, feed), name, output)

    def run_pipelined(self, graph: int, feeds: Sequence[Feed]) -> list[list[Array]]:
        return self.graphs[graph].run_pipelined([self._inputs(graph, feed) for feed in feeds])

    def commit_no_wait(self, graph: int, feed: Feed) -> None:
        self.graphs[graph].commit_no_wait(self._inputs(graph, feed))

    def sync_pending(self, graph: int) -> None:
        self.graphs[graph].sync_pending()

    def bind(self, graph: int, feed: Feed) -> None:
        compiled = self.graphs[graph]
        outputs = [np.zeros(spec.shape, np.float32) for spec in compiled.outputs.values()]
        self.bounds.append((compiled.bind(self._inputs(graph, feed), outputs), outputs, graph))

    def bound_call(self, position: int) -> list[Array] | None:
        call, outputs, graph = self.bounds[position]
        recording = self.graphs[graph]._execution.context.capturing
        call()
        return None if recording else [array.copy() for array in outputs]

    def read_bound(self, position: int) -> list[Array]:
        return [array.copy() for array in self.bounds[position][1]]

    # -- params, handles, states -------------------------------------------------------------------

    def set_param(self, graph: int, number: float) -> None:
        self.graphs[graph].set_param("w" if self._is_ledger(graph) else "k", filled(number))

    def bind_handle(self, graph: int, number: float) -> bool:
        value = filled(number) if self._is_ledger(graph) else rows_of(number)
        return self.graphs[graph].bind_handle(self._handle(graph), value)

    def unbind_handle(self, graph: int) -> None:
        self.graphs[graph].unbind_handle(self._handle(graph))

    def set_handle_feed(self, graph: int, output: int | None) -> None:
        self.graphs[graph].set_handle_feed(self._handle(graph), output)

    def write_state(self, graph: int, number: float | None) -> None:
        name = self._state(graph)
        if number is None:
            self.graphs[graph].unbind_handle(name)
        else:
            shape = (4,) if self._is_ledger(graph) else (ROWS, 4)
            self.graphs[graph].bind_handle(name, np.full(shape, number, np.float32))

    def read_state(self, graph: int) -> Array | None:
        return self.graphs[graph].read_handle(self._state(graph))

    def read_handle(self, graph: int) -> Array | None:
        return self.graphs[graph].read_handle(self._handle(graph))

    def read_output_row(self, graph: int, output: int, row: int) -> Array | None:
        return self.graphs[graph].read_output_row(output, row)

    # -- sessions and their buffers ----------------------------------------------------------------

    def session(self, context: int, steps: Sequence[Step], end: str, heavy: bool) -> None:
        executor = self.executors[context]
        s = executor.begin_recorded() if end == "keep" else executor.begin()
        if heavy:
            square = self.squares[context]
            for _ in range(3):
                square = s.matmul(square, self.squares[context])
        for step in steps:
            self._encode(s, step)
        if end == "commit":
            self.pending.append(s.commit())
            return
        s.finish()
        if end == "keep":
            self.sessions.append(s.graph)

    def _encode(self, s: ost.GraphSession, step: Step) -> None:
        kind, position = step.source
        target = self.buffers[step.target]
        if kind == "buffer":
            source = self.buffers[position]
        else:
            name = self._state(position) if kind == "state" else self._param(position)
            source = buffer_of(self.graphs[position], name).view(0, target.nbytes)
        other = step.number if step.op == "add" else target
        getattr(s, step.op)(source, other, out=target)

    def replay_session(self, position: int) -> None:
        self.sessions[position].replay()

    def copyin(self, buffer: int, number: float) -> None:
        self.buffers[buffer].copyin(filled(number))

    def copyout(self, buffer: int) -> Array:
        return self.buffers[buffer].copyout()

    def release(self, buffer: int) -> None:
        self.buffers[buffer].release()

    # -- recordings --------------------------------------------------------------------------------

    def begin_graph_capture(self, context: int, exclusive: bool = False) -> None:
        self.contexts[context].begin_graph_capture(exclusive=exclusive)

    def end_graph_capture(self, context: int, key: int) -> None:
        self.contexts[context].end_graph_capture(key)

    def cancel_graph_capture(self, context: int) -> None:
        self.contexts[context].cancel_graph_capture()

    def reset_graph(self, context: int, key: int) -> None:
        self.contexts[context].reset_graph(key)

    def replay_graph(self, context: int, key: int) -> bool:
        return self.contexts[context].replay_graph(key)

    # -- extents -----------------------------------------------------------------------------------

    def enter_extent(self, graph: int, actual: int) -> None:
        block = self.graphs[graph].active_extent(actual, ROWS)
        block.__enter__()
        self.blocks.setdefault((threading.get_ident(), graph), []).append(block)

    def exit_extent(self, graph: int) -> None:
        self.blocks[threading.get_ident(), graph].pop().__exit__(None, None, None)

    def set_active_extent(self, graph: int, actual: int | None) -> None:
        self.graphs[graph].set_active_extent(None if actual is None else (actual, ROWS))

    # -- clones and plans --------------------------------------------------------------------------

    def clone(self, graph: int, context: int | None) -> None:
        """Clone a graph; without a context, by ``copy.copy``."""
        g = self.graphs[graph]
        twin = copy.copy(g) if context is None else g.clone(context=self.contexts[context])
        self.graphs.append(twin)

    def release_intermediate_buffers(self, graph: int) -> None:
        self.graphs[graph].plan.release_intermediate_buffers()

    def release_all_buffers(self, graph: int) -> None:
        self.graphs[graph].plan.release_all_buffers()

    # -- machinery ---------------------------------------------------------------------------------

    def _inputs(self, graph: int, feed: Feed) -> dict[str, Array]:
        if self._is_ledger(graph):
            inputs = entry(feed.x, feed.h, heavy=feed.heavy)
            return {**inputs, "x": np.ones(5, np.float32)} if feed.bad else inputs
        if feed.bad:
            return {"r": np.ones((ROWS + 1, 4), np.float32)}
        return {} if feed.h is None else {"r": rows_of(feed.h)}

    def _is_ledger(self, graph: int) -> bool:
        return "load" in self.graphs[graph].inputs

    def _handle(self, graph: int) -> str:
        return "h" if self._is_ledger(graph) else "r"

    def _state(self, graph: int) -> str:
        return "total" if self._is_ledger(graph) else "seen"

    def _param(self, graph: int) -> str:
        return "w" if self._is_ledger(graph) else "k"
