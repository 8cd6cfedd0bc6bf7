"""The entry point of the command ``ostinato``."""

from __future__ import annotations

import sys

__all__ = ["main"]

#: The exit code of a program that an interrupt has ended.
_INTERRUPTED = 130


def main() -> None:
    """Run the command line, which may be interrupted while it is loaded."""
    try:
        from ostinato.tools import cli
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    cli.main()
