"""The file of results: a line for each architecture and exporter."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.peers.hugging_face.architectures import ARCHITECTURES

__all__ = ["EXPORTERS", "read_results", "write_results"]

#: The exporters of PyTorch, by the names that the file has for them.
EXPORTERS = ("dynamo", "torchscript")

_FILE = Path(__file__).parents[1] / "hugging_face.txt"


def read_results() -> dict[tuple[str, str], str]:
    """By architecture and exporter: the largest difference, or the reason why there is none."""
    if not _FILE.exists():
        return {}
    lines = (line.split(" ", 4) for line in _FILE.read_text().splitlines())
    return {(name, exporter): result for name, exporter, _, _, result in lines}


def write_results(results: Mapping[tuple[str, str], str]) -> None:
    """Write the file, in the order of the table."""
    lines = []
    for name, architecture in ARCHITECTURES.items():
        runs = (",".join(f"{k}={v}" for k, v in sizes.items()) for sizes in architecture.run_sizes)
        sizes = " ".join(runs)
        lines += [
            f"{name} {exporter} {sizes} {results[name, exporter]}\n"
            for exporter in EXPORTERS
            if (name, exporter) in results
        ]
    _FILE.write_text("".join(lines))
