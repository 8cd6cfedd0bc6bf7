"""Contexts over an object that records bound calls, and has the variable block."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ostinato.backends.common.context import Context

if TYPE_CHECKING:
    from ostinato.backends.common.encoded import Recording
    from ostinato.plan.order import Accesses

__all__ = ["CommandContext", "CommandRecorder"]


class CommandRecorder(Protocol):
    """Whether the bound calls of a context run or are recorded, and its variable block.

    Attributes:
        block: the values of ``token``, ``position`` and ``kv_len``.
        from_block: whether calls read these from the block.
    """

    block: tuple[int, int, int]
    from_block: bool

    @property
    def recording(self) -> bool:
        """Whether bound calls of the calling thread are recorded."""

    @property
    def recording_number(self) -> int:
        """The number of the recording in progress, or 0."""

    @property
    def n_calls(self) -> int:
        """The number of calls in the recording in progress."""

    @property
    def accesses(self) -> Accesses:
        """The accesses of a write of the block or of its mode."""

    def begin(self, exclusive: bool, /) -> None:
        """Record the calling thread's bound calls."""

    def end(self) -> Recording:
        """Stop recording, and return the recording."""

    def cancel(self) -> None:
        """Stop recording, and drop the recording."""

    def uses(self, memory: object, /) -> bool:
        """Whether the recording in progress uses this memory."""


class CommandContext(Context):
    """See :class:`~ostinato.backends.common.context.Context`.

    Attributes:
        commands: records bound calls, and holds the variable block.
    """

    commands: CommandRecorder

    # -- recording ---------------------------------------------------------------------------------

    @property
    def capturing(self) -> bool:
        return self.commands.recording

    @property
    def capturing_number(self) -> int:
        return self.commands.recording_number

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
