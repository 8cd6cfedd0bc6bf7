"""The compiled functions of a program's stages: one for each combination of sizes in use."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from ostinato.backends.array_api.evaluator import Evaluator
from ostinato.backends.common.mutex import Mutex
from ostinato.dtypes import INT64
from ostinato.plan.report import CompiledSizes
from ostinato.variables import evaluate

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from ostinato.backends.array_api.framework import ArrayFunction, Framework
    from ostinato.backends.array_api.stages import Stage
    from ostinato.ir.graph import Value

__all__ = ["StageFunctions"]


class _Key(NamedTuple):
    """A stage, the sizes that it is compiled for, and operands that it may overwrite."""

    stage: Stage
    sizes: tuple[int, ...]
    consumed: frozenset[Value] = frozenset()


class StageFunctions:
    """Compiled stages, shared by an executable and its clones.

    Args:
        framework: compiles them.
        capacity: the sizes that each stage is kept for; the least recently used are dropped.

    Attributes:
        framework: see above.
        compiled: how many functions were compiled so far.
        stored: how many were read from disk.
    """

    def __init__(self, framework: Framework, capacity: int) -> None:
        self.framework = framework
        self._capacity = capacity
        self._guard = Mutex()
        self._known: dict[_Key, ArrayFunction] = {}
        self._used: dict[_Key, int] = {}
        self._seconds: dict[_Key, float] = {}
        self._clock = itertools.count(1)
        self._latest: dict[Stage, _Key] = {}
        self._constants: dict[Value, Any] = {}
        self.compiled = 0
        self.stored = 0

    def get(
        self, stage: Stage, sizes: Mapping[str, int], consumed: Collection[Value] = ()
    ) -> ArrayFunction:
        """The function of a stage at these sizes, compiled if there is none.

        Args:
            stage: the stage.
            sizes: the values of Variables.
            consumed: operands that nothing reads afterwards, besides those that are donated anyway.

        Raises:
            UnsupportedOpError: the framework cannot compute a node.
            DeviceError: it refused the whole.
        """
        key = _Key(stage, tuple([sizes[name] for name in stage.sizes]), frozenset(consumed))
        function = self._known.get(key)
        if function is None:
            with self._guard:
                function = self._known.get(key)
                if function is None:
                    function = self._compile(key, sizes)
        if stage.sizes:
            self._used[key] = next(self._clock)
        return function

    def latest(self, stage: Stage) -> ArrayFunction | None:
        """The function that was compiled last for a stage, if any was."""
        key = self._latest.get(stage)
        return None if key is None else self._known.get(key)

    def constant(self, value: Value) -> Any:
        """The array of a large constant of a nested graph."""
        array = self._constants.get(value)
        if array is None:
            elements = value.node.attrs["array"]
            array = self._constants[value] = self.framework.from_host(elements.copy(), copy=True)
        return array

    @property
    def compiled_sizes(self) -> tuple[CompiledSizes, ...]:
        """The sizes that stages are compiled for, the least recently used first."""
        return tuple(
            CompiledSizes(
                ", ".join(f"{n} = {v}" for n, v in zip(key.stage.sizes, key.sizes, strict=True)),
                self._seconds[key],
                int(not self._known[key].stored),
                int(self._known[key].stored),
            )
            for key in sorted(self._known, key=lambda key: self._used.get(key, 0))
            if key.stage.sizes
        )

    def _compile(self, key: _Key, sizes: Mapping[str, int]) -> ArrayFunction:
        start = time.perf_counter()
        stage, framework = key.stage, self.framework

        def shape(value: Value) -> tuple[int, ...]:
            return tuple([evaluate(dim, sizes) for dim in value.shape])

        operands = [(value.dtype, shape(value)) for value in stage.operands]
        operands += [(INT64, ())] * len(stage.numbers)
        substituted = [(layer.node, at) for layer in stage.resident for at in layer.positions]
        for layer in stage.resident:
            operands.append((INT64, shape(layer.ids)))
            operands += [(v.dtype, (layer.places, *shape(v)[1:])) for v in layer.matrices]

        def traced(*arrays: Any) -> Sequence[Any]:
            named = (*stage.operands, *stage.numbers)
            instead = dict(zip(substituted, arrays[len(named) :], strict=True))
            evaluator = Evaluator(framework.xp, framework.rules, sizes, instead)
            given = dict(zip(named, arrays, strict=False))
            values = dict(given)
            evaluator.nodes(stage.nodes, values, stage.results)
            results = [evaluator.value(value, values) for value in stage.results]
            return [
                framework.xp.copied(array) if value in given else array
                for value, array in zip(stage.results, results, strict=True)
            ]

        with framework.scope():
            function = framework.compile(traced, operands, self._donated(key, shape))
        self._make_room(stage)
        self._seconds[key] = time.perf_counter() - start
        self._known[key] = function
        self._latest[stage] = key
        self.compiled += not function.stored
        self.stored += function.stored
        return function

    def _donated(self, key: _Key, shape: Callable[[Value], tuple[int, ...]]) -> list[int]:
        """The positions of operands whose memory a result can take, being as large."""
        room = [(value.dtype, shape(value)) for value in key.stage.results]
        found = []
        for position, value in enumerate(key.stage.operands):
            taken = (value.dtype, shape(value))
            if (value in key.stage.donated or value in key.consumed) and taken in room:
                room.remove(taken)
                found.append(position)
        return found

    def _make_room(self, stage: Stage) -> None:
        """Drop the sizes of a stage that were not used for longest."""
        keys = sorted(
            (k for k in self._known if k.stage is stage), key=lambda k: self._used.get(k, 0)
        )
        for key in keys[: max(len(keys) + 1 - self._capacity, 0)]:
            del self._known[key], self._seconds[key]
            self._used.pop(key, None)
