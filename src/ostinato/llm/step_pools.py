"""Memory that a step keeps between runs: blocks of keys and values, and recurrent states."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ostinato.errors import InputError
from ostinato.llm.step_sizes import StepSizes
from ostinato.plan.device_array import DeviceArray

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ostinato.dtypes import DType
    from ostinato.llm.families.builder import BlockName, State
    from ostinato.llm.step_sizes import StepLimits

__all__ = ["StepPools"]

Array = np.ndarray[Any, Any]

#: The kinds of blocks where all layers share a table.
_ALL: Final[tuple[BlockName, ...]] = ("block",)


class StepPools:
    """The pools of blocks of a step, and the slots of its sequences, filled with zeros.

    Args:
        states: of the graph.
        limits: of its steps: the number of blocks and of sequences.
        zeros: makes an array of a shape and a dtype in the memory that steps use.
        room: the limits that arrays have room for, if that is more.
        settle: called before arrays are read or written.

    Attributes:
        arrays: of each state, by name; ``DeviceArray`` on a GPU.
    """

    def __init__(
        self,
        states: Mapping[str, State],
        limits: StepLimits,
        zeros: Callable[[tuple[Any, ...], DType], Any],
        room: StepLimits | None = None,
        settle: Callable[[], None] = lambda: None,
    ) -> None:
        self._states, self._limits, self._settle = states, limits, settle
        sizes = StepSizes.most(room or limits)
        self.arrays: dict[str, Any] = {
            name: zeros(sizes.of_state(state), state.dtype) for name, state in states.items()
        }

    def release(self) -> None:
        """Give back the memory."""
        self.arrays = {}

    def copy_block(self, source: int, target: int, kind: BlockName = "block") -> None:
        """Copy the keys and values of a block, in all layers of its kind.

        Raises:
            InputError: there is no such block.
        """
        for pool in self._pools(kind, source, target):
            _write_row(pool, target, pool[source])

    def read_block(self, block: int, kind: BlockName = "block") -> bytes:
        """The keys and values of a block, in all layers of its kind.

        Raises:
            InputError: there is no such block.
        """
        return b"".join(pool[block].tobytes() for pool in self._pools(kind, block))

    def write_block(self, block: int, data: Any, kind: BlockName = "block") -> None:
        """Write what :meth:`read_block` has read.

        Raises:
            InputError: there is no such block, or the data is of another size. Nothing is written.
        """
        self._write(self._pools(kind, block), block, data)

    @property
    def block_bytes(self) -> dict[BlockName, int]:
        """Bytes of a block of each kind, in all its layers."""
        names: tuple[BlockName, ...] = ("block", "window") if self._limits.window_blocks else _ALL
        return {kind: sum(map(_row_bytes, self._arrays(kind))) for kind in names}

    @property
    def slot_bytes(self) -> int:
        """Bytes of the recurrent states of a sequence."""
        return sum(map(_row_bytes, self._slots()))

    def save_slot(self, sequence: int) -> bytes:
        """The recurrent states of a sequence; none in most families.

        Raises:
            InputError: there is no such sequence.
        """
        self._check("sequence", sequence, self._limits.sequences)
        return b"".join(slots[sequence].tobytes() for slots in self._slots())

    def load_slot(self, sequence: int, saved: Any) -> None:
        """Write what :meth:`save_slot` has read.

        Raises:
            InputError: there is no such sequence, or the data is of another size. Nothing is
                written.
        """
        self._check("sequence", sequence, self._limits.sequences)
        self._write(self._slots(), sequence, saved)

    def _pools(self, kind: BlockName, *blocks: int) -> list[Any]:
        """The pools of a kind, which has these blocks."""
        limits = self._limits
        count = limits.blocks if kind == "block" else limits.window_blocks
        for block in blocks:
            self._check(kind if kind == "block" else f"{kind} block", block, count)
        return self._arrays(kind)

    def _slots(self) -> list[Any]:
        return self._arrays("slot")

    def _arrays(self, kind: str) -> list[Any]:
        self._settle()
        return [array for n, array in self.arrays.items() if self._states[n].kind == kind]

    @staticmethod
    def _check(kind: str, number: int, count: int) -> None:
        if not 0 <= number < count:
            raise InputError(f"there is no {kind} {number!r:.80} among {count}")

    @staticmethod
    def _write(arrays: list[Any], position: int, data: Any) -> None:
        octets = np.frombuffer(data, np.uint8)
        wanted = sum(map(_row_bytes, arrays))
        if octets.size != wanted:
            raise InputError(f"expected {wanted:,} bytes, got {octets.size:,}")
        start = 0
        for array in arrays:
            end = start + _row_bytes(array)
            _write_row(array, position, octets[start:end])
            start = end


def _row_bytes(array: Any) -> int:
    """Bytes of an element of the first axis."""
    nbytes: int = array.nbytes // array.shape[0]
    return nbytes


def _write_row(array: Any, position: int, data: Array) -> None:
    """Write the bytes of an element of the first axis."""
    octets: Any = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    if isinstance(array, DeviceArray):
        array.memory.write(position * octets.size, memoryview(octets))
        return
    row: Any = array[position].reshape(-1).view(np.uint8)
    row[:] = octets
