"""The cases of narrower instruction set levels that the fast tests run."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.backends.cpu.levels import narrower_levels

_HERE = Path(__file__).parent

#: Of so many cases, the fast tests run one.
_EVERY = 3


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Mark most cases of narrower levels as slow.

    They meet the same code as those of the machine's widest level, with other vectors.
    """
    narrower = {*narrower_levels()}
    for item in items:
        if _HERE not in item.path.parents or not isinstance(item, pytest.Function):
            continue
        params = item.callspec.params.values() if hasattr(item, "callspec") else ()
        levels = {value for value in params if isinstance(value, str)}
        if levels & narrower and zlib.crc32(item.nodeid.encode()) % _EVERY:
            item.add_marker(pytest.mark.slow)
