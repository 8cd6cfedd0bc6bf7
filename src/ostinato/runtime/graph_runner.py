"""The policy that runs a step eagerly, records it, or replays it."""

from __future__ import annotations

import operator
import threading
import warnings
from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from ostinato.errors import CaptureError, InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ostinato.backends.common.context import Context

__all__ = ["GraphRunner"]

R = TypeVar("R")


class GraphRunner:
    """Runs steps, and replays recordings of them as soon as that pays.

    A step is a callable that submits work to the context, and to no other: it calls bound calls,
    ``commit_no_wait``, or commits sessions. The first ``warmup`` calls of a key are eager, so that
    whatever is compiled or allocated once is by then. The next one records the step and replays
    the recording, which has the effect of one run; from then on there are replays alone.

    Where recording fails, or the first replay does, the call is made eagerly and has its effect
    all the same; there is one warning, and the key stays eager. A recording that was dropped, since
    memory that it used was freed, is made anew.

    >>> runner = ost.GraphRunner(session.context)
    >>> for position in range(64):
    ...     session.context.set_decode_state(token, position)
    ...     runner.run(0, bound)

    It may be used from many threads; calls happen one after the other. Keys are those of the
    context: runners that share it should use different ones, or they record anew at every turn.

    Args:
        context: where steps are submitted.
        warmup: how many calls of a key are eager before it is recorded.
        max_graphs: how many keys are remembered. Beyond, the one that was used longest ago is
            forgotten, together with its recording.

    Raises:
        InputError: ``warmup`` is no int >= 0, or ``max_graphs`` no int >= 1.

    Attributes:
        eager: how many calls ran their step.
        captured: how many recordings were made.
        replayed: how many calls replayed one, those that made it included.
        skipped: by reason, how many recordings were given up: ``"unsupported"`` (by the device),
            ``"begin"``, ``"step"`` (which did what a recording cannot hold, such as to submit to
            another context), ``"empty"`` (it submitted nothing to this one), ``"end"``,
            ``"replay"``.
    """

    def __init__(self, context: Context, warmup: int = 3, max_graphs: int = 16) -> None:
        self.context = context
        self.warmup = _at_least("warmup", 0, warmup)
        self.max_graphs = _at_least("max_graphs", 1, max_graphs)
        self.eager = self.captured = self.replayed = 0
        self.skipped: Counter[str] = Counter()
        self._entries: OrderedDict[int, _Entry] = OrderedDict()
        self._lock = threading.RLock()  # a step may itself use this runner

    def run(self, key: int, step: Callable[[], R]) -> R | None:
        """Make ``step`` happen once, eagerly or by replay.

        Inside a recording of the caller's, the step becomes a part of that.

        Args:
            key: names the recording. Steps that submit different work need different keys.
            step: submits the work. What it does besides happens in eager calls only, and once,
                without effect on the device, while it is recorded.

        Returns:
            What ``step`` returned, ``None`` from a replay.

        Raises:
            InputError: ``key`` is no int.
            Exception: what ``step`` raises in an eager call, and faults of the device in a replay.
        """
        number = _as_key(key)
        with self._lock:
            if self.context.capturing:
                return step()
            entry = self._entry(number)
            if entry.stays_eager or entry.calls < self.warmup:
                return self._run_eagerly(entry, step)
            if self._owns(number, entry) and self.context.replay_graph(number):
                self.replayed += 1
                return None
            if self.context.capturing_number:  # another thread's; the next call may record
                return self._run_eagerly(entry, step)
            return self._record(number, entry, step)

    __call__ = run

    def __contains__(self, key: object) -> bool:
        """Whether ``key`` is remembered."""
        return key in self._entries

    def __len__(self) -> int:
        """The number of keys that are remembered."""
        return len(self._entries)

    def __repr__(self) -> str:
        return (
            f"<GraphRunner: {len(self)} keys; {self.eager} eager, {self.captured} captured, "
            f"{self.replayed} replayed, skipped {dict(self.skipped)}>"
        )

    # -- machinery --------------------------------------------------------------------------------

    def _entry(self, key: int) -> _Entry:
        entry = self._entries.setdefault(key, _Entry())
        self._entries.move_to_end(key)
        if len(self._entries) > self.max_graphs:
            forgotten, oldest = self._entries.popitem(last=False)
            if self._owns(forgotten, oldest):
                self.context.reset_graph(forgotten)
        return entry

    def _owns(self, key: int, entry: _Entry) -> bool:
        """Whether the context has the very recording that was made here, and no later one."""
        return bool(entry.serial) and entry.serial == self.context.recording_serial(key)

    def _run_eagerly(self, entry: _Entry, step: Callable[[], R]) -> R:
        result = step()
        entry.calls += 1
        self.eager += 1
        return result

    def _record(self, key: int, entry: _Entry, step: Callable[[], R]) -> R | None:
        """Record and replay; where that fails, run eagerly, now and in future."""
        failure = self._capture(key, step)
        if failure is None:
            entry.serial = self.context.recording_serial(key)
            self.captured += 1
            self.replayed += 1
            return None
        # If this fails as well, the step is to blame and not its recording: it may try again.
        result = self._run_eagerly(entry, step)
        entry.stays_eager = True
        self.skipped[failure.reason] += 1
        if failure.reason != "unsupported":
            warnings.warn(
                f"graph {key} could not be captured ({failure.reason}: {failure.cause}); "
                "it runs eagerly from now on",
                RuntimeWarning,
                stacklevel=3,
            )
        return result

    def _capture(self, key: int, step: Callable[[], object]) -> _Failure | None:
        """Record ``step`` and replay that once; what went wrong leaves nothing behind."""
        context, stage, done = self.context, "begin", False
        if not context.supports_capture:
            return _Failure("unsupported", "the device cannot record")
        try:
            context.begin_graph_capture(exclusive=True)
            stage = "step"
            step()
            stage = "empty"
            if not context.captured_calls:
                raise CaptureError(f"the step submitted nothing to {context.label}")
            stage = "end"
            context.end_graph_capture(key)
            stage = "replay"
            done = context.replay_graph(key)
        except Exception as error:
            return _Failure(stage, f"{type(error).__name__}: {error}")
        finally:
            if not done:
                if context.capturing:
                    context.cancel_graph_capture()
                context.reset_graph(key)
        return None if done else _Failure(stage, "the recording was dropped at once")


@dataclass(slots=True)
class _Entry:
    """The record of a key."""

    calls: int = 0  #: eager ones
    serial: int = 0  #: of the last recording that worked; 0: there was none
    stays_eager: bool = False


@dataclass(frozen=True, slots=True)
class _Failure:
    """At which stage a recording failed, and why."""

    reason: str
    cause: str


def _at_least(name: str, least: int, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(f"{name} is an int >= {least}, got {value!r:.80}")
    return value


def _as_key(key: object) -> int:
    try:
        return operator.index(key)  # type: ignore[arg-type]
    except TypeError:
        raise InputError(f"a graph's key is an int, got {key!r:.80}") from None
