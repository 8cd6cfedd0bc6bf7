"""Devices and backends: names, what is available, and backends of other packages."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.backends.base import Backend, Capabilities, Executable
from ostinato.backends.registration import built_in
from ostinato.backends.registry import open_backend
from ostinato.dtypes import ALL_DTYPES
from ostinato.plan.report import CompileReport
from ostinato.tools.devices import list_devices

KINDS = ("CPU", "CUDA", "ROCM", "TPU", "METAL", "VULKAN", "WEBGPU", "MLX", "XLA", "REFERENCE")


# ---- names -------------------------------------------------------------------------------------


def test_every_kind_has_a_name():
    for kind in KINDS:
        device = getattr(ost.Device, kind)
        assert (device.kind, device.index) == (kind, 0)
        assert str(device).startswith(kind)
        assert ost.Device.parse(str(device)) == device


@pytest.mark.parametrize(
    ("name", "kind", "index"),
    [("cpu", "CPU", 0), ("CPU", "CPU", 0), ("Cuda:1", "CUDA", 1), ("webgpu:0", "WEBGPU", 0)],
)
def test_names_parse(name, kind, index):
    device = ost.Device.parse(name)
    assert device == ost.Device(kind, index)
    assert ost.Device.parse(device) is device
    assert len({device, ost.Device(kind, index)}) == 1


@pytest.mark.parametrize("name", ["", "cpu:", ":0", "cpu:x", "cpu:-1", "cpu 1", "cpu:0 ", "1"])
def test_names_that_do_not_parse(name):
    with pytest.raises(ost.DeviceUnavailableError) as caught:
        ost.Device.parse(name)
    assert repr(name) in str(caught.value)
    assert "cuda:1" in str(caught.value)


# ---- what is here ------------------------------------------------------------------------------


def test_the_processor_is_available():
    assert ost.Device.CPU in ost.available_devices()
    assert ost.is_available("cpu")
    assert ost.is_available(ost.Device.CPU)
    assert not ost.is_available("cpu:1")


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_here_says_so_honestly(kind):
    if ost.is_available(kind):
        pytest.skip(f"{kind} is here")
    with pytest.raises(ost.DeviceUnavailableError) as caught:
        ost.Session(kind.lower())
    message = str(caught.value)
    reason = f"no {kind} backend yet" if built_in(kind) is None else " is not "
    for part in (f"{kind}:0", reason):
        assert part in message


@pytest.mark.parametrize("kind", [kind for kind in KINDS if built_in(kind) is None])
def test_nothing_is_offered_to_install_for_a_device_without_a_backend(kind):
    with pytest.raises(ost.DeviceUnavailableError) as caught:
        ost.Session(kind)
    assert "pip install" not in str(caught.value)
    assert "available here: CPU:0" in str(caught.value)
    assert "'ostinato.backends'" in str(caught.value)  # another package may bring it
    assert kind.lower() not in (metadata.metadata("ostinato").get_all("Provides-Extra") or ())


def test_a_kind_that_nobody_knows():
    for call in (ost.Session, ost.is_available):
        with pytest.raises(ost.DeviceUnavailableError, match=r"unknown device ABACUS:0.*cuda"):
            call("abacus")


# ---- backends of other packages ----------------------------------------------------------------


class AbacusExecutable(Executable):
    """Runs a graph with the oracle, and counts."""

    def __init__(self, graph: Any, params: Mapping[str, np.ndarray]) -> None:
        self.report = CompileReport(graph.name, "ABACUS")
        self._graph = graph
        self._params = dict(params)

    @property
    def unset(self) -> frozenset[str]:
        return frozenset(self._graph.params) - self._params.keys()

    def write_params(self, params: Mapping[str, np.ndarray]) -> None:
        self._params |= {name: array.copy() for name, array in params.items()}

    def run(
        self,
        inputs: Sequence[np.ndarray],
        outputs: Sequence[np.ndarray],
        variables: Sequence[int],
    ) -> None:
        named = dict(zip(self._graph.inputs, inputs, strict=True))
        results = ost.reference.evaluate(self._graph, named, self._params)
        for target, result in zip(outputs, results, strict=True):
            target[...] = result

    def bind(
        self,
        inputs: Sequence[np.ndarray],
        outputs: Sequence[np.ndarray],
        variables: Sequence[int],
    ) -> Callable[[], None]:
        return lambda: self.run(inputs, outputs, variables)


AbacusExecutable.__abstractmethods__ = frozenset()  # what a test needs of the interface


class AbacusBackend(Backend):
    """Two devices that compute by hand."""

    capabilities = Capabilities(frozenset(), frozenset(ALL_DTYPES))
    opened: list[tuple[Any, int | None]] = []  # noqa: RUF012

    def __init__(self, device: ost.Device, threads: int | None = None) -> None:
        self.device = device
        self.opened.append((device, threads))

    @staticmethod
    def count() -> int:
        return 2

    def compile(self, graph, params, options, progress=None) -> Executable:
        return AbacusExecutable(graph, params)


class NotHere(AbacusBackend):
    """A backend whose devices are missing."""

    @staticmethod
    def count() -> int:
        return 0


class Broken(AbacusBackend):
    """A backend that fails while it looks for devices."""

    @staticmethod
    def count() -> int:
        raise OSError("no driver")


class Distribution:
    """An installed package, as ``importlib.metadata`` has it."""

    version = "1.2"

    def __init__(self, name: str) -> None:
        self.name = name


class Countless(AbacusBackend):
    """A backend that does not say how many devices there are."""

    @staticmethod
    def count() -> int:
        return None  # type: ignore[return-value]


class Unopened(AbacusBackend):
    """A backend that fails while it is opened."""

    def __init__(self, device: ost.Device, threads: int | None = None) -> None:
        raise ValueError("string 3 is broken")


class Abstract(Backend):
    """A backend that does not compile."""

    capabilities = Capabilities(frozenset(), frozenset())

    @staticmethod
    def count() -> int:
        return 1


class Installed:
    """Packages that register backends, as entry points of modules that are there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entries: list[metadata.EntryPoint] = []
        self.loaded: list[str] = []
        self._monkeypatch = monkeypatch

        def entry_points(*, group: str) -> list[metadata.EntryPoint]:
            return self.entries if group == "ostinato.backends" else []

        monkeypatch.setattr(metadata, "entry_points", entry_points)

    def __call__(self, **backends: Any) -> None:
        """Install packages, each with a backend or the error of its import."""
        for name, loaded in backends.items():
            self.add(name, loaded, f"{name.lower()}-package")

    def add(self, name: str, loaded: Any, package: str) -> None:
        """Install one package."""
        module = ModuleType(f"{package.replace('-', '_')}_{len(self.entries)}")

        def attribute(wanted: str) -> Any:
            if wanted != "backend":
                raise AttributeError(wanted)
            self.loaded.append(name)
            if isinstance(loaded, Exception):
                raise loaded
            return loaded

        module.__getattr__ = attribute  # type: ignore[method-assign]
        self._monkeypatch.setitem(sys.modules, module.__name__, module)
        entry = metadata.EntryPoint(name, f"{module.__name__}:backend", "ostinato.backends")
        vars(entry).update(dist=Distribution(package))
        self.entries.append(entry)


