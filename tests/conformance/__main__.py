"""Conformance of a device: ``python -m tests.conformance --device NAME``; ``--help`` lists more."""

from __future__ import annotations

import sys

from .command import main

if __name__ == "__main__":
    sys.exit(main())
