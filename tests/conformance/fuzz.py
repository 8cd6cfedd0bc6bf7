"""Random graphs from the whole vocabulary, and a check of a backend's results.

**Graphs.** The recipes of the op sweep draw operands from a :class:`GraphDraw`, which hands out
values computed before, whole or as views of them, so that graphs grow in which everything meets
everything. Every value is evaluated as it is made; the pool takes only finite ones of moderate
size (others are squashed first), so that magnitudes stay bounded however long the chain.

**The judge** does not guess tolerances. The oracle runs the graph several times more with the
result of each rounding op moved at random by a few of its roundings (Monte Carlo arithmetic: Stott
Parker, 1997). How far an element moves then is how far rounding can move it, so the compiled
element may differ from the oracle's by a small multiple of that. Elements that change
discontinuously (an index of a maximum, a comparison, a cast to an integer) or turn into NaN in one
of those runs are decided by rounding, and are not compared.

``python -m tests.conformance.fuzz FIRST LAST [DEVICE]`` hunts over seeds and prints those that
fail.
"""

from __future__ import annotations

import dataclasses
import math
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

import ostinato as ost
from ostinato import reference
from ostinato.dtypes import DType
from ostinato.ir.graph import Value
from ostinato.ir.leaves import Leaf
from ostinato.ops.base import Elementwise
from ostinato.passes.pipeline import OPTIONAL_PASSES
from tests.devices.registered import open_session
from tests.devices.selection import is_refusal

from .draw import Draw
from .motifs import MOTIFS
from .recipes import DATA_SIZED, recipes

Array = np.ndarray[Any, Any]
RECIPES = {**recipes(), **MOTIFS}

#: Values beyond this are squashed before anything else reads them.
LARGEST = 8.0

#: Float dtypes that most ops draw; the others turn up through casts and now and then.
_USUAL = ("float32", "float32", "float32", "float16", "bfloat16", "float64")


