"""Handles: buffers that stand in for inputs from run to run, and the outputs that they take."""

from __future__ import annotations

import copy
import operator
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.errors import InputError
from ostinato.runtime.arrays import checked_mapping, shape_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ostinato.runtime.arrays import Array, TensorSpec
    from ostinato.runtime.signature import Live, Signature
    from ostinato.variables import Dim

__all__ = ["Handles", "output_index"]

_NONE: Mapping[str, Array] = MappingProxyType({})


class Handles:
    """The handles of one compiled graph. It leaves it to its owner to use it on one thread a time.

    A handle's buffer is written by one run, as the output that the handle is to take, and is only
    read from then on; when the handle has taken the next output, the buffer is free for the one
    after that. Two buffers so take turns, and nothing is ever copied.

    Args:
        signature: the graph's inputs and outputs.
        empty: returns a new array, where the device keeps handles.

    Attributes:
        bound: by input, the buffer that stands in for it.
        feeds: by input, the output that its handle takes after each run.
    """

    def __init__(
        self,
        signature: Signature,
        empty: Callable[[tuple[int, ...], np.dtype[Any]], Array] = np.empty,
    ) -> None:
        self._empty = empty
        self._inputs = signature.inputs
        self._outputs = list(signature.outputs.values())
        self._free: list[Array] = []
        self.bound: dict[str, Array] = {}
        self.feeds: dict[str, int] = {}

    @property
    def active(self) -> bool:
        """Whether runs have to mind handles at all."""
        return bool(self.bound or self.feeds)

    def copy(self) -> Handles:
        """Handles with buffers of their own, which hold the same."""
        twin = copy.copy(self)
        twin.bound = {name: buffer.copy() for name, buffer in self.bound.items()}
        twin.feeds = dict(self.feeds)
        twin._free = []
        return twin

    # -- what users do -----------------------------------------------------------------------------

    def spec(self, name: object) -> TensorSpec:
        """The input of that name.

        Raises:
            InputError: there is none.
        """
        if not isinstance(name, str) or name not in self._inputs:
            known = ", ".join(map(repr, self._inputs)) or "none"
            raise InputError(f"there is no input {name!r:.80} to have a handle; there are {known}")
        return self._inputs[name]

    def bind(self, name: str, array: Array) -> Array | None:
        """Have ``array``, which has no other writer, stand in for the input; its predecessor."""
        left = self.bound.get(name)
        self.bound[name] = array
        return left

    def unbind(self, name: str) -> Array | None:
        """Forget the buffer, which is returned, and which output would replace it."""
        self.feeds.pop(name, None)
        self._free.clear()
        return self.bound.pop(name, None)

    def feed(self, name: str, index: int | None) -> None:
        """Choose the output that a handle takes after each run; ``None`` for none.

        Raises:
            InputError: see :meth:`check_feed`.
        """
        if index is None:
            self.feeds.pop(self.spec(name).name, None)
        else:
            self.feeds[name] = self.check_feed(name, index)

    def check_feed(self, name: str, index: object) -> int:
        """The position of an output that the handle of ``name`` can take.

        Raises:
            InputError: no such input or output, or their types differ. A size that a Variable
                gives may differ from run to run; each run checks it.
        """
        spec = self.spec(name)
        position = output_index(index, len(self._outputs))
        output = self._outputs[position]
        fits = (
            output.dtype == spec.dtype
            and len(output.shape) == len(spec.shape)
            and all(_may_become(o, i) for o, i in zip(output.shape, spec.shape, strict=True))
        )
        if not fits:
            raise InputError(
                f"the handle of {name!r} is {spec.dtype} {shape_text(spec.shape)} and can not take "
                f"output {position}, which is {output.dtype} {shape_text(output.shape)}"
            )
        return position

    # -- what a run does ---------------------------------------------------------------------------

    def complete(self, inputs: object, taken: Mapping[str, Array] = _NONE) -> Mapping[str, Any]:
        """``inputs``, with bound buffers for those that were left out.

        Args:
            inputs: arrays by name.
            taken: buffers that handles will have taken by then.

        Raises:
            InputError: it is no mapping, or a name is unknown.
        """
        given = checked_mapping("input", {} if inputs is None else inputs, self._inputs)
        if not self.bound and not taken:
            return given
        return {**self.bound, **taken, **given}

    def destinations(self, live: Live, feeds: Mapping[str, int]) -> dict[int, Array]:
        """By position, buffers for the outputs that handles are going to take."""
        return {
            position: self._take_free(*live.outputs[position])
            for position in dict.fromkeys(feeds.values())
        }

    def replaced(self, inputs: Sequence[Array], feeds: Mapping[str, int]) -> list[int]:
        """The positions of inputs that are buffers of handles, all of which ``feeds`` replaces."""
        kept = {id(buffer) for name, buffer in self.bound.items() if name not in feeds}
        left = {id(buffer) for name, buffer in self.bound.items() if name in feeds} - kept
        return [position for position, array in enumerate(inputs) if id(array) in left]

    def take(self, written: Mapping[int, Array], feeds: Mapping[str, int]) -> list[Array]:
        """Swap in the outputs of a run that went well; the buffers that they replace."""
        left = [self.bound[name] for name in feeds if name in self.bound]
        self.bound.update((name, written[position]) for name, position in feeds.items())
        kept = {id(buffer) for buffer in self.bound.values()}
        once = {id(buffer): buffer for buffer in left if id(buffer) not in kept}
        self._free = list(once.values())
        return left

    def _take_free(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        for i, buffer in enumerate(self._free):
            if buffer.shape == shape and buffer.dtype == dtype:
                return self._free.pop(i)
        return self._empty(shape, dtype)


def output_index(index: object, count: int) -> int:
    """``index`` as the position of one of ``count`` outputs.

    Raises:
        InputError: it is no int, or out of range.
    """
    try:
        position = -1 if isinstance(index, bool) else operator.index(index)  # type: ignore[arg-type]
    except TypeError:
        position = -1
    if not 0 <= position < count:
        raise InputError(f"outputs are numbered 0..{count - 1}, got {index!r:.80}")
    return position


def _may_become(output: Dim, input: Dim) -> bool:
    """Whether a size of an output can be that of an input at the next run."""
    return output == input or not isinstance(input, int)
