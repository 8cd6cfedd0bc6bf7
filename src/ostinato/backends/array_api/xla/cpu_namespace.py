"""The functions of rules on JAX's arrays, where XLA's CPUs compute some of them otherwise.

These processors are set to take subnormal numbers for zero, which XLA's own formulas of some
functions do not expect; and XLA's code for the greatest element of many leaves NaN out.
"""

from __future__ import annotations

import math
from typing import Any

from ostinato.backends.array_api.xla.namespace import JaxNamespace

__all__ = ["CpuJaxNamespace"]

#: Operands below which an odd function with slope 1 at zero is its operand, in every dtype.
_LINEAR = 1e-10


class CpuJaxNamespace(JaxNamespace):
    """See :class:`JaxNamespace`.

    A CPU computes float32 as such in any case, and has its fastest code for products of the default
    precision.
    """

    whole_convolutions = True

    def __init__(self) -> None:
        super().__init__(precision=None)

    def asin(self, x: Any) -> Any:
        """XLA's is 0 or NaN where half the operand is subnormal."""
        return self.where(self.abs(x) < _LINEAR, x, self._module.arcsin(x))

    def atan(self, x: Any) -> Any:
        """XLA's may be NaN of subnormal numbers."""
        return self.where(self.abs(x) < _LINEAR, x, self._module.arctan(x))

    def atan2(self, y: Any, x: Any) -> Any:
        """XLA's is NaN of two subnormal numbers."""
        return self._module.arctan2(self._flushed(y), self._flushed(x))

    def pow(self, x: Any, y: Any) -> Any:
        """XLA's takes subnormal numbers for the least normal one."""
        return super().pow(self._flushed(x), self._flushed(y))

    def _flushed(self, x: Any) -> Any:
        """Floats with zeros of the same sign in place of subnormal numbers."""
        x = self.asarray(x)
        if not self.dtype_of(x).is_float:
            return x
        zero = self.copysign(self.asarray(0.0, self.dtype_of(x)), x)
        return self.where(self.abs(x) < self._module.finfo(x.dtype).tiny, zero, x)

    def _extreme(self, name: str, x: Any, axis: Any, keepdims: bool) -> Any:
        found = super()._extreme(name, x, axis, keepdims)
        if not (self.dtype_of(x).is_float and x.size):
            return found
        return self.where(self.any(self.isnan(x), axis, keepdims), math.nan, found)
