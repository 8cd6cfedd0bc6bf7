"""The data caches of a core, as the system describes them."""

from __future__ import annotations

import functools
from pathlib import Path

from ostinato.records import dataclass

__all__ = ["CacheSizes", "host_caches"]

_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True)
class CacheSizes:
    """Bytes of a core's data caches; the defaults hold where a system does not say.

    Attributes:
        first: of the first-level data cache.
        second: of the second-level cache; a core's share where several cores have one.
        line: of a cache line.
    """

    first: int = 32 << 10
    second: int = 1 << 20
    line: int = 64

    def __str__(self) -> str:
        return f"{self.first >> 10}K {self.second >> 10}K by {self.line}"


@functools.cache
def host_caches() -> CacheSizes:
    """The caches of this machine's first processor."""
    return caches_in(Path("/sys/devices/system/cpu/cpu0/cache"))


def caches_in(folder: Path) -> CacheSizes:
    """The caches that a folder of the kernel's (``cpuN/cache``) describes."""
    default = CacheSizes()
    sizes, line = {1: default.first, 2: default.second}, default.line
    for cache in sorted(folder.glob("index*")):
        try:
            level, kind = int(_text(cache / "level")), _text(cache / "type")
            if level not in sizes or kind == "Instruction":
                continue
            sharing = _count(_text(cache / "shared_cpu_list"))
            size = _bytes(_text(cache / "size"))
            width = int(_text(cache / "coherency_line_size"))
        except (OSError, ValueError):
            continue
        if size > 0 and width > 0:
            # Threads of one core share it too; a tile is computed by one of them at a time.
            sizes[level] = size if sharing <= _THREADS_PER_CORE else size // sharing
            line = width
    return CacheSizes(sizes[1], sizes[2], line)


_THREADS_PER_CORE = 2


def _text(path: Path) -> str:
    return path.read_text(encoding="ascii").strip()


def _bytes(size: str) -> int:
    """``"1024K"`` in bytes."""
    unit = _UNITS.get(size[-1:])
    return int(size) if unit is None else int(size[:-1]) * unit


def _count(processors: str) -> int:
    """The number of processors in a list such as ``"0-3,8"``."""
    count = 0
    for part in processors.split(","):
        first, _, last = part.partition("-")
        count += int(last or first) - int(first) + 1
    return count
