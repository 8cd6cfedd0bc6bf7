"""Sessions: the vocabulary's methods encode ops on buffers, and one submission runs them all."""

from __future__ import annotations

import functools
import inspect
import time
from typing import TYPE_CHECKING, Any, Protocol

from ostinato.eager.allocation import Allocation, AllocationView, ResultStorage
from ostinato.eager.compute_graph import ComputeGraph, Launcher
from ostinato.eager.compute_node import ComputeNode
from ostinato.eager.out_args import bind_out_args
from ostinato.eager.pending import Pending, SessionStats
from ostinato.errors import GraphError, InputError, SessionStateError
from ostinato.ir.source_lines import locate
from ostinato.ops.shape import RESHAPE
from ostinato.ops.vocabulary import Vocabulary, VocabularyCore
from ostinato.plan.buffer import Buffer
from ostinato.records import replace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

    from ostinato.backends.common.context import Context
    from ostinato.backends.common.op_signature import OpSignature
    from ostinato.dtypes import DType
    from ostinato.eager.allocation import Operand
    from ostinato.ir.op import Attr, Op
    from ostinato.ir.types import TensorType

__all__ = ["GraphSession"]


class Encoder(Launcher, Protocol):
    """The interface of executors that sessions use."""

    @property
    def context(self) -> Context: ...
    @property
    def sizes(self) -> Mapping[str, int]: ...
    def signature(
        self, op: Op, operands: tuple[TensorType, ...], attrs: dict[str, Attr]
    ) -> tuple[OpSignature, tuple[TensorType, ...]]: ...
    def scalar(self, number: Any, dtype: DType | None) -> Buffer: ...


def _with_out(vocabulary: type[GraphSession]) -> type[GraphSession]:
    """Make every method of the vocabulary encode one call and take ``out=`` (class decorator)."""
    for name, method in inspect.getmembers(vocabulary, inspect.isfunction):
        ours = name.startswith("_") or hasattr(VocabularyCore, name)
        if hasattr(Vocabulary, name) and not ours:
            setattr(vocabulary, name, _encoding(method))
    return vocabulary


