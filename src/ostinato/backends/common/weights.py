"""The params of an executable: their memory, shared by clones, and the rule of writing them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from ostinato.backends.common.copy_on_write import CopyOnWriteBlock
from ostinato.backends.common.unpacked_weights import UnpackedWeights, batches
from ostinato.ir.stored import StoredTensor, elements

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np

    from ostinato.backends.common.program_image import ProgramImage, ProgramPreparation
    from ostinato.ir.stored import ParamSource
    from ostinato.plan.buffer import Memory

__all__ = ["Weights", "WriteParams"]

M = TypeVar("M")
S = TypeVar("S", bound=tuple[Any, ...])


class WriteParams(Protocol[S]):
    """A device's write of params, which no run may interleave with."""

    def __call__(
        self,
        params: Mapping[str, np.ndarray[Any, Any]],
        stale: Sequence[ProgramPreparation[S]],
        /,
    ) -> None:
        """Copy arrays into their slots, then run the stale preparations.

        A non-retained param has no place: only the preparations read its array.
        """


class Weights(Generic[M, S]):
    """The params of one executable.

    Args:
        image: the compiled program.
        memory: the block that holds params, and what is prepared from them.
        duplicate: makes a copy of a block.
        allocate: takes memory in which the contents of non-retained params are shown.

    Attributes:
        block: the memory, shared copy-on-write with clones.
        unpacked: the contents of non-retained params.
        unset: names of the params that were never written.
    """

    def __init__(
        self,
        image: ProgramImage[S],
        memory: M,
        duplicate: Callable[[M], M],
        allocate: Callable[[int], Memory],
    ) -> None:
        self._preparations = image.preparations
        self._duplicate, self._allocate = duplicate, allocate
        self.block = CopyOnWriteBlock(memory, duplicate)
        non_retained = {name: p.nbytes for name, p in image.params.items() if p.location is None}
        self.unpacked = UnpackedWeights(non_retained, allocate)
        self.unset = set(image.params)

    def share(self) -> Weights[M, S]:
        """The params of a clone: the same until one side writes. The block's guard is held."""
        twin: Weights[M, S] = Weights.__new__(Weights)
        twin._preparations, twin._duplicate = self._preparations, self._duplicate
        twin._allocate = self._allocate
        twin.block = self.block.share()
        twin.unpacked = self.unpacked.copy()
        twin.unset = set(self.unset)
        return twin

    def write(self, params: Mapping[str, np.ndarray[Any, Any]], perform: WriteParams[S]) -> None:
        """Write params, and prepack again what depends on any of them."""
        stale = [p for p in self._preparations if not params.keys().isdisjoint(p.params)]
        perform(params, stale)
        self.unset.difference_update(params)
        for name in params:
            if name in self.unpacked:
                self.unpacked.record(name, params[name].copy())

    def write_first(self, params: Mapping[str, ParamSource], perform: WriteParams[S]) -> None:
        """Write the initial params, in batches, before anything else can read them.

        A preparation runs once all of its params are there.
        """
        waiting: Sequence[ProgramPreparation[S]] = self._preparations
        known: set[str] = set()
        for batch in batches(params):
            known.update(batch)
            ready = [p for p in waiting if known.issuperset(p.params)]
            waiting = [p for p in waiting if not known.issuperset(p.params)]
            perform({name: elements(source) for name, source in batch.items()}, ready)
            self.unset.difference_update(batch)
            for name, source in batch.items():
                if name in self.unpacked:
                    self.unpacked.record(name, source)
                if isinstance(source, StoredTensor):
                    source.release()

    def adopt(self, params: Mapping[str, ParamSource]) -> None:
        """Take the block as it is: it has these params already, and what is prepared from them."""
        self.unset.difference_update(params)
        for name, source in params.items():
            if name in self.unpacked:
                self.unpacked.record(name, source)

    def record(self, sources: Mapping[str, ParamSource]) -> None:
        """Record params that the device reads from their sources itself, and that never change."""
        self.unset.difference_update(sources)
        for name, source in sources.items():
            self.unpacked.record(name, source)

    def release(self, nothing: M) -> None:
        """Give the memory back, but for what clones share.

        Args:
            nothing: an empty block.
        """
        self.block = CopyOnWriteBlock(nothing, self._duplicate)
        self.unpacked = UnpackedWeights({}, self._allocate)
