"""A plugin of pytest: the devices that tests run on.

A test that takes the fixture ``device``, itself or through other fixtures, runs on several. What it
needs of a device stands in a mark::

    @pytest.mark.needs("capture", "handles")

with names of :data:`tests.devices.catalogue.ABILITIES`. In a plain run such tests run on the CPU,
and on the other installed devices one in so many, as the catalogue says. ``--devices xla,loops``
runs all of them on these devices, and nothing else; with ``--sample 20``, one test in twenty.

Tests with the mark ``always_on("NAME")`` all run on that device in a plain run, too.

A device that is not here, or lacks what a test needs, skips it and says so. So does one whose
capabilities refuse a dtype, or an op, unless it is said to take every op.
"""

from __future__ import annotations

import zlib
from collections.abc import Generator, Iterator

import pytest

import ostinato as ost
from ostinato.dtypes import ALL_DTYPES, NARROW_DTYPES

from .catalogue import ABILITIES, CATALOGUE, REFUSED, abilities, catalogued, missing
from .registered import open_session

__all__ = ["device", "is_refusal"]


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> str:
    """The name of each device in turn."""
    name: str = request.param
    return name


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("devices")
    group.addoption("--devices", help="the devices to run on, with commas between")
    group.addoption("--sample", type=int, default=1, help="run one test in so many on them")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "needs(*abilities): the abilities without which a device skips the test"
    )
    config.addinivalue_line(
        "markers", "always_on(*devices): devices of plain runs, besides those listed"
    )
    config.pluginmanager.register(_SampledCases())


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "device" not in metafunc.fixturenames or _names_devices(metafunc.definition):
        return
    for mark in metafunc.definition.iter_markers("needs"):
        if unknown := set(mark.args) - ABILITIES:
            raise pytest.UsageError(f"{metafunc.definition.nodeid} needs unknown {unknown}")
    devices = _devices(metafunc.config, _always_on(metafunc.definition))
    metafunc.parametrize("device", devices, indirect=True, scope="session")


class _SampledCases:
    """A plugin that makes no items of cases that are not in the sample of their device.

    Items that would be deselected are a quarter of the time of a collection. Pytest has no public
    way to leave cases out: where its lists of them are others than here, items are deselected.
    """

    @pytest.hookimpl(wrapper=True)
    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> Generator[None, None, None]:
        yield
        cases, definition = getattr(metafunc, "_calls", []), metafunc.definition
        if _names_devices(definition) or not all(hasattr(case, "id") for case in cases):
            return
        always = _always_on(definition)
        sampled = [
            case
            for case in cases
            if (name := case.params.get("device")) is None
            or _is_sampled(metafunc.config, name, f"{definition.nodeid}[{case.id}]", always)
        ]
        metafunc._calls = sampled or cases[:1]  # one without a case would have no parameters


def _devices(config: pytest.Config, always: frozenset[str]) -> list[str]:
    named = config.getoption("devices")
    if named:
        return [name for name in named.split(",") if name]
    wanted = [each for each in CATALOGUE.values() if each.sample or each.name in always]
    return [each.name for each in wanted if each.installed]


def _always_on(item: pytest.Item) -> frozenset[str]:
    """The devices that all cases of a test run on in a plain run."""
    return frozenset(name for mark in item.iter_markers("always_on") for name in mark.args)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests that are not in the sample of their device, and those without one."""

    def kept(item: pytest.Item) -> bool:
        name = device_of(item)
        if name is None:
            return not config.getoption("devices")
        return _is_sampled(config, name, item.nodeid, _always_on(item))

    chosen = [item for item in items if kept(item)]
    if len(chosen) < len(items):
        config.hook.pytest_deselected(items=[item for item in items if not kept(item)])
        items[:] = chosen


def _is_sampled(config: pytest.Config, name: str, nodeid: str, always: frozenset[str]) -> bool:
    """Whether a test is in the sample of a device, or ``always`` runs on it."""
    named = config.getoption("devices")
    if not named and name in always:
        return True
    every = config.getoption("sample") if named else catalogued(name).sample
    return every == 1 or zlib.crc32(nodeid.encode()) % every == 0


def _names_devices(item: pytest.Item) -> bool:
    """Whether a test has a list of devices of its own."""
    marks = item.iter_markers("parametrize")
    return any("device" in str(mark.args[0]) for mark in marks if mark.args)


def device_of(item: pytest.Item) -> str | None:
    """The device that a test runs on, if it takes one."""
    if _names_devices(item):
        return None
    name = getattr(getattr(item, "callspec", None), "params", {}).get("device")
    return name if isinstance(name, str) else None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    name = device_of(item)
    if name is None:
        return
    if (reason := missing(name)) is not None:
        pytest.skip(reason)
    needed = {ability for mark in item.iter_markers("needs") for ability in mark.args}
    if lacking := sorted(needed - abilities(name)):
        pytest.skip(f"{name} lacks {', '.join(lacking)}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    name = device_of(item)
    try:
        yield
    except ost.UnsupportedOpError as error:
        if name is None or not is_refusal(name, error):
            raise
        pytest.skip(REFUSED + " ".join(str(error).splitlines()[-1].split()))


def is_refusal(name: str, error: BaseException) -> bool:
    """Whether an error follows from the capabilities of a device that need not take every op.

    A pass has raised it, which knows nothing else of the device: what the device's own code refuses
    is a failure. No device need take a node of dtypes that are not its own.
    """
    if not any("passes/decompose" in path for path in _files(error)):
        return False
    return "every_op" not in abilities(name) or _is_of_other_dtypes(name, error)


def _is_of_other_dtypes(name: str, error: BaseException) -> bool:
    """Whether every node that an error lists reads a dtype that the device refuses altogether."""
    own = open_session(name).capabilities.dtypes
    others = [f"{dtype.short}[" for dtype in (*ALL_DTYPES, *NARROW_DTYPES) if dtype not in own]
    _, *nodes = str(error).splitlines()
    return bool(nodes) and all(any(other in node for other in others) for node in nodes)


def _files(error: BaseException) -> Iterator[str]:
    """The files of the frames that an error has left."""
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame.f_code.co_filename.replace("\\", "/")
        trace = trace.tb_next