class GraphDraw(Draw):
    """Operands that are fresh leaves or values computed before."""

    def __init__(self, graph: ost.Graph, rng: np.random.Generator, reuse: float = 0.75) -> None:
        super().__init__(graph, rng, reuse=reuse)
        self.favourite = self.choice(_USUAL)
        self.params: dict[str, Array] = {}
        self.values: dict[Value, Array] = {}
        self._evaluated = 0

    def settle(self) -> None:
        """Evaluate the nodes that were added since the last call."""
        with np.errstate(all="ignore"):
            for node in self.g.nodes[self._evaluated :]:
                if isinstance(node.op, Leaf):
                    (value,) = node.outputs
                    self.values[value] = self._leaf_array(value)
                else:
                    operands = [self.values[v] for v in node.inputs]
                    results = reference.evaluate_node(node, operands)
                    self.values.update(zip(node.outputs, results, strict=True))
        self._evaluated = len(self.g.nodes)

    def offer(self, value: Value) -> None:
        """Let later ops read ``value``, or a squashed form of it."""
        self.settle()
        array = self.values[value]
        if value.dtype.is_float:
            wide = array.astype(np.float64)
            if not np.isfinite(wide).all():
                return
            if wide.size and np.abs(wide).max() > LARGEST:
                value = self.choice((self.g.tanh, lambda v: self.g.clip(v, -4, 4)))(value)
                self.settle()
        self.pool.append(value)

    def holding(self, array: Array) -> Value:
        """A fresh input, param or constant with exactly these elements."""
        kind = self.choice(("input", "input", "input", "param", "constant"))
        array = np.asarray(array)
        if kind == "constant":
            return self.g.constant(array)
        if kind == "param":
            name = f"w{len(self.params)}"
            self.params[name] = array
            return self.g.param(name, array.shape, array.dtype)
        return super().holding(array)

    def state(self) -> Value:
        """A state of a random type, or of the type of a value in the pool."""
        like = self.choice(self.pool) if self.pool and self.chance() else None
        shape = self.shape(0, 3) if like is None else like.shape
        dtype = self.choice(("float32", "int32")) if like is None else like.dtype
        return self.g.state(f"s{len(self.g.states)}", shape, dtype, init=self.integer(0, 2))

    def of(self, shape: Sequence[Any], dtype: str, low: float = -3, high: float = 3) -> Value:
        """A leaf, or a view of a value in the pool brought within ``low..high``."""
        sizes = tuple(int(s) for s in shape)
        count = math.prod(sizes)
        known = [v for v in self.pool if v.dtype.name == dtype and self._size(v) >= count]
        if not known and self.chance(0.3):
            known = [v for v in self.pool if self._size(v) >= count]
        if not known or not self.chance(self.reuse):
            return super().of(shape, dtype, low, high)
        exact = [v for v in known if v.shape == sizes]
        whole = exact and self.chance()
        value = self.choice(exact) if whole else self._cut(self.choice(known), sizes)
        return self._within(self._converted(value, dtype), low, high)

    def like(self, x: Value) -> Value:
        fits = [v for v in self.pool if v.dtype == x.dtype and _broadcasts_to(v.shape, x.shape)]
        return self.choice(fits) if fits and self.chance(self.reuse) else super().like(x)

    def shape(self, low: int, high: int) -> tuple[int, ...]:
        """Now and then of enough elements for several blocks of the parallel range."""
        if high < 1 or self.chance(0.9):
            return super().shape(low, high)
        rows, columns = self.choice(((3, 4099), (130, 67), (4097, 3), (1, 9001), (8200, 1)))
        return (rows, columns) if high > 1 else (rows * columns,)

    def _converted(self, value: Value, dtype: str) -> Value:
        if value.dtype.name == dtype:
            return value
        if value.dtype.is_float and DType.parse(dtype).is_integer:
            value = self.g.abs(value)  # a negative one has no unsigned counterpart
        return self.g.cast(value, dtype)

    def _leaf_array(self, value: Value) -> Array:
        attrs = value.node.attrs
        if "array" in attrs:
            return attrs["array"]  # type: ignore[no-any-return]
        if "init" in attrs:
            return attrs["init"]  # type: ignore[no-any-return]
        return {**self.arrays, **self.params}[attrs["name"]]

    @staticmethod
    def _size(value: Value) -> int:
        return math.prod(int(s) for s in value.shape)

    def _cut(self, value: Value, sizes: tuple[int, ...]) -> Value:
        """A view of ``value`` of another shape."""
        g, count = self.g, math.prod(sizes)
        order = [int(a) for a in self.rng.permutation(value.ndim)]
        flat = g.reshape(g.permute_dims(value, order) if self.chance(0.3) else value, (-1,))
        start = self.integer(0, self._size(value) - count)
        if start or count != self._size(value):
            flat = g.slice(flat, [start], [start + count])
        if len(sizes) > 1 and self.chance(0.3):
            return g.permute_dims(g.reshape(flat, sizes[::-1]), range(len(sizes))[::-1])
        return g.reshape(flat, sizes)

    def _within(self, value: Value, low: float, high: float) -> Value:
        g, dtype = self.g, value.dtype
        self.settle()
        array = self.values[value]
        if dtype.is_bool or not array.size:
            return value
        if low <= float(array.min()) and float(array.max()) <= high:
            return value
        if dtype.is_narrow:  # stored, not computed with
            return g.cast(g.clip(g.cast(value, "float32"), low, high), dtype)
        if dtype.is_float:
            return g.clip(value, low, high)
        return g.clip(value, max(int(low), 0 if not dtype.is_signed else int(low)), int(high))


def _broadcasts_to(shape: Sequence[Any], target: Sequence[Any]) -> bool:
    if len(shape) > len(target):
        return False
    tail = target[len(target) - len(shape) :]
    return all(a in (1, b) for a, b in zip(shape, tail, strict=True))


@dataclasses.dataclass(frozen=True)
class Case:
    """A graph with the arrays of two runs in a row."""

    graph: ost.Graph
    inputs: list[dict[str, Array]]
    params: list[dict[str, Array]]


