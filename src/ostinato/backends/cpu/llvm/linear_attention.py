"""Rendering a :class:`~ostinato.backends.cpu.rules.sequence_states.LinearAttention` as LLVM IR.

The columns of a head's matrix do not depend on each other. A step takes some of them through all
rows: a pass over the keys for what the matrix holds already (delta rules), one that updates the
matrix, and, in the same pass, the products with the queries of the group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.cpu.llvm.kernel import kernel_module
from ostinato.backends.cpu.llvm.namespace import LaneNamespace
from ostinato.backends.cpu.llvm.sequence_state import RowLoops
from ostinato.lower.loopir.nodes import max_extent

if TYPE_CHECKING:
    from llvmlite import ir

    from ostinato.backends.cpu.llvm.kernel import KernelFunction
    from ostinato.backends.cpu.llvm.lanes import Lane
    from ostinato.backends.cpu.llvm.scopes import Scope
    from ostinato.backends.cpu.llvm.toolchain import TargetSpec
    from ostinato.backends.cpu.rules.sequence_states import LinearAttention
    from ostinato.variables import Symbol

__all__ = ["render"]

_XP = LaneNamespace()


def render(attention: LinearAttention, name: str, target: TargetSpec) -> ir.Module:
    """A module with the kernel ``name``.

    The kernel's signature is that of :mod:`ostinato.backends.cpu.llvm.kernel`.
    """
    return kernel_module(attention, name, target, lambda k: _Renderer(attention, k).render())


class _Renderer:
    def __init__(self, attention: LinearAttention, kernel: KernelFunction) -> None:
        optional = (attention.decay, attention.beta)
        given = [scalar for scalar in optional if scalar is not None]
        self.attention = attention
        self.loops = RowLoops(attention, kernel, [attention.q, attention.k, attention.v, *given])

    def render(self) -> None:
        self.loops.run(self._vectors, self.attention.head)

    def _vectors(self, row: Scope, vectors: list[Scope]) -> None:
        attention, loops = self.attention, self.loops
        new = [loops.value(attention.v, scope) for scope in vectors]
        if attention.beta is not None:
            beta = loops.scalars.value(attention.beta, row).astype(attention.acc)
            held = self._held(row, vectors)
            new = [beta * (n - h) for n, h in zip(new, held, strict=True)]
        queries = range(max_extent(attention.query))
        sums = [[loops.variable(scope) for _ in queries] for scope in vectors]

        def update(key: dict[Symbol, ir.Value]) -> None:
            shared = row.child(symbols=key)
            decay = self._decay(shared)
            for scope, value, own in zip(vectors, new, sums, strict=True):
                inside = scope.child(shared, symbols=key)
                k = loops.value(attention.k, inside)
                state = loops.multiplied_add(k, value, self._decayed(decay, inside))
                loops.store_state(state, inside)
                for query, total in zip(queries, own, strict=True):
                    at = inside.child(symbols=self._at(query))
                    total.value = loops.multiplied_add(
                        loops.value(attention.q, at), state, total.value
                    )

        loops.over(attention.key, update)
        for scope, own in zip(vectors, sums, strict=True):
            for query, total in zip(queries, own, strict=True):
                at = scope.child(symbols=self._at(query))
                loops.store_result(total.value * attention.scale, at)

    def _held(self, row: Scope, vectors: list[Scope]) -> list[Lane]:
        """The products of the matrix, decayed, with the row's keys."""
        attention, loops = self.attention, self.loops
        sums = [loops.variable(scope) for scope in vectors]

        def add(key: dict[Symbol, ir.Value]) -> None:
            shared = row.child(symbols=key)
            decay = self._decay(shared)
            for scope, total in zip(vectors, sums, strict=True):
                inside = scope.child(shared, symbols=key)
                k = loops.value(attention.k, inside)
                total.value = loops.multiplied_add(k, self._decayed(decay, inside), total.value)

        loops.over(attention.key, add)
        return [total.value for total in sums]

    def _decay(self, scope: Scope) -> Lane | None:
        """The factor on the matrix, one lane."""
        attention = self.attention
        if attention.decay is None:
            return None
        logarithm = self.loops.scalars.value(attention.decay, scope).astype(attention.acc)
        factor: Lane = _XP.exp(logarithm)
        return factor

    def _decayed(self, decay: Lane | None, scope: Scope) -> Lane:
        state = self.loops.state(scope)
        return state if decay is None else decay * state

    def _at(self, query: int) -> dict[Symbol, ir.Value]:
        return {self.attention.query: self.loops.number(query)}
