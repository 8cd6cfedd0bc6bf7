"""Keys of cached results, made of named parts: all that a result depends on.

A result that was compiled by other sources, for another processor or by another LLVM has another
key, so nothing ever has to be invalidated. Each key is logged, at debug level, by the logger
``ostinato.cache``, with a digest of each part: comparing the logs of two processes shows the part
that made a cache miss.

The sources of this package are described when it is imported, by sizes and times. Where they have
changed since, the modules in memory may be of either version: their results are stored nowhere.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["ABOVE_CODE", "INSTALLED", "InstalledPackage", "entry_key", "log", "object_key"]

#: Folders that no generator of code imports: a change there leaves all kernels as they are.
ABOVE_CODE = ("eager", "frontends", "llm", "moe", "runtime", "tools")

#: Seconds for which sources are taken to be unchanged where no module was imported meanwhile: the
#: modules in memory are then those of the last check, but for one whose import had just begun.
_TRUSTED_SECONDS = 2.0


class InstalledPackage:
    """The modules of a package as they were on disk when this object was made.

    Args:
        folder: of the package.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._files = _stamps(folder)
        self._checked = (0, float("-inf"))
        self._changed = False

    @functools.cached_property
    def files(self) -> str:
        """Size and times of each module: cheap enough for the start of a small model."""
        return repr((self._folder, self._files)) if self._files else _nothing_like_it()

    @functools.cached_property
    def contents(self) -> str:
        """A digest of the sources that may shape code, the same for equal ones anywhere.

        All sources may, except those in :data:`ABOVE_CODE`.
        Equal to that of no other process if the sources have changed since they were imported.
        """
        import hashlib

        digest = hashlib.sha256()
        try:
            for name in self._files:
                if name.endswith((".py", ".wgsl")) and name.split(os.sep)[1] not in ABOVE_CODE:
                    with open(self._folder + name, "rb") as file:
                        data = file.read()
                    digest.update(f"{name.replace(os.sep, '/')} {len(data)} ".encode())
                    digest.update(data)
        except OSError:
            return _nothing_like_it()
        return digest.hexdigest() if self._same() else _nothing_like_it()

    def unchanged(self) -> bool:
        """Whether all modules that were imported so far are of the version described here."""
        if self._changed:  # what was imported meanwhile may be of another one for good
            return False
        imported, now = len(sys.modules), time.monotonic()
        modules, checked = self._checked
        if imported == modules and now - checked < _TRUSTED_SECONDS:
            return True
        if not self._same():
            log("the sources in %s have changed since they were imported", self._folder)
            self._changed = True
            return False
        self._checked = (imported, now)
        return True

    def _same(self) -> bool:
        """Whether all files are as they were written, whatever links were made to them since.

        Package managers make links, and profilers: these change a file's time of change.
        """
        written, now = (
            {path: stamp[:2] for path, stamp in files.items()}
            for files in (self._files, _stamps(self._folder))
        )
        return bool(written) and now == written


def _stamps(folder: str) -> dict[str, tuple[int, int, int]]:
    """Size, time of writing and time of change of each module, by path within the folder."""
    try:
        return {path.removeprefix(folder): stamp for path, stamp in sorted(_modules(folder))}
    except OSError:  # of a package that is not installed as files nothing is known
        return {}


def _modules(folder: str) -> Iterator[tuple[str, tuple[int, int, int]]]:
    with os.scandir(folder) as listing:
        for entry in listing:
            if entry.name.endswith((".py", ".wgsl", ".so", ".pyd")):
                status = entry.stat()
                yield entry.path, (status.st_size, status.st_mtime_ns, status.st_ctime_ns)
            elif entry.name != "__pycache__" and entry.is_dir():
                yield from _modules(entry.path)


def _nothing_like_it() -> str:
    """Make a part that no other key has."""
    return f"unknown {os.urandom(16).hex()}"


#: This package, as it was when its first module was imported.
INSTALLED = InstalledPackage(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def _version(package: str) -> str:
    """The installed version of a package, found without importing it.

    ``importlib.metadata`` gives the same, in 15 times the time.
    """
    from importlib.util import find_spec

    spec = find_spec(package)
    if spec is None or spec.origin is None:
        return "absent"
    try:
        status = os.stat(spec.origin)
        distributions = _distributions(os.path.dirname(os.path.dirname(spec.origin)))
    except OSError:
        return _nothing_like_it()
    versions = [name for name in distributions if name.startswith(f"{package}-")]
    return f"{spec.origin} {versions} {status.st_size} {status.st_mtime_ns}"


@functools.cache
def _distributions(folder: str) -> list[str]:
    return sorted(name for name in os.listdir(folder) if name.endswith(".dist-info"))


def _numpy_version() -> str:
    import numpy as np

    return np.__version__


#: Parts of every key of object code, besides kernel and target.
_CODE_PARTS: Mapping[str, Callable[[], str]] = {
    "sources": lambda: INSTALLED.contents,
    "python": lambda: sys.version,
    "numpy": _numpy_version,
}

#: Parts of every key of an entry, besides its own.
_ENTRY_PARTS: Mapping[str, Callable[[], str]] = {
    "files": lambda: INSTALLED.files,
    "python": lambda: sys.version,
    "numpy": _numpy_version,
    "ml_dtypes": lambda: _version("ml_dtypes"),
    "onnx": lambda: _version("onnx"),
}


def object_key(kernel: str, target: str) -> str:
    """The key of a kernel's object code.

    Args:
        kernel: the whole structure of the kernel as text; equal text must mean equal code.
        target: ``TargetSpec.identity``: the processor, and the compiler with its version.
    """
    return _key("object", _environment("code") | _digests({"kernel": kernel, "target": target}))


def entry_key(kind: str, **parts: str | bytes) -> str:
    """The key of an entry: of a compiled graph, a model as it was read, a description of the host.

    Args:
        kind: of the entry.
        parts: all that it depends on, besides this package and those that it uses.
    """
    return _key(kind, _environment("entry") | _digests(parts))


@functools.cache
def _environment(what: str) -> dict[str, str]:
    """Compute digests of the parts that do not change within a process."""
    parts = _CODE_PARTS if what == "code" else _ENTRY_PARTS
    return _digests({name: part() for name, part in parts.items()})


def _digests(parts: Mapping[str, str | bytes]) -> dict[str, str]:
    import hashlib

    return {
        name: hashlib.sha256(part.encode() if isinstance(part, str) else part).hexdigest()
        for name, part in parts.items()
    }


def _key(kind: str, parts: Mapping[str, str]) -> str:
    import hashlib

    key = hashlib.sha256(repr((kind, sorted(parts.items()))).encode()).hexdigest()
    log("key %s of %s: %s", key[:12], kind, _Shown(parts))
    return key


class _Shown:
    """The parts of a key, formatted only if they are logged."""

    def __init__(self, parts: Mapping[str, str]) -> None:
        self._parts = parts

    def __str__(self) -> str:
        return ", ".join(f"{name} {digest[:12]}" for name, digest in self._parts.items())


def log(message: str, *arguments: object) -> None:
    """Write to the logger ``ostinato.cache``, at debug level.

    Importing ``logging`` takes longer than to load a small model. Where nothing has imported it,
    nothing listens.
    """
    if "logging" in sys.modules:
        import logging  # waits for a thread that is importing it

        logging.getLogger("ostinato.cache").debug(message, *arguments)
