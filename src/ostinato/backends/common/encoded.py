"""Work that a device has encoded, to be run any number of times: ops and recordings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ostinato.plan.order import Accesses
    from ostinato.plan.profile import StepTime

__all__ = ["Encoded", "KeptRecording", "Recording"]


class Recording(Protocol):
    """The submissions between begin and end of a recording."""

    @property
    def n_calls(self) -> int:
        """The number of submissions."""

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
        serial: unique among the recordings of a context.
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
        """Run it, then the calls that are part of every replay."""
        self.recording.replay()
        for call in self._after:
            call()


class Encoded(ABC):
    """Prepared ops encoded by a context, to be run any number of times, as one submission.

    It is a runner of plans as well (:class:`~ostinato.plan.execution_plan.Runner`).
    """

    @property
    @abstractmethod
    def accesses(self) -> Accesses:
        """The memory that a run touches."""

    @property
    def held(self) -> Accesses:
        """The same, of what has been taken by now: all of it is the caller's."""
        return self.accesses

    @abstractmethod
    def launch(self) -> None:
        """Run all ops on the calling thread; while that records, record them instead."""

    @abstractmethod
    def run(self, variables: Sequence[int]) -> None:
        """Run all ops with these values of the Variables."""

    @abstractmethod
    def run_profiled(self, variables: Sequence[int]) -> Sequence[StepTime]:
        """Run; return the time of each op but views."""

    @property
    def live_sizes(self) -> Mapping[str, int]:
        """The values of data-dependent Variables: of single ops, there are none."""
        return {}

    @abstractmethod
    def close(self) -> None:
        """Give back its memory; from now on running raises :class:`PlanError`."""

    @abstractmethod
    def check(self) -> None:
        """Check that the ops can run; raises the reason if not."""

    @abstractmethod
    def discard(self) -> None:
        """Give back the memory of intermediate buffers that are not the caller's."""
