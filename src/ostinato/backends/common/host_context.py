"""The default context, of backends that define none."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.backends.common.context import Context
from ostinato.errors import CaptureError, PlanError
from ostinato.plan.buffer import HostMemory
from ostinato.plan.order import Accesses

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ostinato.backends.common.compiled_op import CompiledOp
    from ostinato.backends.common.encoded import Encoded, Recording
    from ostinato.backends.common.op_signature import OpSignature
    from ostinato.backends.device import Device
    from ostinato.plan.buffer import Memory
    from ostinato.plan.prepared import PreparedOp
    from ostinato.variables import Symbol

__all__ = ["HostContext"]


class HostContext(Context):
    """The context of a backend that runs whole graphs only: no recording, and memory of the host.

    Encoding single ops is refused; :meth:`replay_graph` returns ``False``.
    """

    supports_capture = False
    capturing = False
    capturing_number = 0
    captured_calls = 0
    dev_state_mode = False

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self._block = (0, 0, 1)

    def _begin(self, exclusive: bool) -> None:
        raise CaptureError(f"{self.device} cannot record")

    def _end(self) -> Recording:
        raise CaptureError(f"{self.device} cannot record")

    def _cancel(self) -> None:
        """Do nothing, as there is no recording."""

    def _capture_uses(self, memory: object) -> bool:
        return False

    @property
    def _block_accesses(self) -> Accesses:
        return Accesses([(id(self), 1, True)])

    def _write_state(self, values: tuple[int, int, int]) -> None:
        self._block = values

    def _read_state(self) -> tuple[int, int, int]:
        return self._block

    def _set_mode(self, enable: bool) -> None:
        if enable:
            raise CaptureError(f"{self.device} has no variable block that kernels read")

    def _allocate(self, nbytes: int) -> Memory:
        return HostMemory(bytearray(nbytes))

    def copy_call(self, target: Any, source: Any) -> Callable[[], None]:
        return partial(np.copyto, target, source)

    def encode(self, ops: Sequence[PreparedOp], variables: Sequence[Symbol] = ()) -> Encoded:
        raise PlanError(f"{self.device} runs compiled graphs only, no ops one by one")

    def _compile(self, signature: OpSignature) -> CompiledOp:
        raise PlanError(f"{self.device} runs compiled graphs only, no ops one by one")
