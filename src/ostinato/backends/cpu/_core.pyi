"""The CPU backend's native core: memory, threads, and prepared programs of kernel calls.

A kernel is a function of machine code at an address, called as::

    void kernel(char *const *buffers, const int64_t *vars, int64_t begin, int64_t end,
                char *scratch);

It processes rows ``begin`` to ``end`` of its extent; distinct rows may run on distinct threads.
``buffers[i]`` is the first byte of argument ``i``, ``vars[j]`` the value of variable ``j``, and
``scratch`` is private to the thread and 64-byte aligned. A *symbolic* quantity is given as the
address of ``int64_t f(const int64_t *vars)``.

What is checked here is what can be: counts, sizes, offsets, contiguity, writability. That an
address is a kernel, and that the kernel stays within its arguments, is the compiler's promise. Of
an array only the bytes count; names, shapes and element types are checked by the layer above.

``Buffer``, ``Slot``, ``Argument``, ``Control``, ``Step`` and ``Resident`` exist for type checkers
only: the extension does not have them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, final

import numpy as np
from typing_extensions import Buffer as _Buffer  # of collections.abc only from Python 3.12

from ostinato.plan.order import Accesses

__all__ = [
    "MAX_VARS",
    "Arena",
    "BoundCall",
    "CommandQueue",
    "Program",
    "Recording",
    "ThreadPool",
    "copy_kernel",
    "discard_kernel",
    "flat_nonzero_kernel",
    "memcpy_kernel",
    "permit_amx",
    "select_experts_kernel",
    "stage_experts_kernel",
    "suppress_kernel",
]

Buffer: TypeAlias = _Buffer | np.ndarray[Any, Any]
"""NumPy's stubs call its arrays buffers only from Python 3.12."""

Slot: TypeAlias = Buffer | tuple[int, bool] | tuple[int, bool, int]
"""Memory that steps refer to by its number.

A C-contiguous buffer (an :class:`Arena`, an array) is *fixed*: the program keeps it exported, and
so alive. A tuple ``(nbytes, written)`` is *external*: each run brings a buffer of at least
``nbytes`` bytes for it, writable if ``written``. ``(nbytes, written, nbytes_address)`` is external
with a size that depends on the variables; ``nbytes`` is then its maximum.
"""

Argument: TypeAlias = tuple[int, int]
"""``(slot, byte_offset)``."""

Control: TypeAlias = tuple[int, int, int, bool, bool]
"""``(kind, target, counter, conditional, counted)``.

The kinds are those of :class:`ostinato.lower.control.ControlKind`. ``target`` is the step that it
may jump to. A loop counts its iterations in the variable ``counter``, behind the ``n_vars`` of a
run. With ``conditional``, the first argument is a bool; with ``counted``, the one after it is the
trip count, an int64.
"""

Step: TypeAlias = (
    tuple[int, Sequence[Argument], int, int, int, int]
    | tuple[int, Sequence[Argument], int, int, int, int, bool]
    | tuple[int, Sequence[Argument], int, int, int, int, bool, Control]
)
"""``(kernel_address, args, extent, extent_address, grain, scratch_bytes[, threaded[, control]])``.

The kernel runs over ``[0, extent)``, or over the extent that the function at ``extent_address``
gives when that is not 0; an extent of 0 or less runs nothing. An extent of at most ``grain``, or a
step that is not ``threaded`` (default: it is), runs in one piece on the calling thread. Otherwise
the threads of the pool share it in pieces whose lengths are multiples of ``grain``, the last one
excepted.

A step with ``control`` runs no kernel, and its address is 0: it decides which step comes next. Its
extent is the most iterations of a loop.
"""

SizeStep: TypeAlias = tuple[None, Sequence[Argument], int, int, int, int, str]
"""``(None, args, variable, least, greatest, greatest_address, problem)``: a data-dependent size.

With two arguments, the run's variable of that number becomes the int64 that argument 0 holds, which
argument 1 gets as well: ``least`` to ``greatest``, or to what the function at ``greatest_address``
gives when that is not 0. Without arguments, and with a variable of -1, that greatest number is to
be at least ``least``. A number out of bounds ends the run: ``variable_error`` of the queue (without
one ``ValueError``) says ``problem`` and the number.
"""

