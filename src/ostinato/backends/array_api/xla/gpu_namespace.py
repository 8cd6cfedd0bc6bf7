"""The functions of rules on JAX's arrays, where XLA's GPUs compute some of them otherwise."""

from __future__ import annotations

from typing import Any

from ostinato.backends.array_api.xla.namespace import JaxNamespace
from ostinato.dtypes import FLOAT32, FLOAT64

__all__ = ["GpuJaxNamespace"]


class GpuJaxNamespace(JaxNamespace):
    """See :class:`JaxNamespace`."""

    def divide(self, x: Any, y: Any) -> Any:
        """The quotient rounded once, by way of float64: XLA's of float32 is off by a last bit.

        A quotient of float32 is too far from the middle between two such numbers for roundings to
        more than 49 bits to matter. Without the second one, of a bit, LLVM would see a division of
        float32.
        """
        if self.dtype_of(x) != FLOAT32:
            return self._module.divide(x, y)
        wide = self._module.divide(self.to(x, FLOAT64), self.to(y, FLOAT64))
        return self.to(self._lax.reduce_precision(wide, 11, 51), FLOAT32)
