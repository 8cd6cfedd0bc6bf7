"""The devices that the suites run on, and their abilities.

Tests take the fixture ``device`` and say what they need by the mark ``needs``; see
:mod:`tests.devices.selection`. A device's :class:`~ostinato.backends.base.Capabilities` give most
of its abilities; the traits below are those that only tests ask for.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import ostinato as ost
from ostinato.backends.device import KINDS
from ostinato.backends.registration import Registrations

from .registered import TEST_BACKENDS, open_session

__all__ = [
    "ABILITIES",
    "CATALOGUE",
    "REFUSED",
    "SuiteDevice",
    "abilities",
    "catalogued",
    "is_known",
    "missing",
]

#: The beginning of the reason of a test that is skipped since its device refuses a node.
REFUSED = "refused by the capabilities: "

#: Capabilities that are abilities: the truth values among them.
CAPABILITIES = frozenset(
    {
        "asynchronous",
        "capture",
        "experts_in_file",
        "expert_residency",
        "handles",
        "in_place_states",
        "inouts",
        "row_limits",
        "shared_weights",
        "single_ops",
    }
)

#: Traits that tests ask for, beyond capabilities.
TRAITS = {
    "every_op": "takes every op on every dtype of its own: a refusal is a failure",
    "fork": "works in a child of a fork",
    "host_memory": "keeps everything in memory of this process, and returns results without copies",
    "host_threads": "computes on threads of this process, as many as a session asks for",
    "lowers": "fuses by Ostinato's own lowering, and prepares weights once per write",
    "llvm": "compiles kernels to machine code by LLVM, for the native core",
    "subnormals": "takes no number below the least normal one for zero",
    "quick": "runs a product of two 256 x 256 matrices in milliseconds",
}

#: Everything that a test may need.
ABILITIES = CAPABILITIES | TRAITS.keys()


@dataclass(frozen=True)
class SuiteDevice:
    """A device that the suites run on.

    Attributes:
        name: of the device, as sessions take it.
        sample: in a plain run, one test of so many runs on it; 0: none.
        traits: see :data:`TRAITS`.
        build_ahead: a function, ``"module:name"``, that compiles the kernels of many pairs of a
            graph and options at once; empty: graphs are compiled one by one.
    """

    name: str
    sample: int = 0
    traits: frozenset[str] = frozenset({"quick", "subnormals"})
    build_ahead: str = ""

    @property
    def installed(self) -> bool:
        """Whether it is one of the tests' own, or is listed as available."""
        return self.name in TEST_BACKENDS or _is_available(self.name)


@cache
def _is_available(name: str) -> bool:
    """As :func:`ostinato.is_available`; asked once, since many tests ask at their collection."""
    return ost.is_available(name)


#: The traits of devices with a lowering of Ostinato's, and kernels of their own.
_WHOLE = frozenset({"every_op", "lowers", "subnormals"})

_LISTED = (
    SuiteDevice("cpu", sample=1, traits=frozenset(TRAITS)),
    SuiteDevice("loops", sample=8, traits=_WHOLE),
    SuiteDevice("cudahost", traits=_WHOLE),
    SuiteDevice(
        "cudaemu",
        traits=_WHOLE,
        build_ahead="tests.devices.cuda_emulation.backend:build_ahead",
    ),
    SuiteDevice("cudasegments", traits=_WHOLE),
    SuiteDevice("cuda", sample=30, traits=_WHOLE | {"quick"}),
    SuiteDevice("webgpu", sample=100, traits=(_WHOLE | {"quick"}) - {"subnormals"}),
    SuiteDevice("xla", sample=100, traits=frozenset({"every_op", "quick"})),
    SuiteDevice("mlx", sample=100, traits=frozenset({"every_op", "quick"})),
)

#: Every device that the project tests, by name.
CATALOGUE = {listed.name: listed for listed in _LISTED}


def catalogued(name: str) -> SuiteDevice:
    """The entry of a device; one that is not listed, such as a plug-in's, has no special traits."""
    return CATALOGUE.get(name.partition(":")[0]) or SuiteDevice(name)


def is_known(name: str) -> bool:
    """Whether a device has a name of Ostinato's, of the tests', or of a package's that is here."""
    try:
        kind = ost.Device.parse(name).kind
    except ost.DeviceUnavailableError:
        return False
    return kind in (*KINDS, *map(str.upper, TEST_BACKENDS)) or Registrations().of(kind) is not None


@cache
def missing(name: str) -> str | None:
    """The reason why no session can be opened on a device; ``None``: one can."""
    try:
        open_session(name)
    except ost.DeviceUnavailableError as error:
        return str(error)
    return None


@cache
def abilities(name: str) -> frozenset[str]:
    """Everything in :data:`ABILITIES` that a device has."""
    own = open_session(name).capabilities
    return catalogued(name).traits | {a for a in CAPABILITIES if getattr(own, a)}
