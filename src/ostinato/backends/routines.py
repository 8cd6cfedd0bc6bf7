"""Where the routines of a device are kept: what sessions run is compiled once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ostinato.plan.formula import Formula
    from ostinato.plan.routine import Routine

__all__ = ["RoutineShelf"]

#: Shapes may change with every step; then nothing is found again, and nothing need be kept.
_MAX_ROUTINES = 4096


class RoutineShelf(ABC):
    """Formulas compiled for one device."""

    def __init__(self) -> None:
        self._routines: dict[Formula, Routine] = {}

    def routine(self, formula: Formula) -> Routine:
        """``formula`` compiled for this device; one that was compiled before is found again.

        Raises:
            UnsupportedOpError: the device has no way to compute it.
        """
        routine = self._routines.get(formula)
        if routine is None:
            if len(self._routines) >= _MAX_ROUTINES:
                self._routines.clear()
            routine = self._routines[formula] = self._compile(formula)
        return routine

    @abstractmethod
    def _compile(self, formula: Formula) -> Routine:
        """See :meth:`routine`."""
