"""The active extent: a hint that not all rows of a fixed-size graph are in use (SPEC section 4)."""

from __future__ import annotations

import operator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ostinato.errors import VariableError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ostinato.backends.base import Executable
    from ostinato.backends.context import Context
    from ostinato.runtime.arrays import TensorSpec

__all__ = ["ActiveExtent"]


class ActiveExtent:
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

    inputs: Mapping[str, TensorSpec]
    _executable: Executable
    _context: Context
    _active: tuple[int, int] | None = None

    def set_active_extent(self, extent: tuple[int, int] | None) -> None:
        """From now on, only the first ``actual`` of ``upper`` leading rows are in use.

        It holds for all later runs, whatever starts them, until it is set again. A clone starts
        without one.

        Args:
            extent: ``(actual, upper)``; ``None``: all rows are.

        Raises:
            VariableError: not ``0 <= actual <= upper``; or ``upper`` is not the size of axis 0 of
                any input, as compiled. The hint is as before.
            CaptureError: inside a recording. Replays go by the hint of their own moment.
        """
        self._context.refuse_while_capturing("set_active_extent holds for all runs")
        checked = None if extent is None else self._checked_extent(extent)
        self._executable.limit_rows(checked)
        self._active = checked

    @contextmanager
    def active_extent(self, actual: int, upper: int) -> Iterator[None]:
        """``set_active_extent((actual, upper))`` inside a ``with``; then as it was before.

        Raises:
            VariableError, CaptureError: as :meth:`set_active_extent`.
        """
        before = self._active
        self.set_active_extent((actual, upper))
        try:
            yield
        finally:
            self.set_active_extent(before)

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
