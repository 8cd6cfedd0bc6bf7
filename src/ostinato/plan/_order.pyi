"""The order of what is submitted, by the memory that it touches; the sources are in ``csrc/``."""

from collections.abc import Callable, Iterable, Iterator
from typing import Self

class Accesses:
    """Ranges of memory that a submission touches, each ``(address, nbytes, written)``."""

    def __init__(self, ranges: Iterable[tuple[int, int, bool]]) -> None: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> tuple[int, int, bool]: ...
    def __iter__(self) -> Iterator[tuple[int, int, bool]]: ...

class Submission:
    """A position in the order of submissions, taken when this is made.

    In a ``with``, it waits for its turn, and has taken effect at the end of the block. One that is
    made by a thread within another of its own is part of that: it waits for nothing.
    """

    def __init__(self, *accesses: Accesses) -> None: ...
    def begin(self) -> Self:
        """Wait for what was submitted before and touches the same memory.

        Raises:
            RuntimeError: it has begun before, or a signal handler's exception withdrew it.
        """
    def end(self) -> None:
        """It has taken effect: what waits for it may go on."""
    def __enter__(self) -> Self: ...
    def __exit__(self, *exception: object) -> None: ...

def in_flight() -> int:
    """How many submissions have not taken effect yet."""

def set_hook(hook: Callable[[str], object] | None, /) -> Callable[[str], object] | None:
    """Have ``hook`` called with the name of each point where threads may be switched.

    These are ``"enter"``, before a submission is made; ``"wait"``, again and again while it waits;
    ``"begin"``, when its turn has come; and ``"leave"``, when it has taken effect.

    Returns:
        The former one.
    """

def begin_recording(label: object, exclusive: bool, /) -> int:
    """The number of a recording that the calling thread makes for the context of this label.

    An exclusive one fails when the thread submits something to another context.
    """

def end_recording(number: int, /) -> str | None:
    """End a recording; what made it fail."""

def is_recording(number: int, /) -> bool:
    """Whether the calling thread makes this recording."""

def refuse_elsewhere(number: int, label: object, error_type: type[Exception], /) -> None:
    """Refuse a submission to a context while the calling thread makes another one's recording.

    Args:
        number: the recording that is made for the context, or 0.
        label: names it.
        error_type: what to raise.

    Raises:
        error_type: the thread makes an exclusive recording of another number, which will fail.
    """

def fail_recording(number: int, message: str, /) -> None:
    """Make a recording fail when it ends; the first message stays."""