Resident: TypeAlias = tuple[int, int, int, int]
"""``(variable, entry, min, max)``: a variable that can be read from an entry of a queue's block.

A value outside of ``min..max`` is refused.
"""

MAX_VARS: int
"""The most variables that a program can have."""

def permit_amx() -> tuple[bool, bool]:
    """Ask the system for permission to use the tile registers of Intel AMX.

    Returns:
        Whether bfloat16, and whether bytes, can be multiplied in tiles from now on. False where the
        processor or the system cannot, or the system refuses.
    """

memcpy_kernel: int
"""Address of a kernel that copies bytes ``[begin, end)`` of argument 1 to argument 0."""

discard_kernel: int
"""Address of a kernel that zeroes bytes ``[begin, end)`` of argument 0, its pages given back.

Argument 0 is memory of an :class:`Arena`; it takes pages again when it is written.
"""

copy_kernel: int
"""Address of the kernel of :class:`~ostinato.backends.cpu.rules.copy.Copying`.

Its plan is described in ``csrc/copying.h``; that it stays within the buffers is the caller's
promise.
"""

select_experts_kernel: int
"""Address of the kernel of :class:`~ostinato.backends.cpu.rules.expert_staging.Choosing`."""

stage_experts_kernel: int
"""Address of the kernel of :class:`~ostinato.backends.cpu.rules.expert_staging.Fetching`.

Its source is described in ``csrc/experts.h``: the file, and where in it the matrices are, are the
caller's promise; what can not be read is counted there.
"""

flat_nonzero_kernel: int
"""Address of the kernel of :class:`~ostinato.backends.cpu.rules.selection.FlatNonzero`."""

suppress_kernel: int
"""Address of the kernel of :class:`~ostinato.backends.cpu.rules.selection.Suppress`."""

@final
class Arena:
    """Zeroed memory, page aligned, exported as a writable buffer of bytes.

    It is given back to the system when nothing uses it any more: no reference, view or program.
    From 2 MiB on it is aligned to, and where the system allows it made of, huge pages.

    Raises:
        ValueError: ``nbytes`` is negative.
        MemoryError: the system has no such memory.
    """

    def __new__(cls, nbytes: int, *, huge_pages: bool = True) -> Arena: ...
    @classmethod
    def map_file(cls, file: int, nbytes: int, *, shared: bool = False) -> Arena:
        """Memory with the first bytes of a file as contents, which must never become shorter.

        Processes that map the same file share its pages; a page that one of them writes becomes
        its own. With ``shared``, what is written becomes the contents of the file instead.

        Args:
            file: a descriptor, which may be closed afterwards; open for writing too if ``shared``.
            nbytes: how many, at most as the file has.

        Raises:
            ValueError: the file is shorter, or ``nbytes`` is negative.
            OSError: the system can not map it.
        """
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def seal(self) -> None:
        """Make the bytes code: to be run and read, and never written again.

        Raises:
            OSError: the system forbids it.
        """
    @property
    def address(self) -> int:
        """Address of the first byte; a valid one even when there are no bytes."""
    @property
    def nbytes(self) -> int:
        """Length in bytes."""

@final
class ThreadPool:
    """Threads that share out the steps of programs; ``threads`` counts the calling thread.

    Every thread begins with the same share of the rows in each step, so that it finds them in its
    cache, and then helps the others. Threads are started by the first step worth sharing; between
    steps they spin for some 30 microseconds, then sleep. One step at a time has them: a step that
    finds them busy with another program's runs on its caller alone. After ``os.fork`` the child
    starts threads of its own.
    They end when neither a reference nor a program holds the pool.

    With ``recover_stolen_cores``, a thread of the pool that another process keeps off its core in
    the middle of its work is moved to the core of the caller, which waits. The caller itself is
    never moved.

    Raises:
        ValueError: ``threads`` is not in 1..1024.
    """

    def __new__(cls, threads: int, *, recover_stolen_cores: bool = False) -> ThreadPool: ...
    @property
    def threads(self) -> int:
        """How many threads share the work, the calling one included."""
    @property
    def workers(self) -> int:
        """How many threads have been started so far."""
    @property
    def recovers_stolen_cores(self) -> bool:
        """Whether threads that lost their cores to other processes are moved."""

