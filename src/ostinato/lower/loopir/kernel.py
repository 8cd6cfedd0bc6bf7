"""The interface of kernels: arguments, Variables, memory accesses and a text form.

A device's own kernels add how they are launched and rendered; nothing shared asks for that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ostinato.lower.loopir.nodes import Arg
    from ostinato.lower.loopir.text import KernelText
    from ostinato.variables import Dim, Symbol

__all__ = ["Access", "Kernel"]


@dataclass(frozen=True)
class Access:
    """An element that a kernel reads or writes: the argument's position, and the offset in it."""

    position: int
    index: Dim
    writes: bool


class Kernel(ABC):
    """A unit of work over buffers.

    Attributes:
        args: the buffers, in the order of the kernel's ``buffers``.
        variables: the graph's Variables, in the order of the kernel's ``vars``.
    """

    args: tuple[Arg, ...]
    variables: tuple[Symbol, ...]

    @abstractmethod
    def describe(self, text: KernelText) -> None:
        """Write everything that the kernel's code depends on."""

    def accesses(self) -> Iterable[Access]:
        """Known element accesses; an argument without any is touched at unknown places."""
        return ()

    def elements(self, position: int, *, writes: bool) -> Dim | None:
        """An upper bound on the elements of an argument that are touched; ``None``: all of them."""
        return None

    @property
    def directing(self) -> Mapping[int, object]:
        """By position, the arguments whose contents the kernel takes for positions, unchecked.

        Such are plans of copies, tables of slots, numbers of masked rows: ``None`` means that only
        the very buffer that the kernel was compiled with will do. For a list of rows it is the
        layout of that list; see :attr:`listing`.
        """
        return {}

    @property
    def listing(self) -> tuple[int, object] | None:
        """The argument that the kernel writes a list of rows to, and the list's layout."""
        return None

    def variable_free(self) -> bool:
        """Whether the kernel does the same whatever values its Variables have."""
        return not self.variables

    @property
    def row_axis(self) -> Symbol | None:
        """The outermost axis of the kernel's range, of a known size, if a launch may stop early."""
        return None
