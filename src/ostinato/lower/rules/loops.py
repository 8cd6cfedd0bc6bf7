"""Loop nests of regions without a matmul: elementwise, along rows, and over windows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.dtypes import BOOL, FLOAT32, INT64
from ostinato.lower.fusion.cost import COSTLY, cost
from ostinato.lower.fusion.regions import Region, is_row_reduction, reduced_axes
from ostinato.lower.loopir.builder import (
    KernelBuilder,
    Outputs,
    cast,
    in_memory_order,
    store_at,
    symbols_of,
)
from ostinato.lower.loopir.dependences import reached
from ostinato.lower.loopir.merge_axes import merge_axes
from ostinato.lower.loopir.nest import LoopNest
from ostinato.lower.loopir.nodes import (
    Apply,
    Guard,
    Load,
    Number,
    Reduce,
    Reduction,
    Ref,
    Scalar,
    Stage,
    Statement,
    Store,
    extent_of,
)
from ostinato.lower.loopir.views import Indices, linear_index, reshape_index
from ostinato.variables import Dim, Symbol, bounds, coefficient, prod

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Sequence

    from ostinato.ir.graph import Node, Value
    from ostinato.lower.program import LoweredBuffer

__all__ = [
    "block_nest",
    "column_nest",
    "map_nest",
    "row_nest",
]

#: Bytes that a row kept between stages may take; longer rows are computed again.
MAX_TEMP_BYTES = 1 << 18

#: Points of an inner axis per step of the parallel range.
BLOCK = 4096


def block_nest(
    build: KernelBuilder,
    axes: Sequence[Symbol],
    statements: Sequence[Statement],
    variables: tuple[Symbol, ...],
    *,
    parallel: bool = True,
) -> LoopNest:
    """A nest that runs ``statements`` at every point of ``axes``, the last one as inner axis."""
    merged, done = merge_axes(axes, build.finish(statements))
    inner = merged[-1] if merged and parallel else None
    outer = merged[:-1] if inner is not None else merged
    return LoopNest(
        build.args,
        outer,
        (Stage((), done),),
        tuple(build.temps),
        inner_axis=inner,
        block=BLOCK,
        variables=variables,
        parallel=parallel,
    )


def map_nest(build: KernelBuilder, outputs: Outputs, variables: tuple[Symbol, ...]) -> LoopNest:
    """The nest of a purely elementwise region."""
    shape = max((value.shape for value, _ in outputs), key=len)
    indices = build.axes(shape)
    statements = [store_at(build, value, buffer, shape, indices) for value, buffer in outputs]
    return block_nest(build, in_memory_order(indices, outputs[0][1]), statements, variables)


def column_nest(
    build: KernelBuilder, root: Node, outputs: Outputs, variables: tuple[Symbol, ...]
) -> LoopNest:
    """The nest of a reduction or window whose result is stored point by point."""
    shape = root.outputs[0].shape
    indices = build.axes(shape)
    reductions, inner, by_rows = _WINDOWS.get(root.op.name, _reduce_axes)(build, root, indices)
    stores = [store_at(build, value, buffer, shape, indices) for value, buffer in outputs]
    outer = in_memory_order(indices, outputs[0][1])
    everything = build.finish([*reductions, *stores])
    axes, everything = merge_axes(outer, everything)
    last = None if by_rows or not axes else axes[-1]
    inner, reduced = merge_axes(inner, everything[: len(reductions)])
    return LoopNest(
        build.args,
        axes if last is None else axes[:-1],
        (Stage(inner, reduced), Stage((), everything[len(reductions) :])),
        tuple(build.temps),
        inner_axis=last,
        block=BLOCK if bounds(prod(map(extent_of, inner)))[1] < 64 else 256,
        variables=variables,
    )


def row_nest(
    build: KernelBuilder, region: Region, outputs: Outputs, variables: tuple[Symbol, ...]
) -> LoopNest:
    """The nest of a region with rows: stages that share the loop over rows."""
    return _Rows(build, region, outputs).nest(variables)


# -- reductions and windows ----------------------------------------------------------------------


def _reduce(build: KernelBuilder, node: Node, name: str, value: Scalar, index: Dim = 0) -> Reduce:
    """A reduction of ``node``'s kind, whose scalar becomes the node's result."""
    op: Reduction = node.op.name  # type: ignore[assignment]
    out = node.outputs[0]
    if op in ("argmax", "argmin"):
        build.results[out] = cast(Ref(name, INT64), out.dtype)
        return Reduce(name, op, value, value.dtype, index)
    dtype = BOOL if op in ("any", "all") else out.dtype.accumulator
    build.results[out] = cast(Ref(name, dtype), out.dtype)
    return Reduce(name, op, _as_bool(value) if dtype.is_bool else cast(value, dtype), dtype)


def _as_bool(value: Scalar) -> Scalar:
    return cast(value, BOOL)


_Reduced = tuple[list[Statement], tuple[Symbol, ...], bool]


def _reduce_axes(build: KernelBuilder, node: Node, indices: Indices) -> _Reduced:
    (x,) = node.inputs
    axes = reduced_axes(node)
    kept = iter(indices)
    full: list[Dim] = []
    inner: list[Dim] = []
    for position, extent in enumerate(x.shape):
        if position in axes:
            inner.append(build.axis(extent))
            full.append(inner[-1])
            if node.attrs["keepdims"]:
                next(kept)
        else:
            full.append(next(kept))
    value = build.at(x, tuple(full))
    reduction = _reduce(build, node, "r0", value, linear_index([x.shape[a] for a in axes], inner))
    by_rows = x.ndim - 1 in axes and not _steps_across(value, full, axes)
    return [reduction], symbols_of(inner), by_rows


def _steps_across(value: Scalar, indices: Sequence[Dim], reduced: Container[int]) -> bool:
    """Whether neighbours in memory belong to different sums, as in images with channels last."""
    kept = [index for axis, index in enumerate(indices) if axis not in reduced]
    summed = [index for axis, index in enumerate(indices) if axis in reduced]
    loads = [scalar.index for scalar in reached([value]) if isinstance(scalar, Load)]

    def neighbours(along: Sequence[Dim]) -> bool:
        last = symbols_of(along)[-1:]
        steps = [coefficient(index, symbol) for index in loads for symbol in last]
        return any(step is not None and step[0] == 1 for step in steps)

    return neighbours(kept) and not neighbours(summed)


def _reduce_window(build: KernelBuilder, node: Node, indices: Indices) -> _Reduced:
    (x,) = node.inputs
    attrs, out = node.attrs, node.outputs[0]
    spatial = x.ndim - 2
    kernel = attrs["kernel"]
    window = [build.axis(k) for k in kernel]
    at: list[Dim] = list(indices[:2])
    conditions: list[Dim] = []
    for i in range(spatial):
        index = indices[2 + i] * attrs["stride"][i] + window[i] * attrs["dilation"][i]
        index = index - attrs["padding"][i][0]
        at.append(index)
        conditions += [index, x.shape[2 + i] - 1 - index]
    conditions = [c for c in conditions if bounds(c)[0] < 0]
    value = build.at(x, tuple(at))
    maximum = node.op.name == "max_pool"
    dtype = x.dtype if maximum else x.dtype.accumulator
    value = cast(value, dtype)
    if conditions:
        least = Number(dtype.lowest if maximum else 0, dtype)
        value = Guard(tuple(conditions), value, least, dtype)
    reductions: list[Statement] = [Reduce("r0", "max" if maximum else "sum", value, dtype)]
    result: Scalar = Ref("r0", dtype)
    if not maximum:
        count: Scalar = Number(float(prod(kernel)), FLOAT32)  # type: ignore[arg-type]
        counted = _counted_conditions(node, window, indices, conditions)
        if counted:
            one, zero = Number(1.0, FLOAT32), Number(0.0, FLOAT32)
            reductions.append(Reduce("r1", "sum", Guard(counted, one, zero, FLOAT32), FLOAT32))
            seen = Ref("r1", FLOAT32)
            count = Apply("maximum", (seen, Number(1.0, FLOAT32)), FLOAT32)
        result = Apply("divide", (result, cast(count, dtype)), dtype)
    build.results[out] = cast(result, out.dtype)
    return reductions, symbols_of(window), False


def _counted_conditions(
    node: Node, window: Sequence[Dim], indices: Indices, inside: list[Dim]
) -> tuple[Dim, ...]:
    """Under what conditions a window position counts in an average's divisor.

    With ``count_include_pad`` the padding counts, but what ``ceil_mode`` adds beyond it does not.
    """
    attrs, (x,) = node.attrs, node.inputs
    if not attrs["count_include_pad"]:
        return tuple(inside)
    beyond: list[Dim] = []
    for i, position in enumerate(window):
        index = indices[2 + i] * attrs["stride"][i] + position * attrs["dilation"][i]
        beyond.append(x.shape[2 + i] + sum(attrs["padding"][i]) - 1 - index)
    return tuple(c for c in beyond if bounds(c)[0] < 0)


_WINDOWS: dict[str, Callable[[KernelBuilder, Node, Indices], _Reduced]] = {
    "max_pool": _reduce_window,
    "avg_pool": _reduce_window,
}


# -- rows ----------------------------------------------------------------------------------------


class _Rows:
    """Schedules a region with rows into stages."""

    def __init__(self, build: KernelBuilder, region: Region, outputs: Outputs) -> None:
        self.build = build
        self.region = region
        self.outputs = outputs
        self.members = set(region.members)
        leader = max((n for n in region.reductions), key=lambda n: n.inputs[0].ndim)
        shape = leader.inputs[0].shape
        split = len(shape) - len(reduced_axes(leader))
        self.outer_shape, self.inner_shape = shape[:split], shape[split:]
        self.outer = build.axes(self.outer_shape)
        self.inner = build.axes(self.inner_shape)
        self.stage_of = self._stages()
        self.keep_at = self._kept()

    def nest(self, variables: tuple[Symbol, ...]) -> LoopNest:
        stages: list[tuple[tuple[Symbol, ...], list[Statement]]] = []
        inner = symbols_of(self.inner)
        last = max(self.stage_of.values())
        for number in range(last + 1):
            statements = self._stage(number)
            if statements:
                stages.append((inner, statements))
        stages.append(((), [self._row_store(v, b) for v, b in self.outputs if self._is_row(v)]))
        flat = self.build.finish([s for _, statements in stages for s in statements])
        outer, flat = merge_axes(symbols_of(self.outer), flat)
        done: list[Stage] = []
        start = 0
        for axes, statements in stages:
            part = flat[start : start + len(statements)]
            start += len(statements)
            if part:
                done.append(Stage(*merge_axes(axes, part)))
        build = self.build
        return LoopNest(build.args, outer, tuple(done), tuple(build.temps), variables=variables)

    # -- scheduling --------------------------------------------------------------------------

    def _operands(self, node: Node) -> list[Node]:
        """The members that ``node`` reads."""
        found = []
        for operand in node.inputs:
            source = operand.node
            while source.op.name in ("reshape", "broadcast_to"):
                source = source.inputs[0].node
            if source in self.members:
                found.append(source)
        return found

    def _is_reduction(self, node: Node) -> bool:
        return is_row_reduction(node) and node in self.region.row_members

    def _is_row(self, value: Value) -> bool:
        return value.node in self.region.row_members

    def _stages(self) -> dict[Node, int]:
        """By member, the first stage in which it can be computed."""
        stage_of: dict[Node, int] = {}
        for node in self.region.members:
            stage_of[node] = max(
                (stage_of[p] + self._is_reduction(p) for p in self._operands(node)), default=0
            )
        return stage_of

    def _kept(self) -> dict[Node, int]:
        """By full member worth a temp, the stage that computes it.

        Worth it: several stages use it, and computing it costs more than loading it again.
        """
        stored = {value.node for value, _ in self.outputs}
        readers: dict[Node, list[Node]] = {}
        for node in self.region.members:
            for operand in self._operands(node):
                readers.setdefault(operand, []).append(node)
        inner = bounds(prod(self.inner_shape))[1]
        uses: dict[Node, set[int]] = {}
        kept: dict[Node, int] = {}
        costs = self._costs()
        for node in reversed(self.region.members):
            if node in self.region.row_members:
                continue
            used = {self.stage_of[node]} if node in stored else set()
            for reader in readers.get(node, []):
                if reader in self.region.row_members:
                    used.add(self.stage_of[reader])
                else:
                    used |= {kept[reader]} if reader in kept else uses[reader]
            uses[node] = used
            fits = inner * node.outputs[0].dtype.itemsize <= MAX_TEMP_BYTES
            if len(used) > 1 and costs[node] >= COSTLY and fits:
                kept[node] = min(used)
        return kept

    def _costs(self) -> dict[Node, int]:
        costs: dict[Node, int] = {}
        for node in self.region.members:
            if node in self.region.row_members:
                continue
            costs[node] = cost(node) + sum(costs.get(p, 0) for p in self._operands(node))
        return costs

    # -- statements --------------------------------------------------------------------------

    @property
    def _shape(self) -> tuple[Dim, ...]:
        return (*self.outer_shape, *self.inner_shape)

    @property
    def _indices(self) -> Indices:
        return (*self.outer, *self.inner)

    def _at(self, value: Value) -> Indices:
        """The indices of the current position in a value with an element per position."""
        return reshape_index(value.shape, self._shape, self._indices)

    def _stage(self, number: int) -> list[Statement]:
        build = self.build
        statements: list[Statement] = []
        kept = [n for n, stage in self.keep_at.items() if stage == number]
        rows: list[tuple[Node, int]] = []
        for node in sorted(kept, key=self.region.members.index):
            (value,) = node.outputs
            scalar = build.at(value, self._at(value))
            temp = build.temp(value.dtype, bounds(prod(self.inner_shape))[1])
            offset = linear_index(self.inner_shape, self.inner)
            statements.append(Store(temp, offset, scalar))
            rows.append((node, temp))
        for node in self.region.reductions:
            if self.stage_of[node] == number:
                (x,) = node.inputs
                index = linear_index(self.inner_shape, self.inner)
                scalar = build.at(x, self._at(x))
                statements.append(_reduce(build, node, f"r{len(build.results)}", scalar, index))
        for value, buffer in self.outputs:
            if not self._is_row(value) and self.stage_of[value.node] == number:
                statements.append(store_at(build, value, buffer, self._shape, self._indices))
        build.forget()
        for node, temp in rows:
            build.kept[node.outputs[0]] = (temp, self._row_offset)
        return statements

    def _row_offset(self, indices: Indices) -> Dim:
        return linear_index(self.inner_shape, self.inner)

    def _row_store(self, value: Value, buffer: LoweredBuffer) -> Store:
        return store_at(self.build, value, buffer, self.outer_shape, self.outer)
