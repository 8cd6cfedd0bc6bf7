"""The methods of control flow, which graphs alone have: their operands are functions.

A function is called once, with an empty nested graph and values of it, and builds what is to run by
the methods of that graph. It may use values of the graph around: they are captured.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from ostinato.dtypes import BOOL, INT64
from ostinato.errors import GraphError
from ostinato.ir.graph import Value
from ostinato.ir.types import TensorType
from ostinato.lazy import LazyModule
from ostinato.ops.base import normalize_axis
from ostinato.ops.vocabulary.ranges import as_dim
from ostinato.variables import Expr

if TYPE_CHECKING:
    from ostinato.ir.graph import BaseGraph
    from ostinato.ir.op import Attr
    from ostinato.ops import control
    from ostinato.variables import Dim
else:
    control = LazyModule("ostinato.ops.control")

__all__ = ["ControlVocabulary", "Nested"]

_Attrs: TypeAlias = "dict[str, Attr]"

#: Builds a nested graph: takes it and its arguments, and gives its results.
Build: TypeAlias = Callable[..., "Value | Sequence[Value]"]


class Nested(ABC):
    """A nested graph under construction."""

    @property
    @abstractmethod
    def captured(self) -> Sequence[Value]:
        """The values of the graph around that it uses."""

    @property
    @abstractmethod
    def arguments(self) -> Sequence[Value]:
        """The arguments, in order."""

    @abstractmethod
    def argument(self, name: str, type_: TensorType) -> Value:
        """A further argument."""

    @abstractmethod
    def local(self, value: Any) -> Value:
        """``value`` as a value of the nested graph: one of the graph around is captured.

        Raises:
            GraphError: it is a value of another graph, or none.
        """

    @abstractmethod
    def closed(self, results: Sequence[Value], captured: Sequence[Value]) -> BaseGraph:
        """The finished graph: inputs are the arguments, then the captured values in this order."""


class ControlVocabulary(ABC):
    """Methods that run nested graphs; they raise :class:`~ostinato.errors.GraphError`."""

    @abstractmethod
    def nest(self, name: str) -> Any:
        """An empty nested graph: a graph that is also :class:`Nested`."""

    def cond(self, condition: Any, then: Build, otherwise: Build) -> tuple[Value, ...]:
        """The results of ``then(graph)`` where a bool scalar holds, else of ``otherwise(graph)``.

        Only one of the two graphs is run. Both give results of the same types.

        >>> (y,) = g.cond(g.sum(x) > 0, lambda t: t.exp(x), lambda t: t.neg(x))
        """
        branches = [self.nest("then"), self.nest("else")]
        results = [
            _built(branch, build, ())
            for branch, build in zip(branches, (then, otherwise), strict=True)
        ]
        return self.join(condition, branches, results)

    def join(
        self, condition: Any, branches: Sequence[Nested], results: Sequence[Sequence[Value]]
    ) -> tuple[Value, ...]:
        """A :meth:`cond` of nested graphs that are built already.

        Args:
            condition: a bool scalar.
            branches: two graphs made by :meth:`nest`.
            results: of each.
        """
        (flag,) = self._values([condition], BOOL)
        captured = list(dict.fromkeys(v for branch in branches for v in branch.captured))
        graphs = [b.closed(r, captured) for b, r in zip(branches, results, strict=True)]
        attrs = {"then_graph": graphs[0], "else_graph": graphs[1]}
        return self._apply(control.COND, [flag, *captured], attrs)

    def while_loop(
        self,
        body: Build,
        carried: Sequence[Any] = (),
        *,
        trips: Dim | Value | None = None,
        condition: Any = None,
        bound: Dim | None = None,
    ) -> tuple[Value, ...]:
        """Run ``body`` again and again on the values that it gave the time before.

        ``body(graph, iteration, *carried)`` gives, if there is a ``condition``, whether to go on;
        then the next carried values; then parts of results, which are stacked along a new first
        axis: as many as there are iterations in a run.

        >>> (y,) = g.while_loop(lambda b, i, y: b.multiply(y, 2.0), [x], trips=3)

        Args:
            body: builds the body.
            carried: the first values that it takes.
            trips: the number of iterations, or the most of them: a size, or an int64 scalar.
            condition: whether to begin, a bool scalar; ``None``: for as many ``trips``.
            bound: of a loop with stacked results whose ``trips`` are no size, the most iterations:
                a run with more raises ``VariableError``.

        Returns:
            The last carried values, then the stacked results.
        """
        first = self._values(carried)
        nested, arguments = self.begin_loop(first)
        results = _built(nested, body, arguments)
        return self.end_loop(nested, results, first, trips=trips, condition=condition, bound=bound)

    def scan(
        self,
        body: Build,
        carried: Sequence[Any],
        scanned: Sequence[Any],
        *,
        axes: Sequence[int] | None = None,
        reverse: Sequence[bool] | None = None,
        result_axes: Sequence[int] | None = None,
        result_reverse: Sequence[bool] | None = None,
    ) -> tuple[Value, ...]:
        """Run ``body`` for each part of tensors along an axis.

        ``body(graph, *carried, *parts)`` gives the next carried values, then parts of results.

        Args:
            body: builds the body.
            carried: the first values that it takes.
            scanned: the tensors, at least one.
            axes: the axis of each of them, by default the first.
            reverse: of each, whether its last part comes first.
            result_axes: the axis along which parts of each result are stacked.
            result_reverse: of each result, whether its last part is that of the first iteration.

        Returns:
            The last carried values, then the stacked results.
        """
        first = self._values(carried)
        moved = self._moved(self._values(scanned), axes)
        if not moved:
            raise GraphError("a scan takes at least one tensor to scan")
        backwards = _flags("reverse", reverse, len(moved))

        nested, (_, *arguments) = self.begin_loop(first, moved)
        results = self.end_loop(
            nested,
            _built(nested, body, arguments),
            first,
            moved,
            trips=moved[0].shape[0],
            backwards=backwards,
            result_backwards=result_reverse,
        )
        stacked = results[len(first) :]
        places = result_axes or (0,) * len(stacked)
        if len(places) != len(stacked):
            raise GraphError(f"result_axes is {tuple(places)}, expected {len(stacked)} axes")
        restored = (
            value
            if not (axis := normalize_axis(place, value.ndim))
            else value.graph.moveaxis(value, 0, axis)  # type: ignore[attr-defined]
            for value, place in zip(stacked, places, strict=True)
        )
        return (*results[: len(first)], *restored)

    def _moved(self, values: Sequence[Value], axes: Sequence[int] | None) -> list[Value]:
        """The values with the given axis first."""
        axes = axes or (0,) * len(values)
        if len(axes) != len(values):
            raise GraphError(f"axes is {tuple(axes)}, expected {len(values)} axes")
        return [
            value
            if not (axis := normalize_axis(place, value.ndim))
            else value.graph.moveaxis(value, axis, 0)  # type: ignore[attr-defined]
            for value, place in zip(values, axes, strict=True)
        ]

    def begin_loop(
        self, carried: Sequence[Value], scanned: Sequence[Value] = ()
    ) -> tuple[Any, list[Value]]:
        """The body of a loop, to be built, and its arguments: the iteration, then the values.

        Args:
            carried: the first values that the body takes.
            scanned: what each iteration takes its part of, along the first axis.
        """
        body = self.nest("body")
        arguments = [body.argument("iteration", TensorType(INT64, ()))]
        arguments += [body.argument(f"carried_{i}", v.type) for i, v in enumerate(carried)]
        arguments += [
            body.argument(f"part_{i}", TensorType(v.dtype, v.shape[1:]))
            for i, v in enumerate(scanned)
        ]
        return body, arguments

    def end_loop(
        self,
        body: Nested,
        results: Sequence[Value],
        carried: Sequence[Value],
        scanned: Sequence[Value] = (),
        *,
        trips: Dim | Value | None,
        condition: Any = None,
        bound: Dim | None = None,
        backwards: Sequence[bool] = (),
        result_backwards: Sequence[bool] | None = None,
    ) -> tuple[Value, ...]:
        """The results of the loop whose body :meth:`begin_loop` began.

        Args:
            body, carried, scanned: of that call.
            results: of the body.
            trips, condition, bound: see :meth:`while_loop`.
            backwards, result_backwards: ``reverse`` and ``result_reverse`` of :meth:`scan`.
        """
        counted = trips is not None and not isinstance(trips, int | Expr)
        count = self._values([trips], INT64) if counted else []
        flag = [] if condition is None else self._values([condition], BOOL)
        stacked = max(len(results) - len(flag) - len(carried), 0)
        directions = (*backwards, *_flags("result_reverse", result_backwards, stacked))
        attrs: dict[str, Attr] = {
            "carried": len(carried),
            "scanned": len(scanned),
            "trips": None if counted else trips,
            "counted": counted,
            "conditional": bool(flag),
            "backwards": directions,
        }
        if stacked and (counted or flag):
            return self._counted_loop(body, results, [*count, *flag], carried, attrs, bound)
        return self._loop(body, results, [*count, *flag, *carried, *scanned], attrs)

    def _loop(
        self, body: Nested, results: Sequence[Value], operands: Sequence[Value], attrs: _Attrs
    ) -> tuple[Value, ...]:
        captured = body.captured
        attrs = {"body": body.closed(results, captured), **attrs}
        return self._apply(control.LOOP, [*operands, *captured], attrs)

    def _counted_loop(
        self,
        body: Nested,
        results: Sequence[Value],
        head: Sequence[Value],
        carried: Sequence[Value],
        attrs: _Attrs,
        bound: Dim | None,
    ) -> tuple[Value, ...]:
        """The results of a loop that counts its iterations, and stacks as many parts of results.

        There is room for the most iterations, and, where a run may not have more, for one beyond:
        a run that comes to it is refused.
        """
        trips: Any = attrs["trips"]
        if trips is None and bound is None:
            raise GraphError(
                "stacked results of a loop whose trips are no size need bound=, the most iterations"
            )
        most: Dim = as_dim(bound, "a bound") if trips is None else trips
        room = most + 1 if trips is None else most
        body.argument("count", TensorType(INT64, ()))
        made = body.add(body.arguments[0], 1)  # type: ignore[attr-defined]
        first = attrs["conditional"] + len(carried)
        given = self._loop(
            body,
            [*results[:first], made, *results[first:]],
            [*head, *carried, *self._values([0], INT64)],
            {**attrs, "carried": len(carried) + 1, "trips": room},
        )
        last, count, stacked = given[: len(carried)], given[len(carried)], given[len(carried) + 1 :]
        size = self.size_from(count, most)  # type: ignore[attr-defined]
        return (*last, *(self.slice(part, [0], [size], axes=[0]) for part in stacked))  # type: ignore[attr-defined]

    def _apply(
        self, op: control.ControlFlow, operands: Sequence[Value], attrs: dict[str, Attr]
    ) -> tuple[Value, ...]:
        return self.apply(op, operands, attrs)  # type: ignore[attr-defined,no-any-return]

    def _values(self, given: Sequence[Any], dtype: Any = None) -> list[Value]:
        """``given`` as values of the graph; arrays and scalars become constants."""
        lift = self.constant  # type: ignore[attr-defined]
        return [v if isinstance(v, Value) else lift(v, dtype) for v in given]


def _built(graph: Any, build: Build, arguments: Sequence[Value]) -> list[Value]:
    """The results of ``build`` as values of the nested graph."""
    results = build(graph, *arguments)
    listed = [results] if isinstance(results, Value) else results
    return [graph.local(value) for value in listed]


def _flags(what: str, given: Sequence[bool] | None, count: int) -> tuple[bool, ...]:
    if given is None:
        return (False,) * count
    if len(given) != count:
        raise GraphError(f"{what} is {tuple(given)}, expected {count} bools")
    return tuple(map(bool, given))
