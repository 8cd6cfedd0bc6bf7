"""The variable block of a device: Variables that kernels read from memory, not from calls."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from types import MappingProxyType
from typing import TYPE_CHECKING

from ostinato.errors import VariableError
from ostinato.plan.order import Submission

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.plan.order import Accesses

__all__ = ["DECODE_VARIABLES", "DecodeState"]

#: Variables of these names can live on the device; see :meth:`DecodeState.set_dev_state_mode`.
DECODE_VARIABLES = ("token", "position", "kv_len")

#: So that ``step + 1`` still is an int64.
_MAX_STATE = (1 << 63) - 2

_NO_VALUES: Mapping[str, int] = MappingProxyType({})


class DecodeState(ABC):
    """The variable block of a command queue, which one call sets for all later runs."""

    @property
    @abstractmethod
    def _block_accesses(self) -> Accesses:
        """The accesses of a write of the variable block."""

    @abstractmethod
    def _write_state(self, values: tuple[int, int, int]) -> None:
        """Write token, position and kv_len into the variable block."""

    @abstractmethod
    def _read_state(self) -> tuple[int, int, int]:
        """Read token, position and kv_len from the variable block."""

    @property
    @abstractmethod
    def dev_state_mode(self) -> bool:
        """Whether kernels read ``token``, ``position`` and ``kv_len`` from the variable block."""

    @abstractmethod
    def _set_mode(self, enable: bool) -> None:
        """Switch dev-state mode."""

    def set_decode_state(self, token: int, step: int) -> None:
        """Write the variable block: ``token``, ``position = step`` and ``kv_len = step + 1``.

        Earlier submissions still read the former values. Inside a recording it is written at once,
        and is no part of that: replays read the values at their start. Initially it holds 0, 0
        and 1.

        Raises:
            VariableError: one of them is no int, or negative. Nothing has been written.
        """
        token, step = _checked_state("token", token), _checked_state("step", step)
        with Submission(self._block_accesses):
            self._write_state((token, step, step + 1))

    def set_dev_state_mode(self, enable: bool) -> None:
        """Choose whether kernels read ``token``, ``position`` and ``kv_len`` from the block.

        In this mode they ignore the values that a call was bound or submitted with, so one
        recording serves every step. Calls recorded in this mode read the block for good.
        """
        with Submission(self._block_accesses):
            self._set_mode(bool(enable))

    @property
    def decode_state(self) -> Mapping[str, int]:
        """The values of the variable block, by Variable."""
        return dict(zip(DECODE_VARIABLES, self._read_state(), strict=True))

    @property
    def resident_values(self) -> Mapping[str, int]:
        """The values of Variables that kernels read from the block; none outside dev-state mode."""
        return self.decode_state if self.dev_state_mode else _NO_VALUES


def _checked_state(name: str, value: object) -> int:
    if not isinstance(value, bool) and hasattr(value, "__index__"):
        try:
            number = operator.index(value)
        except TypeError:  # an array of several elements has the method, too
            number = -1
        if 0 <= number <= _MAX_STATE:
            return number
    raise VariableError(f"{name} is an int from 0 on, got {value!r:.80}")
