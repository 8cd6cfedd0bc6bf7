"""Facts about the processor that no system states: each is measured when it is first needed.

A trial (:mod:`~ostinato.backends.cpu.processor_trials`) takes some 0.1 s. Its result is kept in the
cache of this machine's kernels.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from ostinato.backends.cpu.llvm.toolchain import TargetSpec
from ostinato.cache.fingerprint import entry_key
from ostinato.cache.objects import process_cache
from ostinato.lazy import LazyModule

if TYPE_CHECKING:
    from collections.abc import Callable

    from ostinato.backends.cpu import processor_trials
else:
    processor_trials = LazyModule("ostinato.backends.cpu.processor_trials")

__all__ = [
    "bfloat16_dots_are_fast",
    "few_rows_prefetch",
    "known",
    "row_strips_are_faster",
    "slow_memory",
    "strips_are_faster",
]

_FEW_ROWS, _DOTS = "prefetching for few rows", "dot products of bfloat16"
_SLOW_MEMORY, _STRIPS = "slow memory", "panels in strips"
_ROW_STRIPS = "panels in strips for one row"


@functools.cache
def few_rows_prefetch() -> bool:
    """Whether tiles of 4 rows read weights faster from memory if they prefetch them.

    They take 1.3 times as long then on Zen 4, and 0.7 times on Emerald Rapids.
    """
    return measured(_FEW_ROWS, _try_few_rows)


@functools.cache
def bfloat16_dots_are_fast() -> bool:
    """Whether dot products of bfloat16 take much less time than widening and multiplying.

    Zen 4 computes as many per second as it does multiply-adds, Emerald Rapids a quarter as many.
    """
    return measured(_DOTS, _try_bfloat16_dots)


@functools.cache
def slow_memory() -> bool:
    """Whether reading a float32 from memory takes as long as many multiply-adds.

    It takes as long as 8 on Zen 4, and as 21 on Emerald Rapids.
    """
    return measured(_SLOW_MEMORY, _try_slow_memory)


@functools.cache
def strips_are_faster() -> bool:
    """Whether tiles of 4 rows read panels faster from memory that are in strips.

    A core reads several streams faster than one where the hardware runs ahead of each: they take
    0.6 times as long as whole panels on Emerald Rapids, 0.7 times on Zen 3, 1.3 times and more on
    Zen 4.
    """
    return measured(_STRIPS, _try_strips)


@functools.cache
def row_strips_are_faster() -> bool:
    """The same for one row: 0.8 times on Zen 3, 1.06 times on Emerald Rapids."""
    return measured(_ROW_STRIPS, _try_row_strips)


def _try_few_rows(target: TargetSpec) -> bool:
    return processor_trials.few_rows_prefetch(target)


def _try_bfloat16_dots(target: TargetSpec) -> bool:
    return processor_trials.bfloat16_dots_are_fast(target)


def _try_slow_memory(target: TargetSpec) -> bool:
    return processor_trials.slow_memory(target)


def _try_strips(target: TargetSpec) -> bool:
    return processor_trials.strips_are_faster(target)


def _try_row_strips(target: TargetSpec) -> bool:
    return processor_trials.row_strips_are_faster(target)


def measured(name: str, trial: Callable[[TargetSpec], bool]) -> bool:
    """The result of a trial on this machine, from the cache if it has it."""
    data = process_cache().get_or_build(_key(name), lambda: b"%d" % trial(TargetSpec.host()))
    return data == b"1"


def known() -> str:
    """The facts that have been measured so far, as text."""
    names = (_FEW_ROWS, _DOTS, _SLOW_MEMORY, _STRIPS, _ROW_STRIPS)
    found = {name: process_cache().find(_key(name)) for name in names}
    return ", ".join(f"{name}: {data.decode()}" for name, data in found.items() if data is not None)


def _key(name: str) -> str:
    return entry_key("trial", name=name, target=TargetSpec.host().identity)
