"""Rendering a :class:`~ostinato.backends.cpu.rules.sequence_states.CausalConvolution` as LLVM IR.

A step takes some channels through all rows. The earlier inputs of a channel lie side by side in the
state; each is read, counted and stored one place further to the front.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.cpu.llvm.kernel import kernel_module
from ostinato.backends.cpu.llvm.namespace import LaneNamespace
from ostinato.backends.cpu.llvm.sequence_state import RowLoops
from ostinato.lower.loopir.nodes import extent_of
from ostinato.ops.sequence_states import convolved

if TYPE_CHECKING:
    from llvmlite import ir

    from ostinato.backends.cpu.llvm.kernel import KernelFunction
    from ostinato.backends.cpu.llvm.scopes import Scope
    from ostinato.backends.cpu.llvm.toolchain import TargetSpec
    from ostinato.backends.cpu.rules.sequence_states import CausalConvolution

__all__ = ["render"]

_XP = LaneNamespace()


def render(convolution: CausalConvolution, name: str, target: TargetSpec) -> ir.Module:
    """A module with the kernel ``name``.

    The kernel's signature is that of :mod:`ostinato.backends.cpu.llvm.kernel`.
    """
    return kernel_module(convolution, name, target, lambda k: _Renderer(convolution, k).render())


class _Renderer:
    def __init__(self, convolution: CausalConvolution, kernel: KernelFunction) -> None:
        self.convolution = convolution
        values = [convolution.x, convolution.weight, convolution.last]
        if convolution.bias is not None:
            values.append(convolution.bias)
        self.loops = RowLoops(convolution, kernel, values)

    def render(self) -> None:
        self.loops.run(self._vectors, None)

    def _vectors(self, row: Scope, vectors: list[Scope]) -> None:
        for scope in vectors:
            self._vector(scope)

    def _vector(self, scope: Scope) -> None:
        convolution, loops = self.convolution, self.loops
        taps = extent_of(convolution.tap)
        assert isinstance(taps, int)
        places = [scope.child(symbols={convolution.tap: loops.number(tap)}) for tap in range(taps)]
        x = loops.value(convolution.x, scope)
        window = [*(loops.state(place) for place in places), x]
        total = loops.variable(scope).value
        for place, held in zip(places, window, strict=False):
            total = loops.multiplied_add(loops.value(convolution.weight, place), held, total)
        total = loops.multiplied_add(loops.value(convolution.last, scope), x, total)
        if convolution.bias is not None:
            total = total + loops.value(convolution.bias, scope)
        for place, value in zip(places, window[1:], strict=True):
            loops.store_state(value, place)
        loops.store_result(convolved(_XP, total, convolution.activation), scope)
