"""Device memory of inputs and outputs that are given as arrays of the host, and of Variables.

The block of Variables and small inputs and outputs lie side by side, in page-locked memory of the
host and again on the device, so that one copy at a run's start and one at its end move all of them.
Larger ones have blocks of their own, copied by their live sizes. Those that kernels use in the
page-locked memory itself (:mod:`ostinato.backends.cuda.mapped`) come last, and are on no device.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from ostinato.backends.cuda.abi import FAILED, FOUND, GOES_ON, HEADER_WORDS
from ostinato.backends.cuda.memory import LARGE, DeviceBlock, HostBlock, PagedBlock
from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence
    from collections.abc import Set as AbstractSet

    from ostinato.backends.common.program_image import External
    from ostinato.backends.cuda.driver import Driver
    from ostinato.backends.cuda.gpu import Gpu

__all__ = ["SMALL", "Staging"]

SMALL = 1 << 19
"""The most bytes of an input or an output that is copied together with others: 16 rows of a mask of
262,144 tokens are."""

#: Alignment of inputs and outputs, in bytes.
_ALIGNMENT = 256


_CLEAR = [0] * HEADER_WORDS


@dataclass(frozen=True)
class _Layout:
    """The offsets of inputs and outputs.

    Attributes:
        offsets: of each input and output, behind the Variables; -1: in a block of its own.
        inputs_end: the end of Variables and of what runs read.
        outputs: the start of what they write; inputs that are written lie in both.
        end: the end of all that is copied.
        host_end: the end of all of it.
    """

    offsets: tuple[int, ...]
    inputs_end: int
    outputs: int
    end: int
    host_end: int

    @staticmethod
    def of(externals: Sequence[External], words: int, mapped: AbstractSet[int]) -> _Layout:
        end = _aligned(8 * (HEADER_WORDS + words))
        inputs_end = outputs = end
        offsets = []
        for number, external in enumerate(externals):  # inputs come first, outputs last
            small = external.nbytes <= SMALL and number not in mapped
            offsets.append(end if small else -1)
            end += _aligned(max(external.nbytes, 1)) if small else 0
            if not external.written:
                outputs = end
            if external.read:
                inputs_end = end
        host_end = end
        for number in sorted(mapped):
            offsets[number] = host_end
            host_end += _aligned(max(externals[number].nbytes, 1))
        return _Layout(tuple(offsets), inputs_end, outputs, end, host_end)


class Staging:
    """The memory of one program; it is taken at the first run.

    Args:
        gpu: the GPU.
        externals: inputs, then outputs.
        words: how many Variables there are, iterations of loops included.
        mapped: the externals that kernels use in the page-locked memory.
        resets: whether kernels write the words of a run, which it begins with as zeros.
    """

    def __init__(
        self,
        gpu: Gpu,
        externals: Sequence[External],
        words: int,
        mapped: AbstractSet[int] = frozenset(),
        *,
        resets: bool = True,
    ) -> None:
        self._gpu = gpu
        self._mapped = mapped
        self._layout = _Layout.of(externals, words, mapped)
        first = _aligned(8 * (HEADER_WORDS + words))
        self._copies_in = bool(words) or resets or self._layout.inputs_end > first
        self._block = DeviceBlock(gpu, self._layout.end + _ALIGNMENT, "inputs and outputs of a run")
        self._own = {
            number: _block_of(external)(
                gpu, external.nbytes, f"{_kind(external)} {number} of a run"
            )
            for number, external in enumerate(externals)
            if self._layout.offsets[number] < 0
        }
        self._words = words
        self._written = False
        self._host: HostBlock | None = None

    def discard(self) -> None:
        """Give the memory back, until the next run."""
        for block in (self._block, *self._own.values()):
            block.discard()
        self._host = None

    @property
    def host(self) -> HostBlock:
        """The page-locked memory."""
        if self._host is None:
            self._host = HostBlock(self._gpu, self._layout.host_end + _ALIGNMENT)
        return self._host

    @property
    def variables(self) -> int:
        """The address of the first Variable, on the device."""
        return self._block.address + 8 * HEADER_WORDS

    @property
    def host_variables(self) -> int:
        """The address of the first Variable in the page-locked memory."""
        return self.host.address + 8 * HEADER_WORDS

    @property
    def signal(self) -> tuple[int, int]:
        """The words of :class:`~ostinato.backends.cuda.signal.Signal`, of the host and the device.

        They lie behind all else.
        """
        return self.host.address + self._layout.host_end, self._block.address + self._layout.end

    def address(self, number: int, nbytes: int) -> int:
        """The address of an input or output, as kernels use it.

        Args:
            number: of the input or output.
            nbytes: the bytes that are to have memory from now on.
        """
        offset = self._layout.offsets[number]
        if number in self._mapped:
            return self.host.address + offset
        return self._own[number].ready(0, nbytes) if offset < 0 else self._block.address + offset

    def host_address(self, number: int) -> int:
        """The address of a small input or output in the page-locked memory; 0 for a large one."""
        offset = self._layout.offsets[number]
        return 0 if offset < 0 else self.host.address + offset

    def write_variables(self, values: Sequence[int]) -> None:
        """Prepare the block of Variables of the next run."""
        if not self._words and not self._written:
            return  # zero from the start, and nothing copies words of a run back
        words = (ctypes.c_int64 * (HEADER_WORDS + len(values))).from_address(self.host.address)
        words[:] = [*_CLEAR, *values]

    def constant_words(self, values: Sequence[int]) -> ctypes.Array[ctypes.c_int64] | None:
        """The words that :meth:`write_variables` copies to the start of :attr:`host`, if any.

        The program has no steps that write them.
        """
        if not self._words:
            return None
        return (ctypes.c_int64 * (HEADER_WORDS + len(values)))(*_CLEAR, *values)

    def copy_in(self, driver: Driver, stream: int) -> None:
        """Copy Variables and small inputs to the device, if there are any."""
        if not self._copies_in:
            return  # the block is zeroed memory, which kernels leave as it is
        driver.copy(self._block.address, self.host.address, self._layout.inputs_end, stream)

    def copy_out(self, driver: Driver, stream: int, *, status: bool) -> None:
        """Copy small outputs to the host, and the words of the run if ``status`` is wanted."""
        start, end = self._layout.outputs, self._layout.end
        if end > start:
            driver.copy(self.host.address + start, self._block.address + start, end - start, stream)
        if status:
            self.copy_status(driver, stream)

    def copy_status(self, driver: Driver, stream: int) -> None:
        """Copy the words of the run to the host."""
        self._written = True
        driver.copy(self.host.address, self._block.address, 8 * HEADER_WORDS, stream)

    @property
    def failure(self) -> tuple[int, int]:
        """The code of the step that failed, or 0, and the number that it found, as copied."""
        return self._word(FAILED), self._word(FOUND)

    @property
    def goes_on(self) -> bool:
        """The last decision of a control kernel, as copied."""
        return bool(self._word(GOES_ON))

    def _word(self, position: int) -> int:
        address = self.host.address + 8 * (HEADER_WORDS + position)
        return ctypes.c_int64.from_address(address).value


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def _block_of(external: External) -> type[DeviceBlock]:
    """The kind of block for an input or output: paged, where it is large and of open size."""
    return PagedBlock if external.size and external.nbytes >= LARGE else DeviceBlock


def _kind(external: External) -> str:
    return "output" if external.written else "input"