@final
class CommandQueue:
    """Whether the bound calls of programs run or are recorded, and a block of variables.

    Args:
        capture_error: what is raised for what can not be done while recording.
        variable_error: what is raised for values of the block that do not fit.
        label: names the context in messages.
    """

    def __new__(
        cls,
        capture_error: type[Exception],
        variable_error: type[Exception],
        label: str | None = None,
    ) -> CommandQueue: ...
    @property
    def recording(self) -> bool:
        """Whether bound calls of the calling thread are recorded."""
    @property
    def recording_number(self) -> int:
        """The number of the recording that a thread is making, or 0."""
    @property
    def n_calls(self) -> int:
        """How many calls the recording that is being made has."""
    @property
    def accesses(self) -> Accesses:
        """What a write of the block or of its mode touches."""
    def begin(self, exclusive: bool, /) -> None:
        """Records the calling thread's bound calls; :meth:`Program.run` raises ``capture_error``.

        An exclusive recording fails when its thread submits to another queue, which raises.

        Raises:
            capture_error: it records already.
        """
    def end(self) -> Recording:
        """Records no longer; what was recorded.

        Raises:
            capture_error: this thread does not record; or what made the recording fail.
        """
    def cancel(self) -> None:
        """Records no longer, whichever thread does, and forgets what was recorded."""
    def uses(self, object: object, /) -> bool:
        """Whether what was recorded so far runs on this memory, or is a call of this program."""
    from_block: bool
    """Whether bound calls read resident variables from the block."""
    block: tuple[int, int, int]
    """The values of ``token``, ``position`` and ``kv_len``: 0, 0 and 1 at first."""

@final
class Recording:
    """Bound calls that a :class:`CommandQueue` recorded; they stay alive with it."""

    @property
    def n_calls(self) -> int:
        """How many calls."""
    @property
    def accesses(self) -> Accesses:
        """What a replay touches."""
    def replay(self) -> None:
        """Runs all calls, in order, with the GIL released once.

        Those that were recorded while their queue's ``from_block`` was set read resident variables
        from the block, as it is now.

        Raises:
            variable_error: a value of the block is out of bounds, or a bound buffer too small for
                it. Nothing has run.
            Exception: what a stopped program raises.
        """
    def uses(self, object: object, /) -> bool:
        """Whether a call is one of this program, or runs on this buffer."""

