"""Lines of the user's source at which an export fixes a size that was to vary.

PyTorch's error has the size alone; its shape environment, which a frame of the traceback holds, has
the line of each decision. This module imports PyTorch.
"""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv, ShapeGuardPythonPrinter

from ostinato.frontends.torch.guards import worded

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["deciding_lines"]

#: Lines below are PyTorch's own.
_PYTORCH = str(Path(torch.__file__).parent)


def deciding_lines(error: BaseException) -> list[str]:
    """Conditions that an export has decided by, each with its line, as far as these are known.

    Args:
        error: raised by the export, for sizes that cannot vary.
    """
    environment = _environment(error)
    if environment is None:
        return []
    decisions = (*_equalities(environment), *_guards(environment, str(error)))
    found = (f"{condition} at {line}" for condition, where in decisions if (line := _line(where)))
    return list(dict.fromkeys(found))


def _environment(error: BaseException) -> ShapeEnv | None:
    """The shape environment of the export that has raised an error."""
    raised: BaseException | None = error
    while raised is not None:
        for frame, _ in traceback.walk_tb(raised.__traceback__):
            for value in frame.f_locals.values():
                if isinstance(value, ShapeEnv):
                    return value
        raised = raised.__cause__ or raised.__context__
    return None


def _equalities(environment: ShapeEnv) -> Iterator[tuple[str, Any]]:
    """Sizes that became numbers."""
    for symbol, where in environment.replacements_slocs.items():
        number = environment.replacements.get(symbol)
        sources = environment.var_to_sources.get(symbol)
        if sources and number is not None and number.is_number:
            yield f"{worded(sources[0].name)} == {number}", where


def _guards(environment: ShapeEnv, message: str) -> Iterator[tuple[str, Any]]:
    """The conditions that a message quotes."""
    sources = environment.var_to_sources
    printer = ShapeGuardPythonPrinter(sources, lambda source: source.name, sources)
    for guard in environment.guards:
        if guard.expr.free_symbols <= sources.keys():
            condition = printer.doprint(guard.expr)
            if condition in message:
                yield worded(condition), guard.sloc


def _line(where: Any) -> str:
    """A place in the user's source, as ``file:line``; empty where it is not known."""
    frame = where.framework_loc
    if not isinstance(frame, traceback.FrameSummary) or frame.filename.startswith(_PYTORCH):
        return ""
    return f"{frame.filename}:{frame.lineno}"
