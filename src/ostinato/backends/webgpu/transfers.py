"""Results of runs on their way to the host: mapped staging buffers."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.backends.webgpu.commands import Commands
    from ostinato.backends.webgpu.gpu import Gpu
    from ostinato.backends.webgpu.memory import DeviceBlock

__all__ = ["Download", "Downloads", "Pending"]

_ALIGNMENT = 256


class Download(NamedTuple):
    """Bytes of a block that are copied to the host after a run.

    Attributes:
        block, offset: where they are; the offset is a whole word.
        address: where they go.
        nbytes: how many.
    """

    block: DeviceBlock
    offset: int
    address: int
    nbytes: int


class Pending(NamedTuple):
    """Results that are still to be copied to the host's arrays.

    Attributes:
        staging: the mapped buffer that they come through; ``None``: there are none.
        size: the bytes of it that are in use.
        submission: the one that fills it.
        copies: the offset there, the address of the host, and the bytes of each.
    """

    staging: Any
    size: int
    submission: int
    copies: Sequence[tuple[int, int, int]]


class Downloads:
    """The staging buffers of a program, which its runs use in turn.

    Args:
        gpu: the device.
    """

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._free: list[Any] = []

    def clear(self) -> None:
        """Give the buffers back."""
        self._free = []

    def encode(self, commands: Commands, downloads: Sequence[Download]) -> Pending:
        """Encode the copies of results, the last commands of a run.

        Returns:
            What is left to be done, once the submission has its number.
        """
        copies, end = [], 0
        for download in downloads:
            copies.append((end, download.address, download.nbytes))
            end += -(-download.nbytes // _ALIGNMENT) * _ALIGNMENT
        if not end:
            return Pending(None, 0, 0, ())
        staging = self._staging(end)
        for (at, _, nbytes), download in zip(copies, downloads, strict=True):
            words = -(-nbytes // 4) * 4
            for buffer, start, held in download.block.parts(download.offset, words):
                commands.copy(staging, at, buffer, start, held)
                at += held  # noqa: PLW2901  # the parts lie side by side
        return Pending(staging, end, 0, copies)

    def finish(self, pending: Pending) -> None:
        """Wait for the results of a run, and copy them."""
        if pending.staging is None:
            return
        driver = self._gpu.driver
        with (
            self._gpu.calls(),
            driver.mapped(pending.staging, pending.size, pending.submission) as found,
        ):
            for at, address, nbytes in pending.copies:
                ctypes.memmove(address, found + at, nbytes)
        self._free.append(pending.staging)

    def _staging(self, nbytes: int) -> Any:
        for position, buffer in enumerate(self._free):
            if buffer.size >= nbytes:
                return self._free.pop(position)
        self._free.clear()  # too small for what is returned now
        return self._gpu.driver.staging_buffer(nbytes)
