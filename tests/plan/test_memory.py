"""Placing buffers in an arena, and what a compiled graph says of its memory."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ostinato as ost
from ostinato.plan.memory import ALIGNMENT, Lifetime, place

LIVES = st.lists(
    st.builds(
        lambda nbytes, first, length: Lifetime(nbytes, first, first + length),
        st.one_of(st.integers(0, 4096), st.just(64), st.integers(1 << 20, 1 << 24)),
        st.integers(0, 12),
        st.integers(0, 6),
    ),
    max_size=24,
)


@settings(deadline=None, max_examples=300)
@given(lives=LIVES)
def test_what_lives_together_lies_apart(lives):
    placement = place(lives)
    assert len(placement.offsets) == len(lives)
    assert all(offset % ALIGNMENT == 0 for offset in placement.offsets)
    ends = [o + life.nbytes for o, life in zip(placement.offsets, lives, strict=True)]
    assert max(ends, default=0) <= placement.arena_bytes
    spans = list(zip(lives, placement.offsets, ends, strict=True))
    for (a, a_start, a_end), (b, b_start, b_end) in itertools.combinations(spans, 2):
        together = a.first <= b.last and b.first <= a.last
        apart = a_end <= b_start or b_end <= a_start
        assert apart or not together or a.nbytes == 0 or b.nbytes == 0
    most = max(
        (sum(life.nbytes for life in lives if life.first <= t <= life.last) for t in range(20)),
        default=0,
    )
    assert most <= placement.lower_bound_bytes <= placement.arena_bytes <= placement.unshared_bytes


def test_lives_one_after_the_other_share_all():
    placement = place([Lifetime(1000, step, step) for step in range(5)])
    assert placement.arena_bytes == placement.lower_bound_bytes == 1024
    assert placement.unshared_bytes == 5 * 1024


def test_a_chain_takes_two_buffers():
    """Each kernel reads one and writes one."""
    placement = place([Lifetime(4096, step, step + 1) for step in range(10)])
    assert placement.arena_bytes == placement.lower_bound_bytes == 2 * 4096


def test_nothing_takes_nothing():
    assert place([]).arena_bytes == 0


@pytest.fixture(scope="module")
def compiled():
    g = ost.Graph("chain")
    x = g.input("x", (64, 64))
    for i in range(6):
        x = g.softmax(g.matmul(x, g.param(f"w{i}", (64, 64))), axis=-1)
    total = g.state("total", (64, 64))
    g.assign(total, total + x)
    g.set_outputs([x, g.sum(total, axis=0)])
    params = {f"w{i}": np.eye(64, dtype=np.float32) for i in range(6)}
    return ost.Session("cpu", threads=1).compile(g, params)


def test_the_memory_of_a_compiled_graph(compiled):
    memory = compiled.plan.memory
    assert memory.lower_bound_bytes <= memory.arena_bytes <= memory.unshared_bytes
    assert memory.arena_bytes < memory.unshared_bytes, "a chain shares memory"
    assert memory.param_bytes >= 6 * 64 * 64 * 4


def test_the_memory_as_a_table(compiled):
    memory = compiled.plan.memory
    lines = str(memory).splitlines()
    assert len(lines) >= 4
    for nbytes in (memory.arena_bytes, memory.lower_bound_bytes, memory.param_bytes):
        assert any(f"{nbytes:,}" in line for line in lines)