def names() -> list[str]:
    """The devices that are available: the CPU, and those of these packages."""
    mine = ("CPU", "ABACUS", "ZITHER")
    return [str(device) for device in ost.available_devices() if device.kind in mine]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Installed:
    """Pretend that packages with these backends are installed."""
    return Installed(monkeypatch)


def test_a_backend_of_another_package(installed):
    installed(abacus=AbacusBackend)
    assert names() == ["CPU:0", "ABACUS:0", "ABACUS:1"]
    assert ost.is_available("abacus:1")
    assert not ost.is_available("abacus:2")
    AbacusBackend.opened.clear()
    session = ost.Session("Abacus:1", threads=3)
    assert AbacusBackend.opened == [(ost.Device("ABACUS", 1), 3)]
    g = ost.Graph()
    g.set_outputs([g.input("x", (3,)) * g.param("w", (3,))])
    compiled = session.compile(g, {"w": np.full(3, 2, np.float32)})
    x = np.arange(3, dtype=np.float32)
    assert str(compiled.device) == "ABACUS:1"
    assert compiled.run({"x": x})[0].tolist() == [0, 2, 4]
    assert "on ABACUS" in compiled.explain()
    with pytest.raises(ost.InputError, match="'x'"):
        compiled.run({"x": x[:2]})
    with pytest.raises(ost.DeviceUnavailableError, match=r"ABACUS:2 is not present.*there are 2"):
        ost.Session("abacus:2")


def test_a_known_kind_from_another_package(installed):
    installed(REFERENCE=AbacusBackend)
    assert ost.is_available("reference:1")
    assert isinstance(open_backend("reference"), AbacusBackend)


