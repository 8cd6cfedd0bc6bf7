"""The memory of outputs that stay in the arena of an executable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.records import dataclass

if TYPE_CHECKING:
    from ostinato.backends.base import Executable
    from ostinato.runtime.arrays import Array
    from ostinato.runtime.signature import Live

__all__ = ["ArenaOutputs", "read_only"]


@dataclass(frozen=True, eq=False)
class ArenaOutputs:
    """The memory in an arena for outputs of certain shapes.

    Attributes:
        live: the shapes.
        arrays: on the memory of each.
        views: the same, not to be written.
        slots: for each its offset in the arena, in bytes, and its number of elements.
    """

    live: Live
    arrays: list[Array]
    views: list[Array]
    slots: list[tuple[int, int]]

    @staticmethod
    def of(executable: Executable, live: Live) -> ArenaOutputs:
        """The memory for these shapes; an output whose shape depends on data has room for all."""
        arena, offsets = executable.arena, executable.result_offsets
        flat = {
            position: (type_.max_bytes // type_.dtype.itemsize,)
            for position, type_ in live.data_sized.items()
        }
        arrays = [
            np.ndarray(flat.get(i, shape), dtype, arena, offset)
            for i, (offset, (shape, dtype)) in enumerate(zip(offsets, live.outputs, strict=True))
        ]
        slots = [(offset, array.size) for offset, array in zip(offsets, arrays, strict=True)]
        return ArenaOutputs(live, arrays, [*map(read_only, arrays)], slots)


def read_only(array: Array) -> Array:
    """A view that can not be made writable."""
    octets: Any = array.reshape(-1).view(np.uint8)
    readable = np.frombuffer(memoryview(octets).toreadonly(), np.uint8)
    return readable.view(array.dtype).reshape(array.shape)
