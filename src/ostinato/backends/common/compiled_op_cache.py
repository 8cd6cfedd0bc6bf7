"""A cache of compiled ops: each op signature is compiled once for a device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ostinato.backends.common.compiled_op import CompiledOp
    from ostinato.backends.common.op_signature import OpSignature

__all__ = ["CompiledOpCache"]

#: Entries before the cache is emptied: shapes that change with every step never hit it again.
_MAX_ENTRIES = 4096


class CompiledOpCache(ABC):
    """Compiled ops of one device, by signature."""

    def __init__(self) -> None:
        self._compiled_ops: dict[OpSignature, CompiledOp] = {}

    def compiled_op(self, signature: OpSignature) -> CompiledOp:
        """``signature`` compiled for this device, at the first call with an equal one.

        Raises:
            UnsupportedOpError: the device has no way to compute it.
        """
        compiled = self._compiled_ops.get(signature)
        if compiled is None:
            if len(self._compiled_ops) >= _MAX_ENTRIES:
                self._compiled_ops.clear()
            compiled = self._compiled_ops[signature] = self._compile(signature)
        return compiled

    @abstractmethod
    def _compile(self, signature: OpSignature) -> CompiledOp:
        """Compile ``signature``; see :meth:`compiled_op`."""
