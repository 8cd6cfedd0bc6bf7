"""Choosing the tile sizes of matmuls by measurement.

Each matmul of a graph is measured on its own: a small graph of several like it, so that weights are
as cold as in a network, is compiled for every candidate; then the candidates run alternately. The
heuristic keeps its choice unless another is clearly faster.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.backends.cpu.capabilities import lowering_options
from ostinato.backends.cpu.rules.packed_matmul import OrderedMatmul, PackedMatmul
from ostinato.backends.cpu.rules.tiles import TileSizes, tile_choices
from ostinato.backends.cpu.work_items import work_items
from ostinato.cache.fingerprint import object_key
from ostinato.cache.objects import process_cache
from ostinato.ir.leaves import CONSTANT, PARAM
from ostinato.lower.loopir.views import VIEWS
from ostinato.ops.builder import Graph
from ostinato.records import dataclass, replace

if TYPE_CHECKING:
    from collections.abc import Callable

    from ostinato.backends.base import Executable
    from ostinato.backends.cpu.llvm.toolchain import TargetSpec
    from ostinato.backends.cpu.rules.table import CpuLowering
    from ostinato.backends.cpu.rules.tiles import RegisterFile
    from ostinato.backends.options import CompileOptions
    from ostinato.ir.graph import Value
    from ostinato.lower.rules.matmul_spec import MatmulSpec

    Build = Callable[[Graph, CpuLowering], Executable]

__all__ = ["Tuner"]

Array = np.ndarray[Any, Any]

#: Tiles that are measured, the heuristic's first.
_MOST_TILES = 6

#: Other tile sizes are taken if they need less than this share of the time of the heuristic's.
_CLEARLY_FASTER = 0.97

#: Weights of the matmuls that are measured together: more than second-level caches hold.
_WEIGHT_BYTES = 12 << 20
_MOST_PRODUCTS = 12

#: Seconds that each candidate runs, and the least number of rounds.
_SECONDS, _REPEATS = 0.04, 5


class _OutOfTime(Exception):
    """The time limit of measurements is exceeded."""


@dataclass(frozen=True)
class _Measured:
    """Tile sizes with their compiled code, and the outputs of its last call."""

    sizes: TileSizes
    call: Callable[[], None]
    outputs: list[Array]

    def agrees(self, other: _Measured) -> bool:
        """Whether both gave the same bits."""
        pairs = zip(self.outputs, other.outputs, strict=True)
        return all(mine.tobytes() == theirs.tobytes() for mine, theirs in pairs)

    def seconds(self) -> float:
        """The seconds that a call takes."""
        start = time.perf_counter()
        self.call()
        return time.perf_counter() - start


class Tuner:
    """Selects the tile sizes of the matmuls of one compile.

    Args:
        build: compiles a graph under options of lowering.
        options: of the compile.
        target: the processor.
        threads: number of threads that run a graph.
    """

    def __init__(
        self, build: Build, options: CompileOptions, target: TargetSpec, threads: int
    ) -> None:
        self._build = build
        # One matmul is measured; the others of the graph only keep its weights cold.
        self._options = replace(options, product_fusion=False)
        self._target = target
        self._threads = threads
        self._deadline = time.monotonic() + options.tune_seconds
        self._lowering = lowering_options(options, target, items=work_items(threads))

    def __call__(self, matmul: PackedMatmul) -> TileSizes | None:
        """The fastest tile sizes of a matmul; ``None``: those of the heuristic."""
        product = matmul.spec
        if type(matmul) is not OrderedMatmul or not _is_measurable(product):
            return None
        m, n, (k,) = product.m, product.n, product.k
        narrow = sorted(d.name for d in self._lowering.registers.narrow)
        prefetch = self._lowering.registers.prefetch
        text = f"tiles of {m}x{k}x{n} {product.a.dtype} {product.b.dtype} {product.acc} {narrow}"
        text = f"{text} prefetch {prefetch}"
        key = object_key(f"{text} on {self._threads} threads", self._target.identity)
        try:
            found = json.loads(process_cache().get_or_build(key, lambda: self._search(product)))
        except _OutOfTime:
            return None
        return TileSizes(tuple(found["tile"]), found["item_rows"], found["prefetch"])

    def _search(self, product: MatmulSpec) -> bytes:
        """The best tile sizes, as they are kept."""
        first, *others = _tiles(product, self._lowering.registers)
        best = self._fastest(product, [TileSizes(first), *map(TileSizes, others)])
        best = self._fastest(product, [best, *self._items(product, best)])
        if self._lowering.registers.prefetches:
            both = [replace(best, prefetch=on) for on in (True, False)]
            best = self._fastest(product, [best, *both])
        found = {"tile": best.tile, "item_rows": best.item_rows, "prefetch": best.prefetch}
        return json.dumps(found).encode()

    def _items(self, product: MatmulSpec, sizes: TileSizes) -> list[TileSizes]:
        """Other sizes of work items for a tile: all rows, fewer, more."""
        rows = sizes.tile[0]
        tiles = -(-int(product.m) // rows)  # type: ignore[arg-type]  # no Expr: it is measurable
        counts = {tiles, -(-tiles // 2), -(-tiles // 4), -(-tiles // 8)}
        return [TileSizes(sizes.tile, rows * count) for count in sorted(counts)]

    def _fastest(self, product: MatmulSpec, choices: list[TileSizes]) -> TileSizes:
        """The first tile sizes, or those that are clearly faster and give the same bits."""
        measured = [self._prepared(product, sizes) for sizes in choices]
        for one in measured:
            one.call()
        same = [one for one in measured if one.agrees(measured[0])]
        times = [min(one.seconds() for _ in range(2)) for one in same]
        for _ in range(max(_REPEATS, int(_SECONDS / max(times)))):
            self._check_time()
            times = [min(t, one.seconds()) for t, one in zip(times, same, strict=True)]
        best = min(range(len(same)), key=times.__getitem__)
        return same[best].sizes if times[best] < _CLEARLY_FASTER * times[0] else choices[0]

    def _prepared(self, product: MatmulSpec, sizes: TileSizes) -> _Measured:
        """A call of several products like this one, with these tile sizes."""
        self._check_time()
        graph = _graph(product)
        items = self._lowering.registers.items
        options = lowering_options(self._options, self._target, lambda _: sizes, items=items)
        executable = self._build(graph, options)
        (x,), results = graph.inputs.values(), graph.outputs.values()
        outputs = [np.empty(_sizes(y), y.dtype.numpy) for y in results]
        return _Measured(sizes, executable.bind([_numbers(x)], outputs, ()), outputs)

    def _check_time(self) -> None:
        if time.monotonic() > self._deadline:
            raise _OutOfTime


def _is_measurable(product: MatmulSpec) -> bool:
    """Whether it is a matrix product of known size with a weight."""
    sizes = (product.m, product.n, *product.k)
    return (
        product.node.op.name == "matmul"
        and not product.batch
        and all(isinstance(size, int) and size > 1 for size in sizes)
        and _is_weight(product.b)
    )


def _is_weight(value: Value) -> bool:
    while value.node.op.name in VIEWS:
        value = value.node.inputs[0]
    return value.node.op in (PARAM, CONSTANT)


def _tiles(product: MatmulSpec, registers: RegisterFile) -> list[tuple[int, int]]:
    """Candidates, all of which sum up in one order."""
    sizes, chains = (product.m, product.n), OrderedMatmul(product).chains(registers)
    acc = product.acc
    choices = tile_choices(registers.vector_bytes, registers.count, acc, *sizes, chains=chains)
    return choices[:_MOST_TILES]


def _graph(product: MatmulSpec) -> Graph:
    """Several products of this one's operand types, with weights of their own."""
    a, b = product.node.inputs
    count = max(1, min(_MOST_PRODUCTS, _WEIGHT_BYTES // max(1, b.type.max_bytes)))
    g = Graph("tuning")
    x, value = g.input("x", a.shape, a.dtype), _numbers(b)
    weights = [g.param(f"w{i}", b.shape, b.dtype, value=value) for i in range(count)]
    g.set_outputs([g.matmul(x, w) for w in weights])
    return g


def _numbers(value: Value) -> Array:
    """Small numbers of a value's type, always the same."""
    numbers = np.random.default_rng(0).integers(-40, 40, _sizes(value))
    scale = 0.03 if value.dtype.is_float else 1
    return (numbers * scale).astype(value.dtype.numpy)


def _sizes(value: Value) -> tuple[int, ...]:
    return tuple(int(dim) for dim in value.shape)  # type: ignore[arg-type]  # never symbolic here
