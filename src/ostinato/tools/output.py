"""Output of commands: tables for people on stdout, one JSON object for machines.

Progress and messages go to stderr, so that stdout holds results and nothing else.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ostinato.errors import OstinatoError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.console import Console
    from rich.table import Table

__all__ = [
    "FAILED",
    "answer_text",
    "bytes_text",
    "complete_streams",
    "console",
    "count_text",
    "failures",
    "print_json",
    "printable",
    "table",
]

#: The exit code for what the user can mend: a missing file, an unsupported model, a wrong shape.
FAILED = 1

_WIDTH_OF_A_PIPE = 120


def complete_streams() -> None:
    """Make the standard streams usable where a caller has closed them, or has another encoding.

    What an encoding lacks is written by its number instead of ending the command.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115
        elif mode == "w" and isinstance(stream, TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


def console(*, stderr: bool = False) -> Console:
    """A console on stdout, or on stderr; lines of a pipe or a file are not cut at 80 columns."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _WIDTH_OF_A_PIPE
    return Console(stderr=stderr, width=width, highlight=False)


def table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    numbers: Iterable[int] = (),
) -> Table:
    """A table; the columns whose positions are in ``numbers`` are aligned to the right."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    right = frozenset(numbers)
    result = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for position, name in enumerate(columns):
        result.add_column(
            name,
            justify="right" if position in right else "left",
            no_wrap=position in right,
            overflow="fold",
        )
    for row in rows:
        # As texts, since names of a model may look like rich's markup.
        result.add_row(*(Text(printable(str(cell))) for cell in row))
    return result


def print_json(report: dict[str, Any]) -> None:
    """One JSON object and a line end on stdout."""
    sys.stdout.write(json.dumps(report, indent=2, allow_nan=False) + "\n")
    sys.stdout.flush()


@contextmanager
def failures(*, as_json: bool) -> Iterator[None]:
    """Ends the command with :data:`FAILED` and a message when the user can mend what is wrong.

    The message goes to stderr; with ``as_json``, to stdout as ``{"error": {"type", "message"}}``.
    """
    try:
        yield
    except OstinatoError as error:
        kind, message = type(error).__name__, str(error)
    except MemoryError:
        kind = "MemoryError"
        message = "out of memory; give dynamic dims smaller sizes with --dim name=size"
    else:
        return
    if as_json:
        print_json({"error": {"type": kind, "message": message}})
    else:
        typer.echo(f"error: {printable(message)}", err=True)
    raise typer.Exit(FAILED)


def printable(text: str) -> str:
    """``text`` without characters that would steer a terminal, but with its line ends."""
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


def answer_text(text: str) -> str:
    """Text of a model for stdout: as it is, but for what would steer a terminal."""
    if not sys.stdout.isatty():
        return text
    return "".join(c if c == "\t" else printable(c) for c in text)


def bytes_text(count: int) -> str:
    """A byte count to read: ``"1.5 MB"``."""
    return f"{count} B" if count < 1000 else f"{count_text(count)}B"


def count_text(count: float) -> str:
    """A count to read, in thousands: ``"22.7 M"``."""
    for unit in ("", "k", "M", "G", "T", "P"):
        if abs(count) < 999.5:
            digits = 0 if unit == "" else 1 if abs(count) < 99.95 else 0
            return f"{count:.{digits}f} {unit}"
        count /= 1000
    return f"{count:.0f} E"
