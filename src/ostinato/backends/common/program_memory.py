"""The fixed slots of an executable: which are its own, and which it shares with clones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from ostinato.backends.common.program_image import Slot
from ostinato.backends.common.program_runner import RELEASED
from ostinato.backends.common.weights import Weights
from ostinato.errors import PlanError

if TYPE_CHECKING:
    from ostinato.backends.common.mutex import Mutex
    from ostinato.backends.common.program_image import ProgramImage
    from ostinato.plan.buffer import Memory

__all__ = ["BlockKind", "ProgramMemory"]

M = TypeVar("M")
S = TypeVar("S", bound=tuple[Any, ...])


class BlockKind(Protocol[M]):
    """A device's blocks of memory."""

    def allocate(self, nbytes: int, /) -> M:
        """A new block, zeroed."""

    def arena(self, nbytes: int, /) -> M:
        """A new block, zeroed, for what lives within a run."""
        return self.allocate(nbytes)

    def duplicate(self, block: M, /) -> M:
        """A copy of a block."""

    def memory(self, block: M, /) -> Memory:
        """The block as plans see it."""


class ProgramMemory(Generic[M, S]):
    """The memory of one executable, taken once: a block for each :class:`Slot`.

    Args:
        image: the compiled program.
        kind: the device's blocks.
        shared: the weights, where another executable has them in the same form; by default, new
            ones.
        block: memory for new weights; by default it is allocated.

    Attributes:
        weights: the params, and what is prepared from them.
    """

    def __init__(
        self,
        image: ProgramImage[S],
        kind: BlockKind[M],
        shared: Weights[M, S] | None = None,
        block: M | None = None,
    ) -> None:
        self._kind = kind
        self._closed = False
        self._sizes = image.sizes
        self._constants = kind.allocate(image.sizes[Slot.CONSTANTS])
        for offset, data in image.constants:
            kind.memory(self._constants).write(offset, memoryview(data))
        if shared is None:
            if block is None:
                block = kind.allocate(image.sizes[Slot.WEIGHTS])
            shared = Weights(image, block, kind.duplicate, self._shown)
        self.weights = shared
        self._own = self._fresh()

    def clone(self) -> ProgramMemory[M, S]:
        """Memory of a clone: shared constants, weights shared until one side writes, zeros else.

        The :attr:`guard` is held.
        """
        self.check_open()
        twin: ProgramMemory[M, S] = ProgramMemory.__new__(ProgramMemory)
        twin._kind, twin._sizes, twin._closed = self._kind, self._sizes, False
        twin._constants = self._constants
        twin.weights = self.weights.share()
        twin._own = twin._fresh()
        return twin

    @property
    def guard(self) -> Mutex:
        """The lock to be held while weights are shared or written, and memory is given back."""
        return self.weights.block.guard

    def fixed(self) -> list[M]:
        """The present blocks, in the order of :class:`Slot`.

        Raises:
            PlanError: the memory was given back.
        """
        self.check_open()
        arena, states, masked_tail, resident = self._own
        return [arena, self._constants, self.weights.block.memory, states, masked_tail, resident]

    def lend(self, slot: Slot) -> Memory:
        """The present memory of a slot, for plans.

        Raises:
            PlanError: it was given back.
        """
        return self._kind.memory(self.fixed()[slot])

    def lend_unpacked(self, name: str) -> Memory:
        """The contents of a non-retained param, in memory that follows later writes.

        Raises:
            PlanError: the memory was given back.
        """
        self.check_open()
        return self.weights.unpacked.memory(name)

    def close(self) -> None:
        """Give back all memory that is not shared. The :attr:`guard` is held."""
        self._closed = True
        self._sizes = (0,) * len(Slot)
        self._constants = self._kind.allocate(0)
        self.weights.release(self._kind.allocate(0))
        self._own = self._fresh()

    def check_open(self) -> None:
        """Check that the memory is there.

        Raises:
            PlanError: it was given back.
        """
        if self._closed:
            raise PlanError(RELEASED)

    def _fresh(self) -> tuple[M, M, M, M]:
        """New blocks for the slots that no two executables share."""
        allocate, sizes = self._kind.allocate, self._sizes
        try:
            arena = self._kind.arena(sizes[Slot.ARENA])
        except MemoryError:
            raise MemoryError(
                f"a run takes up to {sizes[Slot.ARENA]:,} bytes, beyond all addresses; "
                "bound the sizes of the graph more tightly"
            ) from None
        states = allocate(sizes[Slot.STATES])
        return arena, states, allocate(sizes[Slot.MASKED_TAIL]), allocate(sizes[Slot.RESIDENT])

    def _shown(self, nbytes: int) -> Memory:
        return self._kind.memory(self._kind.allocate(nbytes))
