"""Every error that Ostinato raises on purpose.

All derive from :class:`OstinatoError`, so ``except ost.OstinatoError`` catches whatever is the
caller's to mend. A message names what was asked, what was expected and what to do about it.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "Cancelled",
    "CaptureError",
    "CircularBuildError",
    "ContextError",
    "DeviceError",
    "DeviceMemoryError",
    "DeviceUnavailableError",
    "GraphError",
    "InputError",
    "ModelFormatError",
    "OstinatoError",
    "Overloaded",
    "PlanError",
    "SessionStateError",
    "UnsupportedOpError",
    "VariableError",
]


class OstinatoError(Exception):
    """Base class of all errors raised by Ostinato."""


class GraphError(OstinatoError):
    """A graph is malformed: operands that do not fit, duplicate leaf names, no outputs.

    Attributes:
        located: whether the message names the op, its operands and the user's source line yet.
        requirements: the conditions on symbolic sizes (:class:`ostinato.variables.Requirement`)
            that do not hold for all of them, where that is the reason.
    """

    located = False
    requirements: tuple[Any, ...] = ()

    @classmethod
    def of(cls, message: str, *requirements: Any) -> GraphError:
        """The error for conditions that do not hold for all values of Variables."""
        error = cls(message)
        error.requirements = requirements
        return error


class InputError(OstinatoError, ValueError):
    """An input or param is unknown, missing, or of the wrong shape or dtype. Nothing has run."""


class VariableError(OstinatoError, ValueError):
    """A symbolic size is unknown, out of bounds or contradictory. Nothing has run."""


class PlanError(OstinatoError):
    """An execution plan is inconsistent or its memory has been released."""


class UnsupportedOpError(OstinatoError, NotImplementedError):
    """A device or a front end has no rule for some nodes; the message lists every one.

    Attributes:
        inputs: inputs of a model whose values its shapes follow from: the import may succeed with
            them among ``constants``.
    """

    inputs: frozenset[str] = frozenset()


class DeviceUnavailableError(OstinatoError):
    """The device is not present here, or the packages that drive it are not installed."""


class DeviceError(OstinatoError):
    """A device failed while it was in use; the message says whether it can be used again."""


class DeviceMemoryError(DeviceError, MemoryError):
    """A device has not enough free memory. Nothing has run."""


class CaptureError(OstinatoError):
    """Something was attempted that a graph capture cannot hold."""


class CircularBuildError(OstinatoError, RuntimeError):
    """Building an entry of a cache asks for that very entry, directly or over others."""


class SessionStateError(OstinatoError):
    """A session was used after it was finished."""


class ModelFormatError(OstinatoError):
    """A model file is damaged, hostile, or newer than this version can read."""


class ContextError(InputError):
    """A prompt and the tokens to generate exceed the context or the memory for keys and values."""


class Overloaded(OstinatoError):
    """The queue of requests is full. Nothing was queued.

    Attributes:
        retry_after: seconds after which a place in the queue is likely.
    """

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Cancelled(OstinatoError):
    """A request was cancelled before it had an answer."""
