"""Devices and backends: names, what is available, and backends of other packages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.backends.base import Backend, Capabilities, Executable
from ostinato.backends.registry import open_backend
from ostinato.dtypes import ALL_DTYPES
from ostinato.plan.report import CompileReport

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


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"CPU"}))
def test_what_is_not_here_says_so_honestly(kind):
    assert not ost.is_available(kind)
    with pytest.raises(ost.DeviceUnavailableError) as caught:
        ost.Session(kind.lower())
    message = str(caught.value)
    reason = "is not available: " if kind == "CUDA" else f"no {kind} backend yet"
    for part in (f"{kind}:0", reason, "available here: CPU:0"):
        assert part in message


@pytest.mark.parametrize("kind", ["rocm", "webgpu", "mlx", "tpu", "xla"])
def test_nothing_is_offered_to_install_for_a_device_without_a_backend(kind):
    with pytest.raises(ost.DeviceUnavailableError) as caught:
        ost.Session(kind)
    assert "pip install" not in str(caught.value)
    assert "'ostinato.backends'" in str(caught.value)  # another package may bring it
    assert kind not in (metadata.metadata("ostinato").get_all("Provides-Extra") or ())


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


class FakeEntryPoint:
    """An entry point as ``importlib.metadata`` lists it."""

    group = "ostinato.backends"

    def __init__(self, name: str, loaded: Any) -> None:
        self.name, self._loaded = name, loaded
        self.value = f"abacus:{name}"

    def load(self) -> Any:
        if isinstance(self._loaded, Exception):
            raise self._loaded
        return self._loaded


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Pretend that packages with these backends are installed."""

    def install(**backends: Any) -> None:
        entries = [FakeEntryPoint(name, loaded) for name, loaded in backends.items()]

        def entry_points(*, group: str) -> list[FakeEntryPoint]:
            return entries if group == "ostinato.backends" else []

        monkeypatch.setattr(metadata, "entry_points", entry_points)

    return install


def test_a_backend_of_another_package(installed):
    installed(abacus=AbacusBackend)
    assert ost.available_devices() == [
        ost.Device.CPU,
        ost.Device("ABACUS", 0),
        ost.Device("ABACUS", 1),
    ]
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
    installed(ROCM=AbacusBackend)
    assert ost.is_available("rocm:1")
    assert isinstance(open_backend("rocm"), AbacusBackend)


def test_the_own_backend_comes_first(installed):
    installed(cpu=AbacusBackend)
    assert ost.available_devices() == [ost.Device.CPU]
    assert not isinstance(open_backend("cpu"), AbacusBackend)


def test_a_backend_without_devices(installed):
    installed(abacus=NotHere)
    assert ost.available_devices() == [ost.Device.CPU]
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
    ],
)
def test_a_backend_that_fails_harms_no_other(installed, loaded, part):
    installed(abacus=loaded, zither=AbacusBackend)
    assert [str(d) for d in ost.available_devices()] == ["CPU:0", "ZITHER:0", "ZITHER:1"]
    assert not ost.is_available("abacus")
    with pytest.raises(ost.DeviceUnavailableError, match=part):
        ost.Session("abacus")
    assert ost.Session("cpu").device == ost.Device.CPU