def make_case(seed: int, ops: Sequence[str]) -> Case:
    """A graph that applies ``ops`` in order; everything else follows from ``seed``."""
    graph = ost.Graph("fuzz")
    draw = GraphDraw(graph, np.random.default_rng(seed))
    for _ in range(draw.integer(0, 2)):
        draw.offer(draw.state())
    everything: list[Value] = list(graph.states.values())
    for name in ops:
        recipe, dtypes = RECIPES[name]
        made = recipe(draw, _dtype(draw, dtypes))
        results = list(made) if isinstance(made, list | tuple) else [made]
        everything += results
        for value in results:
            draw.offer(value)
    draw.settle()
    _assign(draw)
    leaves = [*graph.inputs.values(), *graph.params.values()]
    outputs = [everything[-1], *(draw.choice(everything[-4:]) for _ in range(draw.integer(0, 1)))]
    everything += [*draw.pool, *leaves] if draw.chance(0.3) else draw.pool
    outputs += [draw.choice(everything) for _ in range(draw.integer(0, 2))]
    if draw.chance(0.2):
        outputs.append(draw.choice(outputs))
    graph.set_outputs(outputs)
    inputs = {name: draw.arrays[name] for name in graph.inputs}
    return Case(graph, [inputs, _flipped(inputs)], [draw.params, _flipped(draw.params)])


def _dtype(draw: GraphDraw, dtypes: Sequence[str]) -> str:
    if draw.favourite in dtypes and draw.chance(0.75):
        return str(draw.favourite)
    present = [v.dtype.name for v in draw.pool if v.dtype.name in dtypes]
    return str(draw.choice(present if present and draw.chance(0.7) else dtypes))


def _assign(draw: GraphDraw) -> None:
    """Give some states a new value: one computed, another state, or an update of itself."""
    g = draw.g
    for state in g.states.values():
        kind = draw.choice(("none", "value", "state", "update", "scatter"))
        fits = [v for v in draw.pool if v.type == state.type and v.node.op.name != "state"]
        if kind == "value" and fits:
            g.assign(state, draw.choice(fits))
        elif kind == "state":
            g.assign(state, draw.choice([s for s in g.states.values() if s.type == state.type]))
        elif kind == "update" and 0 not in state.shape:
            update = draw.of([draw.integer(1, int(s)) for s in state.shape], state.dtype.name)
            starts = [draw.integer(0, int(s)) for s in state.shape]
            g.assign(state, g.dynamic_update_slice(state, update, starts))
        elif kind == "scatter" and state.ndim and 0 not in state.shape:
            shape = [draw.integer(1, int(s)) for s in state.shape]
            ids = draw.ids(shape, state.shape[0])
            g.assign(state, g.scatter(state, ids, draw.of(shape, state.dtype.name), 0, "set"))


