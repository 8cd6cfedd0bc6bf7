"""The buffers that the arguments of a kernel are in: how a launch binds them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ostinato.backends.webgpu.kernel import Bindings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.lower.loopir.nodes import Arg

__all__ = ["Arguments", "offset_unit"]

_WORD = 4


class Arguments(NamedTuple):
    """The arguments of a launch, in memory that consists of slots.

    Attributes:
        bindings: as the kernel is rendered for them.
        buffers: by binding, the slot, and the number of the slot's buffer.
        first: by argument, the number of the buffer that its offset counts from.
    """

    bindings: Bindings
    buffers: tuple[tuple[int, int], ...]
    first: tuple[int, ...]

    @staticmethod
    def of(
        args: Sequence[Arg],
        places: Sequence[tuple[int, int]],
        sizes: Sequence[int],
        part_bytes: int,
        *,
        aligned: bool = True,
    ) -> Arguments:
        """The arguments of a kernel.

        Args:
            args: what the kernel does with each.
            places: the slot and the offset of each.
            sizes: the bytes of each.
            part_bytes: of each buffer of a slot but the last.
            aligned: see :class:`~ostinato.backends.webgpu.kernel.Bindings`.
        """
        numbers: dict[tuple[int, int], int] = {}
        written: set[tuple[int, int]] = set()
        listed, first = [], []
        for arg, (slot, offset), nbytes in zip(args, places, sizes, strict=True):
            # Nothing is at the end of a slot, where there may be no buffer any more.
            start = (offset if nbytes else max(offset - 1, 0)) // part_bytes
            end = max(offset + nbytes - 1, 0) // part_bytes
            parts = [(slot, part) for part in range(start, max(start, end) + 1)]
            for part in parts:
                numbers.setdefault(part, len(numbers))
            written.update(parts if arg.writes else ())
            listed.append(tuple(numbers[part] for part in parts))
            first.append(start)
        writable = tuple(part in written for part in numbers)
        return Arguments(Bindings(tuple(listed), writable, aligned), tuple(numbers), tuple(first))


def offset_unit(arg: Arg) -> int:
    """The bytes that the offset of an argument is counted in: an element, at most a word."""
    return min(arg.dtype.itemsize, _WORD)
