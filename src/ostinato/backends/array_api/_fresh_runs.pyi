"""Runs of compiled graphs that are one call of a function each; the sources are in ``csrc/``."""

from collections.abc import Callable, Sequence
from typing import Any

from ostinato.plan._order import Accesses

class FreshRun:
    """Runs of a program that is one function, with outputs that are new arrays.

    Args:
        executable: its attribute ``direct`` says whether to run, ``last`` gets the outputs.
        accesses: the memory that every run touches, besides its inputs.
        refuse: called where the calling thread has recorded; raises where a recording cannot hold
            the run.
        bind: called in turn with runs, before the first one and after :meth:`forget`. It returns
            the parts of a call: the function; for each operand its dict and key, or ``None`` and
            the number of an input; for each state the number of the result, its dict and key, and
            a function that copies it first, or ``None``; for each output the number of the result,
            and either a function that reads it, ``None``, ``None`` and 0, or one that makes an
            array of a shape, a dtype and a buffer, the shape, the dtype and the size in bytes; a
            function that every input goes through, or ``None``; one that makes a context manager
            for the call, or ``None``; and one that is called with all results, or ``None``.
        fail: called with an exception of the call; raises what is to be raised instead.
    """

    def __new__(
        cls,
        executable: object,
        accesses: Accesses,
        refuse: Callable[[], object],
        bind: Callable[[], tuple[Any, ...]],
        fail: Callable[[Exception], object],
    ) -> FreshRun: ...
    def __call__(self, inputs: list[Any], variables: Sequence[int], /) -> list[Any] | None:
        """Run on checked arrays of the host, in turn with what touches the same memory.

        Returns:
            The outputs; ``None``, and nothing has run, where an input is not contiguous, or the
            executable's ``direct`` is false when its turn has come.
        """
    def forget(self) -> None:
        """Bind the next run anew: memory has moved."""
