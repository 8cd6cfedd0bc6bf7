"""Conformance of the device ``cuda``, on a machine with a GPU.

``python -m tests.conformance.gpu`` is ``python -m tests.conformance --device cuda``, whose stages
include faults and the tools of compute-sanitizer. Without a CUDA driver it says so, and exits
with 0.
"""

from __future__ import annotations

import sys

from .command import main

if __name__ == "__main__":
    sys.exit(main(device="cuda"))
