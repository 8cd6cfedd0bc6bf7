"""The tables of devices in ``docs/devices.md`` and the README.

They are made from the capabilities of the devices, from the catalogue of the tests, and from the
outcomes of ``python -m tests.conformance`` in ``bench/results``. ``python -m tests.device_tables``
writes them into the pages.
"""

from __future__ import annotations

import json
import re
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

from ostinato.backends.base import Capabilities
from ostinato.dtypes import ALL_DTYPES, NARROW_DTYPES
from ostinato.ops import OPS
from tests.conformance.stages import TESTS
from tests.devices import catalogue
from tests.devices.refusals import refused

__all__ = ["PAGES", "page"]

ROOT = Path(__file__).parents[1]

#: The pages with tables.
PAGES = (ROOT / "docs" / "devices.md", ROOT / "README.md")

#: The capabilities of each device, found without its framework or its driver.
_CAPABILITIES = {
    "cpu": "ostinato.backends.cpu.capabilities:CAPABILITIES",
    "cuda": "ostinato.backends.cuda.capabilities:CAPABILITIES",
    "webgpu": "ostinato.backends.webgpu.capabilities:CAPABILITIES",
    "xla": "ostinato.backends.array_api.xla.capabilities:CAPABILITIES",
    "mlx": "ostinato.backends.array_api.mlx.capabilities:CAPABILITIES",
}

_ABILITIES = {
    "handles": "keeps buffers from run to run (`bind_handle`)",
    "in_place_states": "updates states in place",
    "inouts": "writes to arrays that a run is given (`Graph.inout`)",
    "single_ops": "runs ops one by one (`GraphExecutor`)",
    "capture": "records and replays (`begin_graph_capture`)",
    "asynchronous": "takes queued runs without a thread of the host",
    "row_limits": "leaves out rows beyond an active extent",
    "expert_residency": "counts, captures and places experts",
    "experts_in_file": "leaves experts in their file",
    "shared_weights": "shares packed weights between sizes of a model",
}


def page(text: str) -> str:
    """A page's text with its tables as they should be."""
    made = {"abilities": _abilities, "refusals": _refusals, "ops": _ops, "tested": _tested}
    for name, table in made.items():
        begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
        if begin in text:
            before, rest = text.split(begin)
            text = before + begin + table() + end + rest.split(end)[1]
    return text


def _devices() -> dict[str, Capabilities]:
    return {name: EntryPoint(name, path, "").load() for name, path in _CAPABILITIES.items()}


# -- capabilities ----------------------------------------------------------------------------------


def _abilities() -> str:
    devices = _devices()
    assert _ABILITIES.keys() == catalogue.CAPABILITIES
    rows = [
        [text, *("yes" if getattr(device, name) else "no" for device in devices.values())]
        for name, text in _ABILITIES.items()
    ]
    return _table(["ability", *devices], rows)


def _refusals() -> str:
    """The dtypes that some device refuses altogether, and those that it refuses for some ops."""
    devices = _devices()
    rows = []
    for dtype in (*ALL_DTYPES, *NARROW_DTYPES):
        taken = [dtype in device.dtypes for device in devices.values()]
        if not all(taken):
            rows.append([f"`{dtype.name}`", *("taken" if found else "refused" for found in taken)])
    text = _table(["dtype", *devices], rows) if rows else "No device refuses a dtype.\n"
    by_device = {name: refused(device) for name, device in devices.items()}
    ops = sorted({op for found in by_device.values() for op in found})
    if not ops:
        return text + "\nNo device refuses an op.\n"
    rows = [
        [f"`{op}`", *(", ".join(found.get(op, [])) or "taken" for found in by_device.values())]
        for op in ops
    ]
    return text + "\n" + _table(["op", *devices], rows)


def _ops() -> str:
    """The ops that some device rewrites; all others are native everywhere."""
    devices = _devices()
    rows = []
    for name in sorted(OPS):
        native = [name in device.ops for device in devices.values()]
        if not all(native):
            rows.append([f"`{name}`", *("native" if found else "rewritten" for found in native)])
    return _table(["op", *devices], rows)


# -- tests -----------------------------------------------------------------------------------------

_FEATURES = {
    "handles": "handles",
    "in_place_states": "states in place",
    "capture": "capture",
    "single_ops": "sessions",
    "expert_residency": "expert residency",
    "experts_in_file": "experts in files",
    "inouts": "given arrays",
    "row_limits": "active extents",
}


def _tested() -> str:
    """A row for each device: its features, and where it was tested."""
    rows = []
    for name, capabilities in _devices().items():
        has = ["yes" if getattr(capabilities, feature) else "-" for feature in _FEATURES]
        rows.append([f"`{name}`", *has, "; ".join([_in_make_test(name), *_outcome(name)])])
    return _table(["device", *_FEATURES.values(), "tested"], rows)


def _in_make_test(name: str) -> str:
    sample = catalogue.CATALOGUE[name].sample
    return "`make test`: all" if sample == 1 else f"`make test`, if it is there: 1 in {sample}"


def _outcome(name: str) -> list[str]:
    """The stored outcome of a device's conformance, in words; none, if it is not stored."""
    path = ROOT / "bench" / "results" / f"{name}_conformance.json"
    if not path.exists():
        return []
    found: dict[str, Any] = json.loads(path.read_text())
    counts = []
    for kind in ("passed", "failed", "refused"):
        count = sum(stage.get(kind, 0) for stage in found["stages"])
        if count or kind != "refused":
            counts.append(f"{count:,} {kind}")
    usual_sample = found.get("sample", 1)
    samples = sorted({stage.get("sample", usual_sample) for stage in found["stages"]})
    if samples and samples[-1] > 1:
        ends = dict.fromkeys((samples[0], samples[-1]))
        counts.append(f"1 test in {' to '.join(map(str, ends))}")
    counts += ["not complete"] if any(stage.get("problem") for stage in found["stages"]) else []
    ran = {name for stage in found["stages"] for name in (stage["name"], *stage.get("covers", ()))}
    if missing := [name for name in (*TESTS, "fuzz") if name not in ran]:
        counts.append(f"without {', '.join(missing)}")
    usual = found.get("machine") or found["device"]
    machines = dict.fromkeys(stage.get("machine", usual) for stage in found["stages"])
    where = ", ".join(machines)
    return [f"[{', '.join(counts)}](bench/results/{path.name}) on {where}, {_when(found)}"]


def _when(found: dict[str, Any]) -> str:
    """The dates of an outcome's stages, and their commits, of which a stage may list several."""
    usual = found.get("date", "on a day that is not known")
    dates = sorted({stage.get("date", usual) for stage in found["stages"]})
    usual = found.get("commit", "")
    listed = (stage.get("commit", usual) for stage in found["stages"])
    commits = dict.fromkeys(c for text in listed for c in re.findall(r"\b[0-9a-f]{8}\b", text))
    return f"{' and '.join(dict.fromkeys((dates[0], dates[-1])))}, of {', '.join(commits)}"


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(page(path.read_text()))
