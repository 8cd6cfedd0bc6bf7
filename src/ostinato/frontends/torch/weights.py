"""Weights of a compiled graph that are tensors of the caller's. This module imports PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.frontends.torch.module_weights import watch_over
from ostinato.frontends.torch.tensors import array_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from ostinato.frontends.torch._runtime import Watch
    from ostinato.frontends.torch.module_weights import SlowWatch
    from ostinato.runtime.compiled_graph import CompiledGraph

__all__ = ["Weights"]


class Weights:
    """The tensors whose elements a compiled graph has packed, and whether they have changed since.

    A change is seen by identity, address and version: in-place ops, ``load_state_dict`` and
    assignments of parameters are; writes through ``.data`` or NumPy are not.

    Args:
        names: of the params, in order.
        checked: whether changes after the first call are looked for.
        note_repacking: called where weights have changed.

    Attributes:
        watch: over the tensors, once they are packed.
    """

    def __init__(
        self, names: Sequence[str], *, checked: bool, note_repacking: Callable[[], None]
    ) -> None:
        self._names = names
        self._checked = checked
        self._packed: tuple[torch.Tensor, ...] | None = None
        self.watch: Watch | SlowWatch | None = None
        self._note_repacking = note_repacking

    def update(self, tensors: tuple[torch.Tensor, ...], compiled: CompiledGraph) -> None:
        """Pack those weights that differ from the packed ones."""
        packed = self._packed
        if packed is None:
            changed = {*range(len(tensors))}
        elif not self._checked:
            return
        else:
            assert self.watch is not None
            changed = {*self.watch.take_changed()}
            changed |= {i for i, t in enumerate(tensors) if t is not packed[i]}
            if not changed:
                return
            self._note_repacking()
        watch = watch_over(tensors) if self._checked else None
        if changed:
            compiled.set_params({self._names[i]: array_of(tensors[i]) for i in sorted(changed)})
        self._packed, self.watch = tensors, watch

    def forget(self) -> None:
        """Pack all weights before the next call."""
        self._packed = self.watch = None
