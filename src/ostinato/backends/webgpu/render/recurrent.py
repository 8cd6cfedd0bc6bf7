"""All steps of a recurrent layer as WGSL.

A workgroup takes a sequence through all its steps. At each step, threads multiply the state with
rows of the weights, and the op's own rule makes the new state of the products. Where a GRU's
candidate has to wait for the reset gates, its products follow in a second round. The state is in
storage that the workgroup alone uses; barriers are between what some threads write and others read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.common.clike.values import CValue, where
from ostinato.backends.webgpu.render.code import NAMESPACE, KernelCode
from ostinato.dtypes import INT32, INT64
from ostinato.lower.loopir.nodes import Reduce, Stage, extent_of
from ostinato.ops.recurrent import gru_gates, gru_state, next_state, resets_first
from ostinato.variables import ceil_div

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ostinato.backends.common.clike.scopes import Scope
    from ostinato.backends.webgpu.kernel import Bindings, Shader
    from ostinato.backends.webgpu.target import WebGpuTarget
    from ostinato.lower.loopir.nodes import Scalar
    from ostinato.lower.rules.recurrence import Recurrence

__all__ = ["shader"]

_THREADS = 256


def shader(recurrence: Recurrence, target: WebGpuTarget, bindings: Bindings) -> Shader:
    """A recurrence, rendered for a device."""
    return _Recurrent(recurrence, target, bindings).render()


class _Recurrent:
    def __init__(self, recurrence: Recurrence, target: WebGpuTarget, bindings: Bindings) -> None:
        self.recurrence = recurrence
        weights = [part for _, parts in recurrence.weights for part in parts]
        length = () if recurrence.length is None else (recurrence.length,)
        operands = (*recurrence.x, *recurrence.r, *recurrence.initial, *weights, *length)
        reads = [Reduce("", "sum", scalar, scalar.dtype) for scalar in operands]
        stores = [s for s in (recurrence.y, *recurrence.last) if s is not None]
        self.code = KernelCode(recurrence, [Stage((), (*reads, *stores))], target, bindings)
        self.threads = min(_THREADS, target.threads)

    def render(self) -> Shader:
        code, recurrence, writer = self.code, self.recurrence, self.code.writer
        rows = code.size(extent_of(recurrence.row), code.outermost)
        steps = code.declare("n", code.size(extent_of(recurrence.step), code.outermost))
        writer.line("let row = i32(group);")
        with writer.block(f"if (row < {rows})"):
            scope = code.at({recurrence.row: "row"}, code.outermost)
            self._each_column(scope, self._enter)
            head = f"for (var number = 0i; number < {steps}; number++)"
            with code.repeat(head, extent_of(recurrence.step)):
                back = f"{steps} - 1 - number" if recurrence.rule["reverse"] else "number"
                writer.line(f"let step = {back};")
                self._step(code.at({recurrence.step: "step"}, scope))
            self._each_column(scope, self._leave)
        return code.shader(self.threads, extent_of(recurrence.row))

    def _step(self, scope: Scope) -> None:
        gates = range(len(self.recurrence.x))
        if not resets_first(self.recurrence.rule):
            self._products(scope, "h", gates)
            self._each_column(scope, self._next_state)
            return
        self._products(scope, "h", gates[:2])
        self._each_column(scope, self._gru_gates)
        self._products(scope, "reset", gates[2:])
        self._each_column(scope, self._gru_state)

    def _each_column(self, scope: Scope, body: Callable[[Scope], None]) -> None:
        """Statements for every hidden unit, then a barrier."""
        code, writer, hidden = self.code, self.code.writer, self.recurrence.hidden
        head = f"for (var n = i32(thread); n < {hidden}; n += {self.threads})"
        with code.repeat(head, ceil_div(hidden, self.threads)):
            body(code.at({self.recurrence.column: "n"}, scope))
        writer.line("storageBarrier();")
        writer.line("workgroupBarrier();")

    def _products(self, scope: Scope, state: str, gates: Sequence[int]) -> None:
        """The products of the state with some gates' weights."""
        recurrence, code, writer = self.recurrence, self.code, self.code.writer
        acc, hidden = recurrence.acc, recurrence.hidden
        head = f"for (var i = i32(thread); i < {hidden * len(gates)}; i += {self.threads})"
        with code.repeat(head, ceil_div(hidden * len(gates), self.threads)):
            writer.line(f"let n = i % {hidden};")
            for place, gate in enumerate(gates):
                within = f"i / {hidden} == {place}"
                with writer.block(f"if ({within})" if len(gates) > 1 else ""):
                    writer.line(f"var total = {code.dialect.literal(acc, 0)};")
                    times = 0 if place else hidden  # a thread has one gate at a time
                    with code.repeat(f"for (var k = 0i; k < {hidden}; k++)", times):
                        at = code.at({recurrence.column: "n", recurrence.inner: "k"}, scope)
                        right = code.value(recurrence.r[gate], acc, at)
                        left = self._element(state, "k")
                        writer.line(f"total = fma({left}, {right}, total);")
                    self._assign(f"product{gate}", "total")
        writer.line("storageBarrier();")
        writer.line("workgroupBarrier();")

    # -- the state --------------------------------------------------------------------------

    def _enter(self, scope: Scope) -> None:
        for part, scalar in zip(("h", "c"), self.recurrence.initial, strict=False):
            self._put(part, self.code.scalars.value(scalar, scope))

    def _leave(self, scope: Scope) -> None:
        for part, store in zip(("h", "c"), self.recurrence.last, strict=False):
            if store is not None:
                self.code.store(store, scope.child(), self._get(part))

    def _next_state(self, scope: Scope) -> None:
        recurrence = self.recurrence
        state = tuple(self._get(part) for part in ("h", "c")[: len(recurrence.initial)])
        weights = {
            name: [self._value(part, scope) for part in parts] for name, parts in recurrence.weights
        }
        x = [self._value(gate, scope) for gate in recurrence.x]
        products = [self._get(f"product{gate}") for gate in range(len(x))]
        after = next_state(NAMESPACE, x, products, state, weights, recurrence.rule)
        self._advance(scope, state, after)

    def _gru_gates(self, scope: Scope) -> None:
        recurrence = self.recurrence
        x = [self._value(gate, scope) for gate in recurrence.x[:2]]
        products = [self._get(f"product{gate}") for gate in range(2)]
        update, reset = gru_gates(NAMESPACE, x, products, recurrence.rule)
        self._put("update", update)
        self._put("reset", reset * self._get("h"))

    def _gru_state(self, scope: Scope) -> None:
        recurrence = self.recurrence
        h, update = self._get("h"), self._get("update")
        candidate = self._value(recurrence.x[2], scope) + self._get("product2")
        after = gru_state(NAMESPACE, candidate, update, h, recurrence.rule)
        self._advance(scope, (h,), (after,))

    def _advance(self, scope: Scope, before: Sequence[CValue], after: Sequence[CValue]) -> None:
        """Note the new state of a sequence, and its ``y``, if it still runs."""
        recurrence, code, y = self.recurrence, self.code, after[0]
        if recurrence.length is not None:
            length = code.scalars.value(recurrence.length, scope)
            live = length > CValue(code.code, "step", INT32).astype(INT64)
            after = [where(live, n, o) for n, o in zip(after, before, strict=True)]
            y = where(live, y, 0.0)
        for part, value in zip(("h", "c"), after, strict=False):
            self._put(part, value)
        if recurrence.y is not None:
            code.store(recurrence.y, scope.child(), y)

    def _value(self, scalar: Scalar, scope: Scope) -> CValue:
        return self.code.scalars.value(scalar, scope).astype(self.recurrence.acc)

    def _get(self, part: str) -> CValue:
        return self.code.code.keep(self.recurrence.acc, self._element(part, "n"))

    def _put(self, part: str, value: CValue) -> None:
        self._assign(part, value.astype(self.recurrence.acc).text)

    def _assign(self, part: str, value: str) -> None:
        put = self.code.arrays.putting(self.recurrence.scratch)
        self.code.writer.line(f"{put}({self._place(part, 'n')}, {value});")

    def _element(self, part: str, index: str) -> str:
        return f"b{self.recurrence.scratch}({self._place(part, index)})"

    def _place(self, part: str, index: str) -> str:
        """The element of the sequence's memory that has a part of the state."""
        parts, hidden = self.recurrence.parts, self.recurrence.hidden
        return f"u32(row * {len(parts) * hidden} + {parts.index(part) * hidden} + {index})"
