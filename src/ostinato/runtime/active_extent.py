"""The active extent: a hint that not all rows of a fixed-size graph are in use."""

from __future__ import annotations

import operator
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ostinato.errors import VariableError
from ostinato.runtime.execution import Execution

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["ActiveExtent"]


class ActiveExtent(Execution):
    """What a compiled graph does with the hint; a part of :class:`CompiledGraph`.

    A graph compiled for batches of ``upper`` rows takes a smaller batch padded to that. The hint
    saves the work on the padding. It never changes what is defined: the first ``actual`` rows of
    an output of ``upper`` rows, and the whole of every other output, are the same bits with it as
    without. The remaining rows of outputs are undefined.

    A kernel is cut short where each of its rows depends on the same row of its operands alone,
    and nobody needs the others. Where rows meet, as in a sum over the batch, the kernel runs in
    full, and so do those that it depends on: padding that such an op must not see has to be made
    neutral by the graph, with a mask or with zeros, as without the hint.
    """

    def set_active_extent(self, extent: tuple[int, int] | None) -> None:
        """From now on, only the first ``actual`` of ``upper`` leading rows are in use.

        It holds for the later runs of all threads, until it is set again, but for those of threads
        that are within :meth:`active_extent`. Within that, it is set for the rest of the block. A
        clone starts without one.

        Args:
            extent: ``(actual, upper)``; ``None``: all rows are.

        Raises:
            VariableError: not ``0 <= actual <= upper``; or ``upper`` is not the size of axis 0 of
                any input, as compiled. The hint is as before.
            CaptureError: inside a recording. Replays go by the hint of their own moment.
        """
        checked = None if extent is None else self._checked_extent(extent)
        with self._in_order("set_active_extent holds for all runs"):
            own = self._extents.get(threading.get_ident())
            if own:
                self._executable.pop_limit()
                self._executable.push_limit(checked)
                own[-1] = checked
            else:
                self._executable.limit_rows(checked)

    @contextmanager
    def active_extent(self, actual: int, upper: int) -> Iterator[None]:
        """The extent ``(actual, upper)`` inside a ``with``, for the runs of its thread alone.

        However the block is left, the hint is as it was before. What is queued inside it goes by it
        when its turn has come.

        Raises:
            VariableError, CaptureError: as :meth:`set_active_extent`.
        """
        self._context.refuse_while_capturing("active_extent holds for runs")
        with self._hinted(self._checked_extent((actual, upper))):
            yield

    @contextmanager
    def _hinted(self, *extents: tuple[int, int] | None) -> Iterator[None]:
        """The last one of ``extents``, if there is any, for the runs of this thread."""
        if not extents:
            yield
            return
        own = self._extents.setdefault(threading.get_ident(), [])
        self._executable.push_limit(extents[-1])
        own.append(extents[-1])
        try:
            yield
        finally:
            own.pop()
            self._executable.pop_limit()
            if not own:
                self._extents.pop(threading.get_ident(), None)

    def _own_extents(self) -> tuple[tuple[int, int] | None, ...]:
        """What :meth:`_hinted` takes to have another thread's run go by this thread's hint."""
        return tuple(self._extents.get(threading.get_ident(), ()))

    def _checked_extent(self, extent: object) -> tuple[int, int]:
        if not isinstance(extent, tuple) or len(extent) != 2 or not all(map(_is_int, extent)):
            raise VariableError(
                f"an active extent is a pair of ints (actual, upper), or None; got {extent!r}"
            )
        actual, upper = map(operator.index, extent)
        if not 0 <= actual <= upper:
            raise VariableError(f"expected 0 <= actual <= upper, got {actual} of {upper}")
        if not any(spec.shape[:1] == (upper,) for spec in self.inputs.values()):
            known = ", ".join(str(spec) for spec in self.inputs.values()) or "none"
            raise VariableError(
                f"no input was compiled for {upper} leading rows; the inputs are: {known}"
            )
        return actual, upper


def _is_int(size: object) -> bool:
    return hasattr(size, "__index__") and not isinstance(size, bool)
