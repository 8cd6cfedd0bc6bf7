"""Backends and the kinds of devices that they are registered for.

Backends of other packages register a class under the entry-point group ``ostinato.backends``, with
the device kind in lower case as the entry's name. They, and those of this package, are imported
when they are asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ostinato.backends.base import Backend
from ostinato.backends.device import Device
from ostinato.errors import DeviceUnavailableError
from ostinato.lazy import LazyModule
from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from importlib import metadata
else:
    metadata = LazyModule("importlib.metadata")

__all__ = ["GROUP", "Registration", "Registrations", "built_in"]

#: The group of the entry points.
GROUP = "ostinato.backends"

_BUILT_IN = {
    "CPU": ("ostinato.backends.cpu.backend", "CpuBackend"),
    "CUDA": ("ostinato.backends.cuda.backend", "CudaBackend"),
    "MLX": ("ostinato.backends.array_api.mlx.backend", "MlxBackend"),
    "XLA": ("ostinato.backends.array_api.xla.backend", "XlaBackend"),
    "TPU": ("ostinato.backends.array_api.xla.backend", "TpuBackend"),
    "ROCM": ("ostinato.backends.array_api.xla.backend", "RocmBackend"),
    "WEBGPU": ("ostinato.backends.webgpu.backend", "WebGpuBackend"),
    "VULKAN": ("ostinato.backends.webgpu.backend", "VulkanBackend"),
    "METAL": ("ostinato.backends.webgpu.backend", "MetalBackend"),
}


@dataclass(frozen=True)
class Registration:
    """A class that is registered as the backend of a kind of device.

    Attributes:
        kind: in capitals.
        module: of the class.
        attribute: the class in that module.
        package: the name and the version of the package that registers it.
        problem: the reason why it is refused; empty: it is not.
    """

    kind: str
    module: str
    attribute: str
    package: str
    problem: str = ""

    def __str__(self) -> str:
        return f"{self.module}:{self.attribute} of {self.package}"

    def load(self) -> type[Backend]:
        """Import the class.

        Raises:
            DeviceUnavailableError: it is refused, or fails to load, or is no backend.
        """
        if self.problem:
            raise DeviceUnavailableError(self.problem)
        try:
            loaded: Any = import_module(self.module)
            for name in self.attribute.split("."):
                loaded = getattr(loaded, name)
        except Exception as error:  # another package's import may fail in any way
            raise DeviceUnavailableError(
                f"the backend {self} for {self.kind} failed to load: {error!r}"
            ) from error
        if isinstance(loaded, type) and issubclass(loaded, Backend):
            return loaded
        raise DeviceUnavailableError(
            f"the entry point {self} for {self.kind} is no Backend, but {loaded!r:.80}"
        )


class Registrations:
    """Every registration that this process can find: those of this package and of others.

    A name belongs to one backend: those of this package are not to be replaced, and where two
    others have the same name, both are refused.

    Attributes:
        usable: by kind, those of this package first.
        refused: the others, each with its problem.
    """

    def __init__(self) -> None:
        self.usable: dict[str, Registration] = {kind: _own(kind) for kind in _BUILT_IN}
        self.refused: list[Registration] = []
        found: dict[str, dict[tuple[str, str], Registration]] = {}
        for registration in self._others():
            same = found.setdefault(registration.kind, {})
            same.setdefault((registration.module, registration.attribute), registration)
        for kind in sorted(found):
            self._add(kind, list(found[kind].values()))

    def _others(self) -> Iterator[Registration]:
        for name, path, package in _entries(self.refused):
            module, _, attribute = path.partition("[")[0].partition(":")
            yield Registration(name.upper(), module.strip(), attribute.strip(), package)

    def _add(self, kind: str, found: list[Registration]) -> None:
        """Take the registrations of a kind by other packages, or refuse them."""
        name = kind.lower()
        if not _names_a_kind(kind):
            problem = (
                f"{name!r} names no device: a name is made of letters, digits and underscores, "
                "and begins with a letter"
            )
        elif kind in _BUILT_IN:
            problem = f"{name!r} is a device of Ostinato itself"
        elif len(found) > 1:
            packages = " and by ".join(map(str, found))
            problem = f"{name!r} is registered by {packages}: uninstall all but one"
        else:
            self.usable[kind] = found[0]
            return
        self.refused += [
            Registration(each.kind, each.module, each.attribute, each.package, problem)
            for each in found
        ]

    def of(self, kind: str) -> Registration | None:
        """The registration for a kind, a refused one if there is no other."""
        refused = (each for each in self.refused if each.kind == kind)
        return self.usable.get(kind) or next(refused, None)


def built_in(kind: str) -> Registration | None:
    """The registration of this package's own backend for a kind, found without a search."""
    return _own(kind) if kind in _BUILT_IN else None


def _own(kind: str) -> Registration:
    return Registration(kind, *_BUILT_IN[kind], "ostinato")


def _names_a_kind(name: str) -> bool:
    try:
        return Device.parse(name).kind == name
    except DeviceUnavailableError:
        return False


def _entries(refused: list[Registration]) -> Iterator[tuple[str, str, str]]:
    """Name, value and package of every entry point; packages whose list is broken are refused."""
    try:
        entries = list(metadata.entry_points(group=GROUP))
    except Exception:  # one package's broken list fails the search of all
        for found in metadata.distributions():
            try:
                yield from _named(entry for entry in found.entry_points if entry.group == GROUP)
            except Exception as error:  # it may be broken in any way
                problem = f"its list of entry points cannot be read: {error!r}"
                refused.append(Registration("", "", "", _package(found), problem))
        return
    yield from _named(entries)


def _named(entries: Iterable[metadata.EntryPoint]) -> Iterator[tuple[str, str, str]]:
    for entry in entries:
        yield entry.name, entry.value, _package(getattr(entry, "dist", None))


def _package(distribution: metadata.Distribution | None) -> str:
    try:
        assert distribution is not None
        return f"{distribution.name} {distribution.version}"
    except Exception:  # metadata may be missing or broken in any way
        return "an unnamed package"
