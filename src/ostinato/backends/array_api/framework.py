"""The interface of array frameworks: what a device of this folder is made of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from ostinato.backends.array_api.evaluator import NativeRule
    from ostinato.backends.array_api.namespace import ArrayNamespace
    from ostinato.backends.base import Capabilities
    from ostinato.dtypes import DType
    from ostinato.ir.graph import Node

    #: A compiled function of a framework: arrays in, arrays out.
    Traced: TypeAlias = Callable[..., Sequence[Any]]

__all__ = ["ArrayFunction", "Framework", "FunctionMemory", "Traced"]


class FunctionMemory(NamedTuple):
    """The memory of a compiled function, in bytes.

    Attributes:
        temporary: what it takes while it runs, besides operands and results.
        unshared: the same without sharing, as far as is known.
    """

    temporary: int = 0
    unshared: int = 0


class ArrayFunction(Protocol):
    """A function that a framework has compiled for operands of certain shapes."""

    @property
    def text(self) -> str:
        """The optimised code as text, in the framework's own notation."""

    @property
    def memory(self) -> FunctionMemory:
        """The memory that it takes."""

    @property
    def stored(self) -> bool:
        """Whether its code was read from disk."""

    @property
    def call(self) -> Callable[..., Sequence[Any]]:
        """Runs it on operands, with the framework's errors."""

    def __call__(self, operands: Sequence[Any]) -> Sequence[Any]:
        """Run it; the results may still be under way."""


class Framework(ABC):
    """An array framework on one of its devices.

    Arrays are immutable: a function's results are new ones, and those of its donated operands are
    gone.

    Attributes:
        label: its name in messages.
        xp: its functions.
        rules: by op, its own ways to compute one.
        capabilities: the ops and dtypes of a device of it.
        starts_calls: whether what is called is under way at once: :meth:`launch` does nothing.
        holds_narrow: whether there are arrays of 8-bit floats. If not, :meth:`from_host` makes one
            of their bytes, which nothing reads: what has read it is not in the graph any more.
    """

    label: str
    xp: ArrayNamespace
    rules: Mapping[str, NativeRule]
    capabilities: Capabilities
    starts_calls: bool = False
    holds_narrow: bool = True

    @abstractmethod
    def on_host(self, node: Node) -> bool:
        """Whether the host takes a node: for lack of a function, or since it decides what runs."""

    @abstractmethod
    def scope(self) -> AbstractContextManager[object]:
        """The settings under which arrays are made and functions compiled and run.

        Nothing of the process outside changes.
        """

    def launching(self) -> AbstractContextManager[object]:
        """The settings under which compiled functions run: less than :meth:`scope`, if possible."""
        return self.scope()

    @abstractmethod
    def from_host(self, array: np.ndarray[Any, Any], *, copy: bool) -> Any:
        """A framework's array of the elements of a C-contiguous array.

        Args:
            array: the elements.
            copy: whether it is kept; else it may share memory that is left alone until the next
                :meth:`wait`.
        """

    def settings(
        self, inputs: Iterable[DType]
    ) -> Callable[[], AbstractContextManager[object]] | None:
        """The settings that calls need on arrays of the host of these dtypes; ``None``: none."""
        return self.launching

    @property
    def taken(self) -> Callable[[np.ndarray[Any, Any]], Any]:
        """A function that does the same as :meth:`snapshot`, one of C's where there is one."""
        return self.snapshot

    @property
    def lent(self) -> Callable[[np.ndarray[Any, Any]], Any] | None:
        """A function that makes an operand on memory left alone until the results are there.

        ``None``: the array is one.
        """
        return lambda array: self.from_host(array, copy=False)

    def snapshot(self, array: np.ndarray[Any, Any]) -> Any:
        """An operand of compiled functions: the elements that a C-contiguous array has now."""
        return self.from_host(array, copy=True)

    @abstractmethod
    def to_host(self, array: Any) -> np.ndarray[Any, Any]:
        """The elements of an array, in its memory where the host can read that.

        Raises:
            DeviceError: the device failed to compute it.
        """

    @property
    def copied_out(self) -> Callable[[Any], np.ndarray[Any, Any]]:
        """A function that copies the elements of an array to the host."""
        return lambda array: np.array(self.to_host(array), order="C")

    def gives(self, nbytes: int) -> bool:
        """Whether arrays of this size have an address on the host, to be written there.

        They have JAX's methods ``block_until_ready`` and ``unsafe_buffer_pointer`` then.
        """
        return False

    @abstractmethod
    def failure(self, error: Exception) -> None:
        """Raise the error for one of a compiled function's call, unless it is one of ours."""

    @abstractmethod
    def copy(self, array: Any) -> Any:
        """A copy that shares no memory."""

    @abstractmethod
    def wait(self, arrays: Sequence[Any]) -> None:
        """Wait until arrays are computed.

        Raises:
            DeviceError: the device failed.
        """

    def launch(self, arrays: Sequence[Any]) -> None:
        """Have arrays computed; :meth:`to_host` waits for what it reads.

        Raises:
            DeviceError: the device failed already.
        """
        self.wait(arrays)

    @abstractmethod
    def compile(
        self,
        function: Traced,
        operands: Sequence[tuple[DType, tuple[int, ...]]],
        donated: Sequence[int],
    ) -> ArrayFunction:
        """Compile a function ahead of its runs.

        Args:
            function: computes results by :attr:`xp`; called once, to be traced.
            operands: their types.
            donated: positions of operands whose memory results may take.

        Raises:
            DeviceError: the framework refused; the message says why.
        """

    @abstractmethod
    def adopt(self, array: Any) -> Any:
        """An array of another library on the same device, by DLPack, without a copy.

        Raises:
            InputError: it is elsewhere.
        """
