"""Contexts that record bound calls in Python, with a variable block on the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.backends.common.command_context import CommandContext
from ostinato.backends.common.commands import Commands, HostCopy, RecordedWork, Replay

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ostinato.backends.device import Device

__all__ = ["RecordingContext"]


class RecordingContext(CommandContext):
    """See :class:`~ostinato.backends.common.context.Context`.

    Attributes:
        commands: records bound calls, and holds the variable block.
    """

    commands: Commands

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self.commands = Commands(self.label, self._merge)

    def _merge(self, works: Sequence[RecordedWork]) -> Callable[[], Replay] | None:
        """Make recorded work one launch; ``None``: its calls are replayed one by one."""
        return None

    def copy_call(self, target: Any, source: Any) -> Callable[[], None]:
        return HostCopy(self.commands, target, source)
