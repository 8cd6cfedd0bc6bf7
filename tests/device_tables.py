"""The tables of ``docs/devices.md``, from the capabilities of the devices.

``python -m tests.device_tables`` writes them into the page.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from ostinato.backends.base import Capabilities
from ostinato.backends.cpu import capabilities as cpu
from ostinato.backends.cuda import capabilities as cuda
from ostinato.dtypes import ALL_DTYPES, NARROW_DTYPES
from ostinato.ops import OPS

__all__ = ["PAGE", "page"]

PAGE = Path(__file__).parents[1] / "docs" / "devices.md"

_DEVICES: dict[str, Capabilities] = {"cpu": cpu.CAPABILITIES, "cuda": cuda.CAPABILITIES}

_ABILITIES = {
    "capture": "records and replays (`begin_graph_capture`)",
    "handles": "keeps buffers from run to run (`bind_handle`)",
    "in_place_states": "updates states in place",
    "experts_in_file": "leaves experts in their file",
    "shared_weights": "shares packed weights between sizes of a model",
}

_BEGIN, _END = "<!-- tables: begin -->\n", "<!-- tables: end -->"


def page(text: str) -> str:
    """The page's text with its tables as they should be."""
    before, rest = text.split(_BEGIN)
    return before + _BEGIN + _tables() + _END + rest.split(_END)[1]


def _tables() -> str:
    return "\n".join([_abilities(), _dtypes(), _ops()])


def _abilities() -> str:
    names = {field.name for field in fields(Capabilities)}
    assert names >= _ABILITIES.keys()
    rows = [
        [text, *("yes" if getattr(device, name) else "no" for device in _DEVICES.values())]
        for name, text in _ABILITIES.items()
    ]
    return _table(["ability", *_DEVICES], rows)


def _dtypes() -> str:
    """The dtypes that some device refuses, if there are any."""
    rows = []
    for dtype in (*ALL_DTYPES, *NARROW_DTYPES):
        taken = [dtype in device.dtypes for device in _DEVICES.values()]
        if not all(taken):
            rows.append([f"`{dtype.name}`", *("taken" if found else "refused" for found in taken)])
    return _table(["dtype", *_DEVICES], rows) if rows else "No device refuses a dtype.\n"


def _ops() -> str:
    """The ops that some device rewrites; all others are native everywhere."""
    rows = []
    for name in sorted(OPS):
        native = [name in device.ops for device in _DEVICES.values()]
        if not all(native):
            rows.append([f"`{name}`", *("native" if found else "rewritten" for found in native)])
    return _table(["op", *_DEVICES], rows)


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
