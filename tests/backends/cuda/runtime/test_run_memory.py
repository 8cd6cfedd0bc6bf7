"""The memory of runs: found anew where it was given back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("cuda.bindings")

from ostinato.backends.cuda.places import RunMemory


class _Staging:
    """Memory of copies that moves."""

    base = 1 << 20

    def address(self, number: int, nbytes: int) -> int:
        return self.base + (number << 10)

    def host_address(self, number: int) -> int:
        return 0


def test_memory_that_was_given_back_is_found_anew() -> None:
    staging = _Staging()
    sizes: Any = SimpleNamespace(partial=False, depends=lambda number: False)
    externals: Any = [SimpleNamespace(read=number == 0, written=number == 1) for number in (0, 1)]
    memory = RunMemory(sizes, externals, list, staging)  # type: ignore[arg-type]
    spans = [(64, 8), (128, 8)]
    before = memory.host_places(spans, ())
    assert before.slots == [staging.base, staging.base + 1024]
    staging.base *= 2
    assert memory.host_places(spans, ()) == before
    memory.discard()
    after = memory.host_places(spans, ())
    assert after.slots == [staging.base, staging.base + 1024]
    assert after.copied_in == [(64, staging.base, 8)]
    assert after.copied_out == [(128, staging.base + 1024, 8)]
