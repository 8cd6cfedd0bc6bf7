"""Contexts that record bound calls in Python, with a variable block on the host."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from ostinato.backends.common.commands import Commands
from ostinato.backends.common.context import Context

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.backends.common.commands import Call
    from ostinato.backends.common.encoded import Recording
    from ostinato.backends.device import Device
    from ostinato.plan.order import Accesses

__all__ = ["RecordingContext"]


class RecordingContext(Context):
    """See :class:`~ostinato.backends.common.context.Context`.

    Attributes:
        commands: records bound calls, and holds the variable block.
    """

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self.commands = Commands(self.label)

    @abstractmethod
    def _recording(self, calls: Sequence[tuple[Call, bool]]) -> Recording:
        """The recording of calls, each with whether it reads its Variables from the block."""

    # -- recording ---------------------------------------------------------------------------------

    @property
    def capturing(self) -> bool:
        return self.commands.recording

    @property
    def capturing_number(self) -> int:
        return self.commands.number

    @property
    def captured_calls(self) -> int:
        return self.commands.n_calls

    def _begin(self, exclusive: bool) -> None:
        self.commands.begin(exclusive)

    def _end(self) -> Recording:
        return self._recording(self.commands.end())

    def _cancel(self) -> None:
        self.commands.cancel()

    def _capture_uses(self, memory: object) -> bool:
        return self.commands.uses(memory)

    # -- the variable block ------------------------------------------------------------------------

    @property
    def _block_accesses(self) -> Accesses:
        return self.commands.accesses

    @property
    def dev_state_mode(self) -> bool:
        return self.commands.from_block

    def _set_mode(self, enable: bool) -> None:
        self.commands.from_block = enable

    def _write_state(self, values: tuple[int, int, int]) -> None:
        self.commands.block = values

    def _read_state(self) -> tuple[int, int, int]:
        return self.commands.block
