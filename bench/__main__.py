"""The entry point of ``python -m bench``.

    python -m bench [models] [--seconds 2]
    python -m bench compare --help

``models`` times real models next to ONNX Runtime; ``compare`` times the workloads that the
project's speed is judged by next to all its peers, and needs what ``make bench-env`` installs.
The other benchmarks are scripts of their own.
"""

from __future__ import annotations

import sys


def main() -> None:
    command, *arguments = sys.argv[1:] or ["models"]
    if command == "compare":
        from bench.compare.cli import main as compare

        compare(arguments)
    else:
        from bench.models import main as models

        models(arguments if command == "models" else sys.argv[1:])


if __name__ == "__main__":
    main()