def _flipped(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """The arrays in reverse; rows of bytes, which may be packed blocks with scales, stay whole."""
    return {
        name: np.flip(array, 0 if array.dtype == np.uint8 and array.ndim else None)
        for name, array in arrays.items()
    }


# -- what the results may be -----------------------------------------------------------------------

#: Ops whose error is relative to their operands, which may cancel, not to their result.
_SUMMING = frozenset(
    {"add", "subtract", "sum", "mean", "var", "std", "cumsum", "matmul", "conv", "conv_transpose",
     "avg_pool", "attention", "einsum", "rope", "scatter", "scatter_nd", "norm", "logsumexp",
     "layer_norm", "rms_norm", "group_norm", "instance_norm", "batch_norm", "recurrent_scan",
     "local_response_norm", "softmax", "log_softmax", "logaddexp", "remainder", "fmod",
     "grouped_matmul", "expert_mlp", "moe"}
)  # fmt: skip

#: Ops that only move or choose elements.
_EXACT = frozenset(
    {"reshape", "permute_dims", "broadcast_to", "slice", "flip", "pad", "pad_border", "concat",
     "tile", "iota", "tril", "triu", "take", "take_along_axis", "gather_nd", "dynamic_slice",
     "dynamic_update_slice", "topk", "one_hot", "max", "min", "max_pool", "neg", "abs", "relu",
     "where", "maximum", "minimum", "clip", "sign", "floor", "ceil", "round", "trunc", "relu6"}
)  # fmt: skip

#: Ops that choose by products of their first two operands: where sums are nearly equal, rounding
#: decides.
_CHOOSING = frozenset({"moe"})

#: Ops that take a mean away: what rounding leaves where elements are equal is divided by little
#: more than the square root of ``eps``. Of 16 bits, means are sums of float32: near enough.
_CENTRED = frozenset({"layer_norm", "group_norm", "instance_norm"})

_UNIT = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


@dataclasses.dataclass(frozen=True)
class Run:
    """The results of one run: outputs in order, and the states after it."""

    outputs: list[Array]
    states: dict[str, Array]


def perturbed(
    case: Case, turn: int, states: Mapping[str, Array], rng: np.random.Generator | None
) -> Run:
    """The oracle's results of a run; with ``rng``, every rounding is moved at random."""
    graph = case.graph
    given = {**case.inputs[turn], **case.params[turn], **states}
    values: dict[Value, Array] = {}
    with np.errstate(all="ignore"):
        for node in graph.nodes:
            if isinstance(node.op, Leaf):
                (value,) = node.outputs
                attrs = node.attrs
                values[value] = attrs["array"] if "array" in attrs else given[attrs["name"]]
                continue
            operands = [values[v] for v in node.inputs]
            if rng is not None and node.op.name in _CHOOSING:
                operands[:2] = [_as_if_rounded(operand, rng) for operand in operands[:2]]
            if rng is not None and node.op.name in _CENTRED and operands[0].dtype.itemsize > 2:
                operands[0] = _as_if_rounded(operands[0], rng)
            results = reference.evaluate_node(node, operands)
            if rng is not None and node.op.name not in _EXACT:
                results = [_moved(node, operands, r, v.dtype, rng)
                           for r, v in zip(results, node.outputs, strict=True)]  # fmt: skip
            values.update(zip(node.outputs, results, strict=True))
    after = {**states, **{n: values[v] for n, v in graph.assignments.items()}}
    return Run([values[v] for v in graph.outputs.values()], after)


def _moved(
    node: Any, operands: Sequence[Array], result: Array, dtype: DType, rng: np.random.Generator
) -> Array:
    op = node.op
    if not dtype.is_float or not result.size:
        return result
    wide = result.astype(np.float64)
    coarse, fine = _UNIT[dtype.name], _UNIT[dtype.accumulator.name]
    for operand in operands:  # integers are computed in float32; a cast rounds to either side
        if (known := str(operand.dtype)) in _UNIT and op.name == "cast":
            coarse = max(coarse, _UNIT[known])
    reach = _largest(wide)
    if op.name in ("scatter", "scatter_nd"):  # rounded at every update
        fine = coarse
    if op.name in _SUMMING:
        sizes = [_largest(a) for a in operands]
        reach += max(sizes, default=0.0) + math.prod(max(s, 1.0) for s in sizes)
        most = max((a.size for a in operands), default=0)
        reach *= max(1.0, most / result.size / 16)  # equal terms round the same way every time
    amount = 3 * coarse * np.abs(wide) + 16 * fine * max(reach, 1.0)
    if op.name == "attention" and coarse > fine:  # tensor cores take weights of 16 bits
        sizes_of_values = [*operands[:2], np.abs(operands[2]), *operands[3:]]
        amount = amount + coarse * reference.evaluate_node(node, sizes_of_values)[0]
    noise = amount * rng.uniform(-1, 1, wide.shape)
    if isinstance(op, Elementwise) and op.name not in _SUMMING:
        noise = np.where(wide == 0, 0, noise)
    else:  # what cancels may cancel exactly
        noise = np.where((np.abs(wide) <= amount) & (rng.random(wide.shape) < 0.5), -wide, noise)
    moved = np.where(np.isfinite(wide), wide + noise, wide)
    if op.name in ("prod", "cumprod"):  # may have overflowed on the way, which float64 did not
        top = float((ml_dtypes.finfo if dtype.name == "bfloat16" else np.finfo)(result.dtype).max)
        over = np.abs(wide) > top**0.8
        if op.name == "cumprod":  # what has overflowed stays so
            axis, order = node.attrs["axis"], slice(None, None, -1 if node.attrs["reverse"] else 1)
            reached = np.moveaxis(np.abs(wide), axis, 0)[order] > top / 2
            over |= np.moveaxis(np.logical_or.accumulate(reached, axis=0)[order], 0, axis)
        moved = np.where(over & (rng.random(wide.shape) < 0.5), np.inf, moved)
    return moved.astype(result.dtype)


def _as_if_rounded(array: Array, rng: np.random.Generator) -> Array:
    """Elements that are moved by up to 16 roundings, as sums of their products may be."""
    unit = _UNIT.get(str(array.dtype), 0.0)
    wide = array.astype(np.float64)
    return (wide + 16 * unit * np.abs(wide) * rng.uniform(-1, 1, wide.shape)).astype(array.dtype)


def _largest(array: Array) -> float:
    wide = np.abs(array.astype(np.float64))
    return float(np.max(wide, initial=0.0, where=np.isfinite(wide)))


class Judge:
    """A check of each output of each run. ``compared`` counts elements that it can judge."""

    def __init__(self, case: Case, seed: int) -> None:
        self.case = case
        self.compared = self.total = 0
        self._rng = np.random.default_rng(seed + 1)
        start = {n: v.node.attrs["init"] for n, v in case.graph.states.items()}
        self.expected = self._sequence(start, None)
        self._start = start
        self._samples = [self._sequence(start, self._rng) for _ in range(3)]

    def complaint(self, turn: int, position: int, actual: Array) -> str:
        """A description of the mismatch in an output of a run; empty if there is none."""
        truth = self.expected[turn].outputs[position]
        if actual.dtype != truth.dtype or actual.shape != truth.shape:
            return f"is {actual.dtype}{actual.shape}, expected {truth.dtype}{truth.shape}"
        wrong = self._wrong(turn, position, actual, truth)
        if wrong.any():  # it may be rare that rounding decides, and not be among few samples
            self._samples += [self._sequence(self._start, self._rng) for _ in range(60)]
            wrong = self._wrong(turn, position, actual, truth)
        if not wrong.any():
            return ""
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        count = f"{int(wrong.sum())} of {wrong.size} differ"
        return f"{count}, first at {at}: {actual[at]} for {truth[at]}"

    def _sequence(self, states: Mapping[str, Array], rng: np.random.Generator | None) -> list[Run]:
        runs: list[Run] = []
        for turn in range(len(self.case.inputs)):
            runs.append(perturbed(self.case, turn, states, rng))
            states = runs[-1].states
        return runs

    def _wrong(self, turn: int, position: int, actual: Array, truth: Array) -> Array:
        samples = [s[turn].outputs[position] for s in self._samples]
        self.total += truth.size
        if str(truth.dtype) not in _UNIT:
            stable = np.logical_and.reduce([s == truth for s in samples])
            self.compared += int(stable.sum())
            return np.asarray(stable & (actual != truth))
        wide, mine = truth.astype(np.float64), actual.astype(np.float64)
        spread = np.zeros(wide.shape)
        stable = np.ones(wide.shape, bool)
        with np.errstate(invalid="ignore"):
            for sample in samples:
                other = sample.astype(np.float64)
                same = (wide == other) | (np.isnan(wide) & np.isnan(other))
                finite = np.isfinite(wide) & np.isfinite(other)
                stable &= same | finite
                spread = np.maximum(spread, np.where(finite, np.abs(wide - other), 0))
            unit = _UNIT[str(truth.dtype)]
            allowed = 4 * spread + 4 * unit * np.abs(wide)
            close = np.abs(mine - wide) <= allowed
        equal = (mine == wide) | (np.isnan(mine) & np.isnan(wide))
        self.compared += int(stable.sum())
        return stable & ~np.where(np.isfinite(wide), close, equal)


# -- running ---------------------------------------------------------------------------------------

#: One optimisation at a time switched off, and narrower vectors.
_VARIANTS: tuple[dict[str, Any], ...] = (
    *({"disabled_passes": frozenset({name})} for name in sorted(OPTIONAL_PASSES)),
    {"elementwise_fusion": False},
    {"epilogue_fusion": False},
    {"rowwise_fusion": False},
    {"product_fusion": False},
    {"joint_weights": False},
    {"target": "avx2"},
    {"target": "sse2"},
)


def configurations(seed: int) -> list[tuple[int, ost.CompileOptions]]:
    """Threads and options: optimised, not optimised, and a variant that the seed picks."""
    variant = ost.CompileOptions(verify=True, **_VARIANTS[seed % len(_VARIANTS)])
    return [
        (2, ost.CompileOptions(verify=True)),
        (1, ost.CompileOptions(optimize=False, verify=True)),
        (1 + seed // len(_VARIANTS) % 2, variant),
    ]


def check(seed: int, ops: Sequence[str], sessions: Mapping[int, ost.Session]) -> tuple[int, int]:
    """Compile and run one random graph every way; the elements judged, and all of them.

    Raises:
        AssertionError: an output differs from the oracle's.
    """
    case = make_case(seed, ops)
    judge = Judge(case, seed)
    for threads, options in configurations(seed):
        at_once = seed % 2 == 0
        compiled = sessions[threads].compile(
            case.graph, case.params[0] if at_once else None, options=options
        )
        if not at_once:
            compiled.set_params(case.params[0])
        for turn, inputs in enumerate(case.inputs):
            if turn:
                compiled.set_params(case.params[turn])
            actual = compiled.run(inputs)
            for position, (name, array) in enumerate(zip(case.graph.outputs, actual, strict=True)):
                complaint = judge.complaint(turn, position, array)
                assert not complaint, (
                    f"seed {seed}, ops {list(ops)}, run {turn}, {name} {complaint}\n"
                    f"{threads} threads, {options}\n{case.graph}"
                )
    return judge.compared, judge.total


def random_ops(seed: int) -> list[str]:
    """The ops that the hunt applies for a seed."""
    rng = np.random.default_rng(seed ^ 0x5EED)
    fixed = sorted(RECIPES.keys() - DATA_SIZED)  # operands are drawn for sizes that are numbers
    pools = [fixed, fixed, sorted(MOTIFS)]
    listed = [pools[int(rng.integers(3))] for _ in range(int(rng.integers(1, 13)))]
    return [names[int(rng.integers(len(names)))] for names in listed]


#: A graph with a node that the device's capabilities exclude is replaced by that of a seed this
#: far on, and so forth, so many times.
_SPARE_SEEDS, _TRIES = 1_000_000, 8


def main(first: int, last: int, device: str = "cpu") -> int:
    """Hunt over seeds ``first..last - 1``; the number of those that failed."""
    sessions = {threads: open_session(device, threads=threads) for threads in (1, 2)}
    failed = refused = compared = total = 0
    for number in range(first, last):
        for seed in range(number, number + _TRIES * _SPARE_SEEDS, _SPARE_SEEDS):
            print(f"seed {seed}", flush=True)
            try:
                some, all_ = check(seed, random_ops(seed), sessions)
                compared, total = compared + some, total + all_
            except Exception as error:
                if isinstance(error, ost.UnsupportedOpError) and is_refusal(device, error):
                    refused += 1
                    print(f"refused {seed}", flush=True)
                    continue
                failed += 1
                print(f"FAILED {seed}\n{traceback.format_exc()}", flush=True)
            break
    counts = f"{last - first} graphs, {failed} failed, {refused} refused"
    print(f"done: {counts}, {compared / max(total, 1):.1%} judged")
    return failed


if __name__ == "__main__":
    sys.exit(1 if main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]) else 0)
