"""Work that a device has made ready to run, any number of times: encoded ops and recordings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ostinato.plan.order import Accesses

__all__ = ["Encoded", "KeptRecording", "Recording"]


class Recording(Protocol):
    """What was submitted between begin and end, frozen by a device."""

    @property
    def n_calls(self) -> int:
        """How many submissions it holds."""

    @property
    def accesses(self) -> Accesses:
        """The memory that a replay touches."""

    def replay(self) -> None:
        """Run all of it, in order, as one launch."""

    def uses(self, memory: object, /) -> bool:
        """Whether it touches this memory, or runs this program."""


class KeptRecording:
    """A recording that a context keeps under a key.

    Args:
        serial: no two recordings of a context have the same.
        recording: the device's.
        after: calls that are part of every replay.

    Attributes:
        dropped: whether memory that it uses has changed since; then it is never replayed.
    """

    __slots__ = ("_after", "dropped", "recording", "serial")

    def __init__(
        self, serial: int, recording: Recording, after: Sequence[Callable[[], object]]
    ) -> None:
        self.serial = serial
        self.recording = recording
        self.dropped = False
        self._after = tuple(after)

    def replay(self) -> None:
        """Run it, and what belongs to every replay."""
        self.recording.replay()
        for call in self._after:
            call()


class Encoded(ABC):
    """Prepared ops made ready to run by a context, any number of times, as one submission.

    It is what a plan runs through as well (:class:`~ostinato.plan.execution_plan.Runner`).
    """

    @property
    @abstractmethod
    def accesses(self) -> Accesses:
        """The memory that a run touches."""

    @abstractmethod
    def launch(self) -> None:
        """Run all ops on the calling thread; while that records, be recorded instead."""

    @abstractmethod
    def run(self, variables: Sequence[int]) -> None:
        """Run all ops with these values of the Variables."""

    @abstractmethod
    def run_profiled(self, variables: Sequence[int]) -> Sequence[float]:
        """Run; the seconds that each op but views took."""

    @abstractmethod
    def close(self) -> None:
        """Give back what is held for running; from now on running raises :class:`PlanError`."""

    @abstractmethod
    def check(self) -> None:
        """Raises what keeps the ops from running."""

    @abstractmethod
    def discard(self) -> None:
        """Give back the memory of what lives within a run and is not the caller's."""
