"""Experts that stay in their file until a run calls them: files that change, and submissions."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostinato as ost

Array = np.ndarray[Any, Any]

EXPERTS, DEPTH, WIDTH = 5, 3, 7
ONE = DEPTH * WIDTH * 2  # bytes of a matrix: no whole number of words
WEIGHTS = np.arange(EXPERTS * DEPTH * WIDTH).reshape(EXPERTS, DEPTH, WIDTH).astype(np.float16)


def from_file(session: ost.Session, path: Path, budget: int | None) -> ost.CompiledGraph:
    g = ost.Graph("one matrix each")
    x, ids = g.input("x", (2, DEPTH), "float16"), g.input("ids", (2,), "int64")
    g.set_outputs([g.grouped_matmul(x, g.param("w", WEIGHTS.shape, "float16"), ids)])
    if not path.exists():
        ost.moe.write_safetensors(path, {"w": WEIGHTS})
    return session.compile(g, experts=ost.moe.ExpertFile(path), expert_budget=budget)


def inputs(*ids: int) -> dict[str, Array]:
    return {"x": np.eye(2, DEPTH).astype(np.float16), "ids": np.array(ids, np.int64)}


def check(compiled: ost.CompiledGraph, *ids: int) -> None:
    (found,) = compiled.run(inputs(*ids))
    np.testing.assert_array_equal(found, [WEIGHTS[e, row] for row, e in enumerate(ids)])


def test_matrices_of_no_whole_words(session: ost.Session, tmp_path: Path) -> None:
    compiled = from_file(session, tmp_path / "e", 3 * ONE)
    assert compiled.moe_layers[0].slots == 1
    for first in range(EXPERTS):
        for second in range(EXPERTS):
            check(compiled, first, second)
        compiled.set_moe_resident_experts(np.arange(EXPERTS) == first)


def test_what_fits_takes_no_part_of_the_host(session: ost.Session, tmp_path: Path) -> None:
    whole, part = (from_file(session, tmp_path / "e", budget) for budget in (None, 3 * ONE))
    assert whole._execution.executable.program.mergeable
    assert not part._execution.executable.program.mergeable
    for ids in ((4, 0), (-1, -5), (2, 2)):
        check(whole, *ids)
        check(part, *ids)
    assert whole.moe_transfers == ost.moe.ExpertTransfers()


def test_only_experts_that_are_called_are_read(session: ost.Session, tmp_path: Path) -> None:
    compiled = from_file(session, tmp_path / "e", 3 * ONE)
    staged = []
    for ids in ((0, 0), (1, 1), (1, 2), (0, 4)):
        check(compiled, *ids)
        staged.append(compiled.moe_transfers.bytes_staged // ONE)
    assert staged == [0, 1, 3, 4]


def test_a_file_that_is_written_meanwhile(session: ost.Session, tmp_path: Path) -> None:
    """Experts that could not be read are not resident; a run that needs none of them works."""
    path = tmp_path / "e"
    compiled = from_file(session, path, 4 * ONE)
    assert compiled.moe_layers[0].slots == 2
    before, content = path.stat(), path.read_bytes()
    path.write_bytes(content[:-1] + b"\0")
    check(compiled, 0, 1)
    with pytest.raises(ost.ModelFormatError, match="was written"):
        compiled.run(inputs(3, 4))
    with pytest.raises(ost.ModelFormatError, match="was written"):
        compiled.set_moe_resident_experts(np.arange(EXPERTS) >= 3)
    assert compiled.moe_transfers == ost.moe.ExpertTransfers(0, 2, 0, 0)
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    check(compiled, 3, 4)
    check(compiled, 1, 0)  # more are missing than without the failure
    compiled.set_moe_resident_experts(np.arange(EXPERTS) >= 3)
    assert compiled.moe_transfers.promotions == 2
    check(compiled, 3, 4)
    check(compiled, 1, 2)
