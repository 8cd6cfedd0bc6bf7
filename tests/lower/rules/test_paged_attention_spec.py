"""The algebra of paged attention: the traffic that follows from it."""

from __future__ import annotations

import pytest

import ostinato as ost
from tests.devices.registered import open_session
from tests.paged_graphs import attend


@pytest.mark.parametrize("device", ["cpu", "cudahost"])
@pytest.mark.parametrize("pool", ["bfloat16", "int8"])
def test_traffic_is_that_of_the_keys_in_reach(device: str, pool: str) -> None:
    """Pools have blocks of other sequences, which no row of the run attends to."""
    found = []
    for blocks in (64, 5000):
        g = attend(rows=2, blocks=(blocks, 16), table=(8, 4), pool=pool)
        plan = open_session(device).compile(g).plan
        assert isinstance(plan, ost.ExecutionPlan)
        found.append(sum(kernel.work({})[1] for kernel in plan.prepared_kernels))
    assert found[0] == found[1]
    keys, heads = 2 * 4 * 16, 2  # of two sequences
    nbytes = keys * heads * (16 + 24) * (2 if pool == "bfloat16" else 1)
    assert nbytes < found[0] < 1.5 * nbytes
