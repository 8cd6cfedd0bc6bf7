"""Rendering a :class:`~ostinato.backends.cuda.rules.recurrence.CudaRecurrence`.

A block takes a sequence through all its steps. At each step, warps multiply the state with every
row of the weights, and the op's own rule makes the new state of the products. Where a GRU's
candidate has to wait for the reset gates, its products follow in a second round. The state is in
memory that the block alone uses; barriers are between what some threads write and others read.
"""

from __future__ import annotations

from string import Template
from typing import TYPE_CHECKING

from ostinato.backends.common.clike.namespace import CNamespace
from ostinato.backends.common.clike.values import CValue, where
from ostinato.backends.cuda.abi import Launch
from ostinato.backends.cuda.render.dialect import CudaDialect
from ostinato.backends.cuda.render.frame import Frame, function
from ostinato.dtypes import INT64
from ostinato.lower.loopir.nodes import extent_of, max_extent
from ostinato.ops.recurrent import gru_gates, gru_state, next_state, resets_first

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.backends.cuda.render.frame import Point
    from ostinato.backends.cuda.rules.recurrence import CudaRecurrence
    from ostinato.backends.cuda.target import CudaTarget
    from ostinato.lower.loopir.nodes import Scalar

__all__ = ["launch", "source"]

_THREADS = 512

_WARP = 32

_BODY = Template("""\
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (long long row = blockIdx.x; row < rows; row += gridDim.x) {
        $acc* const h = b$scratch + row * $pitch;
$parts
        for (int n = threadIdx.x; n < $hidden; n += $threads) {
$enter
        }
        __syncthreads();
        for (long long number = 0; number < steps; number++) {
            const long long step = $step;
$rounds
        }
        for (int n = threadIdx.x; n < $hidden; n += $threads) {
$leave
        }
        __syncthreads();
    }
""")

_ROUND = Template("""\
            for (int n = warp; n < $hidden; n += $warps) {
                $acc sums[$gates] = {};
                for (int k = lane; k < $hidden; k += 32) {
                    const $acc left = $state[k];
                    $acc right;
$products
                }
$results
            }
            __syncthreads();
            for (int n = threadIdx.x; n < $hidden; n += $threads) {
$cell
            }
            __syncthreads();""")


def launch(recurrence: CudaRecurrence, target: CudaTarget) -> Launch:
    """The launch of a kernel: a block for each sequence, or a few waves."""
    most = target.multiprocessors * target.threads_per_multiprocessor // _THREADS
    return Launch(max(1, min(max_extent(recurrence.row), most)), _THREADS)


def source(recurrence: CudaRecurrence) -> str:
    """CUDA C++ with the kernel of a recurrence."""
    return _Renderer(recurrence).source()


