"""Calls that are one launch of a CUDA graph each; the sources are in ``csrc/``."""

from collections.abc import Callable, Iterable, Sequence

from ostinato.plan._order import Accesses

class Epoch:
    """The time in which a program's memory stays where it is."""

    def __new__(cls) -> Epoch: ...
    def end(self) -> None:
        """No run of this epoch takes place from now on."""

class GraphRun:
    """A run that is one CUDA graph, between copies by the processor.

    Args:
        epoch: in which all addresses hold.
        calls: the driver's entry points: push and pop of a context, the launch of a graph, and the
            synchronisation with a stream.
        refuse: called with the name and the status of such a call that failed; raises.
        handles: the context, the executable graph, the stream, and the address of a word that
            changes when the graph is done; 0: there is none.
        before, after: copies ``(outside, inside, nbytes)``, inwards and outwards.
        accesses: the memory that it touches.
        owners: own all of the memory.
        words: the address of the first of the int64 that :meth:`run_on` and :meth:`run` write
            before the graph, and their number.
    """

    def __new__(
        cls,
        epoch: Epoch,
        calls: Sequence[int],
        refuse: Callable[[str, int], object],
        handles: Sequence[int],
        before: Sequence[tuple[int, int, int]],
        after: Sequence[tuple[int, int, int]],
        accesses: Accesses,
        owners: Iterable[object],
        words: tuple[int, int],
    ) -> GraphRun: ...
    def run_on(
        self,
        inputs: Sequence[object],
        outputs: tuple[object, ...],
        executable: object,
        variables: Sequence[int],
        /,
    ) -> bool:
        """Run on other arrays of the host, one in the place of each copy's, in their order.

        It takes its turn in the order of submissions. Then it looks at the executable's attribute
        ``direct``, and makes the outputs its ``last``.

        Args:
            inputs, outputs: the arrays.
            executable: see above.
            variables: what the words are to be.

        Returns:
            Whether it could: the epoch is not over, the arrays are as large, there are as many
            words, and ``direct`` is true. Else nothing has happened.

        Raises:
            ValueError: an array is not contiguous, or an output overlaps another one.
        """

    def run(self, variables: Sequence[int], /) -> bool:
        """Run, within a submission of the caller's.

        Args:
            variables: what the words are to be.

        Returns:
            Whether it could: the epoch is not over, and there are as many words. Else nothing has
            happened.
        """

class GraphCall:
    """A bound call that runs as a :class:`GraphRun` where it can.

    Args:
        slowly: makes the call with all checks; returns the run that later calls are, or ``None``.
        commands: its attribute ``recording_number`` is the number of the recording that is made
            for the context of the call, or 0.
    """

    def __new__(cls, slowly: Callable[[], GraphRun | None], commands: object) -> GraphCall: ...
    def __call__(self) -> None:
        """Take the call's turn in the order of submissions, run, and wait."""

    def start(self) -> bool:
        """Take the call's turn and launch it, without waiting.

        Inputs may be written from then on; outputs have their values after :meth:`finish`. What
        touches the same memory waits for that, even if it is this thread's: it would wait for ever.

        Returns:
            Whether it could. Else nothing has happened: the call is no :class:`GraphRun` yet, may
            be recorded, or is made within a submission.

        Raises:
            RuntimeError: it has been started, and not finished.
        """

    def finish(self) -> None:
        """Wait for the call that was started, if one was."""
