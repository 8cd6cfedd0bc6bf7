"""Experts that do not all stay in the GPU's memory: slots by budget; see also ``tests/moe``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ostinato as ost
from tests.moe.layers import ONE, pair, tokens_of


@pytest.mark.parametrize(
    ("budget", "slots"), [(None, 7), (14 * ONE, 7), (10 * ONE, 3), (6 * ONE, 1), (4 * ONE, 0)]
)
def test_slots_of_a_budget(
    session: ost.Session, tmp_path: Path, budget: int | None, slots: int
) -> None:
    compiled, plain = pair(session, tmp_path, budget, 2)
    assert [layer.slots for layer in compiled.moe_layers] == [slots] * 2
    names = [
        call.title for call in compiled._execution.executable.compilation.lowered.program.calls
    ]
    assert ("stage experts" in names) == (slots < 7)
    for step in range(3):
        x = tokens_of(2, seed=step)
        np.testing.assert_array_equal(compiled.run(x), plain.run(x))
    assert (compiled.moe_transfers.bytes_staged == 0) == (slots == 7)


def test_a_budget_that_is_too_small(session: ost.Session, tmp_path: Path) -> None:
    with pytest.raises(ost.InputError, match=rf"expert_budget is 1 bytes, but .* {4 * ONE:,}"):
        pair(session, tmp_path, 1, 2)