class _Renderer:
    def __init__(self, recurrence: CudaRecurrence) -> None:
        self.recurrence = recurrence
        self.register = CudaDialect().register_type(recurrence.acc)
        weights = [part for _, parts in recurrence.weights for part in parts]
        length = () if recurrence.length is None else (recurrence.length,)
        stores = [s for s in (recurrence.y, *recurrence.last) if s is not None]
        operands = (*recurrence.x, *recurrence.r, *recurrence.initial, *weights, *length)
        self.frame = Frame(recurrence, operands, stores)
        self.names = {
            recurrence.step: "step",
            recurrence.row: "row",
            recurrence.column: "n",
            recurrence.inner: "k",
        }

    def source(self) -> str:
        recurrence, hidden = self.recurrence, self.recurrence.hidden
        parts = [
            f"        {self.register}* const {part} = h + {number * hidden};"
            for number, part in enumerate(recurrence.parts)
            if number
        ]
        gates = range(len(recurrence.x))
        rounds = [self._round("h", gates, self._next_state())]
        if resets_first(recurrence.rule):
            rounds = [
                self._round("h", gates[:2], self._gru_gates()),
                self._round("reset", gates[2:], self._gru_state()),
            ]
        body = _BODY.substitute(
            acc=self.register,
            scratch=recurrence.scratch,
            pitch=len(recurrence.parts) * hidden,
            parts="\n".join(parts),
            hidden=hidden,
            threads=_THREADS,
            enter=self._enter(),
            step="steps - 1 - number" if recurrence.rule["reverse"] else "number",
            rounds="\n".join(rounds),
            leave=self._leave(),
        )
        sizes = {"rows": extent_of(recurrence.row), "steps": extent_of(recurrence.step)}
        return function(recurrence, body, sizes, _THREADS)

    def _round(self, state: str, gates: Sequence[int], cell: str) -> str:
        """The products of the state with some gates' weights, and what follows from them."""
        recurrence = self.recurrence
        products, results = [], []
        for place, gate in enumerate(gates):
            right = self.frame.element(recurrence.r[gate], recurrence.acc, 5, self.names, "right")
            line = f"sums[{place}] = ost::add_product(left, right, sums[{place}]);"
            products.append(f"                    {{\n{right}\n{' ' * 20}}}\n{' ' * 20}{line}")
            results += [
                f"                sums[{place}] = ost::sum_of_warp(sums[{place}]);",
                "                if (lane == 0)",
                f"                    product{gate}[n] = sums[{place}];",
            ]
        return _ROUND.substitute(
            hidden=recurrence.hidden,
            warps=_THREADS // _WARP,
            threads=_THREADS,
            acc=self.register,
            gates=len(gates),
            state=state,
            products="\n".join(products),
            results="\n".join(results),
            cell=cell,
        )

    # -- the state --------------------------------------------------------------------------

    def _enter(self) -> str:
        point = self.frame.point(3, self.names)
        for part, scalar in zip(("h", "c"), self.recurrence.initial, strict=False):
            self._put(point, part, point.scalars.value(scalar, point.scope))
        return point.text

    def _leave(self) -> str:
        point = self.frame.point(3, self.names)
        for part, store in zip(("h", "c"), self.recurrence.last, strict=False):
            if store is not None:
                point.store(store, self._get(point, part))
        return point.text

    def _next_state(self) -> str:
        recurrence, point = self.recurrence, self.frame.point(4, self.names)
        state = tuple(self._get(point, part) for part in ("h", "c")[: len(recurrence.initial)])
        weights = {
            name: [self._value(point, part) for part in parts] for name, parts in recurrence.weights
        }
        x = [self._value(point, gate) for gate in recurrence.x]
        products = [self._get(point, f"product{gate}") for gate in range(len(x))]
        after = next_state(CNamespace(), x, products, state, weights, recurrence.rule)
        return self._advanced(point, state, after)

    def _gru_gates(self) -> str:
        recurrence, point = self.recurrence, self.frame.point(4, self.names)
        x = [self._value(point, gate) for gate in recurrence.x[:2]]
        products = [self._get(point, f"product{gate}") for gate in range(2)]
        update, reset = gru_gates(CNamespace(), x, products, recurrence.rule)
        self._put(point, "update", update)
        self._put(point, "reset", reset * self._get(point, "h"))
        return point.text

    def _gru_state(self) -> str:
        recurrence, point = self.recurrence, self.frame.point(4, self.names)
        h, update = self._get(point, "h"), self._get(point, "update")
        candidate = self._value(point, recurrence.x[2]) + self._get(point, "product2")
        after = gru_state(CNamespace(), candidate, update, h, recurrence.rule)
        return self._advanced(point, (h,), (after,))

    def _advanced(self, point: Point, before: Sequence[CValue], after: Sequence[CValue]) -> str:
        """Statements that note the new state of a sequence, and its ``y``, if it still runs."""
        recurrence, y = self.recurrence, after[0]
        if recurrence.length is not None:
            length = point.scalars.value(recurrence.length, point.scope)
            live = length > CValue(length.code, "step", INT64)
            after = [where(live, n, o) for n, o in zip(after, before, strict=True)]
            y = where(live, y, 0.0)
        for part, value in zip(("h", "c"), after, strict=False):
            self._put(point, part, value)
        if recurrence.y is not None:
            point.store(recurrence.y, y)
        return point.text

    def _value(self, point: Point, scalar: Scalar) -> CValue:
        return point.scalars.value(scalar, point.scope).astype(self.recurrence.acc)

    def _get(self, point: Point, part: str) -> CValue:
        return point.scalars.code.keep(self.recurrence.acc, f"{part}[n]")

    def _put(self, point: Point, part: str, value: CValue) -> None:
        point.writer.line(f"{part}[n] = {value.astype(self.recurrence.acc).text};")
