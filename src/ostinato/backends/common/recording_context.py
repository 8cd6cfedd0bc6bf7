"""Contexts that record bound calls in Python, with a variable block on the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.backends.common.commands import Commands, HostCopy, RecordedWork, Replay
from ostinato.backends.common.context import Context

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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
        self.commands = Commands(self.label, self._merge)

    def _merge(self, works: Sequence[RecordedWork]) -> Callable[[], Replay] | None:
        """Make recorded work one launch; ``None``: its calls are replayed one by one."""
        return None

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
        return self.commands.end()

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

    def copy_call(self, target: Any, source: Any) -> Callable[[], None]:
        return HostCopy(self.commands, target, source)
