"""The active extent: a hint that not all rows of a fixed-size graph are in use."""

from __future__ import annotations

import operator
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ostinato.errors import VariableError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ostinato.runtime.execution import Execution

__all__ = ["ActiveExtents"]

#: ``(actual, upper)``; ``None``: all rows are in use.
Extent = tuple[int, int] | None


class ActiveExtents:
    """The active extents of one compiled graph: for all threads, and those of single ones.

    A graph compiled for batches of ``upper`` rows takes a smaller batch padded to that. The hint
    saves the work on the padding. It never changes what is defined: the first ``actual`` rows of
    an output of ``upper`` rows, and the whole of every other output, are the same bits with it as
    without. The remaining rows of outputs are undefined.

    A kernel is cut short where each of its rows depends on the same row of its operands alone,
    and nothing needs the others. Where rows meet, as in a sum over the batch, the kernel runs in
    full, and so do those that it depends on: padding that such an op must not see has to be made
    neutral by the graph, with a mask or with zeros, as without the hint.

    Args:
        execution: the graph's runs.
    """

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._executable = execution.executable
        self._own: dict[int, list[Extent]] = {}  # by thread, innermost last

    def set(self, extent: object) -> None:
        """See :meth:`CompiledGraph.set_active_extent`."""
        checked = None if extent is None else self._checked_extent(extent)
        with self._execution.in_order("set_active_extent holds for all runs"):
            own = self._own.get(threading.get_ident())
            if own:
                self._executable.pop_limit()
                self._executable.push_limit(checked)
                own[-1] = checked
            else:
                self._executable.limit_rows(checked)

    @contextmanager
    def block(self, actual: int, upper: int) -> Iterator[None]:
        """See :meth:`CompiledGraph.active_extent`."""
        self._execution.context.refuse_while_capturing("active_extent holds for runs")
        with self.applied([self._checked_extent((actual, upper))]):
            yield

    @contextmanager
    def applied(self, extents: Sequence[Extent]) -> Iterator[None]:
        """The last one of ``extents``, if there is any, for the runs of this thread."""
        if not extents:
            yield
            return
        own = self._own.setdefault(threading.get_ident(), [])
        self._executable.push_limit(extents[-1])
        own.append(extents[-1])
        try:
            yield
        finally:
            own.pop()
            self._executable.pop_limit()
            if not own:
                self._own.pop(threading.get_ident(), None)

    def own(self) -> tuple[Extent, ...]:
        """Those of the calling thread, for :meth:`applied` on another thread."""
        return tuple(self._own.get(threading.get_ident(), ()))

    def _checked_extent(self, extent: object) -> tuple[int, int]:
        if not isinstance(extent, tuple) or len(extent) != 2 or not all(map(_is_int, extent)):
            raise VariableError(
                f"an active extent is a pair of ints (actual, upper), or None; got {extent!r}"
            )
        actual, upper = map(operator.index, extent)
        if not 0 <= actual <= upper:
            raise VariableError(f"expected 0 <= actual <= upper, got {actual} of {upper}")
        inputs = self._execution.signature.inputs.values()
        if not any(spec.shape[:1] == (upper,) for spec in inputs):
            known = ", ".join(map(str, inputs)) or "none"
            raise VariableError(
                f"no input was compiled for {upper} leading rows; the inputs are: {known}"
            )
        return actual, upper


def _is_int(size: object) -> bool:
    return hasattr(size, "__index__") and not isinstance(size, bool)
