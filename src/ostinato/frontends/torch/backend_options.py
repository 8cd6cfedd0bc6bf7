"""Options of the backend of ``torch.compile``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.backends.options import CompileOptions
from ostinato.errors import InputError
from ostinato.records import dataclass, field

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["BackendOptions"]


@dataclass(frozen=True)
class BackendOptions:
    """The ``options`` of ``torch.compile(backend="ostinato")``.

    Attributes:
        fallback: ``"eager"``: PyTorch runs nodes without an equivalent; ``"error"``: they raise.
        weights: ``"checked"``: weights that have changed are packed again before a call;
            ``"live"``: weights are read at each call, and never packed; ``"frozen"``: weights are
            packed once.
        threads: of a run; ``None``: as many as ``torch.get_num_threads()`` says while compiling.
        device: of the session.
        compile: options of the compiler.
        min_partition: the fewest nodes of a native partition, where a graph has more than one.
    """

    fallback: str = "eager"
    weights: str = "checked"
    threads: int | None = None
    device: str = "cpu"
    compile: CompileOptions = field(default_factory=CompileOptions)
    min_partition: int = 3

    @staticmethod
    def of(given: Mapping[str, Any] | None) -> BackendOptions:
        """Checked options.

        Raises:
            InputError: one is unknown, or has a value that it cannot have.
        """
        given = given or {}
        for name, value in given.items():
            if name not in _CHECKS:
                known = ", ".join(map(repr, _CHECKS))
                raise InputError(f"unknown option {name!r} of the backend; it has {known}")
            wanted = _CHECKS[name]
            if isinstance(wanted, tuple):
                fits = value in wanted
                text = " or ".join(map(repr, wanted))
            else:
                fits, text = wanted(value), _WANTED[name]
            if not fits:
                raise InputError(f"option {name!r} of the backend is {text}, got {value!r}")
        return BackendOptions(**given)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


_CHECKS: dict[str, Any] = {
    "fallback": ("eager", "error"),
    "weights": ("checked", "live", "frozen"),
    "threads": lambda value: value is None or _is_count(value),
    "device": lambda value: isinstance(value, str),
    "compile": lambda value: isinstance(value, CompileOptions),
    "min_partition": _is_count,
}

_WANTED = {
    "threads": "a number of threads, or None",
    "device": "a device's name, such as 'cpu'",
    "compile": "an ostinato.CompileOptions",
    "min_partition": "a number of nodes",
}
