"""Params that kernels read in another form only, and that are therefore not kept in their own."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ostinato.backends.cpu import _core
from ostinato.ir.stored import elements
from ostinato.plan.buffer import HostMemory, bytes_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ostinato.ir.stored import ParamSource

__all__ = ["Originals", "batches"]

#: Bytes of weights that are fetched at a time, so that a model in a file never is in memory whole.
_FETCHED_AT_ONCE = 4 << 20


class Originals:
    """Where such params came from, for those who ask what they hold.

    Args:
        nbytes: their sizes, by name.
    """

    def __init__(self, nbytes: Mapping[str, int]) -> None:
        self._nbytes = nbytes
        self._sources: dict[str, ParamSource] = {}
        self._shown: dict[str, HostMemory] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._nbytes

    def note(self, name: str, source: ParamSource) -> None:
        """Take down that a param was given this, which nobody will change."""
        self._sources[name] = source
        if name in self._shown:
            self._shown[name].write(0, bytes_of(elements(source)))

    def memory(self, name: str) -> HostMemory:
        """What a param holds, in memory that is taken now and follows later writes."""
        if name not in self._shown:
            memory = HostMemory(_core.Arena(self._nbytes[name]))
            if name in self._sources:
                memory.write(0, bytes_of(elements(self._sources[name])))
            self._shown[name] = memory
        return self._shown[name]

    def copy(self) -> Originals:
        """The same for another executable, which may be given other params from now on."""
        twin = Originals(self._nbytes)
        twin._sources = dict(self._sources)
        return twin


def batches(sources: Mapping[str, ParamSource]) -> Iterator[dict[str, ParamSource]]:
    """The sources in their order, a few at a time; at least one batch, which may be empty."""
    batch: dict[str, ParamSource] = {}
    held = 0
    for name, source in sources.items():
        batch[name] = source
        held += source.dtype.itemsize * math.prod(source.shape)
        if held >= _FETCHED_AT_ONCE:
            yield batch
            batch, held = {}, 0
    yield batch