def test_devices_of_this_package_are_not_replaced(installed):
    installed(cpu=AbacusBackend, CUDA=AbacusBackend, abacus=AbacusBackend)
    assert names() == ["CPU:0", "ABACUS:0", "ABACUS:1"]
    assert not isinstance(open_backend("cpu"), AbacusBackend)
    assert installed.loaded == ["abacus"]
    found = list_devices()
    assert [each["kind"] for each in found["refused"]] == ["cpu", "cuda"]
    assert found["refused"][0] == {
        "kind": "cpu",
        "package": "cpu-package 1.2",
        "reason": "'cpu' is a device of Ostinato itself",
    }


def test_two_packages_with_one_name_are_both_refused(installed):
    installed.add("abacus", AbacusBackend, "wood")
    installed.add("Abacus", NotHere, "steel")
    installed(zither=AbacusBackend)
    assert names() == ["CPU:0", "ZITHER:0", "ZITHER:1"]
    assert installed.loaded == ["zither"]
    with pytest.raises(ost.DeviceUnavailableError, match=r"by .* of wood 1\.2 and by .* of steel"):
        ost.Session("abacus")
    assert not ost.is_available("abacus")
    found = list_devices()
    assert [each["package"] for each in found["refused"]] == ["wood 1.2", "steel 1.2"]
    assert {each["kind"] for each in found["refused"]} == {"abacus"}


def test_one_class_that_is_found_twice_is_no_clash(installed):
    installed(abacus=AbacusBackend)
    installed.entries *= 2
    assert ost.is_available("abacus:1")


@pytest.mark.parametrize("name", ["my-device", "1st", "", "cpu:1", "a b"])
def test_names_that_no_device_can_have(installed, name):
    installed.add(name, AbacusBackend, "odd")
    installed(zither=AbacusBackend)
    assert names() == ["CPU:0", "ZITHER:0", "ZITHER:1"]
    (refused,) = list_devices()["refused"]
    assert refused["package"] == "odd 1.2"
    assert refused["reason"].startswith(f"{name!r} names no device")


def test_a_package_whose_list_cannot_be_read(installed, monkeypatch):
    installed(abacus=AbacusBackend)

    class Fine(Distribution):
        entry_points = installed.entries

    class Malformed(Distribution):
        @property
        def entry_points(self) -> Any:
            raise TypeError("no = in line 3")

    def fails(*, group: str) -> Any:
        raise TypeError("no = in line 3")

    monkeypatch.setattr(metadata, "entry_points", fails)
    monkeypatch.setattr(metadata, "distributions", lambda: [Malformed("torn"), Fine("fine")])
    assert ost.is_available("abacus")
    (refused,) = list_devices()["refused"]
    assert refused["package"] == "torn 1.2"
    assert "no = in line 3" in refused["reason"]


def test_listing_imports_no_framework():
    code = (
        "import sys; from ostinato.tools.devices import list_devices; list_devices(); "
        "print(sorted({'jax', 'mlx', 'torch', 'wgpu'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"


def test_a_backend_without_devices(installed):
    installed(abacus=NotHere)
    assert names() == ["CPU:0"]
    assert not ost.is_available("abacus")
    with pytest.raises(ost.DeviceUnavailableError, match="ABACUS:0 is not present"):
        ost.Session("abacus")


@pytest.mark.parametrize(
    ("loaded", "part"),
    [
        (ImportError("no module named beads"), "no module named beads"),
        (RuntimeError("bad wood"), "bad wood"),
        (Broken, "no driver"),
        (dict, "no Backend"),
        ("AbacusBackend", "no Backend"),
        (Countless, "the number of ABACUS devices by .* of abacus-package 1.2 is None"),
        (Unopened, "failed to open: .*string 3"),
        (Abstract, "failed to open: .*compile"),
    ],
)
def test_a_backend_that_fails_harms_no_other(installed, loaded, part):
    installed(abacus=loaded, zither=AbacusBackend)
    found = [name for name in names() if "ABACUS" not in name]
    assert found == ["CPU:0", "ZITHER:0", "ZITHER:1"]
    with pytest.raises(ost.DeviceUnavailableError, match=part) as caught:
        ost.Session("abacus")
    assert "abacus-package 1.2" in str(caught.value)
    listed = {each["kind"]: each for each in list_devices()["devices"]}
    assert listed["abacus"]["package"] == "abacus-package 1.2"
    assert listed["zither"]["available"]
    assert ost.Session("cpu").device == ost.Device.CPU
