"""The memory of runs: what kernels use, and the copies around them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ostinato.backends.common.program_image import Slot
from ostinato.backends.common.regions import host_address
from ostinato.backends.cuda.memory import DeviceBlock
from ostinato.plan.device_array import DeviceArray

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ostinato.backends.common.live_sizes import LiveSizes
    from ostinato.backends.common.program_image import External
    from ostinato.backends.cuda.staging import Staging

__all__ = ["Places", "RunMemory", "Transfer"]

#: Kernels take inputs and outputs to be aligned by this, so that they can load several elements.
_ALIGNMENT = 256

#: Values of Variables whose memory is known to be there.
_MOST_VALUES = 1024


class Transfer(NamedTuple):
    """A copy between a host array and the memory that a run uses in its place."""

    outside: int
    inside: int
    nbytes: int


class Places(NamedTuple):
    """The memory of a run.

    Attributes:
        fixed: the addresses of the fixed slots.
        slots: the address of each slot.
        before, after: copies between arrays and page-locked memory, by the processor.
        copied_in, copied_out: copies between arrays and the device.
    """

    fixed: list[int]
    slots: list[int]
    before: list[Transfer]
    after: list[Transfer]
    copied_in: list[Transfer]
    copied_out: list[Transfer]

    def add(self, external: External, transfer: Transfer, *, staged: bool) -> None:
        """Add the copies of an input or output.

        Args:
            external: says which ones it takes.
            transfer: from the array inwards, and back.
            staged: whether the processor makes them.
        """
        if external.read:
            (self.before if staged else self.copied_in).append(transfer)
        if external.written:
            (self.after if staged else self.copied_out).append(transfer)


class RunMemory:
    """Finds the memory of a program's runs.

    Args:
        sizes: the Variables, and the sizes of inputs and outputs.
        externals: inputs, then outputs; their slots follow the fixed ones.
        fixed: returns the present blocks of the fixed slots.
        staging: the memory of a run's copies.
    """

    def __init__(
        self,
        sizes: LiveSizes,
        externals: Sequence[External],
        fixed: Callable[[], Sequence[DeviceBlock]],
        staging: Staging,
    ) -> None:
        self._sizes = sizes
        self._externals = externals
        self._fixed = fixed
        self._staging = staging
        self._taken: set[tuple[int, ...]] = set()
        self._staged: tuple[list[int], list[tuple[bool, int, bool]]] | None = None

    def forget(self) -> None:
        """Have all runs find their memory anew: some of it is exchanged or given back."""
        self._taken = set()

    def discard(self) -> None:
        """Have nothing of the memory of copies, which is given back."""
        self.forget()
        self._staged = None

    def places(
        self,
        blocks: Sequence[Any],
        variables: Sequence[int],
        staging: Staging | None = None,
    ) -> Places:
        """The memory of a run on these inputs and outputs.

        Args:
            blocks: arrays of the host, or blocks of the device.
            variables: the values of the Variables.
            staging: the memory of the run's copies, if it is another one.
        """
        staging = self._staging if staging is None else staging
        self.take(variables)
        fixed = self.fixed_addresses()
        places = Places(fixed, [*fixed], [], [], [], [])
        for number, (external, block) in enumerate(zip(self._externals, blocks, strict=True)):
            if isinstance(block, DeviceBlock):
                block.ready(0, block.nbytes)
            if isinstance(block, DeviceBlock | DeviceArray) and block.address % _ALIGNMENT == 0:
                places.slots.append(block.address)
                continue
            nbytes = self._sizes.nbytes(number, variables)
            inside = staging.address(number, nbytes)
            places.slots.append(inside)
            nbytes = min(_byte_count(block), nbytes)
            if nbytes == 0:
                continue
            if isinstance(block, DeviceBlock | DeviceArray):
                places.add(external, Transfer(block.address, inside, nbytes), staged=False)
                continue
            staged = staging.host_address(number)
            transfer = Transfer(host_address(block), staged or inside, nbytes)
            places.add(external, transfer, staged=bool(staged))
        return places

    def host_places(self, spans: Sequence[tuple[int, int]], variables: Sequence[int]) -> Places:
        """The same for arrays of the host, all but whose addresses is known before the run.

        Args:
            spans: the address and the size of each array.
            variables: see :meth:`places`.
        """
        if self._staged is None:
            self._staged = self._staged_places()
        inside, transfers = self._staged
        self.take(variables)
        fixed = self.fixed_addresses()
        places = Places(fixed, fixed + inside, [], [], [], [])
        for number, (staged, target, depends) in enumerate(transfers):
            outside, nbytes = spans[number]
            if depends:
                live = self._sizes.nbytes(number, variables)
                self._staging.address(number, live)
                nbytes = min(nbytes, live)
            if nbytes:
                transfer = Transfer(outside, target, nbytes)
                places.add(self._externals[number], transfer, staged=staged)
        return places

    def take(self, variables: Sequence[int]) -> None:
        """Have memory for what a run uses of the arena, where that is not all of it.

        Raises:
            DeviceMemoryError: the device has not enough memory.
        """
        if not self._sizes.partial or (values := tuple(variables)) in self._taken:
            return
        taken, arena = self._taken, self._fixed()[Slot.ARENA]
        for offset, nbytes in self._sizes.extents(values):
            arena.ready(offset, nbytes)
        if len(taken) >= _MOST_VALUES:
            taken.clear()
        taken.add(values)

    def fixed_addresses(self) -> list[int]:
        """The addresses of the fixed slots."""
        return [block.address for block in self._fixed()]

    def _staged_places(self) -> tuple[list[int], list[tuple[bool, int, bool]]]:
        """The slots of staged arrays; by array, whether the processor copies it, its place and
        whether its size follows from Variables.
        """
        staging, transfers = self._staging, []
        inside = [staging.address(number, 0) for number in range(len(self._externals))]
        for number in range(len(self._externals)):
            staged = staging.host_address(number)
            place = staged or inside[number]
            transfers.append((bool(staged), place, self._sizes.depends(number)))
        return inside, transfers


def _byte_count(block: Any) -> int:
    """The size of an array, or of another buffer of the host."""
    nbytes: int = block.nbytes if hasattr(block, "nbytes") else memoryview(block).nbytes
    return nbytes
