"""Times of the parts of segments, from the logs of their blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ostinato.backends.cuda.memory import DeviceBlock
from ostinato.backends.cuda.rules.stamped_segment import LOG_WORDS
from ostinato.plan.profile import PartTime

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ostinato.backends.cuda.abi import Launch
    from ostinato.backends.cuda.gpu import Gpu, Library
    from ostinato.backends.cuda.rules.stamped_segment import StampedSegment
    from ostinato.backends.cuda.target import CudaTarget

__all__ = ["StampedStep", "part_times", "stamped_steps"]

Array = np.ndarray[Any, Any]


class StampedStep(NamedTuple):
    """A segment that logs when its blocks end each part.

    Attributes:
        code: its symbol.
        library: that has it.
        launch: of the kernel.
        entries: of the log of a block, at most.
        blocks: by part, the number of blocks that have work.
    """

    code: str
    library: Library
    launch: Launch
    entries: int
    blocks: Sequence[int]

    @property
    def function(self) -> int:
        """The driver's kernel."""
        return self.library.function(self.code, self.launch.shared_bytes)

    def new_log(self, gpu: Gpu) -> DeviceBlock:
        """Memory for the logs of a launch."""
        words = self.launch.grid * self.entries * LOG_WORDS
        block = DeviceBlock(gpu, 8 * words, "the times of a profile")
        block.ready(0, block.nbytes)  # not while launches are recorded
        return block

    def times(self, logs: DeviceBlock) -> list[PartTime]:
        """The times of the parts, after a launch that wrote ``logs``."""
        found = np.zeros((self.launch.grid, self.entries, LOG_WORDS), np.int64)
        logs.read(0, found.data.cast("B"))
        return part_times(found, self.blocks)


def stamped_steps(
    kernels: Mapping[str, StampedSegment], code: Mapping[str, Library], target: CudaTarget
) -> dict[str, StampedStep]:
    """The stamped forms of segments, by the symbols of these.

    Args:
        kernels: by the symbols of the segments.
        code: the libraries of the stamped kernels, by their symbols.
        target: the GPU.
    """
    return {
        symbol: StampedStep(k.name, code[k.name], k.launch(target), *k.form(target))
        for symbol, k in kernels.items()
    }


def part_times(logs: Array, blocks: Sequence[int]) -> list[PartTime]:
    """The times of the parts of a launch.

    Args:
        logs: ``[blocks, entries, LOG_WORDS]``, int64; see ``stamps.cuh``. Blocks whose log is empty
            did not run.
        blocks: by part, the number of blocks that have work.
    """
    count = len(blocks)
    logs = logs[logs[:, 0, 0] != 0]
    last, spent = np.zeros(count), np.zeros((count, 3))
    if len(logs):
        begin = logs[:, 0, 1].min()
        for log in logs:
            start, started, end, ended = log[0].tolist()
            pace = (ended - started) / max(end - start, 1)
            entries = log[1:][log[1:, 0] != 0]
            parts = entries[:, 0] - 1
            stamps = np.concatenate([[[start, 0, 0]], entries[:, 1:]])
            passed, values, weights = np.diff(stamps, axis=0).T * pace
            np.maximum.at(last, parts, (entries[:, 1] - start) * pace + (started - begin))
            np.add.at(spent, parts, np.stack([passed - values - weights, values, weights], 1))
        spent /= len(logs)
    elapsed = np.diff(np.maximum.accumulate(last), prepend=0.0)
    seconds = 1e-9 * np.column_stack([elapsed, spent])
    return [
        PartTime(whole, working, waiting, fetching, count)
        for (whole, working, waiting, fetching), count in zip(seconds.tolist(), blocks, strict=True)
    ]
