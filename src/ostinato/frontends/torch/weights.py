"""Weights of a compiled graph that are tensors of the caller's."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from ostinato.frontends.torch.tensors import array_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.runtime.compiled_graph import CompiledGraph

__all__ = ["Weights"]


class Weights:
    """The tensors whose elements a compiled graph has packed, and whether they have changed since.

    A change is seen by identity, address and version: in-place ops, ``load_state_dict`` and
    assignments of parameters are; writes through ``.data`` or NumPy are not.

    Args:
        names: of the params, in order.
        start: the position of the first among the arguments of a call.
        checked: whether changes after the first call are looked for.

    Attributes:
        repacked: the number of calls before which weights had changed.
    """

    def __init__(self, names: Sequence[str], start: int, *, checked: bool) -> None:
        self._names = names
        self._start = start
        self._checked = checked
        self._known: list[tuple[Any, int, int]] | None = None
        self.repacked = 0

    def stale(self, given: Sequence[Any]) -> bool:
        """Whether weights among the arguments of a call differ from those that are packed."""
        known = self._known
        if known is None:
            return True
        if not self._checked:
            return False
        at = self._start
        for reference, address, version in known:
            tensor = given[at]
            if (
                reference() is not tensor
                or tensor.data_ptr() != address
                or _version(tensor) != version
            ):
                return True
            at += 1
        return False

    def write(self, given: Sequence[Any], compiled: CompiledGraph) -> None:
        """Pack the weights among the arguments of a call that differ."""
        tensors = given[self._start : self._start + len(self._names)]
        found = [(weakref.ref(t), t.data_ptr(), _version(t)) for t in tensors]
        known = self._known
        changed = [i for i, entry in enumerate(found) if known is None or entry != known[i]]
        self.repacked += known is not None
        if changed:
            compiled.set_params({self._names[i]: array_of(tensors[i]) for i in changed})
        self._known = found

    def forget(self) -> None:
        """Pack all weights before the next call."""
        self._known = None


def _version(tensor: Any) -> int:
    """The count of in-place writes; tensors of inference mode have none."""
    return 0 if tensor.is_inference() else tensor._version
