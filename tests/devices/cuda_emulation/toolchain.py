"""The text of CUDA kernels, compiled as host C++ into shared objects that are kept by content."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["COMPILER", "CompileError", "engine", "kernel_objects"]

_HERE = Path(__file__).parent
_CACHE = Path(__file__).parents[3] / "build" / "cuda-emulation"

#: The compilers; without both, nothing is emulated.
COMPILER = shutil.which("g++") if shutil.which("gcc") else None

#: Accesses are checked by the calls that -fsanitize=thread puts before them: see engine.c.
_FLAGS = (
    *("-std=gnu++20", "-g1", "-gdwarf-4", "-fPIC", "-shared", "-fvisibility=hidden"),
    # As NVRTC, it refuses calls that are ambiguous; and a float64 that becomes a float32 unasked.
    *("-pedantic-errors", "-Werror=float-conversion"),
    *("-fsanitize=thread", "--param", "tsan-instrument-func-entry-exit=0"),
    *("-ffp-contract=off", "-fwrapv", "-fno-strict-aliasing", "-fno-exceptions", "-fno-rtti"),
    *("-ftrivial-auto-var-init=pattern", "-nostdlib", "-nostdinc++"),
)

#: Most kernels run a few times: optimising them takes longer than it saves. Attention does not: its
#: kernels emulate many products of tiles.
_PLAIN, _OPTIMISED = "-O0", "-O1"
_LONG_RUNNING = re.compile(r"(paged_)?attention_")

#: A declaration of dynamic shared memory, which has a fixed address here.
_DYNAMIC = re.compile(
    r"extern\s+__shared__\s+(?:(?:__align__|alignas)\s*\(\s*\d+\s*\)\s*)?"
    r"([\w ]+?)\s+(\w+)\s*\[\s*\]\s*;"
)

#: A header whose text depends on macros that kernels define in front of their includes.
_DEPENDENT = re.compile(r"^#\s*(?:ifn?def|(?:el)?if\b.*\bdefined\s*\(?)\s*OST_", re.MULTILINE)
_INCLUDED = re.compile(r'^#\s*include "([\w.]+)"', re.MULTILINE)

_IMAGE = """
extern "C" {
extern char __ehdr_start[], _end[] __attribute__((visibility("hidden")));
extern char __start_emu_shared[], __stop_emu_shared[] __attribute__((visibility("hidden")));
static char emu_no_shared[16] __attribute__((section("emu_shared"), used));
__attribute__((visibility("default"))) char *emu_image[] = {
    __ehdr_start, _end, __start_emu_shared, __stop_emu_shared};
}
"""


class CompileError(Exception):
    """The text of kernels is no C++; the message has the compiler's."""


@functools.cache
def engine() -> ctypes.CDLL:
    """The engine, built once; kernels find its symbols."""
    sources = [_HERE / "engine.h", _HERE / "engine.c"]
    path = _CACHE / f"engine-{_digest(*(source.read_text() for source in sources))}.so"
    if not path.exists():
        flags = ["-O2", "-fPIC", "-shared", "-fvisibility=hidden"]
        with tempfile.TemporaryDirectory(dir=_folder()) as folder:
            made = Path(folder) / "engine.so"
            subprocess.run(["gcc", *flags, sources[1], "-o", made], check=True)
            made.replace(path)
    return ctypes.CDLL(str(path), mode=os.RTLD_GLOBAL | os.RTLD_NOW)


def kernel_objects(sources: Mapping[str, str], headers: Path | None = None) -> dict[str, Path]:
    """By name of a kernel, a shared object with ``NAME_call``, and perhaps others.

    Args:
        sources: by name, its text. What has no object yet is compiled by one call of the
            compiler for each level of optimisation.
        headers: the folder of the headers that the texts include.

    Raises:
        CompileError: a text is no C++.
    """
    shared = _shared_text(headers)
    paths = {name: _CACHE / f"{_digest(shared, text)}.so" for name, text in sources.items()}
    missing = [name for name, path in paths.items() if not path.exists()]
    for level in (_PLAIN, _OPTIMISED):
        names = [name for name in missing if _level(name) == level]
        if names:
            _build({name: sources[name] for name in names}, paths, headers, level)
    return paths


def _level(name: str) -> str:
    return _OPTIMISED if _LONG_RUNNING.match(name) else _PLAIN


def _build(
    sources: Mapping[str, str], paths: Mapping[str, Path], headers: Path | None, level: str
) -> None:
    """Compile kernels together, each under its path."""
    parts = [f'#include "{_precompiled(headers, level).name}"\n']
    for name, source in sources.items():
        text = _DYNAMIC.sub(r"\1* const \2 = (\1*)emu_dynamic_shared;", source)
        parts.append(f'#line 1 "{name}.cu"\n{text}\nEMU_ENTRY({name})\n')
    with tempfile.TemporaryDirectory(dir=_folder()) as folder:
        made = Path(folder) / "kernels.so"
        _compile("".join([*parts, _IMAGE]), made, headers, level)
        for name in sources:
            link = Path(folder) / f"{name}.link"
            link.hardlink_to(made)
            link.replace(paths[name])


def _compile(text: str, target: Path, headers: Path | None, level: str) -> None:
    source = target.with_suffix(".cpp")
    source.write_text(text)
    _run(["-x", "c++", source, "-o", target, "-lm", "-lc", "-lgcc"], headers, level)


def _run(arguments: Sequence[str | Path], headers: Path | None, level: str) -> None:
    assert COMPILER is not None
    include = [f"-I{folder}" for folder in (_HERE, headers, _CACHE) if folder is not None]
    command = [COMPILER, level, *_FLAGS, *include, *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise CompileError(ran.stderr[:8000])


@functools.cache
def _precompiled(headers: Path | None, level: str) -> Path:
    """The header that all texts begin with, precompiled: the prelude, and headers of kernels.

    Where the compiler cannot use what is precompiled, it reads the header.
    """
    names = ["prelude.h", *([] if headers is None else _independent(headers))]
    path = _folder() / f"headers-{_digest(level, _shared_text(headers))}.h"
    made = path.with_suffix(".h.gch")
    if not made.exists():
        with tempfile.TemporaryDirectory(dir=_CACHE) as folder:
            text, compiled = Path(folder) / path.name, Path(folder) / made.name
            text.write_text("".join(f'#include "{name}"\n' for name in names))
            _run(["-x", "c++-header", text, "-o", compiled], headers, level)
            text.replace(path)
            compiled.replace(made)
    return path


def _independent(headers: Path) -> list[str]:
    """The headers that read the same in front of any kernel."""
    texts = {path.name: path.read_text("utf-8") for path in sorted(headers.glob("*.cuh"))}
    dependent: set[str] = set()
    found = {name for name, text in texts.items() if _DEPENDENT.search(text)}
    while found:
        dependent |= found
        others = texts.keys() - dependent
        found = {name for name in others if dependent & {*_INCLUDED.findall(texts[name])}}
    return [name for name in texts if name not in dependent]


@functools.cache
def _shared_text(headers: Path | None) -> str:
    """All that objects depend on besides the texts of their kernels."""
    files = [_HERE / "prelude.h", _HERE / "engine.h"]
    files += [] if headers is None else sorted(headers.glob("*.cuh"))
    texts = [_PLAIN, _OPTIMISED, _LONG_RUNNING.pattern, *_FLAGS, _IMAGE]
    return "\0".join([*texts, *(file.read_text("utf-8") for file in files)])


def _folder() -> Path:
    _CACHE.mkdir(parents=True, exist_ok=True)
    return _CACHE


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:32]
