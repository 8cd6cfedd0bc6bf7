"""All steps of one direction of a recurrent layer, as a kernel of the device has them."""

from __future__ import annotations

from typing import ClassVar

from ostinato.backends.cuda.kernel import CudaKernel
from ostinato.lower.rules.recurrence import Recurrence
from ostinato.records import dataclass

__all__ = ["CudaRecurrence"]


@dataclass(frozen=True, eq=False)
class CudaRecurrence(Recurrence, CudaKernel):
    """All steps of a ``recurrent_scan``."""

    prefix: ClassVar[str] = "recurrent"