def _encoding(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(self: GraphSession, *args: Any, out: Any = None, **kwargs: Any) -> Any:
        if self._staged is not None:  # called by another method of the vocabulary
            return method(self, *args, **kwargs)
        return self._encode(method, args, kwargs, out)

    known = inspect.signature(method)
    last = inspect.Parameter("out", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Any)
    call.__signature__ = known.replace(parameters=[*known.parameters.values(), last])  # type: ignore[attr-defined]
    return call


@_with_out
class GraphSession(Vocabulary[Buffer]):
    """Encodes ops and runs them as one submission; see :class:`GraphExecutor`.

    Every op of the vocabulary is a method, on buffers, arrays and Python numbers. Arguments are
    checked at the call, and arrays and numbers are copied; nothing runs before :meth:`finish` or
    :meth:`commit`, in either mode. A reshape gives a view of its operand, not a copy. Every method
    takes ``out=``: a buffer of the result's type, which may be or overlap an operand, to be written
    and returned instead of a new one; for several results, a tuple of as many.

    Leaving a ``with`` block finishes the session; an exception that leaves it drops what was
    encoded, as does giving the session up. It is to be used from one thread at a time.

    Args:
        executor: the executor that opens it.
        recorded: whether :attr:`graph` is kept.
    """

    def __init__(self, executor: Encoder, *, recorded: bool) -> None:
        self.context = executor.context  #: the command queue that it submits to
        self._device = executor.context.device
        self._executor = executor
        self._recorded = recorded
        self._token = object()  # its identity, for its allocations
        self._nodes: list[ComputeNode] = []
        self._staged: list[ComputeNode] | None = None  # nodes of the call in progress
        self._ended = ""
        self._encode_ns = 0
        self._graph: ComputeGraph | None = None
        self._pending: Pending | None = None

    # -- the end -----------------------------------------------------------------------------------

    def finish(self, fuse: bool = False, reorder: bool = False) -> SessionStats:
        """Run the encoded ops and wait.

        Inside a recording they are recorded, and nothing is waited for.

        Args:
            fuse: apply :meth:`ComputeGraph.fuse` first.
            reorder: apply :meth:`ComputeGraph.reorder` first.

        Raises:
            SessionStateError: the session has ended before.
            VariableError, UnsupportedOpError, PlanError: it cannot be run; nothing has run.
        """
        return self._run(self._close("finished", fuse=fuse, reorder=reorder)).stats

    def commit(self, fuse: bool = False, reorder: bool = False) -> Pending:
        """Queue the encoded ops behind all earlier submissions, and return at once.

        Inside a recording they are recorded instead. If buffers belong to other contexts, the ops
        run after the earlier submissions there that touch the same memory.

        Args:
            fuse, reorder: as for :meth:`finish`.

        Raises:
            SessionStateError, VariableError, UnsupportedOpError, PlanError: as :meth:`finish`.
        """
        graph = self._close("committed", fuse=fuse, reorder=reorder)
        future = self.context.submit(graph.encode) if len(graph) else None
        self._pending = Pending(self.context, self._summed(graph), future)
        return self._pending

    def __enter__(self) -> GraphSession:
        self._check_open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._ended:
            return
        if kind is None:
            self.finish()
        else:
            self._nodes.clear()
            self._ended = f"left by {kind.__name__}"

    # -- contents ----------------------------------------------------------------------------------

    @property
    def stats(self) -> SessionStats:
        """The statistics so far."""
        if self._pending is not None:
            return self._pending.stats
        graph = self._collected()
        return SessionStats(len(graph), graph.barriers, encode_ns=self._encode_ns)

    @property
    def graph(self) -> ComputeGraph:
        """The graph recorded so far; once the session has ended, the one that was run.

        Raises:
            SessionStateError: the session was opened with :meth:`GraphExecutor.begin`, which keeps
                no graph; or it was left by an exception.
        """
        if not self._recorded:
            raise SessionStateError(
                "this session keeps no graph: open it with begin_recorded() instead of begin()"
            )
        if self._graph is not None:
            return self._graph
        self._check_open()
        return self._collected()

    # -- the interface of the vocabulary -----------------------------------------------------------

    def apply(
        self, op: Op, operands: Sequence[Buffer], attrs: dict[str, Attr]
    ) -> tuple[Buffer, ...]:
        """Encode one op.

        Raises:
            GraphError: the operands do not fit.
            InputError: a buffer is another device's.
            PlanError: a buffer was released.
            VariableError: it mentions Variables other than those of the decode state.
            SessionStateError: the session has ended, or a buffer is the result of another one that
                has not.
        """
        if self._staged is None:
            self._check_open()
        read = tuple([self._operand(buffer) for buffer in operands])
        types = tuple([operand.type for operand in read])
        signature, results = self._executor.signature(op, types, attrs)
        if op is RESHAPE:
            return (operands[0].reshaped(results[0]),)
        written = tuple(
            [AllocationView(Allocation(t.max_bytes, self._token), 0, t) for t in results]
        )
        staged = self._nodes if self._staged is None else self._staged
        staged.append(ComputeNode(signature, read, written))
        return tuple([self._buffer(view) for view in written])

    def constant(self, array: Any, dtype: Any = None) -> Buffer:
        """A buffer with a copy of ``array``, or with a Python number."""
        return self._executor.scalar(array, dtype)

    def type_of(self, operand: Any) -> TensorType | None:
        return operand.type if isinstance(operand, Buffer) else None

    # -- encoding ----------------------------------------------------------------------------------

    def _encode(
        self,
        method: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        out: Any,
    ) -> Any:
        """Encode one call of the user's, atomically."""
        start = time.perf_counter_ns()
        self._check_open()
        staged: list[ComputeNode] = []
        self._staged = staged
        try:
            result = method(self, *args, **kwargs)
            if out is not None:
                result = self._redirect(method.__name__, staged, result, out)
            self._nodes += staged
        finally:
            self._staged = None
            self._encode_ns += time.perf_counter_ns() - start
        return result

    def _redirect(self, name: str, staged: list[ComputeNode], result: Any, out: Any) -> Any:
        """Rewrite a call's nodes to write its results to ``out``; return ``out``."""
        several = isinstance(result, tuple)
        targets = tuple(out) if several and isinstance(out, tuple | list) else (out,)
        results: tuple[Buffer, ...] = result if several else (result,)
        try:
            for target in targets:
                if not isinstance(target, Buffer):
                    raise GraphError(f"out is a Buffer, got {target!r:.80}")
                target.check_target()
            if [t.type for t in targets] != [r.type for r in results]:
                wanted = ", ".join(str(r.type) for r in results)
                got = ", ".join(str(t.type) for t in targets)
                raise GraphError(f"the result is {wanted}, out is {got}")
            pairs = [
                (self._operand(r), self._operand(t)) for r, t in zip(results, targets, strict=True)
            ]
            staged[:] = bind_out_args(staged, pairs, self._token)
        except GraphError as error:
            raise locate(error, name, [f"out={out!r:.80}"]) from None
        return targets if several else out

    def _operand(self, buffer: Buffer) -> Operand:
        """The operand for a buffer: a view of the allocation, for a result of this session."""
        storage = buffer.storage
        if isinstance(storage, ResultStorage) and storage.allocation.session is self._token:
            return AllocationView(storage.allocation, buffer.offset, buffer.type)
        if storage.device is not self._device and storage.device != self._device:
            raise InputError(
                f"{buffer!r} cannot be used on {self._device}: copy it there with "
                "GraphExecutor.buffer(array)"
            )
        storage.check_open()
        return buffer

    def _buffer(self, view: AllocationView) -> Buffer:
        """The user's buffer for a result."""
        context = self.context
        storage = view.allocation.lend(context.device, context.allocator, context)
        return Buffer(storage, 0, view.type, sizes=self._executor.sizes)

    def _collected(self) -> ComputeGraph:
        return ComputeGraph(self._nodes, self._executor)

    def _close(self, how: str, *, fuse: bool, reorder: bool) -> ComputeGraph:
        """End the session and encode its graph."""
        start = time.perf_counter_ns()
        self._check_open()
        graph = self._collected()
        graph = graph.fuse() if fuse else graph
        graph = graph.reorder() if reorder else graph
        graph.encode()
        self._ended = how
        self._nodes = []
        self._graph = graph if self._recorded else None
        self._encode_ns += time.perf_counter_ns() - start
        return graph

    def _run(self, graph: ComputeGraph) -> Pending:
        """Run or record the graph, and wait."""
        context = self.context
        waits = int(bool(len(graph)) and not context.capturing)
        elapsed = context.run(graph.encode) if len(graph) else 0
        stats = replace(self._summed(graph), waits=waits, device_ns=elapsed)
        self._pending = Pending(context, stats, None)
        return self._pending

    def _summed(self, graph: ComputeGraph) -> SessionStats:
        return SessionStats(
            dispatches=len(graph),
            barriers=graph.barriers,
            submissions=int(bool(len(graph))),
            fused=graph.fused,
            reordered=graph.reordered,
            encode_ns=self._encode_ns,
        )

    def _check_open(self) -> None:
        if self._ended:
            raise SessionStateError(
                f"this session was {self._ended}; open another with GraphExecutor.begin()"
            )