@final
class Program:
    """A prepared list of kernel calls. Nothing is allocated per run, and the GIL is released.

    Runs of one program on several threads take turns. Variables are 0 until set.

    Args:
        pool: the threads that share the steps.
        slots: the memory that steps refer to.
        steps: the steps, in order.
        n_vars: number of variables that kernels read.
        owner: any object to keep alive with the program, such as the owner of the machine code.
        exclusive_with: another program that shares memory with this one. Runs of one wait for runs
            of the other, and for those of all others that exclude it.
        queue: records bound calls, and holds resident variables.
        resident: the variables that can be read from the queue's block.
        touches: memory that every run touches, each ``(address, nbytes, written)``; beside that, a
            run touches its buffers, the queue's block if it reads that, and a token that stands for
            this program and those that it excludes.
        sources: further objects for which :meth:`uses` returns ``True``.
        limit_slot: the fixed slot that holds limits which kernels read; see :meth:`set_limits`.

    Raises:
        TypeError, ValueError, IndexError: naming the slot or step, and what is wrong with it.
        MemoryError: no memory for the tables or the scratch.
    """

    def __new__(
        cls,
        pool: ThreadPool,
        slots: Sequence[Slot],
        steps: Sequence[Step | SizeStep],
        n_vars: int,
        *,
        owner: object = None,
        exclusive_with: Program | None = None,
        queue: CommandQueue | None = None,
        resident: Sequence[Resident] = (),
        touches: Sequence[tuple[int, int, bool]] = (),
        sources: tuple[object, ...] = (),
        limit_slot: int = -1,
    ) -> Program: ...
    direct: bool
    """Whether :meth:`run_direct` runs it."""
    last: Any
    """The outputs of the last direct run, or whatever was assigned since; or ``None``."""
    @property
    def accesses(self) -> Accesses:
        """What every run touches beside the buffers that it brings."""
    @property
    def n_steps(self) -> int:
        """How many steps."""
    @property
    def n_vars(self) -> int:
        """How many variables."""
    @property
    def n_externals(self) -> int:
        """How many buffers each run brings."""
    def run(self, buffers: Sequence[Buffer] = (), vars: Sequence[int] | None = None) -> None:
        """Runs all steps on ``buffers``, one per external slot in order, when its turn has come.

        Within a submission of the calling thread's, it is a part of that.

        ``vars`` are kept for later runs; ``None`` uses those kept. Buffers may be larger than
        needed. A written buffer that overlaps another one is refused.

        Raises:
            TypeError, ValueError: naming the slot or the variable. Nothing has run or changed.
            capture_error: of the queue, which records.
        """
    def run_direct(
        self,
        inputs: Sequence[Buffer],
        outputs: Sequence[Buffer],
        vars: Sequence[int] | None,
        /,
    ) -> bool:
        """Like :meth:`run` on both, and :attr:`last` becomes a tuple of ``outputs``.

        Returns:
            ``False``, and nothing has run, where :attr:`direct` is off when its turn has come.
        """
    def run_profiled(
        self, buffers: Sequence[Buffer] = (), vars: Sequence[int] | None = None
    ) -> list[float]:
        """Like :meth:`run`; returns the seconds that each step took."""
    def bind(self, buffers: Sequence[Buffer] = (), vars: Sequence[int] | None = None) -> BoundCall:
        """Checks and holds ``buffers``; the result runs the program on them.

        With ``vars``, every call uses those, and buffers need the bytes that those take. Without,
        each call uses the program's variables of the moment, and buffers need their maximum. With
        the queue's ``from_block`` set, resident variables are read from the block instead, now and
        at each call.

        Raises:
            TypeError, ValueError: as :meth:`run`.
        """
    def set_vars(self, vars: Sequence[int]) -> None:
        """Sets the variables for the runs that bring none. Runs in progress keep theirs.

        Raises:
            TypeError, ValueError: naming the variable; none has changed.
        """
    def move_slot(self, slot: int, buffer: Buffer, /) -> None:
        """Has all later runs use ``buffer`` for a fixed slot, those of bound calls too.

        The former memory is let go. What it held is not copied: that is for the caller to do. A
        run in progress comes to its end first, with the GIL held meanwhile.

        Raises:
            IndexError: there is no such slot, or it is external.
            ValueError: the buffer is not contiguous, or smaller than the former one.
        """
    def stop(self, error: Exception, /) -> None:
        """Lets the memory of fixed slots go; all later runs, of bound calls too, raise ``error``.

        A run in progress comes to its end first, with the GIL held meanwhile. Stopped once more,
        the program keeps raising the first error.
        """
    def uses(self, memory: object, /) -> bool:
        """Whether this object is the memory of a fixed slot, or a source; of a tuple, all items."""
    def set_limits(self, limits: bytes | None, /) -> None:
        """Has all later runs, those of bound calls too, leave out steps' work beyond a limit.

        Runs of threads that have limits of their own go by those.

        Args:
            limits: an int64 for each step, which bounds its extent; then the bytes of
                ``limit_slot``, from which kernels read limits of their own. ``None``: steps run in
                full, and those bytes are zero.

        Raises:
            TypeError, ValueError: a limit is negative, or they are not as long as that. Nothing has
                changed.
        """
    def push_limits(self, limits: bytes | None, /) -> None:
        """The same for later runs of the calling thread alone, until :meth:`pop_limits`."""
    def pop_limits(self) -> None:
        """Undoes the calling thread's last :meth:`push_limits`.

        Raises:
            RuntimeError: it has no limits of its own.
        """

@final
class BoundCall:
    """A program and its buffers, checked by :meth:`Program.bind` and alive as long as this is."""

    def __call__(self) -> None:
        """Runs the program: no checks, no allocation. While its queue records: is recorded.

        Raises:
            variable_error: of the queue; as :meth:`Recording.replay`. Also, while ``from_block`` is
                not set, for resident variables that :meth:`Program.bind` was not given, or was
                given while it was set.
        """
