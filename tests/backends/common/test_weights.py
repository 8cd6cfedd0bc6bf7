"""The rule of writing params: what is prepared again, and what is still unset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from ostinato.backends.common.program_image import (
    ParamLocation,
    ProgramImage,
    ProgramPreparation,
    Slot,
)
from ostinato.backends.common.program_memory import BlockKind, ProgramMemory
from ostinato.errors import PlanError
from ostinato.plan.buffer import HostMemory

Array = np.ndarray[Any, Any]
Step = tuple[str]

ONE = np.ones(2, np.float32)


class Blocks(BlockKind[Any]):
    """Bytearrays."""

    def allocate(self, nbytes: int) -> bytearray:
        return bytearray(nbytes)

    def duplicate(self, block: bytearray) -> bytearray:
        return bytearray(block)

    def memory(self, block: bytearray) -> HostMemory:
        return HostMemory(block)


def memory() -> ProgramMemory[bytearray, Step]:
    """Params ``a``, ``b`` and ``c``: ``a`` has no place of its own."""
    sizes = (16, 4, 16, 8, 0, 0)
    places = {"a": None, "b": (int(Slot.WEIGHTS), 0), "c": (int(Slot.WEIGHTS), 8)}
    image: ProgramImage[Step] = ProgramImage(
        objects=(),
        steps=(),
        preparations=(
            ProgramPreparation(("a",), (("pack a",),)),
            ProgramPreparation(("b", "c"), (("pack b and c",),)),
            ProgramPreparation((), (("pack a constant",),)),
        ),
        sizes=sizes,
        results=(),
        intermediate_bytes=0,
        constants=((1, b"xy"),),
        params={name: ParamLocation(8, place) for name, place in places.items()},
        states={},
        externals=(),
        variables=(),
        live_sizes={},
        routings=(),
    )
    return ProgramMemory(image, Blocks())


class Writes:
    """The writes that a device was asked for."""

    def __init__(self) -> None:
        self.seen: list[tuple[list[str], list[str]]] = []

    def __call__(
        self, params: Mapping[str, Array], stale: Sequence[ProgramPreparation[Step]]
    ) -> None:
        self.seen.append(([*params], [name for part in stale for (name,) in part.steps]))


def test_what_depends_on_a_written_param_is_prepared_again() -> None:
    weights, writes = memory().weights, Writes()
    weights.write({"c": ONE}, writes)
    assert writes.seen == [(["c"], ["pack b and c"])]
    assert weights.unset == {"a", "b"}


def test_first_a_preparation_waits_for_all_of_its_params() -> None:
    weights, writes = memory().weights, Writes()
    weights.write_first({"a": ONE, "b": ONE}, writes)
    assert writes.seen == [(["a", "b"], ["pack a", "pack a constant"])]
    assert weights.unset == {"c"}


def test_a_write_that_fails_changes_nothing() -> None:
    weights = memory().weights

    def fail(params: object, stale: object) -> None:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        weights.write({"a": ONE}, fail)
    assert weights.unset == {"a", "b", "c"}
    assert not np.frombuffer(weights.unpacked.memory("a").block, np.uint8).any()


def test_a_non_retained_param_can_be_read_and_follows_writes() -> None:
    kept = memory()
    shown = kept.lend_unpacked("a")
    for value in (3, 4):
        kept.weights.write({"a": ONE * value}, Writes())
        data = np.empty(2, np.float32)
        shown.read(0, memoryview(data).cast("B"))
        assert data.tolist() == [value, value]


def test_clones_share_constants_and_weights_alone() -> None:
    first = memory()
    second = first.clone()
    shared = [a is b for a, b in zip(first.fixed(), second.fixed(), strict=True)]
    assert [slot for slot, same in zip(Slot, shared, strict=True) if same] == [
        Slot.CONSTANTS,
        Slot.WEIGHTS,
    ]
    assert first.fixed()[Slot.CONSTANTS] == b"\0xy\0"
    second.weights.write({"b": ONE}, Writes())
    assert (first.weights.unset, second.weights.unset) == ({"a", "b", "c"}, {"a", "c"})


def test_closed_memory_lends_nothing_and_leaves_clones_alone() -> None:
    first = memory()
    second = first.clone()
    first.close()
    for use in (first.fixed, first.clone, lambda: first.lend(Slot.ARENA)):
        with pytest.raises(PlanError, match="released"):
            use()
    with pytest.raises(PlanError, match="released"):
        first.lend_unpacked("a")
    assert len(second.fixed()[Slot.WEIGHTS]) == 16
