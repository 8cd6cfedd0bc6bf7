"""Non-retained weights: params that kernels read only in their prepacked form."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ostinato.ir.stored import elements
from ostinato.plan.buffer import bytes_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ostinato.ir.stored import ParamSource
    from ostinato.plan.buffer import Memory

__all__ = ["UnpackedWeights", "batches"]

#: Bytes of weights that are read at a time: a model in a file is never in memory as a whole.
_FETCHED_AT_ONCE = 4 << 20


class UnpackedWeights:
    """The sources of such params, to read their unpacked contents from.

    Args:
        nbytes: their sizes, by name.
        allocate: takes zeroed memory to show contents in.
    """

    def __init__(self, nbytes: Mapping[str, int], allocate: Callable[[int], Memory]) -> None:
        self._nbytes = nbytes
        self._allocate = allocate
        self._sources: dict[str, ParamSource] = {}
        self._shown: dict[str, Memory] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._nbytes

    def record(self, name: str, source: ParamSource) -> None:
        """Record the source of a param's contents, which is never changed."""
        self._sources[name] = source
        if name in self._shown:
            self._shown[name].write(0, bytes_of(elements(source)))

    def holds(self, name: str, source: ParamSource) -> bool:
        """Whether a param's contents are those of ``source``."""
        known = self._sources.get(name)
        if known is source:
            return True
        if known is None or known.dtype != source.dtype or known.shape != source.shape:
            return False
        return bool(bytes_of(elements(known)) == bytes_of(elements(source)))

    def memory(self, name: str) -> Memory:
        """The contents of a param, in memory that is taken now and follows later writes."""
        if name not in self._shown:
            memory = self._allocate(self._nbytes[name])
            if name in self._sources:
                memory.write(0, bytes_of(elements(self._sources[name])))
            self._shown[name] = memory
        return self._shown[name]

    def copy(self) -> UnpackedWeights:
        """A copy for another executable, whose params may be written independently."""
        twin = UnpackedWeights(self._nbytes, self._allocate)
        twin._sources = dict(self._sources)
        return twin


def batches(sources: Mapping[str, ParamSource]) -> Iterator[dict[str, ParamSource]]:
    """Split sources, in order, into batches; at least one batch, which may be empty."""
    batch: dict[str, ParamSource] = {}
    held = 0
    for name, source in sources.items():
        batch[name] = source
        held += source.dtype.itemsize * math.prod(source.shape)
        if held >= _FETCHED_AT_ONCE:
            yield batch
            batch, held = {}, 0
    yield batch
