"""Mutated GGUF files: ``python -m tests.frontends.gguf_files.mutation 0 500``, as a process.

Prints a line for each defect: a crash ends the process, which its caller sees.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np

from ostinato.errors import ModelFormatError
from ostinato.frontends.gguf import GGUFFile

from .files import File, Tensor, string, uint, write_everything

#: Limits of one file, above what the process takes anyway.
MOST_KILOBYTES, MOST_SECONDS = 64 << 10, 5.0

_NUMBERS = [
    *((1 << power) + delta for power in (0, 5, 7, 8, 16, 31, 32, 48, 62, 63, 64)
      for delta in (-1, 0, 1)),
    3, 9, 12, 13, 255,
]  # fmt: skip


def seeds(folder: Path) -> list[bytes]:
    """Files without a defect: all types, many strings, nothing but a header."""
    path = folder / "everything.gguf"
    write_everything(path)
    words = uint(8, 4) + uint(2000, 8) + b"".join(string(f"word{i}") for i in range(2000))
    nested = uint(9, 4) + uint(3, 8) + (uint(5, 4) + uint(2, 8) + uint(7, 8)) * 3
    small = File([("general.alignment", 4, uint(64, 4)), ("nested", 9, nested)], alignment=64)
    small.tensors = [Tensor("a", (64, 2), 2), Tensor("b", (4,), 0, 128)]
    small.data = bytes(144)
    return [path.read_bytes(), small.octets(), File([("words", 9, words)]).octets()]


def mutated(octets: bytes, rng: np.random.Generator) -> bytes:
    """``octets`` with one to four defects, most of them in the first kilobytes."""
    data = bytearray(octets)
    for _ in range(int(rng.integers(1, 5))):
        if not data:
            break
        reach = (
            len(data) if rng.random() < 0.2 else min(len(data), int(rng.choice([64, 512, 8192])))
        )
        at = int(rng.integers(reach))
        match int(rng.integers(6)):
            case 0:
                data[at] ^= 1 << int(rng.integers(8))
            case 1 | 2:
                size = int(rng.choice([4, 8]))
                number = int(_NUMBERS[int(rng.integers(len(_NUMBERS)))])
                data[at : at + size] = uint(number % (1 << 8 * size), size)
            case 3:
                del data[at : at + int(rng.integers(1, 64))]
            case 4:
                data[at:at] = rng.bytes(int(rng.integers(1, 64)))
            case 5:
                del data[at:]
    return bytes(data)


def judge(path: Path) -> str:
    """Reads all of a file; what comes of it."""
    try:
        found = GGUFFile(path)
        for tensor in found.tensors.values():
            tensor.read()
            tensor.widened().read()
    except ModelFormatError:
        return "refused"
    return "read"


def main(first: int, last: int) -> None:
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        originals = seeds(folder)
        path = folder / "mutated.gguf"
        for octets in originals:
            path.write_bytes(octets)
            assert judge(path) == "read"
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for case in range(first, last):
            rng = np.random.default_rng(case)
            path.write_bytes(mutated(originals[case % len(originals)], rng))
            start = time.monotonic()
            try:
                outcomes[judge(path)] += 1
            except Exception as error:
                print(f"case {case}: {type(error).__name__}: {error}")
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
            if grown > MOST_KILOBYTES:
                print(f"case {case}: {grown:,} kB")
                before += grown
            if (seconds := time.monotonic() - start) > MOST_SECONDS:
                print(f"case {case}: {seconds:.1f} s")
    print(f"read {outcomes['read']}, refused {outcomes['refused']}", file=sys.stderr)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
